internal import Postgres
internal import Synchronization
internal import System

/// Runs `AlertDispatch` on the database, by one process of all, and its receivers.
///
/// It has a thread of its own, and each receiver another. The lease is an advisory lock of the
/// dispatcher's session, in which every round is one transaction: what a dispatcher decides is stored
/// only while it holds the lease. Each receiver has a lease of its own in the same way.
/// - Thread safety: any thread.
public final class AlertDispatcher: Sendable {
    private struct State {
        var isRunning = false
        var configuration: AlertsConfiguration
        var receivers: [(settings: AlertReceiverSettings, running: AlertReceiver)] = []
    }

    private let database: String
    private let worker: DispatcherWorker
    private let thread = StoppableThread()
    private let state: Mutex<State>

    /// - Parameter database: its address.
    public init(
        database: String, configuration: AlertsConfiguration,
        settings: AlertDispatcherSettings = .init()
    ) {
        self.database = database
        worker = DispatcherWorker(database: database, configuration, settings)
        state = Mutex(State(configuration: configuration))
    }

    deinit { stop() }

    public func start() {
        state.withLock { state in
            guard !state.isRunning else { return }
            state.isRunning = true
            thread.start("alerts") { [worker] in worker.run() }
            start(state.configuration.receivers, in: &state)
        }
    }

    /// Ends the threads; a message under way gets 3 s to be acknowledged. It is not started again.
    public func stop() {
        let receivers = state.withLock { state in
            defer {
                state.isRunning = false
                state.receivers = []
            }
            return state.receivers.map(\.running)
        }
        worker.stop()
        end(receivers)
        thread.join(milliseconds: 4_000)
    }

    /// Goes on with another configuration; receivers that did not change are left alone.
    public func reload(_ configuration: AlertsConfiguration) {
        worker.reconfigure(configuration)
        let old = state.withLock { state -> [AlertReceiver] in
            state.configuration = configuration
            guard state.isRunning else { return [] }
            let leaving = state.receivers.filter { !configuration.receivers.contains($0.settings) }
            state.receivers.removeAll { !configuration.receivers.contains($0.settings) }
            return leaving.map(\.running)
        }
        end(old)
        state.withLock { state in
            guard state.isRunning else { return }
            let running = state.receivers.map(\.settings)
            start(configuration.receivers.filter { !running.contains($0) }, in: &state)
        }
    }

    /// All at once: one that hangs does not hold up the others.
    private func end(_ receivers: [AlertReceiver]) {
        for receiver in receivers { receiver.askToStop() }
        let end = SystemClock.monotonicMilliseconds() + 4_000
        for receiver in receivers {
            receiver.stop(milliseconds: max(0, end - SystemClock.monotonicMilliseconds()))
        }
    }

    private func start(_ receivers: [AlertReceiverSettings], in state: inout State) {
        for settings in receivers {
            let receiver = AlertReceiver(database: database, settings)
            receiver.start()
            state.receivers.append((settings, receiver))
        }
    }

    /// Whether this process is the one that dispatches.
    public var hasLease: Bool { worker.lease.load(ordering: .relaxed) }

    /// Rounds that were stored.
    public var roundCount: Int { worker.rounds.load(ordering: .relaxed) }
}

public struct AlertDispatcherSettings: Sendable {
    /// Longest wait for a notification before the tables are read all the same. Default: 1 s.
    public var pollMilliseconds: Int64 = 1_000
    /// Changes of alerts that one round takes. Default: 50,000.
    public var newsLimit: Int64 = 50_000
    /// Told on the dispatcher's thread what is in the way, and `nil` when nothing is any more: for
    /// readiness. Told of changes only.
    public var obstacleChanged: (@Sendable (String?) -> Void)?

    public init() {}
}

/// What the thread of an `AlertDispatcher` does. Only that thread calls `run`.
private final class DispatcherWorker: Sendable {
    let lease = Atomic<Bool>(false)
    let rounds = Atomic<Int>(0)
    private let isStopping = Atomic<Bool>(false)
    private let configuration: Mutex<AlertsConfiguration>
    private let waker = Waker()
    private let database: String
    private let settings: AlertDispatcherSettings
    private let backoff = Backoff()

    init(
        database: String, _ configuration: AlertsConfiguration, _ settings: AlertDispatcherSettings
    ) {
        self.database = database
        self.configuration = Mutex(configuration)
        self.settings = settings
    }

    func stop() {
        isStopping.store(true, ordering: .relaxed)
        waker.signal()
    }

    func reconfigure(_ new: AlertsConfiguration) {
        configuration.withLock { $0 = new }
        waker.signal()
    }

    private var goesOn: Bool { !isStopping.load(ordering: .relaxed) }

    /// What the thread holds on to between rounds.
    private struct Session {
        var connection: PostgresConnection?
        /// `nil`: to be read from the database, because the lease is new or a round failed.
        var dispatch: AlertDispatch?
        var obstacle: String?
    }

    func run() {
        var session = Session()
        var failures = 0
        while goesOn {
            do {
                let connection = try connect(&session)
                if !lease.load(ordering: .relaxed) {
                    let isTaken = try connection.execute(AlertStatements.lease).only().bool(0)
                    lease.store(isTaken, ordering: .relaxed)
                    if isTaken { Log.info("dispatching alerts") }
                }
                var isMore = false
                if lease.load(ordering: .relaxed) { isMore = try round(&session, connection) }
                tell(nil, &session)
                failures = 0
                if !isMore { try waitForNews(connection) }
            } catch {
                if failures == 0 { Log.warning("dispatching alerts", ["error": "\(error)"]) }
                failures += 1
                tell("\(error)", &session)
                lease.store(false, ordering: .relaxed)
                session.dispatch = nil
                session.connection = nil
                pause(backoff.delay(afterFailures: failures))
            }
        }
        lease.store(false, ordering: .relaxed)
    }

    private func tell(_ obstacle: String?, _ session: inout Session) {
        if obstacle == session.obstacle { return }
        session.obstacle = obstacle
        settings.obstacleChanged?(obstacle)
    }

    private func connect(_ session: inout Session) throws -> PostgresConnection {
        if let connection = session.connection, connection.isUsable { return connection }
        // The lease ended with the session that had it, and with it what was known.
        lease.store(false, ordering: .relaxed)
        session.dispatch = nil
        var options = PostgresOptions(applicationName: "heartline alerts")
        options.responseTimeout = .seconds(120)
        let connection = try PostgresConnection(database, options: options)
        // Before the first look at the tables, so that nothing falls in between.
        try connection.listen("heartline_alerts")
        session.connection = connection
        return connection
    }

    private func waitForNews(_ connection: PostgresConnection) throws {
        _ = connection.waitReadable(
            orReadable: waker.descriptor, timeout: .milliseconds(settings.pollMilliseconds))
        waker.drain()
        _ = try connection.notifications()
    }

    private func pause(_ milliseconds: Int64) {
        waker.wait(milliseconds: milliseconds) { goesOn }
    }

    /// One transaction: reads what is new, decides, and stores the decisions with their messages.
    /// - Returns: whether more is new than was read.
    private func round(
        _ session: inout Session, _ connection: PostgresConnection
    ) throws -> Bool {
        let configuration = configuration.withLock { $0 }
        let known = session.dispatch
        // Until the transaction is known to have been committed, what follows is not what holds.
        session.dispatch = nil
        let (dispatch, isMore) = try connection.transaction {
            var store = AlertStore(connection)
            var dispatch: AlertDispatch
            var news: [AlertDispatch.News] = []
            if let known {
                dispatch = known
                dispatch.reconfigure(configuration.dispatch)
            } else {
                (dispatch, news) = try store.restore(configuration.dispatch)
            }
            let seen = try store.look(newsLimit: settings.newsLimit)
            news += seen.news
            var round = AlertRound()
            dispatch.take(news, silences: seen.silences, at: seen.now, into: &round)
            let devices = dispatch.wantsDeviceCount ? try store.onlineDevices() : nil
            dispatch.decide(
                onlineDevices: devices, silences: seen.silences, at: seen.now, into: &round)
            if !round.isEmpty {
                try store.write(round, receivers: configuration.receivers, at: seen.now)
            }
            return (dispatch, seen.isMore)
        }
        session.dispatch = dispatch
        rounds.add(1, ordering: .relaxed)
        return isMore
    }
}
