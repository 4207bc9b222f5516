public import HTTP

/// The operators' listener: `/healthz` and `/readyz`, `/metrics` where there is a token for it, and
/// `/admin/v1` where there is something to administer.
///
/// - Thread safety: every method may be called from any thread; `start` and `stop` once each.
public final class AdminListener: Sendable {
    private let server: Server
    private let administration: Administration?

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
        server = try Server(configuration: configuration) { _ in
            AdminAPI(
                readiness, administration,
                metrics.flatMap { metrics in
                    guardian.map { (metrics.sources, $0) }
                })
        }
    }

    var counters: ServerCounters { server.counters }

    /// Where it really listens.
    public var boundAddress: (host: String, port: UInt16) { server.boundAddress }

    public func start() throws {
        administration?.start()
        try server.start()
    }

    /// Finishes what is in flight.
    public func stop() {
        server.drain()
        administration?.stop()
    }
}
