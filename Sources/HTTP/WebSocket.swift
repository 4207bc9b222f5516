public import Bytes

/// What serves one WebSocket (RFC 6455).
///
/// Every method is called on the loop's thread; state needs no lock.
public protocol WebSocketHandler: AnyObject {
    /// Called once, first. `socket` may be kept and used from any thread.
    func opened(_ socket: WebSocket)

    /// A whole message; nothing of its bytes outlives the call. Text is valid UTF-8.
    func received(_ kind: WebSocket.MessageKind, _ bytes: Span<UInt8>)

    /// The client has taken all that was sent before `WebSocket.mark(number)`, and has answered it. Not
    /// every mark is: a client may answer only the last of several (RFC 6455, section 5.5.3).
    func reached(_ mark: UInt64)

    /// Called once, last: no message comes or goes any more.
    /// - Parameter code: what the client closed with, or the server, whichever was first;
    ///   `.noStatus` for a client that named none, `.abnormal` if it went without closing.
    func closed(_ code: WebSocket.CloseCode)
}

extension WebSocketHandler {
    public func reached(_ mark: UInt64) {}
}

/// The server's end of one WebSocket.
///
/// Thread safety: may be copied, and used from any thread. Messages from one thread keep their order.
public struct WebSocket: Sendable {
    public enum MessageKind: UInt8, Sendable {
        case text = 1, binary = 2
    }

    /// Why a WebSocket ends (RFC 6455, section 7.4, and the registry of IANA).
    public struct CloseCode: RawRepresentable, Hashable, Sendable {
        public let rawValue: UInt16

        public init(rawValue: UInt16) { self.rawValue = rawValue }

        public static let normal = CloseCode(rawValue: 1000)
        /// The server ends.
        public static let goingAway = CloseCode(rawValue: 1001)
        public static let protocolError = CloseCode(rawValue: 1002)
        public static let unsupportedData = CloseCode(rawValue: 1003)
        /// Never sent: the other side named no code.
        public static let noStatus = CloseCode(rawValue: 1005)
        /// Never sent: the connection ended without closing.
        public static let abnormal = CloseCode(rawValue: 1006)
        public static let invalidText = CloseCode(rawValue: 1007)
        public static let policyViolation = CloseCode(rawValue: 1008)
        public static let messageTooBig = CloseCode(rawValue: 1009)
        public static let internalError = CloseCode(rawValue: 1011)
        /// The client takes its messages too slowly.
        public static let tryAgainLater = CloseCode(rawValue: 1013)

        /// Whether a close frame may carry it.
        var isSendable: Bool {
            switch rawValue {
            case 1000...1003, 1007...1014, 3000...4999: true
            default: false
            }
        }
    }

    /// Limits of one socket. Sizes in bytes, times in milliseconds.
    public struct Limits: Sendable {
        /// Largest message from the client, all its fragments together. Above it: close 1009.
        public var messageBytes = 64 << 10
        /// Messages that may wait to be sent, with what their frames add. Above it: close 1013.
        public var queueBytes = 1 << 20
        /// From a ping to the next. Two during which nothing at all came from the client: close 1011.
        public var pingMilliseconds: Int64 = 30_000
        /// Time for the client's answer to our close; then the connection is cut.
        public var closeMilliseconds: Int64 = 5_000

        public init() {}
    }

    private let core: StreamCore

    init(_ core: StreamCore) { self.core = core }

    /// Sends a message after those sent before. Text must be valid UTF-8, which is not looked at.
    ///
    /// A message for which there is no room (`Limits.queueBytes`) closes the socket with 1013.
    /// - Returns: whether it was taken, which is no promise that it arrives.
    @discardableResult
    public func send(_ kind: MessageKind, _ bytes: ByteBuffer) -> Bool {
        core.send(kind, bytes)
    }

    /// Asks the client to say when it has all that was sent before: a ping with a number, which
    /// `WebSocketHandler.reached` is told with its pong.
    ///
    /// - Parameter number: above 0, and above those of all marks before.
    public func mark(_ number: UInt64) { core.mark(number) }

    /// Sends what waits, then the code, and ends when the client has answered or its time is over.
    ///
    /// - Parameters:
    ///   - code: one that a frame may carry: 1000 to 1003, 1007 to 1014, 3000 to 4999.
    ///   - reason: for whoever debugs the client; of more than 123 bytes the first ones.
    public func close(_ code: CloseCode = .normal, reason: String = "") {
        precondition(code.isSendable, "a close frame cannot carry the code \(code.rawValue)")
        core.closeSocket(code, reason)
    }

    /// Bytes sent here that the client's connection has not taken yet.
    public var waitingBytes: Int { core.waitingBytes }

    /// False after `close`, and once the client has closed or is gone.
    public var isOpen: Bool { core.isOpen }
}
