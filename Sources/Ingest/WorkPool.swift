internal import Synchronization
internal import System

/// Threads that carry out work which blocks, in the order in which it came. Each has a context of its
/// own, made on it before its first piece of work.
final class WorkPool<Context>: Sendable {
    typealias Work = @Sendable (Context?) -> Void

    private struct State {
        var work: [Work] = []
        var isStopping = false
    }

    private let state = Mutex(State())
    private let waker = Waker()
    private let threads = Mutex<[SystemThread]>([])

    /// - Parameter makeContext: called on each thread; where it throws, work gets `nil`.
    init(_ name: String, threads count: Int, makeContext: @escaping @Sendable () throws -> Context)
    {
        threads.withLock { threads in
            threads = (0..<max(1, count)).map { _ in
                SystemThread.start(name) { self.run(makeContext) }
            }
        }
    }

    func submit(_ work: @escaping Work) {
        state.withLock { $0.work.append(work) }
        waker.signal()
    }

    /// Ends the threads after what they are at; what still waits is dropped.
    func stop() {
        state.withLock { state in
            state.isStopping = true
            state.work = []
        }
        waker.signal()
        let running = threads.withLock { threads in
            defer { threads = [] }
            return threads
        }
        for thread in running { thread.join() }
    }

    private func run(_ makeContext: () throws -> Context) {
        var context: Context?
        while true {
            let (next, isMore, isStopping) = state.withLock { state -> (Work?, Bool, Bool) in
                let next = state.work.isEmpty ? nil : state.work.removeFirst()
                return (next, !state.work.isEmpty, state.isStopping)
            }
            // For another thread.
            if isMore || isStopping { waker.signal() }
            if isStopping { return }
            guard let next else {
                waker.wait(milliseconds: 1_000)
                continue
            }
            if context == nil { context = try? makeContext() }
            next(context)
        }
    }
}

/// Says to work that runs on another thread that nobody wants it any more.
final class StopToken: Sendable {
    private let isStopped = Atomic(false)

    func stop() { isStopped.store(true, ordering: .relaxed) }
    var goesOn: Bool { !isStopped.load(ordering: .relaxed) }
}
