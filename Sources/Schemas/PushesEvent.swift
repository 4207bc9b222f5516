public import Bytes
internal import Crypto
internal import JSON

/// Something that an account is told: a row of table `pushes`. Whatever caused it, made again, makes
/// the same id.
public struct PushID: ProximityID {
    public var high: UInt64
    public var low: UInt64

    public init(high: UInt64, low: UInt64) {
        self.high = high
        self.low = low
    }

    /// Tells an account that both of a connection waved: there is one such push for each of the two.
    public init(mutualTo account: AccountID, of connection: ConnectionID) {
        self.init(to: account, connection, .mutual) { _ in }
    }

    /// Tells an account of a message: there is one such push for a message of a connection.
    /// - Parameter message: the sending client's id of it.
    public init(messageTo account: AccountID, of connection: ConnectionID, message: MessageID) {
        self.init(to: account, connection, .message) {
            $0.append(UInt8(ascii: ":"))
            $0.append(message)
        }
    }

    /// A UUID of version 8 from the SHA-256 of account, connection and kind (RFC 9562, section 5.8).
    /// Never change how it is made: rows and clients keep it.
    private init(
        to account: AccountID, _ connection: ConnectionID, _ kind: PushKind,
        _ more: (inout ByteBuffer) -> Void
    ) {
        var text = ByteBuffer()
        text.append("push:")
        text.append(account)
        text.append(UInt8(ascii: ":"))
        text.append(connection)
        text.append(UInt8(ascii: ":"))
        text.append(kind.name)
        more(&text)
        let (high, low) = SHA256.hash(text.span).uuid
        self.init(high: high, low: low)
    }
}

/// What a push tells of.
public enum PushKind: UInt8, Sendable, CaseIterable {
    /// Both of a pair waved at each other.
    case mutual = 1
    /// Somebody connected wrote.
    case message

    /// As table `pushes` has it.
    public var name: StaticString {
        switch self {
        case .mutual: "mutual"
        case .message: "message"
        }
    }
}

/// A record of topic `pushes`: there is something in table `pushes` for the account. Its key is the
/// account too. Whoever misses one finds the rows all the same when the account's socket connects.
public struct PushesEvent: Hashable, Sendable {
    public var account: AccountID

    public init(account: AccountID) { self.account = account }
}

extension ByteBuffer {
    /// Appends the event as the value of a record of topic `pushes`.
    public mutating func append(_ event: PushesEvent) {
        append("{\"v\":1,\"type\":\"push\",\"account\":\"")
        append(event.account)
        append("\"}")
    }

    /// Appends what an account is told when both of a pair waved: one JSON object.
    /// - Parameter token: the one that the account itself waved at.
    public mutating func append(
        mutual id: PushID, remoteToken token: Span<UInt8>, connection: ConnectionID
    ) {
        append("{\"type\":\"mutual\",\"remoteToken\":")
        append(jsonString: token)
        append(",\"connectionID\":\"")
        append(connection)
        append("\",\"id\":\"")
        append(id)
        append("\"}")
    }

    /// Appends what an account is told of a message: one JSON object.
    /// - Parameter body: the message as the client wrote it, one JSON object.
    public mutating func append(message id: PushID, body: Span<UInt8>) {
        append("{\"type\":\"message\",\"message\":")
        append(body)
        append(",\"id\":\"")
        append(id)
        append("\"}")
    }
}

/// Reads records of topic `pushes`. One for each thread.
public final class PushesDecoder {
    private let parser: JSONParser

    private static let fields = JSONFields(["v", "type", "account"])

    private enum Field {
        static let v = 0, type = 1, account = 2
    }

    public init() { parser = JSONParser(Self.fields, maximumBytes: 1 << 20) }

    public func decode(_ value: Span<UInt8>) -> Decoded<PushesEvent> {
        do throws(JSONError) { try parser.parse(value) } catch { return .malformed("\(error)") }
        return Self.read(parser)
    }

    // Static over a borrowed parser: the compiler then sees how long what it lends lives.
    private static func read(_ parser: borrowing JSONParser) -> Decoded<PushesEvent> {
        guard let version = parser.integer(Field.v) else { return .malformed("no version \"v\"") }
        guard version == 1 else { return .malformed("version \"v\" \(version) is not known") }
        guard let type = parser.bytes(Field.type) else { return .malformed("no \"type\"") }
        guard type.equals("push") else { return .skipped }
        guard let text = parser.bytes(Field.account), let account = AccountID(parsing: text) else {
            return .malformed("\"account\" is not a UUID")
        }
        return .event(PushesEvent(account: account))
    }
}
