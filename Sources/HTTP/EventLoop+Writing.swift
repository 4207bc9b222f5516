internal import Bytes
internal import CSystem
internal import Glibc
internal import Metrics
internal import System
internal import TLS

extension EventLoop {
    // MARK: Answers

    /// Gives the whole answer of a connection whose handler runs.
    func respond(
        _ connection: Connection, _ status: Status, _ contentType: StaticString,
        _ headers: [Header], _ body: UnsafeRawBufferPointer
    ) {
        noteAnswer(connection, status)
        if status.isBodyless {
            emitStatusAndDate(connection, status)
        } else {
            if !answerStart.isFor(status, contentType) {
                answerStart.make(status, contentType, dateLine)
            }
            unsafe answerStart.bytes.withUnsafeBytes { unsafe emit($0, connection) }
            emit(decimal: body.count, connection)
            emit("\r\n", connection)
        }
        emitConnection(connection)
        if !headers.isEmpty { emit(headers, connection) }
        emit("\r\n", connection)
        if !status.isBodyless, !connection.isHead { unsafe emit(body, connection) }
        finishAnswer(connection)
    }

    func respondError(
        _ connection: Connection, _ status: Status, _ message: StaticString,
        _ headers: [Header] = []
    ) {
        var body = ByteBuffer()
        body.append("{\"error\":\"")
        body.append(message)
        body.append("\"}")
        unsafe body.withUnsafeBytes {
            unsafe respond(connection, status, ErrorBody.contentType, headers, $0)
        }
    }

    /// Refuses a request that no handler saw, and closes once the client has had the answer.
    func fail(
        _ connection: Connection, _ status: Status, _ message: StaticString, retry: Int? = nil
    ) {
        connection.input.free()
        connection.state = .answering
        connection.keepsAlive = false
        connection.minorVersion = 1
        respondError(
            connection, status, message,
            retry.map { [Header("Retry-After", String($0))] } ?? [])
        connection.mayCloseAtOnce = false
    }

    private func noteAnswer(_ connection: Connection, _ status: Status) {
        precondition(connection.state == .answering, "a request was answered twice")
        if let awaited = connection.stream {
            connection.stream = nil
            awaited.close()
        }
        if isDraining { connection.keepsAlive = false }
        tally.responses[min(5, status.rawValue / 100)] += 1
        let route = routes[connection.route]
        route.count(status)
        if connection.startedAt != 0 {
            route.durations.record(
                nanoseconds: SystemClock.monotonicNanoseconds() - connection.startedAt)
        }
        connection.route = 0
        connection.startedAt = 0
    }

    private func emitStatusAndDate(_ connection: Connection, _ status: Status) {
        var start = ByteBuffer()
        start.appendStatus(status)
        start.append(dateLine)
        unsafe start.withUnsafeBytes { unsafe emit($0, connection) }
    }

    private func emitConnection(_ connection: Connection) {
        if !connection.keepsAlive {
            emit("Connection: close\r\n", connection)
        } else if connection.minorVersion == 0 {
            emit("Connection: keep-alive\r\n", connection)
        }
    }

    private func finishAnswer(_ connection: Connection) {
        connection.isHead = false
        connection.requestBytes = 0
        if connection.keepsAlive {
            connection.state = .head
            connection.deadline = now + limits.idleMilliseconds
        } else {
            connection.state = .closing
            // The client asked for it, so it sends no more; whatever came is read.
            connection.mayCloseAtOnce = !isDraining && connection.held.isEmpty
            connection.deadline = now + limits.writeMilliseconds
        }
    }

    func deferAnswer(_ connection: Connection) -> RequestID {
        precondition(connection.state == .answering, "a request was answered twice")
        connection.state = .waiting
        connection.serial &+= 1
        connection.deadline = now + limits.answerMilliseconds
        return connection.requestID
    }

    // MARK: Streams

    func beginStream(
        _ connection: Connection, _ status: Status, _ contentType: StaticString,
        _ headers: [Header]
    ) -> StreamCore {
        beginBody(connection, status, contentType, headers)
        return makeStream(connection)
    }

    private func beginBody(
        _ connection: Connection, _ status: Status, _ contentType: StaticString,
        _ headers: [Header]
    ) {
        if connection.minorVersion == 0 { connection.keepsAlive = false }
        noteAnswer(connection, status)
        emitStatusAndDate(connection, status)
        emitConnection(connection)
        emit("Content-Type: ", connection)
        emit(contentType, connection)
        emit("\r\n", connection)
        if connection.minorVersion > 0 { emit("Transfer-Encoding: chunked\r\n", connection) }
        emit(headers, connection)
        emit("\r\n", connection)
        connection.state = .streaming
    }

    /// Awaits an answer that may come in pieces; the client's going is told through the core.
    func awaitAnswer(_ connection: Connection) -> StreamCore {
        let request = deferAnswer(connection)
        let stream = StreamCore(mailbox, request, limit: limits.streamBytes)
        connection.stream = stream
        return stream
    }

    /// Begins the answer in pieces of a request that waited for it.
    func continueAsStream(_ connection: Connection, _ answer: LoopMailbox.Answer) {
        guard let stream = connection.stream else { return }
        connection.stream = nil
        connection.state = .answering
        beginBody(connection, answer.status, answer.contentType, answer.headers)
        connection.deadline = .max
        connection.requestBytes = 0
        connection.stream = stream
    }

    func upgrade(
        _ connection: Connection, _ name: StaticString, _ headers: [Header],
        _ handler: any UpgradedProtocol, queueBytes: Int? = nil
    ) {
        noteAnswer(connection, .switchingProtocols)
        emitStatusAndDate(connection, .switchingProtocols)
        emit("Connection: Upgrade\r\nUpgrade: ", connection)
        emit(name, connection)
        emit("\r\n", connection)
        emit(headers, connection)
        emit("\r\n", connection)
        connection.state = .upgraded
        let stream = makeStream(connection, limit: queueBytes)
        connection.upgraded = handler
        connection.deadline = now + limits.idleMilliseconds
        handler.opened(UpgradedConnection(stream))
    }

    private func makeStream(_ connection: Connection, limit: Int? = nil) -> StreamCore {
        connection.serial &+= 1
        connection.deadline = .max
        connection.requestBytes = 0
        let stream = StreamCore(mailbox, connection.requestID, limit: limit ?? limits.streamBytes)
        connection.stream = stream
        return stream
    }

    /// A piece of a stream; sent at the end of the round, together with others.
    func append(_ bytes: ByteBuffer, to connection: Connection) {
        guard let stream = connection.stream else { return }
        stream.taken(bytes.count)
        if connection.isHead { return }
        let isChunked = connection.state == .streaming && connection.minorVersion > 0
        if isChunked { appendChunkSize(bytes.count, connection) }
        unsafe bytes.withUnsafeBytes { unsafe connection.output.append($0) }
        if isChunked { append("\r\n", connection) }
        stream.updateOutput(connection.output.count)
        markDirty(connection)
    }

    func finishStream(_ connection: Connection) {
        guard let stream = connection.stream else { return }
        connection.stream = nil
        if connection.state == .streaming {
            if connection.minorVersion > 0, !connection.isHead {
                append("0\r\n\r\n", connection)
            }
            finishAnswer(connection)
            connection.mayCloseAtOnce = false
        } else {
            connection.state = .closing
            connection.deadline = now + limits.writeMilliseconds
        }
        stream.close()
        markDirty(connection)
    }

    /// Ends a stream so that the client can tell that its end is missing.
    func abandonStream(_ connection: Connection) {
        guard connection.stream != nil else { return }
        destroy(connection)
    }

    /// Bytes of an upgraded connection, given on the loop's thread; to be marked dirty.
    func append(_ bytes: UnsafeRawBufferPointer, _ connection: Connection) {
        spillRound(connection)
        unsafe connection.output.append(bytes)
    }

    private func appendChunkSize(_ count: Int, _ connection: Connection) {
        var digits = InlineArray<18, UInt8>(repeating: 0x0A)
        digits[16] = 0x0D
        var start = 16
        var rest = count
        repeat {
            start -= 1
            let digit = UInt8(rest & 15)
            digits[start] = digit < 10 ? 0x30 + digit : 0x57 + digit
            rest >>= 4
        } while rest > 0
        unsafe digits.span.extracting(start..<18).withUnsafeBytes {
            unsafe connection.output.append($0)
        }
    }

    private func append(_ text: StaticString, _ connection: Connection) {
        unsafe connection.output.append(
            UnsafeRawBufferPointer(start: text.utf8Start, count: text.utf8CodeUnitCount))
    }

    // MARK: Bytes out

    func emit(_ bytes: UnsafeRawBufferPointer, _ connection: Connection) {
        let count = bytes.count
        guard count > 0 else { return }
        if roundCount + count <= Self.roundCapacity, connection.output.isEmpty {
            unsafe memcpy(roundBuffer.baseAddress! + roundCount, bytes.baseAddress!, count)
            roundCount += count
        } else {
            spillRound(connection)
            unsafe connection.output.append(bytes)
        }
    }

    func emit(_ text: StaticString, _ connection: Connection) {
        unsafe emit(
            UnsafeRawBufferPointer(start: text.utf8Start, count: text.utf8CodeUnitCount),
            connection)
    }

    private func emit(decimal value: Int, _ connection: Connection) {
        var digits = InlineArray<20, UInt8>(repeating: 0)
        var start = 20
        var rest = value
        repeat {
            start -= 1
            digits[start] = 0x30 + UInt8(rest % 10)
            rest /= 10
        } while rest > 0
        unsafe digits.span.extracting(start..<20).withUnsafeBytes {
            unsafe emit($0, connection)
        }
    }

    private func emit(_ headers: [Header], _ connection: Connection) {
        for header in headers {
            emit(escaping: header.name, connection)
            emit(": ", connection)
            emit(escaping: header.value, connection)
            emit("\r\n", connection)
        }
    }

    /// A value may hold what a client sent; a line end in it would end the header.
    private func emit(escaping text: String, _ connection: Connection) {
        let bytes = text.utf8.map { ByteClass.isForbiddenInValue($0) ? 0x20 : $0 }
        unsafe bytes.withUnsafeBytes { unsafe emit($0, connection) }
    }

    private func spillRound(_ connection: Connection) {
        guard roundCount > 0 else { return }
        unsafe connection.output.append(
            UnsafeRawBufferPointer(rebasing: roundBuffer[..<roundCount]))
        roundCount = 0
    }

    // MARK: Sending

    /// Ends a connection's turn: sends, goes on with what is held, closes or watches for more.
    func settle(_ connection: Connection) {
        while true {
            guard flush(connection) else { return destroy(connection) }
            if connection.held.isEmpty || !connection.takesInput
                || connection.output.count > limits.lowWaterBytes
            {
                break
            }
            // `held` does not change while it is fed: its bytes are lent to handlers from there.
            let taken = unsafe feed(connection, connection.held.bytes)
            connection.held.removeFirst(taken)
            if connection.held.isEmpty { connection.held.free() }
        }
        if connection.state == .closing, connection.output.isEmpty {
            guard beginLingering(connection) else { return destroy(connection) }
        }
        if let stream = connection.stream {
            stream.updateOutput(connection.output.count)
            if connection.output.count < limits.lowWaterBytes { stream.callReady() }
        }
        updateInterest(connection)
        countBytes(connection)
    }

    private enum SendOutcome { case moved(Int), blocked, failed }

    private func send(_ connection: Connection, _ bytes: UnsafeRawBufferPointer) -> SendOutcome {
        if let session = connection.session {
            switch unsafe session.write(bytes) {
            case .moved(let count): return .moved(count)
            case .needsInput, .needsOutput: return .blocked
            case .ended, .failed: return .failed
            }
        }
        let count = unsafe Glibc.send(
            connection.descriptor, bytes.baseAddress, bytes.count, Int32(MSG_NOSIGNAL))
        if count >= 0 { return .moved(count) }
        return errno == EAGAIN || errno == EINTR ? .blocked : .failed
    }

    /// Sends what the socket takes, and keeps the rest.
    /// - Returns: whether the connection still works.
    func flush(_ connection: Connection) -> Bool {
        if roundCount > 0 {
            if connection.output.isEmpty {
                let bytes = unsafe UnsafeRawBufferPointer(rebasing: roundBuffer[..<roundCount])
                roundCount = 0
                switch unsafe send(connection, bytes) {
                case .moved(let count):
                    if count < bytes.count {
                        unsafe connection.output.append(
                            UnsafeRawBufferPointer(rebasing: bytes[count...]))
                    }
                case .blocked:
                    unsafe connection.output.append(bytes)
                case .failed: return false
                }
                if !connection.output.isEmpty { restartWriteTime(connection) }
            } else {
                spillRound(connection)
            }
        }
        guard !connection.output.isEmpty else { return true }
        while !connection.output.isEmpty {
            switch unsafe send(connection, connection.output.bytes) {
            case .moved(let count):
                connection.output.removeFirst(count)
                restartWriteTime(connection)
            case .blocked:
                if connection.deadline == .max || connection.webSocket?.writeDeadline == .max {
                    restartWriteTime(connection)
                }
                return true
            case .failed: return false
            }
        }
        connection.output.free()
        restartTimeAfterWriting(connection)
        return true
    }

    /// Bytes wait, so the client has to take some.
    private func restartWriteTime(_ connection: Connection) {
        // A request that is being received keeps its own, or reading slowly would extend it.
        guard connection.input.isEmpty else { return }
        let deadline = now + limits.writeMilliseconds
        if connection.state == .upgraded, let socket = connection.webSocket {
            socket.outputIsBlocked(until: deadline)
        } else {
            connection.deadline = deadline
        }
    }

    private func restartTimeAfterWriting(_ connection: Connection) {
        switch connection.state {
        case .head where connection.input.isEmpty:
            connection.deadline = now + limits.idleMilliseconds
        case .waiting: connection.deadline = now + limits.answerMilliseconds
        case .streaming: connection.deadline = .max
        case .upgraded:
            if let socket = connection.webSocket {
                socket.outputIsEmpty()
            } else {
                connection.deadline = now + limits.idleMilliseconds
            }
        default: break
        }
    }

    /// Everything is sent: says so, and keeps reading until the client has read it.
    /// - Returns: whether there is anything to wait for.
    private func beginLingering(_ connection: Connection) -> Bool {
        connection.session?.endOutput()
        if connection.mayCloseAtOnce || connection.hasInputEnded { return false }
        guard shutdown(connection.descriptor, Int32(SHUT_WR)) == 0 else { return false }
        connection.state = .lingering
        connection.lingerBytesLeft = limits.lingerBytes
        connection.isReadingPaused = false
        connection.held.free()
        // A drain does not wait for clients that never close.
        let patience =
            isDraining ? min(1000, limits.lingerMilliseconds) : limits.lingerMilliseconds
        connection.deadline = now + patience
        return true
    }

    private func updateInterest(_ connection: Connection) {
        if connection.isReadingPaused, canRead(connection) { connection.isReadingPaused = false }
        var wanted: UInt32 = 0
        if !connection.hasInputEnded, connection.state != .closing {
            if !connection.isReadingPaused { wanted |= EPOLLIN.rawValue | EPOLLRDHUP.rawValue }
            if connection.state == .streaming || connection.isAwaited {
                wanted |= EPOLLRDHUP.rawValue
            }
        }
        if !connection.output.isEmpty || connection.needsOutputToRead {
            wanted |= EPOLLOUT.rawValue
        }
        guard wanted != connection.interest else { return }
        connection.interest = wanted
        control(EPOLL_CTL_MOD, connection)
    }

    private func countBytes(_ connection: Connection) {
        let count =
            connection.input.count + connection.held.count + connection.output.count
            + connection.requestBytes
        if count == connection.countedBytes { return }
        tally.bytesInFlight += count - connection.countedBytes
        connection.countedBytes = count
    }

    // MARK: Deadlines

    /// The time of whatever the connection was doing is over.
    func expire(_ connection: Connection) {
        switch connection.state {
        case .upgraded where connection.webSocket?.expire() == true: settle(connection)
        case .head where connection.input.isEmpty, .streaming, .closing, .lingering, .upgraded,
            .answering:
            destroy(connection)
        case .head, .body, .chunkedBody:
            // TLS clients in the middle of a handshake have sent no request to time out.
            fail(connection, .requestTimeout, "request timeout")
            settle(connection)
        case .waiting:
            guard connection.output.isEmpty else { return destroy(connection) }
            fail(connection, .serviceUnavailable, "no answer in time")
            settle(connection)
        case .closed: break
        }
    }
}
