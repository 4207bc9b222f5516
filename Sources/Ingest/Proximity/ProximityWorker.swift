internal import Bytes
internal import HTTP
internal import JWT
internal import Postgres
internal import Schemas
internal import Synchronization
internal import System

/// Carries out the requests of the proximity service, on threads of its own: those that wait at a
/// moment share a round trip to the database, a transaction, and a batch of the log.
/// - Thread safety: any thread.
final class ProximityWorker: Sendable {
    typealias Queue = WorkQueue<ProximityCall>

    private let settings: ProximitySettings
    private let sessions: Sessions
    private let events: ProximityEvents
    private let databaseURL: String
    private let statementMilliseconds: Int64
    private let queue: Queue
    private let keys: Mutex<[IdentityProvider.Name: ProviderKeys]>
    private let isStopping = Atomic(false)
    private let threads = Mutex<[SystemThread]>([])

    init(
        settings: ProximitySettings, sessions: Sessions, events: ProximityEvents,
        databaseURL: String, statementMilliseconds: Int64
    ) {
        self.settings = settings
        self.sessions = sessions
        self.events = events
        self.databaseURL = databaseURL
        self.statementMilliseconds = statementMilliseconds
        let queue = Queue(limit: settings.queueRequests)
        self.queue = queue
        var keys: [IdentityProvider.Name: ProviderKeys] = [:]
        for provider in settings.providers {
            keys[provider.name] = ProviderKeys(
                provider, settings: settings.keys, fetchMilliseconds: settings.fetchMilliseconds
            ) { job in
                if !queue.append(job.request, { job.response }) {
                    job.response.respond(.overloaded)
                }
            }
        }
        self.keys = Mutex(keys)
    }

    func start() {
        for keys in keys.withLock({ Array($0.values) }) { keys.start() }
        threads.withLock { threads in
            threads = (0..<max(1, settings.threads)).map { _ in
                SystemThread.start("proximity") { self.run() }
            }
        }
    }

    /// Ends the threads after what they are at; what still waits is answered 503. Called when no request
    /// comes any more.
    func stop() {
        for keys in keys.withLock({ Array($0.values) }) { keys.stop() }
        isStopping.store(true, ordering: .releasing)
        queue.waker.signal()
        let running = threads.withLock { threads in
            defer { threads = [] }
            return threads
        }
        for thread in running { thread.join() }
    }

    func hasProvider(_ name: IdentityProvider.Name) -> Bool {
        settings.providers.contains { $0.name == name }
    }

    /// Takes a request in.
    /// - Parameter response: called if there is room.
    /// - Returns: whether there was.
    func submit(_ call: ProximityCall, _ response: () -> DeferredResponse) -> Bool {
        queue.append(call, response)
    }

    // MARK: - On its threads

    private func run() {
        let verifier = JWTVerifier()
        var connection: PostgresConnection?
        var complaints = Complaints("answering requests of the proximity service")
        while !isStopping.load(ordering: .acquiring) {
            let jobs = queue.take(atMost: max(1, settings.batchRequests))
            if jobs.isEmpty {
                queue.waker.wait(milliseconds: 1_000)
                continue
            }
            carryOut(prepare(jobs, verifier), &connection, &complaints)
            queue.release(jobs.count)
        }
        for job in queue.take(atMost: .max) { job.response.respond(.unavailable) }
        // For the next of the threads.
        queue.waker.signal()
    }

    private struct Item {
        var work: ProximityWork
        var response: DeferredResponse
    }

    /// Answers what needs no database, and makes the rest ready, in the order in which it is written.
    private func prepare(
        _ jobs: [Queue.Job], _ verifier: borrowing JWTVerifier
    ) -> (small: [Item], large: [Item]) {
        var small: [Item] = []
        var large: [Item] = []
        for job in jobs {
            var call = job.request
            if case .exchange(let asked) = call {
                guard let signIn = verify(asked, job, verifier) else { continue }
                call = .signIn(signIn)
            }
            guard let work = try? ProximityWork(call) else {
                job.response.respond(.unavailable)
                continue
            }
            let item = Item(work: work, response: job.response)
            if work.isLarge { large.append(item) } else { small.append(item) }
        }
        if small.count > 1 {
            small = small.map { (item: $0, order: $0.work.order) }
                .sorted { $0.order < $1.order }.map { $0.item }
        }
        return (small, large)
    }

    /// - Returns: `nil`: it was answered, or waits for keys.
    private func verify(
        _ asked: ExchangeRequest, _ job: Queue.Job, _ verifier: borrowing JWTVerifier
    ) -> SignIn? {
        guard let keys = keys.withLock({ $0[asked.provider] }) else {
            job.response.respond(ProximityFault(.badRequest, "unknown provider"))
            return nil
        }
        let now = SystemClock.wallMilliseconds()
        while true {
            let current = keys.current()
            do throws(JWTRefusal) {
                let claims = try verifier.verify(
                    asked.idToken.span, keys: current?.set ?? JWKSet([]),
                    policy: keys.provider.policy, nonce: asked.nonce.span, now: now)
                return SignIn(provider: asked.provider, claims: claims)
            } catch .keyIDUnknown {
                switch keys.unknownKey(
                    generation: current?.generation ?? 0, asked, job.response)
                {
                case .lookAgain: continue
                case .parked: return nil
                case .refuse: break
                case .unavailable:
                    job.response.respond(.unavailable)
                    return nil
                }
            } catch {
                Log.debug("an identity token was refused", ["reason": "\(error)"])
            }
            job.response.respond(ProximityFault(.unauthorized, "invalid token"))
            return nil
        }
    }

    private func carryOut(
        _ items: (small: [Item], large: [Item]), _ connection: inout PostgresConnection?,
        _ complaints: inout Complaints
    ) {
        var batch = events.makeBatch()
        if !items.small.isEmpty {
            do {
                let outcomes = try run(items.small, &connection)
                complaints.end()
                for (item, outcome) in zip(items.small, outcomes) {
                    settle(item, outcome, &batch)
                }
            } catch {
                // One may have spoilt it for all.
                oneByOne(items.small, error, &connection, &batch, &complaints)
            }
        }
        if !items.large.isEmpty {
            oneByOne(items.large, nil, &connection, &batch, &complaints)
        }
        events.send(batch)
    }

    private func oneByOne(
        _ items: [Item], _ cause: PostgresError?, _ connection: inout PostgresConnection?,
        _ batch: inout ProximityEvents.Batch, _ complaints: inout Complaints
    ) {
        var fault = cause
        // A database that is not there, or not able to, is not asked again for each of them.
        var isAway = cause.map { !($0.isDataError || $0.isSerialization) } ?? false
        for item in items {
            if !isAway {
                do throws(PostgresError) {
                    guard let outcome = try run([item], &connection).first else { continue }
                    settle(item, outcome, &batch)
                    continue
                } catch {
                    if let outcome = item.work.outcome(error) {
                        settle(item, outcome, &batch)
                        continue
                    }
                    fault = error
                    isAway = !(error.isDataError || error.isSerialization)
                }
            }
            if let fault { complaints.add(fault) }
            item.response.respond(.unavailable)
        }
    }

    /// Runs the statements of all in one transaction; again, once, on a new connection where the old one
    /// was lost, or where it was lost against another transaction. All of them may be repeated.
    private func run(
        _ items: [Item], _ connection: inout PostgresConnection?
    ) throws(PostgresError) -> [ProximityWork.Outcome] {
        var pipeline = PostgresPipeline()
        let counts = items.map { $0.work.append(to: &pipeline) }
        var attempt = 0
        while true {
            do throws(PostgresError) {
                if connection == nil { connection = try connect() }
                guard let connection else { return [] }
                let results = try connection.run(pipeline)
                var outcomes: [ProximityWork.Outcome] = []
                var next = 0
                for (item, count) in zip(items, counts) {
                    outcomes.append(try item.work.outcome(results[next..<(next + count)]))
                    next += count
                }
                return outcomes
            } catch {
                if error.isConnectionLoss || error.isConnectionBroken { connection = nil }
                attempt += 1
                guard attempt == 1, error.isConnectionLoss || error.isSerialization,
                    !isStopping.load(ordering: .acquiring)
                else { throw error }
            }
        }
    }

    private func connect() throws(PostgresError) -> PostgresConnection {
        var options = PostgresOptions(applicationName: "heartline proximity")
        options.connectTimeout = .seconds(3)
        options.statementTimeout = .milliseconds(statementMilliseconds)
        options.responseTimeout = .milliseconds(statementMilliseconds + 1_000)
        let connection = try PostgresConnection(databaseURL, options: options)
        // Plans are kept: one that was made while the tables were small would read all of them when they
        // are large. All that is done here is by index.
        try connection.run(
            "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off")
        return connection
    }

    private func settle(
        _ item: Item, _ outcome: ProximityWork.Outcome, _ batch: inout ProximityEvents.Batch
    ) {
        let response = item.response
        switch outcome {
        case .done: response.respondDone()
        case .json(let body): response.respond(json: body)
        case .fault(let fault): response.respond(fault)
        case .ended(let session):
            sessions.ended(session)
            response.respondDone()
        case .publish(let events):
            batch.append(events) { isStored in
                if isStored { response.respondDone() } else { response.respond(.unavailable) }
            }
        case .erase(let events, let caller):
            let eraseRows: @Sendable () -> Void = { [queue] in
                let isQueued = queue.append(.eraseRows(by: caller)) { response }
                if !isQueued { response.respond(.overloaded) }
            }
            if events.isEmpty { return eraseRows() }
            batch.append(events) { isStored in
                if isStored { eraseRows() } else { response.respond(.unavailable) }
            }
        }
    }
}
