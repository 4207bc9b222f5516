public import HTTP
internal import Page
internal import System

/// The operators' listener: `/healthz` and `/readyz`, `/metrics` where there is a token for it, and
/// `/admin/v1` and the page for people where there is something to administer.
///
/// - Thread safety: every method may be called from any thread; `start` and `stop` once each.
public final class AdminListener: Sendable {
    private let server: Server
    private let administration: Administration?
    private let page: PageService?

    /// Binds; nothing is answered before `start`.
    /// - Parameters:
    ///   - administration: `nil`: no `/admin/v1`.
    ///   - metrics: `nil`: no `/metrics`.
    public init(
        _ configuration: ServerConfiguration, readiness: Readiness,
        administration settings: AdministrationSettings? = nil, metrics: MetricsAccess? = nil
    ) throws {
        var configuration = configuration
        configuration.routes = RouteNames.adminNames
        let guardian = metrics.map { AdminGuard($0.tokens) }
        let administration = settings.map { Administration($0) }
        self.administration = administration
        let page = settings.flatMap { settings in
            administration.map { PageService(settings.page($0.gate)) }
        }
        self.page = page
        server = try Server(configuration: configuration) { _ in
            AdminAPI(
                readiness, administration, page.map { PageAPI($0) },
                metrics.flatMap { metrics in
                    guardian.map { (metrics.sources, $0) }
                })
        }
        page?.listens(on: server.boundAddress.port)
    }

    var counters: ServerCounters { server.counters }

    /// Where it really listens.
    public var boundAddress: (host: String, port: UInt16) { server.boundAddress }

    public func start() throws {
        administration?.start()
        page?.start()
        try server.start()
    }

    /// Finishes what is in flight.
    public func stop() {
        // Streams have to end before a drain can.
        page?.stop()
        server.drain()
        administration?.stop()
    }
}

extension AdministrationSettings {
    /// The page's part of it, with tokens judged as those of `/admin/v1` are.
    func page(_ gate: AdminGuard) -> PageSettings {
        var settings = PageSettings(databaseURL: databaseURL, key: token.digest) {
            authorization, address in
            switch gate.judge(
                authorization, address, now: SystemClock.monotonicMilliseconds())
            {
            case .letIn: .letIn
            case .refused: .refused
            case .tooMany(let seconds): .tooMany(seconds: seconds)
            }
        }
        settings.logEnd = logEnd
        settings.names = names
        return settings
    }
}
