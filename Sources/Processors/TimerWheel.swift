/// A lazy timer wheel over watched time, with its lists threaded through the devices' own slots.
///
/// A heartbeat only moves its device's place; the device is filed anew when its bucket comes up. So a
/// record pays nothing for its timer, and a timer costs four bytes. What lies beyond the horizon is
/// filed at the horizon and looked at again there.
struct TimerWheel: Sendable {
    static let buckets = 128
    static let bucketMilliseconds: Int64 = 1_000
    static let horizonMilliseconds = Int64(buckets - 1) * bucketMilliseconds

    /// The first device of each bucket, plus one; 0: none.
    var heads = InlineArray<128, UInt32>(repeating: 0)

    func bucket(for due: Int64, now: Int64) -> Int {
        let moment = min(max(due, now), now + Self.horizonMilliseconds)
        return Int((moment / Self.bucketMilliseconds) % Int64(Self.buckets))
    }
}
