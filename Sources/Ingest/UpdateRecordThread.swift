internal import Postgres
internal import Synchronization
internal import System

/// The registry's part in updates, on one thread with one connection.
final class UpdateRecordThread: Sendable {
    private struct State {
        var work: [@Sendable (inout Registry?) -> Void] = []
        var isStopping = false
    }

    private let state = Mutex(State())
    private let waker = Waker()
    private let thread = Mutex<SystemThread?>(nil)
    private let databaseURL: String
    private let secretKey: [UInt8]
    private let statementMilliseconds: Int64

    init(databaseURL: String, secretKey: [UInt8], statementMilliseconds: Int64) {
        self.databaseURL = databaseURL
        self.secretKey = secretKey
        self.statementMilliseconds = statementMilliseconds
    }

    func start() {
        thread.withLock { $0 = SystemThread.start("update-records") { self.run() } }
    }

    func stop() {
        state.withLock { $0.isStopping = true }
        waker.signal()
        thread.withLock { $0.take() }?.join()
    }

    /// Does something, once more on a new connection where the first was lost, and hands the outcome on,
    /// on this thread; `nil` if it could not be done, which is logged.
    func submit<Outcome>(
        _ body: @escaping @Sendable (Registry) throws -> Outcome,
        then completion: @escaping @Sendable (Outcome?) -> Void
    ) {
        state.withLock { state in
            state.work.append { registry in
                completion(self.attempt(body, &registry))
            }
        }
        waker.signal()
    }

    private func attempt<Outcome>(
        _ body: (Registry) throws -> Outcome, _ registry: inout Registry?
    ) -> Outcome? {
        for attempt in 0...1 {
            do {
                let current = try registry ?? connect()
                registry = nil
                let outcome = try body(current)
                registry = current
                return outcome
            } catch let error as PostgresError {
                if attempt == 0, error.isConnectionLoss { continue }
                Log.warning("reading or changing installations", ["error": "\(error)"])
                return nil
            } catch {
                Log.warning("reading or changing installations", ["error": "\(error)"])
                return nil
            }
        }
        return nil
    }

    private func connect() throws -> Registry {
        var options = PostgresOptions(applicationName: "heartline updates")
        options.connectTimeout = .seconds(3)
        options.statementTimeout = .milliseconds(statementMilliseconds)
        options.responseTimeout = .milliseconds(statementMilliseconds + 1_000)
        let connection = try PostgresConnection(databaseURL, options: options)
        return try Registry(connection, secretKey: secretKey)
    }

    private func run() {
        var registry: Registry?
        while true {
            let (work, isStopping) = state.withLock { state in
                defer { state.work = [] }
                return (state.work, state.isStopping)
            }
            for piece in work { piece(&registry) }
            if work.isEmpty {
                if isStopping { return }
                waker.wait(milliseconds: 1_000)
            }
        }
    }
}
