internal import Bytes

/// What time it is, told by the receipt stamps of records alone: the middle one of the latest, and
/// never earlier than it was. A few stamps that are wrong, however wrong, move nothing.
struct StampClock: Sendable {
    /// How many stamps are looked at.
    static let memory = 15

    private var stamps = InlineArray<15, Int64>(repeating: 0)
    private var count = 0
    private var next = 0
    /// Unit: milliseconds since 1970.
    private(set) var now: Int64 = .min

    init() {}

    mutating func see(_ stamp: Int64) {
        stamps[next] = stamp
        next = (next + 1) % Self.memory
        count = min(count + 1, Self.memory)
        now = max(now, median)
    }

    private var median: Int64 {
        var sorted = stamps
        for index in 1..<max(count, 1) {
            let value = sorted[index]
            var place = index
            while place > 0, sorted[place - 1] > value {
                sorted[place] = sorted[place - 1]
                place -= 1
            }
            sorted[place] = value
        }
        return sorted[(count - 1) / 2]
    }

    func append(to bytes: inout ByteBuffer) {
        bytes.appendLittleEndian(now)
        bytes.append(UInt8(count))
        bytes.append(UInt8(next))
        for index in stamps.indices { bytes.appendLittleEndian(stamps[index]) }
    }

    /// `nil` if the bytes are not what `append(to:)` wrote.
    init?(_ reader: inout ByteReader) {
        guard let now = reader.littleEndian(Int64.self),
            let count = reader.littleEndian(UInt8.self), count <= Self.memory,
            let next = reader.littleEndian(UInt8.self), next < Self.memory
        else { return nil }
        self.now = now
        self.count = Int(count)
        self.next = Int(next)
        for index in stamps.indices {
            guard let stamp = reader.littleEndian(Int64.self) else { return nil }
            stamps[index] = stamp
        }
    }
}
