public import HTTP

/// The operators' listener, for a process that has no front-end, or not yet: `/healthz` and `/readyz`.
///
/// - Thread safety: every method may be called from any thread; `start` and `stop` once each.
public final class AdminListener: Sendable {
    private let server: Server

    /// Binds; nothing is answered before `start`.
    public init(_ configuration: ServerConfiguration, readiness: Readiness) throws {
        server = try Server(configuration: configuration) { _ in AdminAPI(readiness) }
    }

    /// Where it really listens.
    public var boundAddress: (host: String, port: UInt16) { server.boundAddress }

    public func start() throws { try server.start() }

    public func stop() { server.drain() }
}
