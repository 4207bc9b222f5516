internal import Bytes
internal import HTTP
internal import Postgres
internal import Schemas
internal import Synchronization
internal import System

/// Carries out provisionings, on threads of its own: all that wait at a moment share one transaction.
///
/// Every change of the registry holds one lock until its commit, so one transaction for each would
/// take as long as the disk needs to sync, one after another.
/// - Thread safety: any thread.
final class Provisioner: Sendable {
    let counters = ProvisionCounters()
    private let settings: ProvisioningSettings
    private let queue: WorkQueue<ProvisionRequest>
    private let cache: ConfigCache
    private let salt: [UInt8]
    private let secretKey: [UInt8]
    private let databaseURL: String
    private let statementMilliseconds: Int64
    private let isStopping = Atomic(false)
    private let threads = Mutex<[SystemThread]>([])
    /// Monotonic milliseconds before which failures are not logged again.
    private let nextComplaint = Atomic<Int64>(.min)

    /// How long a database that was lost at a commit is waited for. Agents give up after 30 s.
    private static let doubtMilliseconds: Int64 = 8_000
    /// How long a failure is not told of again.
    private static let complaintMilliseconds: Int64 = 30_000

    init(
        settings: ProvisioningSettings, cache: ConfigCache, salt: [UInt8], secretKey: [UInt8],
        databaseURL: String, statementMilliseconds: Int64
    ) {
        self.settings = settings
        self.cache = cache
        self.salt = salt
        self.secretKey = secretKey
        self.databaseURL = databaseURL
        self.statementMilliseconds = statementMilliseconds
        queue = WorkQueue(limit: settings.queueRequests)
    }

    func start() {
        threads.withLock { threads in
            threads = (0..<max(1, settings.threads)).map { _ in
                SystemThread.start("provisioner") { self.run() }
            }
        }
    }

    /// Ends the threads after what they are at; what still waits fails. Called when no request comes
    /// any more.
    func stop() {
        isStopping.store(true, ordering: .releasing)
        queue.waker.signal()
        let running = threads.withLock { threads in
            defer { threads = [] }
            return threads
        }
        for thread in running { thread.join() }
    }

    /// Takes a request in.
    /// - Parameter response: called if there is room.
    /// - Returns: whether there was.
    func submit(_ request: ProvisionRequest, _ response: () -> DeferredResponse) -> Bool {
        queue.append(request, response)
    }

    // MARK: - On its threads

    private func run() {
        var registry: Registry?
        while !isStopping.load(ordering: .acquiring) {
            let jobs = queue.take(atMost: max(1, settings.batchRequests))
            if jobs.isEmpty {
                queue.waker.wait(milliseconds: 1_000)
                continue
            }
            carryOut(jobs, &registry)
            queue.release(jobs.count)
        }
        for job in queue.take(atMost: .max) { answer(job, nil) }
        // For the next of the threads.
        queue.waker.signal()
    }

    private func connect() throws -> Registry {
        var options = PostgresOptions(applicationName: "heartline provisioner")
        // An agent waits for this, and gives up after 30 s.
        options.connectTimeout = .seconds(3)
        options.statementTimeout = .milliseconds(statementMilliseconds)
        options.responseTimeout = .milliseconds(statementMilliseconds + 1_000)
        let connection = try PostgresConnection(databaseURL, options: options)
        // Plans are kept: one that was made while the tables were small would read all of them when they
        // are large. All that is done here is by index.
        try connection.run(
            "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off")
        let registry = try Registry(connection, secretKey: secretKey)
        try registry.checkKey()
        return registry
    }

    private func carryOut(_ jobs: [WorkQueue<ProvisionRequest>.Job], _ registry: inout Registry?) {
        var outcomes = [ProvisionOutcome?](repeating: nil, count: jobs.count)
        do {
            try retrying(&registry) { registry in
                outcomes = try registry.refusals(jobs.map(\.request))
            }
            let places = jobs.indices.filter { outcomes[$0] == nil }
            if !places.isEmpty {
                let requests = places.map { jobs[$0].request }
                let keys = try requests.map { _ in try ProvisionKeys() }
                try retrying(&registry) { registry in
                    let made = try provision(requests, keys, &registry)
                    for (place, outcome) in zip(places, made) { outcomes[place] = outcome }
                }
            }
        } catch {
            complain("\(error)")
        }
        for (job, outcome) in zip(jobs, outcomes) { answer(job, outcome) }
    }

    private func provision(
        _ requests: [ProvisionRequest], _ keys: [ProvisionKeys], _ registry: inout Registry
    ) throws -> [ProvisionOutcome] {
        do {
            return try registry.provision(requests, keys: keys, salt: salt)
        } catch let doubt as ProvisionInDoubt {
            if try wasCommitted(doubt, &registry) { return doubt.outcomes }
            throw doubt.cause
        }
    }

    /// - Throws: `doubt` itself if the database does not come back in time; doing it again then could find
    ///   the tokens used, by itself.
    private func wasCommitted(
        _ doubt: ProvisionInDoubt, _ registry: inout Registry
    ) throws -> Bool {
        let end = SystemClock.monotonicMilliseconds() + Self.doubtMilliseconds
        let pause = Waker()
        while true {
            do {
                registry = try connect()
                return try registry.wasCommitted(doubt)
            } catch {
                guard SystemClock.monotonicMilliseconds() < end,
                    !isStopping.load(ordering: .acquiring)
                else { throw doubt }
                pause.wait(milliseconds: 200)
            }
        }
    }

    /// Does it again, once, on a new connection, where a connection was lost or a deadlock ended it: the
    /// database was restarted perhaps, and is there again.
    private func retrying(
        _ registry: inout Registry?, _ body: (inout Registry) throws -> Void
    ) throws {
        for attempt in 0...1 {
            do {
                var current = try registry ?? connect()
                registry = nil
                try body(&current)
                registry = current
                return
            } catch let error as PostgresError {
                guard attempt == 0, error.isConnectionLoss || error.isSerialization,
                    !isStopping.load(ordering: .acquiring)
                else { throw error }
            }
        }
    }

    private func complain(_ reason: String) {
        let now = SystemClock.monotonicMilliseconds()
        let next = nextComplaint.load(ordering: .relaxed)
        guard now >= next,
            nextComplaint.compareExchange(
                expected: next, desired: now + Self.complaintMilliseconds, ordering: .relaxed
            ).exchanged
        else { return }
        Log.warning("provisioning agents", ["error": reason])
    }

    /// - Parameter outcome: `nil`: it failed.
    private func answer(_ job: WorkQueue<ProvisionRequest>.Job, _ outcome: ProvisionOutcome?) {
        switch outcome {
        case .provisioned(let device, let version, let isSuspended, let body):
            counters.provisioned.add(1)
            // The device's first heartbeat may come before the log has told of it.
            cache.changed(device, version: version, isSuspended: isSuspended)
            job.response.respond(.ok, contentType: "application/json", body)
        case .tokenExpired:
            counters.refused.add(1)
            refuse(job, .forbidden, "{\"error\":\"token expired\"}")
        case .tokenUsed:
            counters.refused.add(1)
            refuse(job, .badRequest, "{\"error\":\"token already used\"}")
        case .poolExhausted, nil:
            counters.failed.add(1)
            refuse(job, .internalServerError, "{\"error\":\"provisioning failed\"}")
        }
    }

    private func refuse(
        _ job: WorkQueue<ProvisionRequest>.Job, _ status: Status, _ text: StaticString
    ) {
        var body = ByteBuffer()
        body.append(text)
        job.response.respond(status, contentType: "application/json", body)
    }
}

/// What became of requests to be provisioned. Readable from any thread.
public final class ProvisionCounters: Sendable {
    /// A number that only grows.
    final class Counter: Sendable {
        private let value = Atomic<UInt64>(0)
        func add(_ count: UInt64) { value.wrappingAdd(count, ordering: .relaxed) }
        var current: UInt64 { value.load(ordering: .relaxed) }
    }

    let provisioned = Counter(), refused = Counter(), failed = Counter()
    let limited = Counter(), overloaded = Counter()

    init() {}

    /// Answered 200: devices that are new, and those that came again.
    public var provisionedCount: UInt64 { provisioned.current }
    /// Answered 400 or 403.
    public var refusedCount: UInt64 { refused.current }
    /// Answered 500.
    public var failedCount: UInt64 { failed.current }
    /// Answered 429: too many from one address.
    public var limitedCount: UInt64 { limited.current }
    /// Answered 503: too many waited already.
    public var overloadedCount: UInt64 { overloaded.current }
}
