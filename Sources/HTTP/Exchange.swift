/// One request's way to its answer, lent to a handler.
///
/// Exactly one of `respond`, `deferred`, `pending`, `stream`, `upgrade` and `webSocket` is called within `handle`; if none
/// is, the client gets 500.
public struct Exchange: ~Copyable {
    private let loop: EventLoop
    private let connection: Connection

    init(_ loop: EventLoop, _ connection: Connection) {
        self.loop = loop
        self.connection = connection
    }

    /// Counts the request, whenever it is answered, as one of `ServerConfiguration.routes`.
    /// - Parameter route: its number, from 1 on.
    public func count(as route: Int) {
        precondition(loop.routes.indices.contains(route), "a route that the server was not told of")
        connection.route = route
    }

    /// Answers at once. Allocates nothing.
    public func respond(_ status: Status, contentType: StaticString, _ body: Span<UInt8>) {
        unsafe body.withUnsafeBytes {
            unsafe loop.respond(connection, status, contentType, [], $0)
        }
    }

    /// Answers at once. Control characters in headers become spaces.
    public func respond(
        _ status: Status, contentType: StaticString, headers: [Header], _ body: Span<UInt8>
    ) {
        unsafe body.withUnsafeBytes {
            unsafe loop.respond(connection, status, contentType, headers, $0)
        }
    }

    /// Answers at once with `{"error":"message"}`; the message must need no escaping.
    public func respondError(
        _ status: Status, _ message: StaticString, headers: [Header] = []
    ) {
        loop.respondError(connection, status, message, headers)
    }

    /// Answers 404.
    public func notFound() { respondError(.notFound, "not found") }

    /// Answers 405.
    /// - Parameter allow: the methods that the path has, as in `GET, POST`.
    public func methodNotAllowed(allow: StaticString) {
        let methods = allow.withUTF8Buffer { unsafe String(decoding: $0, as: UTF8.self) }
        respondError(.methodNotAllowed, "method not allowed", headers: [Header("Allow", methods)])
    }

    /// Answers 503, asking to come again after 1 to 5 seconds, so that not all come at once.
    public func overloaded() {
        respondError(
            .serviceUnavailable, "overloaded",
            headers: [Header("Retry-After", String(loop.retrySeconds()))])
    }

    /// Answers later, from any thread. Later requests of this connection wait for it.
    public func deferred() -> DeferredResponse {
        DeferredResponse(loop.mailbox, loop.deferAnswer(connection))
    }

    /// Answers later, from any thread, whole or in pieces; and the client's going can be seen. A
    /// client that closes its side of the connection counts as gone.
    public func pending() -> PendingResponse { PendingResponse(loop.awaitAnswer(connection)) }

    /// Answers with a body that comes in pieces. Later requests of this connection wait for its end.
    public func stream(
        _ status: Status, contentType: StaticString, headers: [Header] = []
    ) -> ResponseStream {
        ResponseStream(loop.beginStream(connection, status, contentType, headers))
    }

    /// Answers 101 and hands the connection to another protocol.
    /// - Parameter name: for the `Upgrade` header, such as `websocket`.
    public func upgrade(
        to name: StaticString, headers: [Header] = [], _ handler: any UpgradedProtocol
    ) {
        loop.upgrade(connection, name, headers, handler)
    }

    func openWebSocket(
        _ headers: [Header], _ limits: WebSocket.Limits,
        _ makeHandler: () -> any WebSocketHandler
    ) -> Bool {
        loop.openWebSocket(connection, headers, limits, makeHandler)
    }

    /// Runs work on this loop's thread.
    public var mailbox: LoopMailbox { loop.mailbox }

    /// The whole server's counters.
    public var counters: ServerCounters { loop.counters }
}
