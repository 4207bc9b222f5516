internal import Bytes
internal import HTTP
internal import Postgres
internal import Schemas
internal import Synchronization
internal import System

/// The sockets of one front-end by account, and the thread that sends what `PushDelivery` decides.
///
/// Event loops, the tail of topic `pushes` and `Sessions` put what happened into its inbox. The thread
/// takes what has gathered, asks the database in one round trip for all accounts at once, and sends. While
/// the database is away it tries again with growing pauses, and forgets nothing.
/// - Thread safety: any thread; `start` and `stop` once each.
package final class PushHub: Sendable {
    package let counters = PushCounters()
    private let limits: PushLimits
    private let databaseURL: String
    private let statementMilliseconds: Int64
    private let inbox = Mutex(Inbox())
    private let admissions = Mutex(Admissions())
    private let waker = Waker()
    private let isStopping = Atomic(false)
    private let thread = Mutex<SystemThread?>(nil)

    /// How often it looks after what time brings.
    private static let tickMilliseconds: Int64 = 250

    private struct Inbox {
        var events: [Event] = []
        /// Accounts whose doorbell rang, some perhaps several times.
        var bells: [AccountID] = []
        var hasMissedBells = false
        var isSignalled = false
    }

    private enum Event {
        case opened(SocketID, AccountID, PushID?, WebSocket)
        case reached(SocketID, UInt64)
        case closed(SocketID)
    }

    private struct Admissions {
        var last: UInt64 = 0
        var count = 0
        var watched: [SessionID: Watched] = [:]
    }

    private struct Watched {
        /// Those who are let in, with their sockets once they are open.
        var sockets: [(SocketID, WebSocket?)] = []
        var expiresAt = Int64.max
    }

    package init(
        databaseURL: String, limits: PushLimits = PushLimits(), statementMilliseconds: Int64 = 5_000
    ) {
        self.databaseURL = databaseURL
        self.limits = limits
        self.statementMilliseconds = statementMilliseconds
    }

    package func start() {
        thread.withLock { $0 = SystemThread.start("pushes") { self.run() } }
    }

    /// Ends the thread; what was confirmed and is not noted yet is sent once more at the next connection.
    package func stop() {
        isStopping.store(true, ordering: .releasing)
        waker.signal()
        let running = thread.withLock { thread in
            defer { thread = nil }
            return thread
        }
        running?.join()
    }

    /// Sockets open now, and those on their way.
    package var socketCount: Int { admissions.withLock { $0.count } }

    // MARK: - What happens

    /// Whoever asks for a socket has to be let in before it is asked whose session it shows: from then on
    /// the end of the session is heard of.
    /// - Returns: `nil` if there are too many.
    func admit(_ session: SessionID) -> SocketAdmission? {
        let socket = admissions.withLock { admissions -> SocketID? in
            guard admissions.count < limits.sockets else { return nil }
            admissions.count += 1
            admissions.last += 1
            let socket = SocketID(admissions.last)
            admissions.watched[session, default: Watched()].sockets.append((socket, nil))
            return socket
        }
        return socket.map { SocketAdmission(self, $0, session) }
    }

    /// The admission has gone, and its socket, if there ever was one, with it.
    fileprivate func left(_ socket: SocketID, _ session: SessionID) {
        admissions.withLock { admissions in
            admissions.count -= 1
            admissions.watched[session]?.sockets.removeAll { $0.0 == socket }
            if admissions.watched[session]?.sockets.isEmpty == true {
                admissions.watched[session] = nil
            }
        }
    }

    func opened(
        _ admission: SocketAdmission, of account: AccountID, after cursor: PushID?,
        _ socket: WebSocket
    ) {
        let id = admission.socket
        let isWatched = admissions.withLock { admissions in
            guard
                let place = admissions.watched[admission.session]?.sockets
                    .firstIndex(where: { $0.0 == id })
            else { return false }
            admissions.watched[admission.session]!.sockets[place].1 = socket
            return true
        }
        // The session ended while it was asked whose it is.
        guard isWatched else { return Self.close(socket) }
        post { $0.events.append(.opened(id, account, cursor, socket)) }
    }

    func reached(_ socket: SocketID, _ mark: UInt64) {
        post { $0.events.append(.reached(socket, mark)) }
    }

    func closed(_ socket: SocketID) { post { $0.events.append(.closed(socket)) } }

    /// Doorbells rang.
    func rung(_ accounts: [AccountID]) {
        guard !accounts.isEmpty else { return }
        post { inbox in
            // All open accounts are fewer than that.
            if inbox.bells.count + accounts.count > 2 * limits.sockets {
                inbox.bells = []
                inbox.hasMissedBells = true
            } else {
                inbox.bells += accounts
            }
        }
    }

    /// Doorbells may have rung unheard.
    func missedBells() { post { $0.hasMissedBells = true } }

    private func post(_ change: (inout Inbox) -> Void) {
        let needsSignal = inbox.withLock { inbox in
            change(&inbox)
            defer { inbox.isSignalled = true }
            return !inbox.isSignalled
        }
        if needsSignal { waker.signal() }
    }

    private static func close(_ socket: WebSocket) {
        socket.close(.policyViolation, reason: "session ended")
    }

    // MARK: - On its thread

    /// What the thread alone uses.
    private struct State {
        var delivery: PushDelivery
        var sockets: [SocketID: WebSocket] = [:]
        var effects: [PushEffect] = []
        var connection: PostgresConnection?
        var round: PushRound?
        var roundEnd: Int64 = 0
        var nextTick: Int64 = .min
        var nextAttempt: Int64 = .min
        var failures = 0
        var complaints = Complaints("delivering pushes")
        var isRunning: Bool { round != nil }
    }

    private func run() {
        var state = State(delivery: PushDelivery(limits))
        while !isStopping.load(ordering: .acquiring) {
            takeInbox(&state)
            let now = SystemClock.monotonicMilliseconds()
            if now >= state.nextTick {
                state.nextTick = now + Self.tickMilliseconds
                endExpired(now)
                state.delivery.tick(now: now, into: &state.effects)
                carryOut(&state)
            }
            ask(&state, now)
            wait(&state)
        }
    }

    private func endExpired(_ now: Int64) {
        let expired = admissions.withLock { admissions in
            admissions.watched.filter { $0.value.expiresAt <= now }.keys
        }
        for session in expired { sessionEnded(session) }
    }

    private func takeInbox(_ state: inout State) {
        let (events, bells, hasMissedBells) = inbox.withLock { inbox in
            defer {
                inbox.events = []
                inbox.bells = []
                inbox.hasMissedBells = false
                inbox.isSignalled = false
            }
            return (inbox.events, inbox.bells, inbox.hasMissedBells)
        }
        let now = SystemClock.monotonicMilliseconds()
        for event in events {
            switch event {
            case .opened(let id, let account, let cursor, let socket):
                state.sockets[id] = socket
                state.delivery.opened(
                    id, of: account, after: cursor, now: now, into: &state.effects)
            case .reached(let id, let mark): state.delivery.confirmed(id, mark: mark, now: now)
            case .closed(let id):
                state.sockets[id] = nil
                state.delivery.closed(id)
            }
        }
        for account in bells { state.delivery.rung(account) }
        if hasMissedBells { state.delivery.missedBells() }
        carryOut(&state)
    }

    private func carryOut(_ state: inout State) {
        for effect in state.effects {
            switch effect {
            case .send(let id, let body): state.sockets[id]?.send(.text, body)
            case .mark(let id, let number): state.sockets[id]?.mark(number)
            case .close(let id, .tooMany):
                state.sockets.removeValue(forKey: id)?
                    .close(Self.replaced, reason: "too many sockets of the account")
            case .close(let id, .slow):
                counters.slow.add(1)
                state.sockets.removeValue(forKey: id)?.close(.tryAgainLater, reason: "too slow")
            }
        }
        state.effects.removeAll(keepingCapacity: true)
        counters.sent.store(state.delivery.sentCount)
        counters.confirmed.store(state.delivery.confirmedCount)
        counters.accounts.store(UInt64(state.delivery.accountCount))
    }

    /// An account's oldest socket had to go for a newer one.
    private static let replaced = WebSocket.CloseCode(rawValue: 4001)

    /// Goes on with the round that is under way, or begins one if there is something to ask.
    private func ask(_ state: inout State, _ now: Int64) {
        do {
            if let connection = state.connection, let round = state.round {
                guard connection.advance() else {
                    guard now < state.roundEnd else {
                        throw PostgresError(
                            .executing, "a round of pushes",
                            "no answer within \(statementMilliseconds + 1_000) ms",
                            isConnectionBroken: true)
                    }
                    return
                }
                let answer = try PushQueries.answer(to: round, try connection.takeResults())
                state.round = nil
                state.failures = 0
                state.complaints.end()
                state.delivery.answered(answer, now: now, into: &state.effects)
                carryOut(&state)
            }
            if state.connection == nil {
                // Nobody is there to be told anything: no need for a connection either.
                guard now >= state.nextAttempt, state.delivery.socketCount > 0 else { return }
                state.connection = try connect()
            }
            guard let round = state.delivery.nextRound(now: now), let connection = state.connection
            else { return }
            counters.rounds.add(1)
            state.round = round
            state.roundEnd = now + statementMilliseconds + 1_000
            connection.submit(PushQueries.pipeline(for: round, limits))
        } catch {
            state.complaints.add(error)
            state.connection = nil
            if state.round != nil { state.delivery.failed(now: now) }
            state.round = nil
            state.failures += 1
            state.nextAttempt =
                SystemClock.monotonicMilliseconds()
                + Self.backoff.delay(afterFailures: state.failures)
        }
    }

    private static let backoff = Backoff(initialMilliseconds: 50, limitMilliseconds: 2_000)

    private func connect() throws(PostgresError) -> PostgresConnection {
        var options = PostgresOptions(applicationName: "heartline pushes")
        options.connectTimeout = .seconds(3)
        options.statementTimeout = .milliseconds(statementMilliseconds)
        options.responseTimeout = .milliseconds(statementMilliseconds + 1_000)
        let connection = try PostgresConnection(databaseURL, options: options)
        try connection.run(PushQueries.session)
        return connection
    }

    private func wait(_ state: inout State) {
        let now = SystemClock.monotonicMilliseconds()
        let pause = min(state.nextTick - now, state.delivery.pause(now: now))
        if let connection = state.connection, state.isRunning {
            connection.waitForAnswer(
                orReadable: waker.descriptor, timeout: .milliseconds(max(0, pause)))
            waker.drain()
        } else {
            waker.wait(milliseconds: pause)
        }
    }
}

extension PushHub: SessionWatcher {
    package var watchedSessions: [SessionID] { admissions.withLock { Array($0.watched.keys) } }

    package func sessionFound(_ session: SessionID, expiresAt: Int64) {
        admissions.withLock { $0.watched[session]?.expiresAt = expiresAt }
    }

    package func sessionEnded(_ session: SessionID) {
        let ended = admissions.withLock { $0.watched.removeValue(forKey: session) }
        for case (_, let socket?) in ended?.sockets ?? [] {
            counters.ended.add(1)
            Self.close(socket)
        }
    }
}

/// Somebody who was let in, for as long as this is held: first by who asks for the session, then by the
/// socket.
final class SocketAdmission: Sendable {
    let socket: SocketID
    fileprivate let session: SessionID
    private let hub: PushHub

    fileprivate init(_ hub: PushHub, _ socket: SocketID, _ session: SessionID) {
        self.hub = hub
        self.socket = socket
        self.session = session
    }

    deinit { hub.left(socket, session) }
}

/// What the sockets of a front-end count. Readable from any thread.
package final class PushCounters: Sendable {
    package final class Counter: Sendable {
        private let count = Atomic<UInt64>(0)

        package var value: UInt64 { count.load(ordering: .relaxed) }
        func add(_ more: UInt64) { count.wrappingAdd(more, ordering: .relaxed) }
        func store(_ value: UInt64) { count.store(value, ordering: .relaxed) }
    }

    /// Accounts with sockets here.
    package let accounts = Counter()
    /// Pushes sent, once for each socket.
    package let sent = Counter()
    /// Pushes that a socket has confirmed.
    package let confirmed = Counter()
    /// Round trips to the database.
    package let rounds = Counter()
    /// Sockets closed because their session ended.
    package let ended = Counter()
    /// Sockets closed because they took what they were sent too slowly.
    package let slow = Counter()
    /// Doorbells heard, of whatever account.
    package let bells = Counter()
    /// Sockets refused.
    package let refused = Counter()
}
