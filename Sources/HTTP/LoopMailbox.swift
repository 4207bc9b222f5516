internal import Bytes
internal import Glibc
internal import Synchronization
internal import System

/// Which request of which connection; stale once that request is answered or its client gone.
struct RequestID: Hashable, Sendable {
    var slot: UInt32
    /// Tells a connection from earlier ones in the same slot.
    var generation: UInt32
    /// Tells a request from earlier ones on the same connection.
    var serial: UInt32
}

/// Brings work to one event loop from any thread; many posts cost one wake-up.
public final class LoopMailbox: Sendable {
    enum Entry: Sendable {
        case work(@Sendable () -> Void)
        case answer(RequestID, Answer)
        /// The head of an answer that comes in pieces, to a request that waited; its body is ignored.
        case streamBegun(RequestID, Answer)
        case chunk(RequestID, ByteBuffer)
        /// A message for a WebSocket.
        case message(RequestID, WebSocket.MessageKind, ByteBuffer)
        /// A mark behind the messages of a WebSocket.
        case mark(RequestID, UInt64)
        /// The answer to a deferred handshake.
        case socketOpened(RequestID, WebSocketOpening)
        /// A WebSocket is to be closed.
        case socketClosed(RequestID, WebSocket.CloseCode, ByteBuffer)
        case finished(RequestID)
        /// The last handle of a stream went away before its end.
        case abandoned(RequestID)
        /// Someone waits for a stream to take more.
        case readyWanted(RequestID)
        case drain
        case stop
    }

    struct Answer: Sendable {
        var status: Status
        var contentType: StaticString
        var headers: [Header]
        var body: ByteBuffer
    }

    private struct Box {
        var entries: [Entry] = []
        var isSignalled = false
        var isClosed = false
    }

    private let box = Mutex(Box())
    private let isFilled = Atomic(false)
    /// The loop's `pthread_self()`; 0 before it runs.
    private let owner = Atomic<UInt>(0)
    private let waker = Waker()

    init() {}

    var descriptor: Int32 { waker.descriptor }
    /// Whether the loop has something to take. Exact on the loop's own thread for its own posts.
    var hasEntries: Bool { isFilled.load(ordering: .acquiring) }

    /// Runs `work` on the loop's thread, soon; never within this call, and not at all once the
    /// loop has ended. Order is kept.
    public func post(_ work: @escaping @Sendable () -> Void) { post(.work(work)) }

    func post(_ entry: Entry) {
        // Its own loop looks into the mailbox before it sleeps, so it needs no signal.
        let isOwn = owner.load(ordering: .relaxed) == UInt(pthread_self())
        let needsSignal = box.withLock { box in
            guard !box.isClosed else { return false }
            box.entries.append(entry)
            isFilled.store(true, ordering: .releasing)
            if isOwn || box.isSignalled { return false }
            box.isSignalled = true
            return true
        }
        if needsSignal { waker.signal() }
    }

    /// Called on the loop's thread before anything else.
    func adopt() { owner.store(UInt(pthread_self()), ordering: .relaxed) }

    /// Takes the signal, which may come later than what it is for; then `take`.
    func takeSignal() { waker.drain() }

    /// Swaps what is there into `entries`, which must be empty.
    func take(into entries: inout [Entry]) {
        box.withLock { box in
            box.isSignalled = false
            isFilled.store(false, ordering: .releasing)
            swap(&box.entries, &entries)
        }
    }

    /// Refuses posts from now on and drops what is there.
    func close() {
        // What is dropped may post again as it goes (a deferred answer without its answer), so
        // it must go outside of the lock.
        let dropped = box.withLock { box in
            box.isClosed = true
            defer { box.entries = [] }
            return box.entries
        }
        _ = consume dropped
    }
}
