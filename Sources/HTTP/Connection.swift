internal import TLS

/// One client's connection. Belongs to the thread of its loop.
final class Connection {
    enum State: UInt8 {
        /// Receives a head, or waits for one.
        case head
        /// Receives a body of known length.
        case body
        /// Receives a chunked body.
        case chunkedBody
        /// Its handler runs.
        case answering
        /// Its answer was deferred.
        case waiting
        /// Its answer comes in pieces.
        case streaming
        /// Another protocol has it.
        case upgraded
        /// Sends what is left, then closes.
        case closing
        /// Has sent everything and said so; discards what still comes.
        case lingering
        case closed
    }

    let descriptor: Int32
    let slot: UInt32
    let generation: UInt32
    let address: ClientAddress
    let session: TLSSession?
    /// The name in the client's verified certificate, found out once: a handshake is never repeated.
    /// `nil`: it showed none; empty: it has no name in it.
    private(set) lazy var peerName: [UInt8]? = session?.clientCertificate.map {
        Array($0.commonName.utf8)
    }

    var state = State.head
    /// One too many: answered 503 at its first byte.
    var isRejected = false
    /// What epoll watches for.
    var interest: UInt32 = 0
    var isReadingPaused = false
    /// The client has sent its last byte.
    var hasInputEnded = false
    /// TLS cannot go on reading before it can write.
    var needsOutputToRead = false
    /// In the loop's list of connections to flush at the end of the round.
    var isDirty = false
    /// Whether everything the client sent is known to have been read when the connection closes.
    var mayCloseAtOnce = false
    /// Time of the loop's clock, in milliseconds, at which something ought to have happened.
    var deadline: Int64

    /// Counts deferred and streamed answers, to tell late ones.
    var serial: UInt32 = 0
    var isHead = false
    var keepsAlive = false
    var minorVersion = 1

    /// A request that did not come in one piece: its head, then its body without its coding.
    let input = ByteQueue()
    var search = HeadSearch()
    var facts = HeadFacts()
    var headBytes = 0
    var bodyLimit = 0
    var chunked = ChunkedDecoder()
    /// Bytes behind a request whose answer is awaited. Reading pauses while there are any.
    let held = ByteQueue()
    let output = ByteQueue()

    var stream: StreamCore?
    var upgraded: (any UpgradedProtocol)?
    /// The same, if it is a WebSocket.
    var webSocket: WebSocketConnection?
    /// What the request is counted as; 0 until its handler says.
    var route = 0
    /// When the round began that read the request whole, in monotonic nanoseconds; 0 where no handler
    /// has a request to answer.
    var startedAt: UInt64 = 0
    /// Size of the request whose answer is awaited.
    var requestBytes = 0
    /// What this connection adds to the loop's bytes in flight.
    var countedBytes = 0
    var lingerBytesLeft = 0

    init(
        descriptor: Int32, slot: UInt32, generation: UInt32, address: ClientAddress,
        session: TLSSession?, deadline: Int64
    ) {
        self.descriptor = descriptor
        self.slot = slot
        self.generation = generation
        self.address = address
        self.session = session
        self.deadline = deadline
    }

    var requestID: RequestID { RequestID(slot: slot, generation: generation, serial: serial) }

    /// Whether its answer was deferred by someone who wants to know when the client goes.
    var isAwaited: Bool { state == .waiting && stream != nil }

    /// Whether bytes from the client can be used now.
    var takesInput: Bool {
        switch state {
        case .head, .body, .chunkedBody, .upgraded: true
        case .answering, .waiting, .streaming, .closing, .lingering, .closed: false
        }
    }

    /// Whether it only waits for a next request.
    var isIdle: Bool { state == .head && input.isEmpty && held.isEmpty && output.isEmpty }
}
