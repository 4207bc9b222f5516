internal import Synchronization
internal import System

/// A thread that is asked to end, and not waited for without a bound: it may wait for a server that
/// does not answer.
/// - Thread safety: any thread.
final class StoppableThread: Sendable {
    private let thread = Mutex<SystemThread?>(nil)
    private let ended = Waker()

    func start(_ name: String, _ body: @escaping @Sendable () -> Void) {
        thread.withLock { thread in
            guard thread == nil else { return }
            thread = SystemThread.start(name) { [ended] in
                body()
                ended.signal()
            }
        }
    }

    /// Waits for its end, `milliseconds` at most; then it is left to itself.
    func join(milliseconds: Int64) {
        guard let thread = thread.withLock({ $0.take() }) else { return }
        if ended.wait(milliseconds: milliseconds) {
            thread.join()
        } else {
            Log.warning("a thread of the alerts waits for a server and is left behind")
        }
    }
}
