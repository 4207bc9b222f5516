internal import Schemas

/// Times at which something is to be done, the earliest first; equal times in the order of their keys.
///
/// A binary heap. Entries are never taken back: whoever takes one out asks whether it still holds.
struct WakeQueue: Sendable {
    struct Entry: Sendable {
        var time: EventTime
        var key: UInt32

        @inline(__always) func isBefore(_ other: Entry) -> Bool {
            time != other.time ? time < other.time : key < other.key
        }
    }

    private var heap: ContiguousArray<Entry> = []

    var first: EventTime? { heap.first?.time }

    mutating func reserveCapacity(_ count: Int) { heap.reserveCapacity(count) }

    mutating func insert(_ entry: Entry) {
        var hole = heap.count
        heap.append(entry)
        while hole > 0 {
            let parent = (hole - 1) / 2
            guard entry.isBefore(heap[parent]) else { break }
            heap[hole] = heap[parent]
            hole = parent
        }
        heap[hole] = entry
    }

    /// `nil` if there is none at or before `now`.
    mutating func take(until now: EventTime) -> Entry? {
        guard let first = heap.first, first.time <= now else { return nil }
        let last = heap.removeLast()
        let count = heap.count
        guard count > 0 else { return first }
        var hole = 0
        while true {
            var child = 2 * hole + 1
            guard child < count else { break }
            if child + 1 < count, heap[child + 1].isBefore(heap[child]) { child += 1 }
            guard heap[child].isBefore(last) else { break }
            heap[hole] = heap[child]
            hole = child
        }
        heap[hole] = last
        return first
    }
}
