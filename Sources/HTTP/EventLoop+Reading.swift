internal import CSystem
internal import Glibc
internal import System
internal import TLS

extension EventLoop {
    /// How much one connection may take of a round before others have their turn.
    private static let readsPerTurn = 16

    /// One connection's turn.
    func serve(_ connection: Connection, _ events: UInt32) {
        guard events & (EPOLLERR.rawValue | EPOLLHUP.rawValue) == 0 else {
            return destroy(connection)
        }
        if connection.state == .lingering { return linger(connection) }
        let isReadable = events & (EPOLLIN.rawValue | EPOLLRDHUP.rawValue) != 0
        if isReadable || connection.needsOutputToRead {
            if canRead(connection) {
                guard readInput(connection) else {
                    // Answers to requests before the broken one are still owed.
                    _ = flush(connection)
                    return destroy(connection)
                }
            } else if events & EPOLLRDHUP.rawValue != 0,
                connection.state == .streaming || connection.isAwaited
            {
                // Nobody is left to stream to; a half-closed reader of streams is not worth a
                // stream that nobody reads.
                return destroy(connection)
            } else {
                // Only now, since most deferred answers are given before more bytes come.
                connection.isReadingPaused = true
            }
        }
        settle(connection)
    }

    func canRead(_ connection: Connection) -> Bool {
        connection.takesInput && connection.held.isEmpty && !connection.hasInputEnded
            && waitingBytes(connection) <= limits.highWaterBytes
    }

    /// Bytes that the client has yet to take. What an upgraded connection was given in this round is
    /// still in the mailbox.
    private func waitingBytes(_ connection: Connection) -> Int {
        guard connection.state == .upgraded, let stream = connection.stream else {
            return connection.output.count
        }
        return max(connection.output.count, stream.waitingBytes)
    }

    /// - Returns: whether the connection is still of use.
    private func readInput(_ connection: Connection) -> Bool {
        connection.needsOutputToRead = false
        for _ in 0..<Self.readsPerTurn {
            var count = 0
            if let session = connection.session {
                switch unsafe session.read(into: readBuffer) {
                case .moved(let moved): count = moved
                case .needsInput: return true
                case .needsOutput:
                    connection.needsOutputToRead = true
                    return true
                case .ended: return endInput(connection)
                case .failed: return false
                }
            } else {
                count = unsafe recv(
                    connection.descriptor, readBuffer.baseAddress, readBuffer.count, 0)
                if count == 0 { return endInput(connection) }
                if count < 0 { return errno == EAGAIN || errno == EINTR }
            }
            let bytes = unsafe UnsafeRawBufferPointer(rebasing: readBuffer[..<count])
            let taken = unsafe feed(connection, bytes)
            if taken < count {
                unsafe connection.held.append(UnsafeRawBufferPointer(rebasing: bytes[taken...]))
            }
            guard canRead(connection) else { return true }
            if let session = connection.session {
                if !session.hasPending { return true }
            } else if count < Self.readCapacity {
                return true
            }
        }
        return true
    }

    /// The client has sent its last byte.
    /// - Returns: whether it may still be owed an answer.
    private func endInput(_ connection: Connection) -> Bool {
        connection.hasInputEnded = true
        connection.keepsAlive = false
        switch connection.state {
        case .head:
            guard !connection.output.isEmpty || roundCount > 0 else { return false }
            connection.state = .closing
            return true
        case .answering, .waiting, .closing: return true
        case .body, .chunkedBody, .streaming, .upgraded, .lingering, .closed: return false
        }
    }

    /// Uses bytes in order until the connection waits for an answer or the client takes none.
    /// - Returns: how many were used.
    func feed(_ connection: Connection, _ bytes: UnsafeRawBufferPointer) -> Int {
        var taken = 0
        while taken < bytes.count {
            let rest = unsafe UnsafeRawBufferPointer(rebasing: bytes[taken...])
            switch connection.state {
            case .head: taken += unsafe feedHead(connection, rest)
            case .body: taken += unsafe feedBody(connection, rest)
            case .chunkedBody: taken += unsafe feedChunks(connection, rest)
            case .upgraded:
                if connection.webSocket == nil {
                    connection.deadline = now + limits.idleMilliseconds
                }
                unsafe connection.upgraded?.received(
                    rest.assumingMemoryBound(to: UInt8.self).span)
                return bytes.count
            case .answering, .waiting, .streaming: return taken
            case .closing, .lingering, .closed: return bytes.count
            }
            if connection.output.count + roundCount > limits.highWaterBytes { return taken }
        }
        return taken
    }

    private func feedHead(_ connection: Connection, _ bytes: UnsafeRawBufferPointer) -> Int {
        if connection.isRejected {
            fail(
                connection, .serviceUnavailable, "too many connections", retry: retrySeconds())
            return 0
        }
        guard connection.input.isEmpty else {
            return unsafe continueHead(connection, bytes)
        }
        var search = HeadSearch()
        switch unsafe search.advance(over: bytes) {
        case .complete(let start, let end):
            guard end - start <= limits.headBytes else { return refuseLongHead(connection) }
            let head = unsafe UnsafeRawBufferPointer(rebasing: bytes[start..<end])
            let rest = unsafe UnsafeRawBufferPointer(rebasing: bytes[end...])
            return unsafe end + beginRequest(connection, head, rest)
        case .incomplete:
            guard bytes.count <= limits.headBytes else { return refuseLongHead(connection) }
            connection.deadline = now + limits.requestMilliseconds
            connection.search = search
            unsafe connection.input.append(bytes)
            return bytes.count
        case .malformed:
            fail(connection, .badRequest, "bad request")
            return 0
        }
    }

    /// A head that comes in pieces.
    private func continueHead(_ connection: Connection, _ bytes: UnsafeRawBufferPointer) -> Int {
        let known = connection.input.count
        // One byte more than allowed tells that it is too long; no more is kept.
        let count = min(bytes.count, limits.headBytes + 1 - known)
        unsafe connection.input.append(UnsafeRawBufferPointer(rebasing: bytes[..<count]))
        switch unsafe connection.search.advance(over: connection.input.bytes) {
        case .complete(let start, let end):
            guard end - start <= limits.headBytes else { return refuseLongHead(connection) }
            connection.input.truncate(to: end)
            connection.input.removeFirst(start)
            connection.search = HeadSearch()
            let taken = end - known
            let rest = unsafe UnsafeRawBufferPointer(rebasing: bytes[taken...])
            return unsafe taken + beginRequest(connection, connection.input.bytes, rest)
        case .incomplete:
            guard connection.input.count <= limits.headBytes else {
                return refuseLongHead(connection)
            }
            return count
        case .malformed:
            fail(connection, .badRequest, "bad request")
            return 0
        }
    }

    private func refuseLongHead(_ connection: Connection) -> Int {
        fail(connection, .headerFieldsTooLarge, "headers too large")
        return 0
    }

    /// Judges a whole head, which lies in `input` or in the bytes being fed.
    /// - Returns: how many bytes of `rest`, which follows it, were used.
    private func beginRequest(
        _ connection: Connection, _ head: UnsafeRawBufferPointer, _ rest: UnsafeRawBufferPointer
    ) -> Int {
        var facts: HeadFacts
        do throws(HeadFacts.Refusal) {
            facts = try unsafe HeadFacts.parse(head)
        } catch {
            refuse(connection, error)
            return 0
        }
        do throws(HeadParser.Refusal) {
            try unsafe headParser.check(head, &facts)
        } catch {
            switch error {
            case .malformed: fail(connection, .badRequest, "bad request")
            case .methodNotImplemented:
                fail(connection, .notImplemented, "method not implemented")
            }
            return 0
        }
        connection.isHead = facts.method == .head
        connection.keepsAlive = facts.keepsAlive && !connection.hasInputEnded
        connection.minorVersion = facts.minorVersion
        guard facts.hasBody else {
            unsafe dispatch(connection, head, UnsafeRawBufferPointer(start: nil, count: 0), facts)
            return 0
        }
        let limit = unsafe handler.bodyLimit(RequestHead(head, facts)) ?? limits.bodyBytes
        guard facts.contentLength <= limit else {
            fail(connection, .contentTooLarge, "body too large")
            return 0
        }
        if facts.contentLength > 0, rest.count >= facts.contentLength {
            let body = unsafe UnsafeRawBufferPointer(rebasing: rest[..<facts.contentLength])
            unsafe dispatch(connection, head, body, facts)
            return body.count
        }
        // The rest comes later, so the head is kept.
        if connection.input.isEmpty {
            connection.deadline = now + limits.requestMilliseconds
            unsafe connection.input.append(head)
        }
        connection.facts = facts
        connection.headBytes = head.count
        connection.bodyLimit = limit
        connection.chunked = ChunkedDecoder()
        connection.state = facts.isChunked ? .chunkedBody : .body
        if facts.expectsContinue, rest.count == 0 {
            tally.responses[1] += 1
            emit("HTTP/1.1 100 Continue\r\n\r\n", connection)
        }
        return 0
    }

    private func refuse(_ connection: Connection, _ refusal: HeadFacts.Refusal) {
        switch refusal {
        case .malformed: fail(connection, .badRequest, "bad request")
        case .versionNotSupported:
            fail(connection, .versionNotSupported, "version not supported")
        case .codingNotSupported:
            fail(connection, .notImplemented, "transfer coding not implemented")
        case .expectationFailed: fail(connection, .expectationFailed, "expectation failed")
        case .tooManyHeaders: fail(connection, .headerFieldsTooLarge, "too many headers")
        }
    }

    private func feedBody(_ connection: Connection, _ bytes: UnsafeRawBufferPointer) -> Int {
        let whole = connection.headBytes + connection.facts.contentLength
        let count = min(bytes.count, whole - connection.input.count)
        unsafe connection.input.append(UnsafeRawBufferPointer(rebasing: bytes[..<count]))
        if connection.input.count == whole { dispatchInput(connection) }
        return count
    }

    private func feedChunks(_ connection: Connection, _ bytes: UnsafeRawBufferPointer) -> Int {
        let (outcome, taken) = unsafe connection.chunked.advance(
            over: bytes, limit: connection.bodyLimit
        ) { data in
            unsafe connection.input.append(data)
        }
        switch outcome {
        case .incomplete: break
        case .complete: dispatchInput(connection)
        case .malformed: fail(connection, .badRequest, "bad request")
        case .tooLarge: fail(connection, .contentTooLarge, "body too large")
        }
        return taken
    }

    /// Hands over a request that was gathered in `input`.
    private func dispatchInput(_ connection: Connection) {
        let bytes = unsafe connection.input.bytes
        let size = connection.headBytes
        unsafe dispatch(
            connection, UnsafeRawBufferPointer(rebasing: bytes[..<size]),
            UnsafeRawBufferPointer(rebasing: bytes[size...]), connection.facts)
    }

    private func dispatch(
        _ connection: Connection, _ head: UnsafeRawBufferPointer, _ body: UnsafeRawBufferPointer,
        _ facts: HeadFacts
    ) {
        tally.requests += 1
        hasHandled = true
        connection.state = .answering
        if roundStart == 0 { roundStart = SystemClock.monotonicNanoseconds() }
        connection.startedAt = roundStart
        connection.requestBytes = head.count + body.count
        unsafe handler.handle(
            Request(RequestHead(head, facts), body: body, connection),
            Exchange(self, connection))
        if connection.state == .answering {
            respondError(connection, .internalServerError, "internal error")
        }
        connection.input.free()
    }

    // MARK: Lingering

    /// Reads and discards what a client still sends, so that our last answer reaches it: closing
    /// with unread bytes would reset the connection and take the answer from the client's hands.
    private func linger(_ connection: Connection) {
        for _ in 0..<Self.readsPerTurn {
            let count = unsafe recv(
                connection.descriptor, readBuffer.baseAddress, readBuffer.count, 0)
            if count < 0, errno == EAGAIN || errno == EINTR { return }
            connection.lingerBytesLeft -= max(0, count)
            guard count > 0, connection.lingerBytesLeft > 0 else { return destroy(connection) }
            if count < Self.readCapacity { return }
        }
    }
}
