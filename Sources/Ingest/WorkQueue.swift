internal import HTTP
internal import Synchronization
internal import System

/// Requests that wait for a thread with a connection to the database; bounded together with those that
/// are worked on.
final class WorkQueue<Request: Sendable>: Sendable {
    struct Job: Sendable {
        var request: Request
        var response: DeferredResponse
    }

    private struct State {
        var jobs: [Job] = []
        /// Taken, and not released yet.
        var taken = 0
    }

    private let state = Mutex(State())
    private let limit: Int
    let waker = Waker()

    init(limit: Int) { self.limit = limit }

    /// - Returns: whether there was room.
    func append(_ request: Request, _ response: () -> DeferredResponse) -> Bool {
        let place = state.withLock { state -> Int? in
            guard state.jobs.count + state.taken < limit else { return nil }
            state.jobs.append(Job(request: request, response: response()))
            return state.jobs.count
        }
        if place == 1 { waker.signal() }
        return place != nil
    }

    func take(atMost count: Int) -> [Job] {
        let (taken, isMore) = state.withLock { state -> ([Job], Bool) in
            let taken = Array(state.jobs.prefix(count))
            state.jobs.removeFirst(taken.count)
            state.taken += taken.count
            return (taken, !state.jobs.isEmpty)
        }
        // For another thread.
        if isMore { waker.signal() }
        return taken
    }

    /// Says that taken requests have been answered.
    func release(_ count: Int) { state.withLock { $0.taken -= count } }
}
