internal import Bytes
internal import Crypto
internal import Postgres
package import Schemas
internal import Synchronization
internal import System

/// Tells whose a session is: from memory, or from PostgreSQL, and for no longer than a second after its
/// end, whichever front-end it was ended on.
///
/// A row that goes from table `sessions`, for whatever reason, is told to every front-end by NOTIFY. What
/// is in memory holds for `leaseMilliseconds` from the start of the last round trip on the connection that
/// listens: one that breaks, or a server that hangs, makes every session a question to the database.
/// - Thread safety: any thread.
package final class Sessions: Sendable {
    private struct State {
        var cache: SessionCache
        /// Not yet being read; the requests that wait for each.
        var waiting: [SessionID: [@Sendable (SessionAnswer) -> Void]] = [:]
        var waiters = 0
        var watchers: [any SessionWatcher] = []
        var isInUse = false
        var isStopped = false
    }

    /// How long after a round trip what is in memory holds.
    static let leaseMilliseconds: Int64 = 800
    /// Requests that may wait for the database.
    private static let waiterLimit = 16_384
    /// Sessions of one query.
    private static let batch = 1_000

    private let databaseURL: String
    private let statementMilliseconds: Int64
    private let state: Mutex<State>
    private let readerWaker = Waker()
    private let listenerWaker = Waker()
    private let threads = Mutex<[SystemThread]>([])

    /// - Parameter limit: sessions that are kept in memory; about 100 bytes each.
    package init(databaseURL: String, statementMilliseconds: Int64 = 5_000, limit: Int = 200_000) {
        self.databaseURL = databaseURL
        self.statementMilliseconds = statementMilliseconds
        state = Mutex(State(cache: SessionCache(limit: limit)))
    }

    /// Nothing is asked of the database before the first session is.
    package func start() {
        threads.withLock {
            $0 = [
                SystemThread.start("sessions") { self.read() },
                SystemThread.start("session-ends") { self.listen() },
            ]
        }
    }

    /// Ends the threads; who still waits is told `unavailable`.
    package func stop() {
        state.withLock { $0.isStopped = true }
        readerWaker.signal()
        listenerWaker.signal()
        let running = threads.withLock { threads in
            defer { threads = [] }
            return threads
        }
        for thread in running { thread.join() }
    }

    /// Adds who is told of the ends of sessions from now on.
    ///
    /// Of a session that ends while it is being resolved, a watcher that began to watch it before it
    /// asked is told; one that begins afterwards may miss it.
    package func add(_ watcher: any SessionWatcher) {
        state.withLock { $0.watchers.append(watcher) }
    }

    /// The account of an open session, if that is known without asking the database.
    package func cached(_ session: SessionID) -> AccountID? {
        let now = SystemClock.monotonicMilliseconds()
        return state.withLock { $0.cache.account(of: session, now: now) }
    }

    /// As `cached`, with the time up to which it is open.
    func cachedEntry(_ session: SessionID) -> SessionCache.Entry? {
        let now = SystemClock.monotonicMilliseconds()
        return state.withLock { $0.cache.entry(of: session, now: now) }
    }

    /// Tells whose the session is, at once where that is known, else on a thread of its own after the
    /// database was asked.
    package func resolve(
        _ session: SessionID, _ then: @escaping @Sendable (SessionAnswer) -> Void
    ) {
        enum Next { case answer(SessionAnswer), wait(wakesListener: Bool) }
        let now = SystemClock.monotonicMilliseconds()
        let next = state.withLock { state -> Next in
            if let account = state.cache.account(of: session, now: now) {
                return .answer(.account(account))
            }
            guard !state.isStopped, state.waiters < Self.waiterLimit else {
                return .answer(.unavailable)
            }
            // Only with those of whom nobody has asked yet: an answer that is on its way may be older
            // than this question.
            state.waiting[session, default: []].append(then)
            state.waiters += 1
            defer { state.isInUse = true }
            return .wait(wakesListener: !state.isInUse)
        }
        switch next {
        case .answer(let answer): then(answer)
        case .wait(let wakesListener):
            readerWaker.signal()
            if wakesListener { listenerWaker.signal() }
        }
    }

    /// Says that a session has ended, before the database's word of it comes.
    package func ended(_ session: SessionID) {
        let watchers = state.withLock { state in
            state.cache.end(session)
            return state.watchers
        }
        for watcher in watchers { watcher.sessionEnded(session) }
    }

    /// Sessions in memory.
    package var count: Int { state.withLock { $0.cache.count } }

    /// Whether what is in memory holds now.
    package var isListening: Bool {
        let now = SystemClock.monotonicMilliseconds()
        return state.withLock { $0.cache.isTrusted(now: now) }
    }

    private var isStopped: Bool { state.withLock { $0.isStopped } }

    // MARK: - Reading

    private static let find = PreparedStatement(
        "session_find",
        """
        SELECT token_hash, account_id, \
        (extract(epoch FROM expires_at - clock_timestamp()) * 1000)::int8 \
        FROM heartline.sessions WHERE token_hash = ANY($1) AND expires_at > clock_timestamp()
        """)

    private struct Batch {
        var reading: SessionCache.Reading
        var waiting: [SessionID: [@Sendable (SessionAnswer) -> Void]]
    }

    private func read() {
        var connection: PostgresConnection?
        var complaints = Complaints("reading sessions")
        while true {
            guard let batch = take() else {
                if isStopped { break }
                readerWaker.wait(milliseconds: 60_000)
                continue
            }
            do {
                let found = try find(Array(batch.waiting.keys), &connection)
                complaints.end()
                let (late, watchers) = state.withLock { state in
                    (state.cache.endReading(batch.reading, found: found), state.watchers)
                }
                for watcher in watchers {
                    for (session, entry) in found {
                        watcher.sessionFound(session, expiresAt: entry.expiresAt)
                    }
                }
                let accounts = Dictionary(
                    found.map { ($0.0, $0.1.account) }, uniquingKeysWith: { first, _ in first })
                for (session, waiters) in batch.waiting {
                    let account = late.contains(session) ? nil : accounts[session]
                    let answer = account.map { SessionAnswer.account($0) } ?? .unauthorized
                    for waiter in waiters { waiter(answer) }
                }
            } catch {
                connection = nil
                complaints.add(error)
                _ = state.withLock { $0.cache.endReading(batch.reading, found: []) }
                for waiters in batch.waiting.values {
                    for waiter in waiters { waiter(.unavailable) }
                }
            }
        }
    }

    private func take() -> Batch? {
        state.withLock { state in
            guard !state.waiting.isEmpty else { return nil }
            var taken: [SessionID: [@Sendable (SessionAnswer) -> Void]] = [:]
            if state.waiting.count <= Self.batch {
                taken = state.waiting
                state.waiting = [:]
            } else {
                for (session, waiters) in state.waiting.prefix(Self.batch) {
                    taken[session] = waiters
                }
                for session in taken.keys { state.waiting[session] = nil }
            }
            state.waiters -= taken.values.reduce(0) { $0 + $1.count }
            return Batch(reading: state.cache.beginReading(), waiting: taken)
        }
    }

    /// Asks once more where a connection that was idle turns out to be lost.
    private func find(
        _ sessions: [SessionID], _ connection: inout PostgresConnection?
    ) throws(PostgresError) -> [(SessionID, SessionCache.Entry)] {
        let wasOpen = connection != nil
        do throws(PostgresError) {
            if connection == nil { connection = try connect("heartline sessions") }
            guard let connection else { return [] }
            return try Self.find(sessions, connection)
        } catch {
            connection = nil
            guard wasOpen, error.isConnectionLoss, !isStopped else { throw error }
            let current = try connect("heartline sessions")
            connection = current
            return try Self.find(sessions, current)
        }
    }

    private static func find(
        _ sessions: [SessionID], _ connection: PostgresConnection
    ) throws(PostgresError) -> [(SessionID, SessionCache.Entry)] {
        var elements = ByteBuffer()
        for session in sessions {
            elements.appendBigEndian(Int32(32))
            elements.append(session.digest)
        }
        var parameters = PostgresParameters()
        parameters.append(arrayOf: .bytea, count: sessions.count, elements: elements.span)
        // Before the question: the answer's time to live counts from no later than that.
        let now = SystemClock.monotonicMilliseconds()
        var found: [(SessionID, SessionCache.Entry)] = []
        for row in try connection.execute(Self.find, parameters: parameters) {
            let digest = try row.bytea(0)
            let (high, low) = try row.uuid(1)
            found.append(
                (
                    SessionID(Digest(bytes: digest.span)),
                    SessionCache.Entry(
                        account: AccountID(high: high, low: low),
                        expiresAt: now + (try row.int8(2)))
                ))
        }
        return found
    }

    private func connect(_ name: String) throws(PostgresError) -> PostgresConnection {
        var options = PostgresOptions(applicationName: name)
        options.connectTimeout = .seconds(3)
        options.statementTimeout = .milliseconds(statementMilliseconds)
        options.responseTimeout = .milliseconds(statementMilliseconds + 1_000)
        return try PostgresConnection(databaseURL, options: options)
    }

    // MARK: - Listening

    /// Time between round trips; well below the lease.
    private static let probeMilliseconds: Int64 = 250
    private static let pauseMilliseconds: Int64 = 500

    private func listen() {
        var complaints = Complaints("listening to the ends of sessions")
        while !isStopped {
            guard state.withLock({ $0.isInUse }) else {
                listenerWaker.wait(milliseconds: 60_000)
                continue
            }
            do {
                let connection = try connect("heartline session ends")
                try connection.listen("heartline_sessions")
                // What ended before this moment was told to nobody here.
                state.withLock { $0.cache.distrust() }
                try recheck(connection)
                complaints.end()
                while !isStopped {
                    let start = SystemClock.monotonicMilliseconds()
                    try connection.run("SELECT")
                    try hear(connection)
                    state.withLock { $0.cache.trust(until: start + Self.leaseMilliseconds) }
                    let end = start + Self.probeMilliseconds
                    while !isStopped {
                        let left = end - SystemClock.monotonicMilliseconds()
                        guard left > 0 else { break }
                        _ = connection.waitReadable(
                            orReadable: listenerWaker.descriptor, timeout: .milliseconds(left))
                        listenerWaker.drain()
                        try hear(connection)
                    }
                }
            } catch {
                complaints.add(error)
                listenerWaker.wait(milliseconds: Self.pauseMilliseconds) { !isStopped }
            }
        }
    }

    private func hear(_ connection: PostgresConnection) throws(PostgresError) {
        for notification in try connection.notifications() {
            let hexadecimal = notification.payload.prefix { $0 != " " }
            guard let session = SessionID(hexadecimal: hexadecimal) else { continue }
            ended(session)
        }
    }

    /// Looks which watched sessions have ended unheard.
    private func recheck(_ connection: PostgresConnection) throws(PostgresError) {
        let watchers = state.withLock { $0.watchers }
        for watcher in watchers {
            let sessions = watcher.watchedSessions
            for start in stride(from: 0, to: sessions.count, by: Self.batch) {
                let part = Array(sessions[start..<min(start + Self.batch, sessions.count)])
                let open = Set(try Self.find(part, connection).map { $0.0 })
                for session in part where !open.contains(session) { watcher.sessionEnded(session) }
            }
        }
    }
}

/// Tells of a fault once, and again every half minute that it lasts. Used on one thread.
struct Complaints {
    private let doing: StaticString
    private var next: Int64 = .min

    init(_ doing: StaticString) { self.doing = doing }

    mutating func add(_ error: any Error, _ data: [String: String] = [:]) {
        let now = SystemClock.monotonicMilliseconds()
        guard now >= next else { return }
        next = now + 30_000
        Log.warning(doing, data.merging(["error": "\(error)"]) { first, _ in first })
    }

    mutating func end() { next = .min }
}
