import Synchronization
import System

/// A thread of a soak: it sends until it is stopped and ends with a book of what was answered.
final class SoakThread<Book: Sendable>: Sendable {
    private let name: String
    private let isStoppingFlag = Atomic(false)
    private let outcome = Mutex<Result<Book, any Error>?>(nil)
    private let thread = Mutex<SystemThread?>(nil)

    /// - Parameter name: of the thread, and what its failures are told about.
    init(_ name: String) { self.name = name }

    /// Whether nothing new is to be sent.
    var isStopping: Bool { isStoppingFlag.load(ordering: .relaxed) }

    func start(_ body: @escaping @Sendable () throws -> Book) {
        let started = SystemThread.start(name) { [self] in
            let result = Result { try body() }
            outcome.withLock { $0 = result }
        }
        thread.withLock { $0 = started }
    }

    /// Waits for the last answers.
    /// - Throws: what ended the thread before its time.
    func stop() throws -> Book {
        isStoppingFlag.store(true, ordering: .relaxed)
        thread.withLock { thread in
            defer { thread = nil }
            return thread
        }?.join()
        guard let result = outcome.withLock({ $0 }) else {
            throw Failure("sending \(name): the thread ended without a word")
        }
        return try result.get()
    }
}
