/// Times in microseconds, kept as counts in buckets that are at most 1/16 wide.
public struct LatencyHistogram: Hashable, Sendable {
    public private(set) var count: UInt64 = 0
    public private(set) var maximumMicroseconds: UInt64 = 0
    /// Sixteen buckets for each power of two; the first sixteen are one microsecond each.
    private var buckets = ContiguousArray<UInt64>(repeating: 0, count: 61 * 16)

    public init() {}

    public mutating func record(microseconds: UInt64) {
        count += 1
        maximumMicroseconds = max(maximumMicroseconds, microseconds)
        buckets[Self.bucket(microseconds)] += 1
    }

    /// The time that `share` (0...1) of all times do not pass; 0 if there are none. Never too small,
    /// and too large by 1/16 at most.
    public func percentileMicroseconds(_ share: Double) -> UInt64 {
        guard count > 0 else { return 0 }
        let rank = UInt64((Double(count) * min(max(share, 0), 1)).rounded(.up))
        var seen: UInt64 = 0
        for (index, size) in buckets.enumerated() where size > 0 {
            seen += size
            if seen >= rank { return min(Self.last(of: index), maximumMicroseconds) }
        }
        return maximumMicroseconds
    }

    private static func bucket(_ value: UInt64) -> Int {
        guard value >= 16 else { return Int(value) }
        let exponent = 63 - value.leadingZeroBitCount
        return (exponent - 3) * 16 + Int((value >> UInt64(exponent - 4)) & 15)
    }

    private static func last(of bucket: Int) -> UInt64 {
        guard bucket >= 16 else { return UInt64(bucket) }
        let exponent = UInt64(bucket / 16 + 3)
        let first = (16 + UInt64(bucket % 16)) << (exponent - 4)
        return first + (UInt64(1) << (exponent - 4) - 1)
    }
}
