internal import EventLog

/// Phones' sockets on one front-end: the hub, and the tail of topic `pushes` that rings it.
final class PushService<LogType: EventLog>: Sendable {
    let hub: PushHub
    private let bell: PushBell<LogType>
    private let sessions: Sessions
    private let settings: SocketSettings

    /// - Parameter group: of no one else, so that every partition is this front-end's.
    init(
        _ log: LogType, sessions: Sessions, databaseURL: String, settings: SocketSettings,
        statementMilliseconds: Int64, group: String
    ) {
        hub = PushHub(
            databaseURL: databaseURL, limits: settings.limits,
            statementMilliseconds: statementMilliseconds)
        bell = PushBell(log, hub: hub, group: group)
        self.sessions = sessions
        self.settings = settings
    }

    /// The routes of one event loop.
    func makeRoutes() -> any Routes {
        SocketAPI(hub, sessions, pingMilliseconds: settings.pingMilliseconds)
    }

    var isListening: Bool { bell.isListening }

    func start() {
        sessions.add(hub)
        hub.start()
        bell.start()
    }

    /// Called when the sockets have been closed.
    func stop() {
        bell.stop()
        hub.stop()
    }
}
