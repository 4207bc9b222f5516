public import HTTP

/// The operators' listener: `/healthz` and `/readyz`, and `/admin/v1` where there is something to
/// administer.
///
/// - Thread safety: every method may be called from any thread; `start` and `stop` once each.
public final class AdminListener: Sendable {
    private let server: Server
    private let administration: Administration?

    /// Binds; nothing is answered before `start`.
    /// - Parameter administration: `nil`: health only.
    public init(
        _ configuration: ServerConfiguration, readiness: Readiness,
        administration settings: AdministrationSettings? = nil
    ) throws {
        let administration = settings.map { Administration($0) }
        self.administration = administration
        server = try Server(configuration: configuration) { _ in
            AdminAPI(readiness, administration)
        }
    }

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
