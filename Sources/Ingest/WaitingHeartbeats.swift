internal import HTTP
internal import Schemas

/// Heartbeats of one event loop that wait for the database, in the order of their receipt.
struct WaitingHeartbeats {
    struct Item {
        var heartbeat: Heartbeat
        /// Receipt, by the wall clock: the event's time.
        var time: EventTime
        /// Receipt, by the monotonic clock: what a beacon may not claim yet.
        var monotonic: Int64
        var response: DeferredResponse
    }

    private var items: ContiguousArray<Item?> = []
    private var first = 0
    private var firstNumber: UInt64 = 0
    private(set) var count = 0

    /// The number that the next item gets.
    var nextNumber: UInt64 { firstNumber + UInt64(items.count - first) }

    mutating func append(_ item: Item) {
        items.append(item)
        count += 1
    }

    mutating func remove(_ number: UInt64) -> Item? {
        guard number >= firstNumber, number < nextNumber else { return nil }
        let index = first + Int(number - firstNumber)
        guard let item = items[index] else { return nil }
        items[index] = nil
        count -= 1
        while first < items.count, isGone(first) {
            first += 1
            firstNumber += 1
        }
        if first > 64, first * 2 > items.count {
            items.removeSubrange(0..<first)
            first = 0
        }
        return item
    }

    private func isGone(_ index: Int) -> Bool {
        if case nil = items[index] { return true }
        return false
    }

    /// Receipt of the oldest that still waits.
    var oldest: Int64? { first < items.count ? items[first]?.monotonic : nil }
}
