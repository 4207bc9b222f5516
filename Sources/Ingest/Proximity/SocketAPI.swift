internal import Bytes
internal import HTTP
internal import JSON
internal import Schemas

/// The route of phones' sockets, on one event loop: `GET /ws`.
final class SocketAPI: Routes {
    private let hub: PushHub
    private let sessions: Sessions
    private let limits: WebSocket.Limits

    init(_ hub: PushHub, _ sessions: Sessions, pingMilliseconds: Int64) {
        self.hub = hub
        self.sessions = sessions
        var limits = WebSocket.Limits()
        // Clients have nothing to say but pings.
        limits.messageBytes = 4 << 10
        limits.queueBytes = 512 << 10
        limits.pingMilliseconds = pingMilliseconds
        self.limits = limits
    }

    func attached(to loop: LoopContext) {}

    func handle(_ request: borrowing Request, _ exchange: borrowing Exchange) -> Bool {
        guard request.pathIs("/ws") else { return false }
        exchange.count(as: RouteNames.Public.socket.rawValue)
        guard request.method == .get else {
            exchange.methodNotAllowed(allow: "GET")
            return true
        }
        guard request.wantsWebSocket else {
            exchange.webSocketRequired()
            return true
        }
        guard let session = SessionID(authorization: request.header("authorization")) else {
            exchange.respondError(
                .unauthorized, "unauthorized", headers: [Header("WWW-Authenticate", "Bearer")])
            return true
        }
        guard let admission = hub.admit(session) else {
            hub.counters.refused.add(1)
            exchange.overloaded()
            return true
        }
        let cursor = Self.cursor(request.query)
        if let entry = sessions.cachedEntry(session) {
            hub.sessionFound(session, expiresAt: entry.expiresAt)
            exchange.webSocket(request, limits: limits) {
                PushSocket(hub, admission, entry.account, after: cursor)
            }
            return true
        }
        guard let answer = exchange.deferredWebSocket(request, limits: limits) else { return true }
        sessions.resolve(session) { [hub] outcome in
            switch outcome {
            case .account(let account):
                answer.open { PushSocket(hub, admission, account, after: cursor) }
            case .unauthorized:
                answer.respond(
                    .unauthorized, contentType: "application/json",
                    headers: [Header("WWW-Authenticate", "Bearer")],
                    ByteBuffer("{\"error\":\"unauthorized\"}".utf8))
            case .unavailable:
                answer.respond(
                    .serviceUnavailable, contentType: "application/json",
                    headers: [Header("Retry-After", String(Int.random(in: 1...5)))],
                    ByteBuffer("{\"error\":\"overloaded\"}".utf8))
            }
        }
        return true
    }

    /// The push that the client had last: `after` of the query. What is no id is one that is not known.
    private static func cursor(_ query: String?) -> PushID? {
        guard let query else { return nil }
        for part in query.split(separator: "&") where part.hasPrefix("after=") {
            return PushID(String(part.dropFirst(6))) ?? PushID(high: 0, low: 0)
        }
        return nil
    }

    func roundEnded() {}
    func tick() {}
}

/// One phone's socket, on its loop's thread.
private final class PushSocket: WebSocketHandler {
    private let hub: PushHub
    private let account: AccountID
    private let cursor: PushID?
    private let admission: SocketAdmission
    private var socket: WebSocket?

    init(
        _ hub: PushHub, _ admission: SocketAdmission, _ account: AccountID, after cursor: PushID?
    ) {
        self.hub = hub
        self.admission = admission
        self.account = account
        self.cursor = cursor
    }

    func opened(_ socket: WebSocket) {
        self.socket = socket
        hub.opened(admission, of: account, after: cursor, socket)
    }

    func received(_ kind: WebSocket.MessageKind, _ bytes: Span<UInt8>) {
        if kind == .text, PingReader.isPing(bytes) { socket?.send(.text, Self.pong) }
    }

    private static let pong = ByteBuffer("{\"type\":\"pong\"}".utf8)

    func reached(_ mark: UInt64) { hub.reached(admission.socket, mark) }

    func closed(_ code: WebSocket.CloseCode) { hub.closed(admission.socket) }
}

/// Reads what clients say: `ping` or `{"type":"ping"}`; whatever else it is, is not for us.
enum PingReader {
    private static let fields = JSONFields(["type"])

    static func isPing(_ bytes: Span<UInt8>) -> Bool {
        if bytes.equals("ping") { return true }
        // The shortest object that is one, and far more than any needs. A parser keeps memory, and pings
        // are rare: it is made for each.
        guard bytes.count >= 15, bytes.count <= 1_024 else { return false }
        let parser = JSONParser(fields, maximumBytes: 1_024)
        do throws(JSONError) { try parser.parse(bytes) } catch { return false }
        return isPing(parser)
    }

    private static func isPing(_ parser: borrowing JSONParser) -> Bool {
        parser.bytes(0)?.equals("ping") == true
    }
}
