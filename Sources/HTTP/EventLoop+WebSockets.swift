extension EventLoop {
    /// Readers kept for the next connection; more are in use only while many frames come in pieces.
    private static let spareFrameReaders = 16

    /// - Returns: whether it was opened; not while the server drains, when it would be closed at once.
    func openWebSocket(
        _ connection: Connection, _ headers: [Header], _ limits: WebSocket.Limits,
        _ makeHandler: () -> any WebSocketHandler
    ) -> Bool {
        guard !isDraining else {
            respondError(
                connection, .serviceUnavailable, "server ends",
                [Header("Retry-After", String(retrySeconds()))])
            return false
        }
        tally.webSockets.open += 1
        tally.webSockets.opened += 1
        let socket = WebSocketConnection(self, connection, makeHandler(), limits)
        connection.webSocket = socket
        upgrade(connection, "websocket", headers, socket, queueBytes: limits.queueBytes)
        return true
    }

    /// Opens what was asked for in a handshake whose answer was deferred.
    func openWebSocket(_ connection: Connection, _ opening: WebSocketOpening) {
        guard connection.state == .waiting else { return }
        // A client that ended its side meanwhile can neither answer a ping nor close.
        guard !connection.hasInputEnded else { return destroy(connection) }
        connection.state = .answering
        _ = openWebSocket(connection, opening.headers, opening.limits, opening.makeHandler)
        settle(connection)
    }

    func takeFrameReader() -> FrameReader { frameReaders.popLast() ?? FrameReader() }

    /// - Precondition: it is empty.
    func giveBack(_ reader: FrameReader) {
        if frameReaders.count < Self.spareFrameReaders { frameReaders.append(reader) }
    }
}
