/// What happens next: a heap by time, and by order of entry among equals.
struct EventQueue<Event> {
    private var heap: [(time: Int64, order: UInt64, event: Event)] = []
    private var entries: UInt64 = 0

    var nextTime: Int64? { heap.first?.time }

    mutating func add(_ event: Event, at time: Int64) {
        entries += 1
        heap.append((time, entries, event))
        var place = heap.count - 1
        while place > 0 {
            let parent = (place - 1) / 2
            guard precedes(place, parent) else { break }
            heap.swapAt(place, parent)
            place = parent
        }
    }

    /// The next event, if its time has come.
    mutating func take(until now: Int64) -> Event? {
        guard let first = heap.first, first.time <= now else { return nil }
        heap[0] = heap[heap.count - 1]
        heap.removeLast()
        var place = 0
        while true {
            var least = place
            for child in [2 * place + 1, 2 * place + 2] where child < heap.count {
                if precedes(child, least) { least = child }
            }
            guard least != place else { break }
            heap.swapAt(place, least)
            place = least
        }
        return first.event
    }

    private func precedes(_ a: Int, _ b: Int) -> Bool {
        heap[a].time != heap[b].time
            ? heap[a].time < heap[b].time : heap[a].order < heap[b].order
    }
}
