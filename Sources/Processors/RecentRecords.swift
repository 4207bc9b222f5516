internal import Bytes
internal import Schemas

/// What pairs of accounts did lately, in memory: a few lanes a pair, the last record of each, until it
/// is older than its life.
///
/// Records stand in the order of the log in segments of bytes, which go as a whole, and an index of 4
/// bytes finds them by pair. A record costs 39 bytes, its payload, and 5 to 8 for the index.
///
/// Everything in here follows from the records of the log from `firstOffset` on: a restart applies
/// them again instead of loading a copy of it all. Time is the receipt stamps' own (`StampClock`), so
/// that a front-end whose clock is wrong cannot end the others' records.
struct RecentRecords: Sendable {
    /// Lanes of a pair; what they mean is the caller's.
    static let lanes = 4
    /// Largest payload. Unit: bytes.
    static let maximumPayload = 1 << 14 - 1
    /// How much later than its life a record goes: stamps of front-ends are not in order.
    private static let grace: Int64 = 60_000
    /// Segments at once; then the oldest goes before its time. With segments of 64 KiB, 4 GiB.
    private static let maximumSegments = 1 << 16
    private static let none = UInt32.max
    private static let headBytes = 38

    private struct Segment: Sendable {
        var bytes = ByteBuffer()
        /// Of its first record.
        var firstOffset: Int64
        /// The clock before its first record.
        var clock: StampClock
        /// When its last record came: as the clock says once it has seen what came next.
        var newest: Int64
        /// The number of its last record.
        var lastRecord: Int64
    }

    /// From some offset on, how long records live.
    struct Life: Hashable, Sendable {
        var from: Int64
        /// Unit: milliseconds.
        var length: Int64
    }

    /// Where the last records of a pair stand, by lane.
    struct Found: Sendable {
        fileprivate var references = InlineArray<4, UInt32>(repeating: RecentRecords.none)

        func has(_ lane: Int) -> Bool { references[lane] != RecentRecords.none }
    }

    private let segmentBytes: Int
    private var segments: ContiguousArray<Segment> = []
    /// The number of `segments[0]`, modulo 2^16.
    private var firstNumber = 0
    /// Segment number (16 bits) and place in it (16 bits). At most four fifths full.
    private var index = ContiguousArray<UInt32>(repeating: Self.none, count: 64)
    /// Records that the index finds.
    private(set) var count = 0
    private var clock = StampClock()
    private var clockBefore = StampClock()
    /// Records since the start.
    private var records: Int64 = 0
    private var nextOffset: Int64 = 0
    /// Oldest first; the last is in force.
    private var lives: [Life]

    /// - Parameters:
    ///   - life: how long a record counts. Unit: milliseconds.
    ///   - segmentBytes: at most 65,536.
    init(life: Int64, segmentBytes: Int) {
        precondition(segmentBytes > 0 && segmentBytes <= 1 << 16)
        self.segmentBytes = segmentBytes
        lives = [Life(from: .min, length: life)]
    }

    /// Bytes of memory that all of it takes.
    var memoryBytes: Int {
        segments.count * (max(segmentBytes, 1) + 32 + MemoryLayout<Segment>.stride)
            + index.capacity * MemoryLayout<UInt32>.stride
    }

    // MARK: - Time

    /// How long a record counts, as of the last one.
    private(set) var life: Int64 = 0

    /// Another life from the next record on.
    mutating func setLife(_ length: Int64) {
        guard length != lives[lives.count - 1].length else { return }
        while lives.count > 1, lives[1].from <= firstOffset { lives.removeFirst() }
        lives.append(Life(from: nextOffset, length: length))
    }

    /// The record at `offset` is read: moves the clock and forgets what is over.
    mutating func begin(at offset: Int64, stamp: Int64) {
        nextOffset = offset + 1
        for known in lives where known.from <= offset { life = known.length }
        records += 1
        clockBefore = clock
        clock.see(stamp)
        // After hours without a record the clock is behind the newest ones, and they are not old when
        // it catches up.
        var segment = segments.count - 1
        while segment >= 0, records - segments[segment].lastRecord <= StampClock.memory {
            segments[segment].newest = clock.now
            segment -= 1
        }
        while let oldest = segments.first, clock.now - oldest.newest > life + Self.grace {
            forgetOldest()
        }
    }

    /// Whether two things were within a life of each other.
    func isWithinLife(_ a: Int64, _ b: Int64) -> Bool {
        a > b ? a - b < life : b - a < life
    }

    /// The first offset whose record is still in here, or else the next one.
    var firstOffset: Int64 { segments.first?.firstOffset ?? nextOffset }

    private mutating func forgetOldest() {
        var place = 0
        while place < segments[0].bytes.count {
            let size = recordBytes(0, place)
            if segments[0].bytes[place] & Self.dead == 0 {
                let reference = UInt32(firstNumber << 16 | place)
                emptyIndex(at: indexPlace(of: reference, in: pair(0, place)))
            }
            place += size
        }
        segments.removeFirst()
        firstNumber = (firstNumber + 1) & (Self.maximumSegments - 1)
    }

    // MARK: - Records

    // Layout: lane (2 bits), dead (1 bit), tag (3 bits); 40 bits of time since `epoch`; the pair's ids
    // (32 bytes); the payload's size (7 or 15 bits); the payload.
    private static let dead: UInt8 = 4
    private static let epoch: Int64 = 1_577_836_800_000  // 2020-01-01T00:00:00Z
    private static let latest: Int64 = 1 << 40 - 1

    /// The last records of a pair.
    func find(_ pair: AccountPair) -> Found {
        var found = Found()
        var place = home(of: pair)
        while index[place] != Self.none {
            let reference = index[place]
            let (segment, start) = self.place(of: reference)
            if isRecord(segment, start, of: pair) {
                found.references[Int(segments[segment].bytes[start] & 3)] = reference
            }
            place = place + 1 == index.count ? 0 : place + 1
        }
        return found
    }

    /// Receipt stamp of a lane's record. Unit: milliseconds since 1970; from 2020 to 2054.
    func time(_ lane: Int, of found: Found) -> Int64 {
        let (segment, start) = place(of: found.references[lane])
        let record = segments[segment].bytes
        let word = record.span.littleEndianWord(at: start)
        return Self.epoch + Int64(word >> 8 & UInt64(Self.latest))
    }

    /// Appends a lane's payload.
    /// - Returns: the tag that was kept with it.
    func append(_ lane: Int, of found: Found, to bytes: inout ByteBuffer) -> UInt8 {
        let (segment, start) = place(of: found.references[lane])
        let (payload, size) = payload(segment, start)
        let source = segments[segment].bytes
        bytes.append(source.span.extracting(payload..<(payload + size)))
        return source[start] >> 3 & 7
    }

    /// Keeps a record of a pair in place of the lane's last one.
    /// - Parameters:
    ///   - found: what `find` says of the pair; nothing was put or removed since.
    ///   - tag: 0 to 7.
    mutating func put(
        _ lane: Int, of pair: AccountPair, _ found: Found, stamp: Int64, tag: UInt8,
        _ payload: ByteBuffer
    ) {
        precondition(payload.count <= Self.maximumPayload, "a payload too large to keep")
        let size = Self.headBytes + (payload.count < 128 ? 1 : 2) + payload.count
        let old = found.references[lane]
        if old != Self.none {
            let (segment, start) = place(of: old)
            // What is repeated at once takes no more room.
            if segment == segments.count - 1, recordBytes(segment, start) == size {
                segments[segment].newest = clock.now
                segments[segment].lastRecord = records
                overwrite(segment, start, lane, stamp, tag, payload)
                return
            }
            segments[segment].bytes[start] |= Self.dead
        }
        if (segments.last?.bytes.count ?? segmentBytes) + size > segmentBytes {
            if segments.count == Self.maximumSegments {
                forgetOldest()
            }
            var segment = Segment(
                firstOffset: nextOffset - 1, clock: clockBefore, newest: clock.now,
                lastRecord: records)
            segment.bytes.reserveCapacity(max(segmentBytes, size))
            segments.append(segment)
        }
        let segment = segments.count - 1
        let start = segments[segment].bytes.count
        segments[segment].newest = clock.now
        segments[segment].lastRecord = records
        segments[segment].bytes.append(head: Self.head(lane, stamp, tag))
        segments[segment].bytes.append(pair)
        segments[segment].bytes.append(sized: payload)
        let reference = UInt32(((firstNumber + segment) & 0xFFFF) << 16 | start)
        // The old one may have gone with the oldest segment.
        if old != Self.none, let entry = indexPlace(ofKnown: old, in: pair) {
            index[entry] = reference
        } else {
            insert(reference, of: pair)
        }
    }

    /// Forgets a lane's record.
    /// - Returns: what is found of the pair now.
    mutating func remove(_ lane: Int, of pair: AccountPair, _ found: Found) -> Found {
        let reference = found.references[lane]
        guard reference != Self.none else { return found }
        let (segment, start) = place(of: reference)
        segments[segment].bytes[start] |= Self.dead
        emptyIndex(at: indexPlace(of: reference, in: pair))
        var rest = found
        rest.references[lane] = Self.none
        return rest
    }

    private mutating func overwrite(
        _ segment: Int, _ start: Int, _ lane: Int, _ stamp: Int64, _ tag: UInt8,
        _ payload: ByteBuffer
    ) {
        var word = Self.head(lane, stamp, tag)
        for step in 0..<6 {
            segments[segment].bytes[start + step] = UInt8(truncatingIfNeeded: word)
            word >>= 8
        }
        let (place, _) = self.payload(segment, start)
        for step in 0..<payload.count {
            segments[segment].bytes[place + step] = payload[step]
        }
    }

    /// Six bytes.
    private static func head(_ lane: Int, _ stamp: Int64, _ tag: UInt8) -> UInt64 {
        let time = UInt64(min(max(0, stamp - epoch), latest))
        return UInt64(lane) | UInt64(tag) << 3 | time << 8
    }

    private func place(of reference: UInt32) -> (segment: Int, start: Int) {
        ((Int(reference >> 16) - firstNumber) & (Self.maximumSegments - 1), Int(reference & 0xFFFF))
    }

    private func isRecord(_ segment: Int, _ start: Int, of pair: AccountPair) -> Bool {
        let record = segments[segment].bytes
        let bytes = record.span
        return bytes.littleEndianWord(at: start + 6) == pair.first.high
            && bytes.littleEndianWord(at: start + 14) == pair.first.low
            && bytes.littleEndianWord(at: start + 22) == pair.second.high
            && bytes.littleEndianWord(at: start + 30) == pair.second.low
    }

    private func pair(_ segment: Int, _ start: Int) -> AccountPair {
        let record = segments[segment].bytes
        let bytes = record.span
        let first = AccountID(
            high: bytes.littleEndianWord(at: start + 6), low: bytes.littleEndianWord(at: start + 14)
        )
        let second = AccountID(
            high: bytes.littleEndianWord(at: start + 22),
            low: bytes.littleEndianWord(at: start + 30))
        guard let pair = AccountPair(first, second) else {
            preconditionFailure("a record of one account")
        }
        return pair
    }

    private func payload(_ segment: Int, _ start: Int) -> (start: Int, size: Int) {
        let first = Int(segments[segment].bytes[start + Self.headBytes])
        if first < 128 { return (start + Self.headBytes + 1, first) }
        let second = Int(segments[segment].bytes[start + Self.headBytes + 1])
        return (start + Self.headBytes + 2, (first & 127) << 8 | second)
    }

    private func recordBytes(_ segment: Int, _ start: Int) -> Int {
        let (payload, size) = payload(segment, start)
        return payload + size - start
    }

    // MARK: - The index

    // Ids are random and of our own making, so a fixed mix is enough; it also keeps the order of
    // everything the same in every process.
    private func home(of pair: AccountPair) -> Int {
        let a = (pair.first.high ^ 0x9E37_79B9_7F4A_7C15).multipliedFullWidth(
            by: pair.first.low ^ 0xD6E8_FEB8_6659_FD93)
        let b = (pair.second.high ^ 0xA076_1D64_78BD_642F).multipliedFullWidth(
            by: pair.second.low ^ 0xE703_7ED1_A0B4_28DB)
        var mixed = (a.high ^ a.low) &* 0x8EBC_6AF0_9C88_C6E3 &+ (b.high ^ b.low)
        mixed ^= mixed >> 32
        mixed = mixed &* 0x5896_59CC_CBB4_A2B1
        mixed ^= mixed >> 29
        return Int(mixed.multipliedFullWidth(by: UInt64(index.count)).high)
    }

    private mutating func insert(_ reference: UInt32, of pair: AccountPair) {
        if (count + 1) * 5 > index.count * 4 {
            grow()  // takes the new record in with the others
            return
        }
        enter(reference, at: home(of: pair))
        count += 1
    }

    private mutating func enter(_ reference: UInt32, at home: Int) {
        var place = home
        while index[place] != Self.none { place = place + 1 == index.count ? 0 : place + 1 }
        index[place] = reference
    }

    /// Makes the index half as large again, from the records themselves, in their order in memory.
    private mutating func grow() {
        let size = index.count + index.count / 2
        // Given back first: both at once would be the peak of all memory.
        index = []
        index = ContiguousArray(repeating: Self.none, count: size)
        count = 0
        for segment in segments.indices {
            var start = 0
            while start < segments[segment].bytes.count {
                if segments[segment].bytes[start] & Self.dead == 0 {
                    let number = (firstNumber + segment) & 0xFFFF
                    enter(UInt32(number << 16 | start), at: home(of: pair(segment, start)))
                    count += 1
                }
                start += recordBytes(segment, start)
            }
        }
    }

    private func indexPlace(ofKnown reference: UInt32, in pair: AccountPair) -> Int? {
        var place = home(of: pair)
        while index[place] != Self.none {
            if index[place] == reference { return place }
            place = place + 1 == index.count ? 0 : place + 1
        }
        return nil
    }

    private func indexPlace(of reference: UInt32, in pair: AccountPair) -> Int {
        guard let place = indexPlace(ofKnown: reference, in: pair) else {
            preconditionFailure("a record that the index does not know")
        }
        return place
    }

    /// Frees a place; entries behind it that only stand there because it was taken move up.
    private mutating func emptyIndex(at place: Int) {
        func distance(_ from: Int, _ to: Int) -> Int {
            to >= from ? to - from : to - from + index.count
        }
        var hole = place
        var next = hole + 1 == index.count ? 0 : hole + 1
        while index[next] != Self.none {
            let (segment, start) = self.place(of: index[next])
            let home = home(of: pair(segment, start))
            if distance(home, next) >= distance(hole, next) {
                index[hole] = index[next]
                hole = next
            }
            next = next + 1 == index.count ? 0 : next + 1
        }
        index[hole] = Self.none
        count -= 1
    }

    // MARK: - Snapshots

    /// Appends what a restart needs to know before it applies the log from `firstOffset` on.
    func snapshot(into bytes: inout ByteBuffer) {
        let first = firstOffset
        bytes.appendLittleEndian(first)
        (segments.first?.clock ?? clock).append(to: &bytes)
        // Older ones have ended by then.
        let current = lives.lastIndex { $0.from <= first } ?? 0
        bytes.appendLittleEndian(UInt32(lives.count - current))
        for life in lives[current...] {
            bytes.appendLittleEndian(life.from)
            bytes.appendLittleEndian(life.length)
        }
    }

    /// `nil` if the bytes are not what `snapshot(into:)` wrote.
    init?(_ reader: inout ByteReader, segmentBytes: Int) {
        guard let first = reader.littleEndian(Int64.self),
            let clock = StampClock(&reader), let count = reader.littleEndian(UInt32.self), count > 0
        else { return nil }
        var lives: [Life] = []
        for _ in 0..<count {
            guard let from = reader.littleEndian(Int64.self),
                let length = reader.littleEndian(Int64.self)
            else { return nil }
            lives.append(Life(from: from, length: length))
        }
        self.init(life: lives[0].length, segmentBytes: segmentBytes)
        self.lives = lives
        self.clock = clock
        nextOffset = first
    }
}

extension ByteBuffer {
    /// Appends six bytes of a record's head.
    fileprivate mutating func append(head: UInt64) {
        appendLittleEndian(UInt32(truncatingIfNeeded: head))
        appendLittleEndian(UInt16(truncatingIfNeeded: head >> 32))
    }

    fileprivate mutating func append(_ pair: AccountPair) {
        appendLittleEndian(pair.first.high)
        appendLittleEndian(pair.first.low)
        appendLittleEndian(pair.second.high)
        appendLittleEndian(pair.second.low)
    }

    fileprivate mutating func append(sized payload: ByteBuffer) {
        if payload.count < 128 {
            append(UInt8(payload.count))
        } else {
            append(UInt8(128 | payload.count >> 8))
            append(UInt8(payload.count & 255))
        }
        append(payload)
    }
}
