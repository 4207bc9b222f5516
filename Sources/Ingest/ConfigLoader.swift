internal import Postgres
internal import Schemas
internal import Synchronization
internal import System

/// Reads devices that the cache misses from PostgreSQL, on a thread of its own. Misses of a moment
/// share one query.
final class ConfigLoader: Sendable {
    private let cache: ConfigCache
    private let queue: LoadQueue
    private let readiness: Readiness
    private let databaseURL: String
    private let secretKey: [UInt8]
    private let statementMilliseconds: Int64
    private let isStopping = Atomic(false)
    private let thread = Mutex<SystemThread?>(nil)

    static let part = "database"
    /// Devices of one query.
    private static let batch = 1_000
    /// Pause after a failed connection, during which misses are answered 500 at once.
    private static let pauseMilliseconds: Int64 = 500
    /// How often an idle connection is tried, so that readiness is true.
    private static let idleMilliseconds: Int64 = 2_000

    init(
        cache: ConfigCache, queue: LoadQueue, readiness: Readiness, databaseURL: String,
        secretKey: [UInt8], statementMilliseconds: Int64
    ) {
        self.cache = cache
        self.queue = queue
        self.readiness = readiness
        self.databaseURL = databaseURL
        self.secretKey = secretKey
        self.statementMilliseconds = statementMilliseconds
    }

    func start() {
        thread.withLock { $0 = SystemThread.start("config-loader") { self.run() } }
    }

    func stop() {
        isStopping.store(true, ordering: .releasing)
        queue.waker.signal()
        let running = thread.withLock { thread in
            defer { thread = nil }
            return thread
        }
        running?.join()
    }

    /// Connects and checks that the secret key is the database's.
    private func connect() throws -> Registry {
        var options = PostgresOptions(applicationName: "heartline front-end")
        // A device waits for this, and agents give up after 30 s.
        options.connectTimeout = .seconds(3)
        options.statementTimeout = .milliseconds(statementMilliseconds)
        options.responseTimeout = .milliseconds(statementMilliseconds + 1_000)
        let registry = try Registry(
            try PostgresConnection(databaseURL, options: options), secretKey: secretKey)
        try registry.checkKey()
        return registry
    }

    /// Tells of an outage once, and again every half minute that it lasts.
    private struct Complaints {
        private var next: Int64 = .min

        mutating func add(_ error: any Error, _ readiness: Readiness) {
            readiness.set(ConfigLoader.part, "\(error)")
            let now = SystemClock.monotonicMilliseconds()
            guard now >= next else { return }
            next = now + 30_000
            Log.warning("reading devices' configurations", ["error": "\(error)"])
        }

        mutating func end(_ readiness: Readiness) {
            readiness.set(ConfigLoader.part, nil)
            next = .min
        }
    }

    private func run() {
        var registry: Registry?
        var complaints = Complaints()
        var nextAttempt = SystemClock.monotonicMilliseconds()
        while !isStopping.load(ordering: .acquiring) {
            let items = queue.take(atMost: Self.batch)
            let now = SystemClock.monotonicMilliseconds()
            if registry == nil, now >= nextAttempt {
                do {
                    registry = try connect()
                    complaints.end(readiness)
                } catch {
                    complaints.add(error, readiness)
                    nextAttempt = SystemClock.monotonicMilliseconds() + Self.pauseMilliseconds
                }
            }
            do {
                if let registry {
                    try load(items, registry)
                } else {
                    fail(items)
                }
            } catch {
                fail(items)
                complaints.add(error, readiness)
                registry = nil
                nextAttempt = SystemClock.monotonicMilliseconds()
            }
            if items.count < Self.batch {
                queue.waker.wait(
                    milliseconds: registry == nil
                        ? max(1, nextAttempt - SystemClock.monotonicMilliseconds())
                        : Self.idleMilliseconds)
            }
        }
        fail(queue.take(atMost: .max))
    }

    private func load(_ items: [LoadQueue.Item], _ registry: Registry) throws {
        guard !items.isEmpty else {
            try registry.ping()
            return
        }
        let answers = try registry.answers(items.map(\.device))
        let now = SystemClock.monotonicMilliseconds()
        for item in items {
            switch answers[item.device] {
            case .damaged:
                settle(item, cache.failed(item.device, ticket: item.ticket))
            case .answer(let answer):
                settle(item, cache.loaded(item.device, ticket: item.ticket, answer, now: now))
            case nil:
                settle(item, cache.loaded(item.device, ticket: item.ticket, nil, now: now))
            }
        }
    }

    private func fail(_ items: [LoadQueue.Item]) {
        for item in items { settle(item, cache.failed(item.device, ticket: item.ticket)) }
    }

    private func settle(_ item: LoadQueue.Item, _ loaded: ConfigCache.Shard.Loaded) {
        switch loaded {
        case .again: queue.append(item)
        case .resolved(let outcome, let waiters):
            for waiter in waiters { waiter.receiver.post(outcome, to: waiter.number) }
        case .obsolete: break
        }
    }
}
