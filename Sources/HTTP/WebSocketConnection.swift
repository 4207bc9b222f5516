internal import Bytes

/// The server's side of the protocol of one WebSocket; belongs to the thread of its loop.
///
/// Idle, it holds no buffer. Fragments gather in `message`; a message that came in one piece is lent
/// to the handler from where it was unmasked.
final class WebSocketConnection: UpgradedProtocol {
    private enum Opcode {
        static let continuation: UInt8 = 0
        static let text: UInt8 = 1
        static let binary: UInt8 = 2
        static let close: UInt8 = 8
        static let ping: UInt8 = 9
        static let pong: UInt8 = 10
    }

    private unowned let loop: EventLoop
    private unowned let connection: Connection
    private let handler: any WebSocketHandler
    private let limits: WebSocket.Limits

    private var frames: FrameReader?
    /// Fragments of a message, and behind them the begun payload of a control frame between them.
    private let message = ByteQueue()
    private var controlCount = 0
    private var kind = WebSocket.MessageKind.binary
    private var isInMessage = false
    private var text = UTF8Check()

    /// Pings since the client was last heard of.
    private var unansweredPings = 0
    /// The last mark; 0: none yet.
    private var lastMark: UInt64 = 0
    /// What the socket ended with, as soon as either side has said so.
    private var closeCode: WebSocket.CloseCode?
    private var hasSentClose = false
    /// The protocol is over; the connection may still have bytes to send.
    private var isOver = false

    // Times of the loop's clock.
    private var pingTime: Int64
    private var closeDeadline = Int64.max
    /// By when the client has to take some of our bytes; `.max` if none wait.
    private(set) var writeDeadline = Int64.max

    init(
        _ loop: EventLoop, _ connection: Connection, _ handler: any WebSocketHandler,
        _ limits: WebSocket.Limits
    ) {
        self.loop = loop
        self.connection = connection
        self.handler = handler
        self.limits = limits
        // Sockets opened together, as after a restart, are not to be pinged together for ever.
        let interval = max(1, limits.pingMilliseconds)
        pingTime = loop.now + interval / 2 + loop.random(below: interval / 2 + 1)
    }

    /// When something is to be done next.
    private var deadline: Int64 { min(pingTime, closeDeadline, writeDeadline) }

    // MARK: What the loop tells

    func opened(_ connection: UpgradedConnection) {
        self.connection.deadline = deadline
        handler.opened(WebSocket(connection.core))
    }

    func received(_ bytes: Span<UInt8>) {
        guard !isOver else { return }
        unansweredPings = 0
        let reader = frames ?? loop.takeFrameReader()
        frames = reader
        unsafe bytes.withUnsafeBytes { bytes in
            unsafe reader.feed(bytes)
            reading: while !isOver {
                switch reader.next() {
                case .part(let part): take(part)
                case .needsInput: break reading
                case .malformed: fail(.protocolError, "malformed frame")
                }
            }
        }
        // A reader that was left in the middle of a frame is of no more use to anyone.
        if isOver {
            frames = nil
        } else if reader.isEmpty {
            frames = nil
            loop.giveBack(reader)
        }
    }

    func draining() { close(.goingAway, ByteBuffer("server ends".utf8)) }

    func closed() {
        isOver = true
        frames = nil
        message.free()
        tellClosed()
    }

    func outputIsBlocked(until deadline: Int64) {
        writeDeadline = deadline
        connection.deadline = self.deadline
    }

    func outputIsEmpty() {
        writeDeadline = .max
        connection.deadline = deadline
    }

    /// A deadline is over.
    /// - Returns: false if the connection is to be cut.
    func expire() -> Bool {
        let now = loop.now
        if now >= writeDeadline || now >= closeDeadline { return false }
        if now >= pingTime {
            pingTime = now + max(1, limits.pingMilliseconds)
            if hasSentClose {
                // The client owes an answer to that already.
            } else if !connection.output.isEmpty {
                // A ping would wait behind that, and answers may be unread until the client has taken
                // some of it; its time for that runs already.
            } else if unansweredPings >= 2 {
                close(.internalError, ByteBuffer("no pong".utf8))
            } else {
                unansweredPings += 1
                // A client may answer this one alone and leave the last mark's out, so it is one as well.
                writePing()
            }
        }
        connection.deadline = deadline
        return true
    }

    // MARK: Out

    /// A message that came through the mailbox.
    func send(_ kind: WebSocket.MessageKind, _ bytes: ByteBuffer) {
        connection.stream?.taken(StreamCore.cost(of: bytes))
        guard !hasSentClose, !isOver else { return }
        loop.tally.webSockets.messagesSent += 1
        loop.tally.webSockets.bytesSent += bytes.count
        unsafe bytes.withUnsafeBytes { unsafe write(kind.rawValue, $0) }
    }

    /// Behind what was sent before, asks to be told when the client has it.
    func mark(_ number: UInt64) {
        guard !hasSentClose, !isOver else { return }
        lastMark = number
        writePing()
    }

    private func writePing() {
        var payload = ByteBuffer()
        if lastMark > 0 { payload.appendBigEndian(lastMark) }
        unsafe payload.withUnsafeBytes { unsafe write(Opcode.ping, $0) }
    }

    /// Begins to close, unless it has begun before.
    func close(_ code: WebSocket.CloseCode, _ reason: ByteBuffer) {
        guard !hasSentClose, !isOver else { return }
        if closeCode == nil { closeCode = code }
        sendClose(code, reason)
        closeDeadline = loop.now + limits.closeMilliseconds
        connection.deadline = deadline
        // What the client still says is not for the handler; but its close may have begun to come.
        if controlCount == 0 { message.free() }
    }

    private func sendClose(_ code: WebSocket.CloseCode?, _ reason: ByteBuffer) {
        var payload = ByteBuffer()
        if let code {
            payload.appendBigEndian(code.rawValue)
            payload.append(reason)
        }
        unsafe payload.withUnsafeBytes { unsafe write(Opcode.close, $0) }
        hasSentClose = true
        connection.stream?.refuseMore()
    }

    private func write(_ opcode: UInt8, _ payload: UnsafeRawBufferPointer) {
        let head = FrameHead(opcode: opcode, length: payload.count)
        let headBytes = head.bytes
        unsafe headBytes.span.withUnsafeBytes {
            unsafe loop.append(UnsafeRawBufferPointer(rebasing: $0[..<head.count]), connection)
        }
        unsafe loop.append(payload, connection)
        connection.stream?.updateOutput(connection.output.count)
        loop.markDirty(connection)
    }

    /// Ends the protocol; what waits is still sent, and the connection closed.
    private func finish() {
        isOver = true
        message.free()
        loop.finishStream(connection)
        tellClosed()
    }

    /// The client broke the rules: says so and waits for nothing (RFC 6455, section 7.1.7).
    private func fail(_ code: WebSocket.CloseCode, _ reason: StaticString) {
        if closeCode == nil { closeCode = code }
        if !hasSentClose {
            var text = ByteBuffer()
            text.append(reason)
            sendClose(code, text)
        }
        finish()
    }

    private var hasToldClosed = false

    private func tellClosed() {
        guard !hasToldClosed else { return }
        hasToldClosed = true
        loop.tally.webSockets.open -= 1
        handler.closed(closeCode ?? .abnormal)
    }

    // MARK: In

    private func take(_ part: FrameReader.Part) {
        if part.startsFrame {
            guard part.isMasked else { return fail(.protocolError, "unmasked frame") }
            guard part.reservedBits == 0 else { return fail(.protocolError, "reserved bits") }
        }
        switch part.opcode {
        case Opcode.continuation, Opcode.text, Opcode.binary: takeData(part)
        case Opcode.close, Opcode.ping, Opcode.pong: takeControl(part)
        default: fail(.protocolError, "unknown opcode")
        }
    }

    private func takeData(_ part: FrameReader.Part) {
        if hasSentClose { return }
        if part.startsFrame {
            if part.opcode == Opcode.continuation {
                guard isInMessage else { return fail(.protocolError, "continuation of nothing") }
            } else {
                guard !isInMessage else { return fail(.protocolError, "message in a message") }
                kind = part.opcode == Opcode.text ? .text : .binary
                isInMessage = true
                text = UTF8Check()
            }
            guard part.length <= UInt64(max(0, limits.messageBytes - message.count)) else {
                return fail(.messageTooBig, "message too big")
            }
        }
        if kind == .text {
            let isValid = unsafe text.advance(over: part.bytes)
            guard isValid else { return fail(.invalidText, "text is not UTF-8") }
        }
        guard part.endsFrame, part.isFinal else { return unsafe message.append(part.bytes) }
        if kind == .text, !text.isComplete { return fail(.invalidText, "text is not UTF-8") }
        isInMessage = false
        if message.isEmpty {
            unsafe deliver(part.bytes)
        } else {
            unsafe message.append(part.bytes)
            unsafe deliver(message.bytes)
            message.free()
        }
    }

    private func deliver(_ bytes: UnsafeRawBufferPointer) {
        loop.tally.webSockets.messagesReceived += 1
        loop.tally.webSockets.bytesReceived += bytes.count
        unsafe handler.received(kind, bytes.assumingMemoryBound(to: UInt8.self).span)
    }

    private func takeControl(_ part: FrameReader.Part) {
        if part.startsFrame, part.endsFrame {
            return unsafe control(part.opcode, part.bytes)
        }
        unsafe message.append(part.bytes)
        controlCount += unsafe part.bytes.count
        guard part.endsFrame else { return }
        let start = message.count - controlCount
        unsafe control(
            part.opcode, UnsafeRawBufferPointer(rebasing: message.bytes[start...]))
        // Closing may have dropped it already.
        guard message.count >= controlCount else { return }
        message.truncate(to: message.count - controlCount)
        controlCount = 0
        if message.isEmpty { message.free() }
    }

    private func control(_ opcode: UInt8, _ payload: UnsafeRawBufferPointer) {
        switch opcode {
        case Opcode.ping: if !hasSentClose { unsafe write(Opcode.pong, payload) }
        case Opcode.close: unsafe takeClose(payload)
        // A pong, asked for or not: that something came is what counts, unless it answers a mark.
        default: unsafe takePong(payload)
        }
    }

    private func takePong(_ payload: UnsafeRawBufferPointer) {
        guard payload.count == 8 else { return }
        var number: UInt64 = 0
        for index in 0..<8 { number = unsafe number << 8 | UInt64(payload[index]) }
        if number > 0, number <= lastMark { handler.reached(number) }
    }

    private func takeClose(_ payload: UnsafeRawBufferPointer) {
        guard payload.count > 0 else {
            if closeCode == nil { closeCode = .noStatus }
            if !hasSentClose { sendClose(nil, ByteBuffer()) }
            return finish()
        }
        guard payload.count >= 2 else { return fail(.protocolError, "close with half a code") }
        let code = unsafe WebSocket.CloseCode(
            rawValue: UInt16(payload[0]) << 8 | UInt16(payload[1]))
        guard code.isSendable else { return fail(.protocolError, "close with an invalid code") }
        var reason = UTF8Check()
        let isValid = unsafe reason.advance(over: UnsafeRawBufferPointer(rebasing: payload[2...]))
        guard isValid, reason.isComplete else {
            return fail(.invalidText, "close with a reason that is not UTF-8")
        }
        if closeCode == nil { closeCode = code }
        if !hasSentClose { sendClose(code, ByteBuffer()) }
        finish()
    }
}
