internal import Synchronization

/// How long things took, as counts in buckets of fixed bounds: what a histogram of Prometheus is made
/// from. A plain value; for counting on one thread and reading on others there is `SharedDurations`.
public struct DurationCounts: Sendable {
    /// Upper bounds of the buckets in nanoseconds, inclusive: 100 µs to 10 s. What took longer is in
    /// one more.
    public static let bounds: InlineArray<16, UInt64> = [
        100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000, 25_000_000,
        50_000_000, 100_000_000, 250_000_000, 500_000_000, 1_000_000_000, 2_500_000_000,
        5_000_000_000, 10_000_000_000,
    ]

    /// Not cumulative.
    public internal(set) var buckets = InlineArray<17, UInt64>(repeating: 0)
    public internal(set) var sumNanoseconds: UInt64 = 0

    public init() {}

    public var count: UInt64 {
        var count: UInt64 = 0
        for index in buckets.indices { count += buckets[index] }
        return count
    }

    public mutating func record(nanoseconds: UInt64) {
        buckets[Self.bucket(nanoseconds)] += 1
        sumNanoseconds &+= nanoseconds
    }

    public mutating func record(milliseconds: Int64) {
        record(nanoseconds: UInt64(max(0, milliseconds)) &* 1_000_000)
    }

    public mutating func add(_ other: DurationCounts) {
        for index in buckets.indices { buckets[index] += other.buckets[index] }
        sumNanoseconds &+= other.sumNanoseconds
    }

    /// Most things are quick, so that the search begins there.
    @inline(__always) static func bucket(_ nanoseconds: UInt64) -> Int {
        var index = 0
        while index < bounds.count, nanoseconds > bounds[index] { index += 1 }
        return index
    }
}

/// The same, counted by one thread and readable from any: no lock, and no atomic addition.
public final class SharedDurations: Sendable {
    private let buckets: InlineArray<17, Atomic<UInt64>>
    private let sum = Atomic<UInt64>(0)

    public init() { buckets = InlineArray { _ in Atomic(0) } }

    /// Call it on one thread only.
    public func record(nanoseconds: UInt64) {
        let index = DurationCounts.bucket(nanoseconds)
        buckets[index].store(
            buckets[index].load(ordering: .relaxed) &+ 1, ordering: .relaxed)
        sum.store(sum.load(ordering: .relaxed) &+ nanoseconds, ordering: .relaxed)
    }

    public var counts: DurationCounts {
        var counts = DurationCounts()
        for index in buckets.indices {
            counts.buckets[index] = buckets[index].load(ordering: .relaxed)
        }
        counts.sumNanoseconds = sum.load(ordering: .relaxed)
        return counts
    }
}
