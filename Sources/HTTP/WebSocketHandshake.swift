public import Bytes
internal import Crypto

extension RequestHead {
    /// Whether the client asks for a WebSocket: HTTP/1.1, GET, and an upgrade to it.
    ///
    /// A route of WebSockets answers others by `Exchange.webSocketRequired`.
    public var wantsWebSocket: Bool {
        method == .get && isHTTP11 && hasToken("websocket", in: header("upgrade"))
            && hasToken("upgrade", in: header("connection"))
    }

    private func hasToken(_ token: String, in list: String?) -> Bool {
        guard let list else { return false }
        return list.utf8.split(separator: 0x2C).contains { part in
            let text = part.drop { $0 == 0x20 || $0 == 0x09 }
            let rest = text.reversed().drop { $0 == 0x20 || $0 == 0x09 }
            guard rest.count == token.utf8.count else { return false }
            return zip(rest, token.utf8.reversed()).allSatisfy { $0 | 0x20 == $1 }
        }
    }
}

extension Request {
    /// As `RequestHead.wantsWebSocket`.
    public var wantsWebSocket: Bool { head.wantsWebSocket }
}

extension Exchange {
    /// Answers 426: here is a WebSocket and nothing else.
    public func webSocketRequired() {
        respondError(
            .upgradeRequired, "websocket required",
            headers: [
                Header("Upgrade", "websocket"), Header("Sec-WebSocket-Version", "13"),
            ])
    }

    /// Answers 101 and opens a WebSocket (RFC 6455, section 4.2), or refuses: 426 without an upgrade or
    /// with another version than 13, 400 with a bad key, 503 while the server drains.
    ///
    /// - Parameters:
    ///   - request: the one that this exchange answers.
    ///   - subprotocol: for `Sec-WebSocket-Protocol`: one that the client has offered.
    ///   - makeHandler: called only if the socket is opened.
    /// - Returns: whether it was.
    @discardableResult
    public func webSocket(
        _ request: borrowing Request, limits: WebSocket.Limits = WebSocket.Limits(),
        subprotocol: String? = nil, _ makeHandler: () -> any WebSocketHandler
    ) -> Bool {
        guard let headers = handshake(request, subprotocol) else { return false }
        return openWebSocket(headers, limits, makeHandler)
    }

    /// As `webSocket`, but whether it is opened is said later, from any thread.
    /// - Returns: `nil` if the handshake was refused.
    public func deferredWebSocket(
        _ request: borrowing Request, limits: WebSocket.Limits = WebSocket.Limits(),
        subprotocol: String? = nil
    ) -> DeferredWebSocket? {
        guard let headers = handshake(request, subprotocol) else { return nil }
        return DeferredWebSocket(deferred(), headers, limits)
    }

    /// Checks what a client asks for, and refuses it or makes the answer's headers.
    private func handshake(
        _ request: borrowing Request, _ subprotocol: String?
    ) -> [Header]? {
        guard request.wantsWebSocket, request.header("sec-websocket-version") == "13" else {
            webSocketRequired()
            return nil
        }
        guard let key = request.header("sec-websocket-key"), isKey(key) else {
            respondError(.badRequest, "bad sec-websocket-key")
            return nil
        }
        let text = Array((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").utf8)
        let hash = SHA1.hash(text.span)
        var headers = [Header("Sec-WebSocket-Accept", Base64.encode(hash.span))]
        if let subprotocol { headers.append(Header("Sec-WebSocket-Protocol", subprotocol)) }
        return headers
    }

    /// Whether a key is the Base64 of 16 bytes.
    private func isKey(_ key: String) -> Bool {
        let text = Array(key.utf8)
        return text.count == 24 && Base64.decode(text.span)?.count == 16
    }
}

/// A WebSocket that is opened or refused later, from any thread: when it is known who asks, for example.
///
/// If the last copy goes away without an answer, the client gets 500. If the client has gone, the
/// answer is dropped.
public struct DeferredWebSocket: Sendable {
    private let response: DeferredResponse
    private let headers: [Header]
    private let limits: WebSocket.Limits

    init(_ response: DeferredResponse, _ headers: [Header], _ limits: WebSocket.Limits) {
        self.response = response
        self.headers = headers
        self.limits = limits
    }

    /// Answers 101, or 503 if the server drains by then; only the first answer counts.
    /// - Parameter makeHandler: called on the loop's thread, only if the socket is opened.
    public func open(_ makeHandler: @escaping @Sendable () -> any WebSocketHandler) {
        response.open(
            WebSocketOpening(headers: headers, limits: limits, makeHandler: makeHandler))
    }

    /// Refuses; only the first answer counts.
    public func respond(
        _ status: Status, contentType: StaticString, headers: [Header] = [], _ body: ByteBuffer
    ) {
        response.respond(status, contentType: contentType, headers: headers, body)
    }
}

/// What a loop needs to open a WebSocket.
struct WebSocketOpening: Sendable {
    var headers: [Header]
    var limits: WebSocket.Limits
    var makeHandler: @Sendable () -> any WebSocketHandler
}
