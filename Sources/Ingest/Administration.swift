internal import Bytes
internal import Crypto
internal import HTTP
internal import Postgres
public import Schemas
internal import Synchronization
internal import System

/// What the operators' API needs beside its listener.
public struct AdministrationSettings: Sendable, CustomStringConvertible {
    /// As libpq takes it.
    public var databaseURL: String
    /// `HEARTLINE_SECRET_KEY`, 32 bytes.
    public var secretKey: [UInt8]
    /// What operators must show.
    public var token: AdminToken
    /// The offset that a partition's next record gets, for the page; `nil`: it tells no lag.
    public var logEnd: (@Sendable (TopicPartition) -> Int64?)?
    /// Names by which the page may be reached, beside addresses and `localhost`.
    public var names: [String] = []

    public init(databaseURL: String, secretKey: [UInt8], token: AdminToken) {
        self.databaseURL = databaseURL
        self.secretKey = secretKey
        self.token = token
    }

    public var description: String { "AdministrationSettings(hidden)" }
}

/// Does what operators ask for on a thread of its own, so that no event loop waits for the database.
///
/// - Thread safety: every method may be called from any thread; `start` and `stop` once each.
final class Administration: Sendable {
    struct Job: Sendable {
        var route: AdminRoute
        var call: AdminCall
        var response: DeferredResponse
    }

    /// Requests that may wait; one more is answered 503.
    private static let capacity = 64
    /// Longest statement, in milliseconds. The listener itself gives up later.
    private static let statementMilliseconds: Int64 = 10_000
    /// A connection that was idle for longer is tried before it is trusted with a change, since a
    /// change that fails halfway cannot always be told from one that was made.
    private static let idleMilliseconds: Int64 = 1_000

    let gate: AdminGuard
    private let settings: AdministrationSettings
    private let jobs = Mutex<[Job]>([])
    private let waker = Waker()
    private let isStopping = Atomic(false)
    private let thread = Mutex<SystemThread?>(nil)
    private let hasEnded = Waker()
    /// Longest wait for a statement at the end; what it does is one transaction, so that leaving it
    /// alone leaves nothing by half.
    private static let stopMilliseconds: Int64 = 1_000

    init(_ settings: AdministrationSettings) {
        self.settings = settings
        gate = AdminGuard([settings.token])
    }

    func start() {
        thread.withLock {
            $0 = SystemThread.start("administration") {
                self.run()
                self.hasEnded.signal()
            }
        }
    }

    /// Ends the thread after what it is doing, if that does not take long; what waits is answered 503.
    func stop() {
        isStopping.store(true, ordering: .releasing)
        waker.signal()
        guard let running = thread.withLock({ $0.take() }) else { return }
        if hasEnded.wait(milliseconds: Self.stopMilliseconds) { running.join() }
    }

    /// - Returns: whether there was room.
    func submit(_ job: Job) -> Bool {
        let hasRoom = jobs.withLock { jobs in
            guard jobs.count < Self.capacity else { return false }
            jobs.append(job)
            return true
        }
        if hasRoom { waker.signal() }
        return hasRoom
    }

    private func next() -> Job? {
        jobs.withLock { $0.isEmpty ? nil : $0.removeFirst() }
    }

    private func run() {
        var session = Session(settings)
        while !isStopping.load(ordering: .acquiring) {
            guard let job = next() else {
                waker.wait(milliseconds: 60_000)
                continue
            }
            Self.respond(session.answer(job), to: job)
        }
        while let job = next() {
            Self.respond(AdminAnswer(AdminFault(.serviceUnavailable, "stopping")), to: job)
        }
    }

    private static func respond(_ answer: AdminAnswer, to job: Job) {
        var headers: [Header] = []
        if answer.status == .serviceUnavailable {
            headers.append(Header("Retry-After", String(UInt32.random(in: 1...5))))
        }
        job.response.respond(
            answer.status, contentType: "application/json", headers: headers, answer.body)
    }

    /// The database's side: a connection that is made when it is needed.
    private struct Session: ~Copyable {
        private let settings: AdministrationSettings
        private var registry: Registry?
        private var lastUse: Int64 = 0

        init(_ settings: AdministrationSettings) { self.settings = settings }

        mutating func answer(_ job: Job) -> AdminAnswer {
            do {
                let answer = try job.route.run(job.call, try open())
                lastUse = SystemClock.monotonicMilliseconds()
                return answer
            } catch let fault as AdminFault {
                return AdminAnswer(fault)
            } catch let error as RegistryError {
                return AdminAnswer(AdminFault(error))
            } catch let error as PostgresError {
                return AdminAnswer(explain(error, job))
            } catch {
                Log.error(
                    "answering an operator's request",
                    ["http.path": job.route.path, "error": "\(error)"])
                return AdminAnswer(AdminFault(.internalServerError, "internal error"))
            }
        }

        private mutating func explain(_ error: PostgresError, _ job: borrowing Job) -> AdminFault {
            Log.warning(
                "answering an operator's request",
                ["http.path": job.route.path, "error": "\(error)"])
            let isAway = registry == nil || error.isConnectionBroken
            if isAway || error.sqlState == .queryCanceled || error.sqlState == .adminShutdown {
                registry = nil
                return AdminFault(
                    .serviceUnavailable,
                    isAway
                        ? "the database does not answer; with an Idempotency-Key the request can be "
                            + "repeated safely"
                        : "the database took too long")
            }
            return AdminFault(.internalServerError, "internal error")
        }

        private mutating func open() throws -> Registry {
            let now = SystemClock.monotonicMilliseconds()
            if let registry {
                if now - lastUse < Administration.idleMilliseconds { return registry }
                if (try? registry.ping()) != nil { return registry }
                self.registry = nil
            }
            var options = PostgresOptions(applicationName: "heartline administration")
            options.connectTimeout = .seconds(3)
            options.statementTimeout = .milliseconds(Administration.statementMilliseconds)
            options.responseTimeout = .milliseconds(Administration.statementMilliseconds + 2_000)
            let made = try Registry(
                try PostgresConnection(settings.databaseURL, options: options),
                secretKey: settings.secretKey)
            try made.checkKey()
            registry = made
            return made
        }
    }
}
