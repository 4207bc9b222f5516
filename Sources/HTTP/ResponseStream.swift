public import Bytes
internal import Synchronization

/// An answer whose body comes in pieces, from any thread.
///
/// Chunked for HTTP/1.1; for HTTP/1.0 the end of the connection is the end of the body. If the last
/// copy goes away before `finish`, the connection is closed without the end of the body, so that
/// the client can tell.
public struct ResponseStream: Sendable {
    private let handle: StreamHandle

    init(_ core: StreamCore) { handle = StreamHandle(core) }

    /// Sends a piece; an empty one is ignored. Dropped when the stream is not open.
    public func write(_ bytes: ByteBuffer) { handle.core.write(bytes) }

    /// Ends the body. What was written before is still sent.
    public func finish() { handle.core.finish() }

    /// Bytes written here that the client's connection has not taken yet.
    public var waitingBytes: Int { handle.core.waitingBytes }

    /// False after `finish`, and once the client is gone or was cut for taking nothing.
    public var isOpen: Bool { handle.core.isOpen }

    /// Calls once, on the loop's thread, when fewer than `ServerLimits.lowWaterBytes` wait or the
    /// stream is no longer open; at once, on this thread, if it is not open already. A second call
    /// replaces a first that is still waiting.
    public func whenReady(_ call: @escaping @Sendable () -> Void) { handle.core.whenReady(call) }
}

/// Tells the loop when the last copy of a stream's outside has gone.
private final class StreamHandle: Sendable {
    let core: StreamCore
    init(_ core: StreamCore) { self.core = core }
    deinit { core.abandon() }
}

/// What a loop and the writers of one connection's bytes share.
final class StreamCore: Sendable {
    private let mailbox: LoopMailbox
    private let request: RequestID
    private let limit: Int
    private let open = Atomic(true)
    private let isEnded = Atomic(false)
    /// In the mailbox.
    private let posted = Atomic(0)
    /// In the connection's output; written by the loop.
    private let inOutput = Atomic(0)
    private let readyCall = Mutex<(@Sendable () -> Void)?>(nil)

    init(_ mailbox: LoopMailbox, _ request: RequestID, limit: Int) {
        self.mailbox = mailbox
        self.request = request
        self.limit = limit
    }

    var isOpen: Bool { open.load(ordering: .acquiring) }

    var waitingBytes: Int { posted.load(ordering: .relaxed) + inOutput.load(ordering: .relaxed) }

    func write(_ bytes: ByteBuffer) {
        guard isOpen, !bytes.isEmpty else { return }
        // Whoever ignores `waitingBytes` loses the client, not the process its memory.
        guard waitingBytes + bytes.count <= limit else { return abandon() }
        posted.add(bytes.count, ordering: .relaxed)
        mailbox.post(.chunk(request, bytes))
    }

    /// Answers the request as a whole, if nobody has answered it in any way.
    func answer(_ answer: LoopMailbox.Answer) -> Bool {
        guard !isEnded.exchange(true, ordering: .acquiringAndReleasing) else { return false }
        open.store(false, ordering: .releasing)
        mailbox.post(.answer(request, answer))
        return true
    }

    /// Begins an answer in pieces.
    func begin(_ answer: LoopMailbox.Answer) { mailbox.post(.streamBegun(request, answer)) }

    func finish() {
        guard !isEnded.exchange(true, ordering: .acquiringAndReleasing) else { return }
        open.store(false, ordering: .releasing)
        mailbox.post(.finished(request))
    }

    /// What a message counts while it waits: empty ones take memory as well.
    static func cost(of message: ByteBuffer) -> Int { message.count + 16 }

    /// - Returns: whether the message was taken.
    func send(_ kind: WebSocket.MessageKind, _ bytes: ByteBuffer) -> Bool {
        guard isOpen else { return false }
        let cost = Self.cost(of: bytes)
        let waiting = posted.add(cost, ordering: .relaxed).newValue
        guard waiting + inOutput.load(ordering: .relaxed) <= limit else {
            posted.subtract(cost, ordering: .relaxed)
            closeSocket(.tryAgainLater, "too slow")
            return false
        }
        mailbox.post(.message(request, kind, bytes))
        return true
    }

    func mark(_ number: UInt64) {
        if isOpen { mailbox.post(.mark(request, number)) }
    }

    func closeSocket(_ code: WebSocket.CloseCode, _ reason: String) {
        guard open.exchange(false, ordering: .acquiringAndReleasing) else { return }
        // Cut between characters, since a reason is UTF-8; a control frame has room for 123 bytes.
        var text = reason
        while text.utf8.count > 123 { text.removeLast() }
        mailbox.post(.socketClosed(request, code, ByteBuffer(text.utf8)))
    }

    func abandon() {
        guard !isEnded.exchange(true, ordering: .acquiringAndReleasing) else { return }
        open.store(false, ordering: .releasing)
        mailbox.post(.abandoned(request))
    }

    func whenReady(_ call: @escaping @Sendable () -> Void) {
        readyCall.withLock { $0 = call }
        // A stream that ended has left its loop; the call would wait for ever.
        if isOpen { mailbox.post(.readyWanted(request)) } else { callReady() }
    }

    // Called by the loop.

    func taken(_ count: Int) { posted.subtract(count, ordering: .relaxed) }

    /// Nothing more is taken from outside.
    func refuseMore() { open.store(false, ordering: .releasing) }

    func updateOutput(_ count: Int) { inOutput.store(count, ordering: .relaxed) }

    func callReady() {
        let call = readyCall.withLock { call in
            defer { call = nil }
            return call
        }
        call?()
    }

    /// The connection has no more use for it.
    func close() {
        isEnded.store(true, ordering: .releasing)
        open.store(false, ordering: .releasing)
        inOutput.store(0, ordering: .relaxed)
        callReady()
    }
}
