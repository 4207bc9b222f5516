public import Bytes
public import Schemas

/// A partition's own clock: it runs only while every live front-end reports, so that silence is
/// judged only where the way from the devices to the log is known to have been open.
///
/// Moved by beacons alone. A front-end joins at the current watched time and adds the progress of its
/// own monotonic clock; watched time is the minimum over the live front-ends and never goes back.
/// A front-end that lost heartbeats, or that is silent while the others go on, holds it; after a
/// while of that it is expelled and the others go on. When watched time runs again after a hold,
/// `reopened` says from where on silence counts. Wall clocks move nothing here: a stamp only says how
/// watched time is shown to people.
public struct WatchedTime: Sendable, Equatable {
    /// What a beacon changed among the front-ends.
    public enum Change: Sendable, Equatable {
        /// Expelled: it lost heartbeats or was silent for too long.
        case lost(InlineText)
        /// Reports again after it was expelled.
        case returned(InlineText)
    }

    struct FrontEnd: Sendable, Equatable {
        var name: InlineText
        var boot: UInt64
        var monotonic: Int64
        /// Its place on the watched axis.
        var position: Int64
        /// All its progress since it joined, held or not.
        var odometer: Int64
        /// The others' progress since its last sign of being well; -1 right after one. The first step
        /// that follows may tell of time before the sign, and is not counted: beacons of two front-ends
        /// that come at nearly the same time change their order now and then.
        var missed: Int64
        /// Its wall clock minus its position.
        var stampOffset: Int64
        var isLossy: Bool
        /// Beacons until it is believed that what it tells is of now: one that was cut off comes back
        /// with a backlog, whose first beacons do not know yet that they are behind.
        var probation: UInt8
        /// The count of its last beacon: what was counted later was taken in later.
        var counter: UInt64
    }

    /// A front-end that is not waited for.
    struct Expelled: Sendable, Equatable {
        var name: InlineText
        var boot: UInt64
        /// Up to here it had told of. Whose loop hangs repeats itself, and is not back by that.
        var monotonic: Int64
    }

    /// Beacons come every 5 s; a front-end that is ahead of the slowest by more than one of them and
    /// a second is pulled back little by little, so that clocks which drift apart do not part for good.
    /// One that is far ahead because another's backlog is yet to come loses next to nothing by it.
    static let lead: Int64 = 6_000
    /// The part of the slowest one's progress by which others are pulled back at most.
    private static let pull: Int64 = 20
    /// The furthest that a heartbeat's place may lie ahead of its front-end's last beacon.
    static let furthest: Int64 = 15_000
    private static let onProbation: UInt8 = 3
    /// The last beacon on probation was behind.
    private static let catchingUp: UInt8 = 4
    /// Front-ends whose clock differs from the others' by more than this have their stamps corrected.
    static let tolerated: Int64 = 10_000
    /// Names and boots that are remembered after they are gone.
    static let remembered = 64

    /// Watched time, in milliseconds since the first beacon.
    public private(set) var now: Int64 = 0
    /// Where watched time began to run again after the last hold.
    public private(set) var reopened: Int64 = 0
    /// Whether a front-end holds it.
    public private(set) var isHeld = false
    /// The furthest place that a record was given. Whoever joins begins there: what it takes in came
    /// later than all that is known, though watched time may not have come that far.
    private(set) var furthestRecord: Int64 = 0
    /// Milliseconds from watched time to the wall clock that most front-ends agree on; `nil` before
    /// the first beacon.
    public private(set) var wallOffset: Int64?
    var frontEnds: ContiguousArray<FrontEnd> = []
    var retiredBoots: ContiguousArray<UInt64> = []
    var expelled: ContiguousArray<Expelled> = []
    private let silence: Int64
    private let expulsion: Int64

    /// - Parameters:
    ///   - silence: milliseconds of the others' progress after which a silent front-end holds.
    ///   - expulsion: milliseconds after that until it is expelled.
    public init(silence: Int64 = 10_000, expulsion: Int64 = 30_000) {
        self.silence = silence
        self.expulsion = expulsion
    }

    /// Live front-ends.
    public var frontEndCount: Int { frontEnds.count }

    // MARK: - Beacons

    /// Takes a beacon stamped `stamp` in; repeated beacons and those of an earlier boot change nothing.
    public mutating func advance(
        _ beacon: Beacon, stamp: EventTime, into changes: inout [Change]
    ) {
        guard !retiredBoots.contains(beacon.origin.boot) else { return }
        var mustReopen = false
        if let index = frontEnds.firstIndex(where: { $0.name == beacon.frontEnd }) {
            if frontEnds[index].boot == beacon.origin.boot {
                guard beacon.monotonicMilliseconds > frontEnds[index].monotonic else { return }
                mustReopen = progress(of: index, beacon)
            } else {
                // The same front-end, started anew: what the old process still held is lost.
                retire(frontEnds[index].boot)
                guard !beacon.isLossy, !beacon.isBehind else {
                    frontEnds.remove(at: index)
                    settle(mustReopen: true, into: &changes)
                    return
                }
                frontEnds[index] = newcomer(beacon)
                mustReopen = true
            }
        } else {
            guard !beacon.isLossy, !beacon.isLeaving, !beacon.isBehind else { return }
            if let index = expelled.firstIndex(where: { $0.name == beacon.frontEnd }) {
                guard
                    expelled[index].boot != beacon.origin.boot
                        || beacon.monotonicMilliseconds > expelled[index].monotonic
                else { return }
                expelled.remove(at: index)
                changes.append(.returned(beacon.frontEnd))
            }
            mustReopen = frontEnds.isEmpty
            frontEnds.append(newcomer(beacon))
        }
        if let index = frontEnds.firstIndex(where: { $0.boot == beacon.origin.boot }) {
            frontEnds[index].stampOffset = stamp.milliseconds - frontEnds[index].position
            frontEnds[index].counter = beacon.origin.counter
            if beacon.isLeaving {
                // Its last word counts before it goes.
                settle(mustReopen: mustReopen, into: &changes)
                mustReopen = leave(beacon.origin.boot)
                if frontEnds.isEmpty { return }
            }
        }
        settle(mustReopen: mustReopen, into: &changes)
    }

    private func newcomer(_ beacon: Beacon) -> FrontEnd {
        let furthest = frontEnds.map(\.odometer).max() ?? 0
        return FrontEnd(
            name: beacon.frontEnd, boot: beacon.origin.boot,
            monotonic: beacon.monotonicMilliseconds, position: max(now, furthestRecord),
            odometer: furthest,
            missed: -1, stampOffset: 0, isLossy: false, probation: Self.onProbation,
            counter: beacon.origin.counter)
    }

    /// The others' lead over the slowest is only that of their clocks. Watched time goes on from where
    /// it was, and does not jump over the lead.
    ///
    /// - Returns: whether it jumps all the same, over more than a lead of clocks: silence counts anew.
    private mutating func leave(_ boot: UInt64) -> Bool {
        retire(boot)
        guard let index = frontEnds.firstIndex(where: { $0.boot == boot }) else { return false }
        let position = frontEnds.remove(at: index).position
        guard let slowest = frontEnds.map(\.position).min(), slowest > position else {
            return false
        }
        let lead = min(slowest - position, Self.lead)
        for other in frontEnds.indices { pullBack(other, by: lead) }
        return slowest - position > Self.lead
    }

    private mutating func pullBack(_ index: Int, by lead: Int64) {
        frontEnds[index].position -= lead
        frontEnds[index].stampOffset += lead
    }

    /// - Returns: whether silence must be counted anew from here.
    private mutating func progress(of index: Int, _ beacon: Beacon) -> Bool {
        let step = beacon.monotonicMilliseconds - frontEnds[index].monotonic
        frontEnds[index].monotonic = beacon.monotonicMilliseconds
        // What one tells that is behind comes in a burst, and the burst of the others after it; what
        // one tells that was away comes in one step. Neither measures the others' silence.
        let isMeasure =
            !beacon.isBehind && step <= silence && frontEnds[index].probation == 0
        for other in frontEnds.indices where other != index && isMeasure {
            let before = furthestOdometer(besides: other)
            let after = max(before, frontEnds[index].odometer + step)
            guard after > before else { continue }
            frontEnds[other].missed =
                frontEnds[other].missed < 0 ? 0 : frontEnds[other].missed + after - before
        }
        frontEnds[index].odometer += step
        let wasLossy = frontEnds[index].isLossy
        if beacon.isLossy {
            // Time in which heartbeats were lost is not time in which silence can be judged.
            if !wasLossy { frontEnds[index].missed = 0 }
            frontEnds[index].isLossy = true
            return true
        }
        frontEnds[index].isLossy = false
        frontEnds[index].missed = -1
        if beacon.isBehind, frontEnds[index].probation > 0 {
            // It joined with a backlog: that is of a time which the others have told of.
            frontEnds[index].probation = Self.catchingUp
            return true
        }
        let wasCatchingUp = frontEnds[index].probation == Self.catchingUp
        let wasOnProbation = frontEnds[index].probation > 0
        if wasCatchingUp {
            frontEnds[index].probation = Self.onProbation
        } else if frontEnds[index].probation > 0 {
            frontEnds[index].probation -= 1
        }
        if wasLossy || wasCatchingUp || step > silence {
            // It was away: it joins the others again where the slowest of them is, or, as after a
            // restart, where the last record is.
            let others = frontEnds.indices.filter { $0 != index }.map { frontEnds[$0].position }
                .min()
            frontEnds[index].position = max(
                frontEnds[index].position, others ?? now, furthestRecord)
            return true
        }
        frontEnds[index].position += step
        if wasOnProbation, frontEnds[index].probation == 0, let level = established(besides: index),
            level > frontEnds[index].position + Self.lead
        {
            // It joined while what the others had told was yet to be read.
            frontEnds[index].position = level
            return true
        }
        let position = frontEnds[index].position
        if frontEnds.allSatisfy({ $0.position >= position }) {
            for other in frontEnds.indices {
                let excess = frontEnds[other].position - (position + Self.lead)
                if excess > 0 { pullBack(other, by: min(excess, step / Self.pull)) }
            }
        }
        return false
    }

    /// Where the slowest of the others is that are not on probation.
    private func established(besides index: Int) -> Int64? {
        frontEnds.indices.filter { $0 != index && frontEnds[$0].probation == 0 }
            .map { frontEnds[$0].position }.min()
    }

    private func furthestOdometer(besides index: Int) -> Int64 {
        var furthest: Int64 = 0
        for other in frontEnds.indices where other != index {
            furthest = max(furthest, frontEnds[other].odometer)
        }
        return furthest
    }

    private mutating func settle(mustReopen: Bool, into changes: inout [Change]) {
        var isHolding = false
        var index = 0
        while index < frontEnds.count {
            let missed = frontEnds[index].missed
            let limit = frontEnds[index].isLossy ? expulsion : silence + expulsion
            if missed > limit, frontEnds.count > 1 {
                changes.append(.lost(frontEnds[index].name))
                remember(expelled: frontEnds.remove(at: index))
                continue
            }
            if frontEnds[index].isLossy || missed > silence { isHolding = true }
            index += 1
        }
        guard let slowest = frontEnds.map(\.position).min() else { return }
        // The lower median: one clock that runs fast moves nothing when there are others.
        let offsets = frontEnds.map(\.stampOffset).sorted()
        wallOffset = offsets[(offsets.count - 1) / 2]
        if isHolding {
            isHeld = true
            return
        }
        now = max(now, slowest)
        if isHeld || mustReopen { reopened = now }
        isHeld = false
    }

    private mutating func retire(_ boot: UInt64) {
        retiredBoots.append(boot)
        if retiredBoots.count > Self.remembered { retiredBoots.removeFirst() }
    }

    private mutating func remember(expelled frontEnd: FrontEnd) {
        expelled.removeAll { $0.name == frontEnd.name }
        expelled.append(
            Expelled(
                name: frontEnd.name, boot: frontEnd.boot, monotonic: frontEnd.monotonic))
        if expelled.count > Self.remembered { expelled.removeFirst() }
    }

    // MARK: - Places and times

    /// Where a record of a front-end's boot stands on the watched axis.
    public struct Location: Sendable, Equatable {
        /// `nil` if nothing is known of the boot: only the stamp can order the record.
        public var position: Int64?
        /// The stamp lies further ahead than a clock can be that beacons follow; the position is cut.
        public var isFar = false
        /// The stamp, corrected by the front-end's difference from the others where it is large.
        public var time: EventTime
    }

    public func locate(_ origin: EventOrigin, stamp: EventTime) -> Location {
        for frontEnd in frontEnds where frontEnd.boot == origin.boot {
            let position = stamp.milliseconds - frontEnd.stampOffset
            let skew = frontEnd.stampOffset - (wallOffset ?? frontEnd.stampOffset)
            let furthest = max(now, frontEnd.position) + Self.furthest
            // What was counted after its last beacon was taken in after it, whatever its wall clock
            // was set to in between.
            let earliest = origin.counter > frontEnd.counter ? frontEnd.position : .min
            return Location(
                position: max(min(position, furthest), earliest), isFar: position > furthest,
                time: abs(skew) > Self.tolerated ? stamp + -skew : stamp)
        }
        return Location(position: nil, time: stamp)
    }

    /// A record was given this place.
    public mutating func note(record position: Int64) {
        if position > furthestRecord { furthestRecord = position }
    }

    /// Watched time as people read it; `nil` before the first beacon.
    public func wallTime(of position: Int64) -> EventTime? {
        wallOffset.map { EventTime(milliseconds: position + $0) }
    }

    // MARK: - Snapshots

    public func append(to bytes: inout ByteBuffer) {
        bytes.appendLittleEndian(now)
        bytes.appendLittleEndian(reopened)
        bytes.appendLittleEndian(furthestRecord)
        bytes.append(isHeld ? 1 : 0)
        bytes.append(wallOffset == nil ? 0 : 1)
        bytes.appendLittleEndian(wallOffset ?? 0)
        bytes.appendLittleEndian(UInt32(frontEnds.count))
        for frontEnd in frontEnds {
            bytes.append(frontEnd.name.count)
            bytes.append(frontEnd.name.span)
            bytes.appendLittleEndian(frontEnd.boot)
            bytes.appendLittleEndian(frontEnd.monotonic)
            bytes.appendLittleEndian(frontEnd.position)
            bytes.appendLittleEndian(frontEnd.odometer)
            bytes.appendLittleEndian(frontEnd.missed)
            bytes.appendLittleEndian(frontEnd.stampOffset)
            bytes.append(frontEnd.isLossy ? 1 : 0)
            bytes.append(frontEnd.probation)
            bytes.appendLittleEndian(frontEnd.counter)
        }
        bytes.appendLittleEndian(UInt32(retiredBoots.count))
        for boot in retiredBoots { bytes.appendLittleEndian(boot) }
        bytes.appendLittleEndian(UInt32(expelled.count))
        for frontEnd in expelled {
            bytes.append(frontEnd.name.count)
            bytes.append(frontEnd.name.span)
            bytes.appendLittleEndian(frontEnd.boot)
            bytes.appendLittleEndian(frontEnd.monotonic)
        }
    }

    /// Reads what `append(to:)` wrote; `nil` if it is damaged.
    ///
    /// - Parameter isOlder: by a version that had no probation, counts of beacons, and boots of those
    ///   who were expelled.
    public init?(
        reading reader: inout ByteReader, of bytes: Span<UInt8>, isOlder: Bool = false,
        silence: Int64, expulsion: Int64
    ) {
        self.init(silence: silence, expulsion: expulsion)
        func name(_ reader: inout ByteReader) -> InlineText? {
            guard let count = reader.littleEndian(UInt8.self),
                let range = reader.take(Int(count)), count <= InlineText.capacity
            else { return nil }
            return InlineText(bytes.extracting(range))
        }
        guard let now = reader.littleEndian(Int64.self),
            let reopened = reader.littleEndian(Int64.self),
            let furthestRecord = reader.littleEndian(Int64.self),
            let held = reader.littleEndian(UInt8.self),
            let hasOffset = reader.littleEndian(UInt8.self),
            let offset = reader.littleEndian(Int64.self),
            let count = reader.littleEndian(UInt32.self)
        else { return nil }
        self.now = now
        self.reopened = reopened
        self.furthestRecord = furthestRecord
        isHeld = held == 1
        wallOffset = hasOffset == 1 ? offset : nil
        for _ in 0..<count {
            guard let name = name(&reader),
                let boot = reader.littleEndian(UInt64.self),
                let monotonic = reader.littleEndian(Int64.self),
                let position = reader.littleEndian(Int64.self),
                let odometer = reader.littleEndian(Int64.self),
                let missed = reader.littleEndian(Int64.self),
                let stampOffset = reader.littleEndian(Int64.self),
                let lossy = reader.littleEndian(UInt8.self),
                let probation = isOlder ? 0 : reader.littleEndian(UInt8.self),
                let counter = isOlder ? 0 : reader.littleEndian(UInt64.self)
            else { return nil }
            frontEnds.append(
                FrontEnd(
                    name: name, boot: boot, monotonic: monotonic, position: position,
                    odometer: odometer, missed: missed, stampOffset: stampOffset,
                    isLossy: lossy == 1, probation: probation,
                    // Unknown: then nothing counts as taken in after it.
                    counter: isOlder ? .max : counter))
        }
        guard let boots = reader.littleEndian(UInt32.self) else { return nil }
        for _ in 0..<boots {
            guard let boot = reader.littleEndian(UInt64.self) else { return nil }
            retiredBoots.append(boot)
        }
        guard let names = reader.littleEndian(UInt32.self) else { return nil }
        for _ in 0..<names {
            guard let name = name(&reader),
                let boot = isOlder ? 0 : reader.littleEndian(UInt64.self),
                let monotonic = isOlder ? 0 : reader.littleEndian(Int64.self)
            else { return nil }
            expelled.append(Expelled(name: name, boot: boot, monotonic: monotonic))
        }
    }

    /// The same clock under other limits.
    public func with(silence: Int64, expulsion: Int64) -> WatchedTime {
        var copy = WatchedTime(silence: silence, expulsion: expulsion)
        copy.now = now
        copy.reopened = reopened
        copy.furthestRecord = furthestRecord
        copy.isHeld = isHeld
        copy.wallOffset = wallOffset
        copy.frontEnds = frontEnds
        copy.retiredBoots = retiredBoots
        copy.expelled = expelled
        return copy
    }
}
