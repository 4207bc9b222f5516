/// Coarse deadlines: every entry is looked at again at its deadline, or after a second at most.
///
/// A deadline may move in either direction without the wheel being told; it is late by one second
/// at worst, which costs a fraction of re-filing entries on every request.
struct TimerWheel {
    struct Entry {
        var slot: UInt32
        var generation: UInt32
    }

    static let tickMilliseconds: Int64 = 100
    private static let longestTicks = 10
    private static let slotCount = 16

    private var slots = [[Entry]](repeating: [], count: slotCount)
    private var due: [Entry] = []
    private var tick: Int64 = 0
    /// Looks at entries more often than once a second when limits are that short.
    private var checkTicks = longestTicks

    mutating func start(at now: Int64) { tick = now / Self.tickMilliseconds }

    mutating func checkEvery(milliseconds: Int64) {
        checkTicks = Int(
            min(Int64(Self.longestTicks), max(1, milliseconds / Self.tickMilliseconds)))
    }

    mutating func add(_ entry: Entry, deadline: Int64) {
        let (rest, overflow) = deadline.subtractingReportingOverflow(tick * Self.tickMilliseconds)
        let ticks = overflow ? Int64.max : rest / Self.tickMilliseconds + 1
        let ahead = min(Int64(checkTicks), max(1, ticks))
        slots[Int((tick + ahead) & Int64(Self.slotCount - 1))].append(entry)
    }

    /// Lends every entry that is due to `check`, which returns its deadline or `nil` to drop it.
    mutating func advance(to now: Int64, _ check: (Entry) -> Int64?) {
        let target = now / Self.tickMilliseconds
        // After a long standstill every slot is due once.
        if target - tick > Int64(Self.slotCount) { tick = target - Int64(Self.slotCount) }
        while tick < target {
            tick += 1
            let slot = Int(tick & Int64(Self.slotCount - 1))
            if slots[slot].isEmpty { continue }
            swap(&slots[slot], &due)
            for entry in due {
                if let deadline = check(entry) { add(entry, deadline: deadline) }
            }
            due.removeAll(keepingCapacity: true)
        }
    }
}
