public import Bytes
internal import JSON

/// A message, by the id that the sending client gave it: sent twice, it is one.
public struct MessageID: ProximityID {
    public var high: UInt64
    public var low: UInt64

    public init(high: UInt64, low: UInt64) {
        self.high = high
        self.low = low
    }
}

/// What one of a connected pair wrote to the other. Whether the sender belongs to the connection was
/// checked at receipt.
public struct MessageEvent: Sendable, Equatable {
    /// The longest body that a front-end takes. Unit: bytes.
    public static let maximumBodyBytes = 128 << 10

    public var origin: EventOrigin
    public var id: MessageID
    /// The pair; its connection is the record's key.
    public var pair: AccountPair
    /// Which of the pair wrote.
    public var sender: AccountID
    /// The message as the client wrote it: one JSON object, whose text in it is encrypted.
    public var body: ByteBuffer

    /// - Precondition: the sender is one of the pair.
    public init(
        origin: EventOrigin, id: MessageID, pair: AccountPair, sender: AccountID, body: ByteBuffer
    ) {
        precondition(pair.other(than: sender) != nil, "the sender is not of the pair")
        self.origin = origin
        self.id = id
        self.pair = pair
        self.sender = sender
        self.body = body
    }

    public var connection: ConnectionID { pair.connection }

    /// Who is to get it.
    public var recipient: AccountID { sender == pair.first ? pair.second : pair.first }
}

extension ByteBuffer {
    /// Appends the event as the value of a record of topic `messages`; the record's key is the
    /// connection.
    public mutating func append(_ message: MessageEvent) {
        append("{\"v\":1,\"type\":\"message\",\"id\":\"")
        append(message.origin)
        append("\",\"message_id\":\"")
        append(message.id)
        append("\",\"connection_id\":\"")
        append(message.connection)
        append(from: message.sender, in: message.pair)
        append(",\"body\":")
        append(jsonString: message.body.span)
        append(UInt8(ascii: "}"))
    }
}

/// Reads records of topic `messages`. One for each thread.
public final class MessagesDecoder {
    private let parser: JSONParser

    private static let fields = JSONFields([
        "v", "type", "id", "message_id", "connection_id", "from", "to", "body",
    ])

    private enum Field {
        static let v = 0, type = 1, id = 2, messageID = 3, connectionID = 4, from = 5, to = 6
        static let body = 7
    }

    public init() { parser = JSONParser(Self.fields, maximumBytes: 1 << 20) }

    public func decode(_ value: Span<UInt8>) -> Decoded<MessageEvent> {
        do throws(JSONError) { try parser.parse(value) } catch { return .malformed("\(error)") }
        return Self.read(parser)
    }

    // Static over a borrowed parser: the compiler then sees how long what it lends lives.
    private static func read(_ parser: borrowing JSONParser) -> Decoded<MessageEvent> {
        guard let version = parser.integer(Field.v) else { return .malformed("no version \"v\"") }
        guard version == 1 else { return .malformed("version \"v\" \(version) is not known") }
        guard let type = parser.bytes(Field.type) else { return .malformed("no \"type\"") }
        guard type.equals("message") else { return .skipped }
        guard let text = parser.bytes(Field.id), let origin = EventOrigin(parsing: text) else {
            return .malformed("\"id\" is not an event id")
        }
        guard let text = parser.bytes(Field.messageID), let id = MessageID(parsing: text) else {
            return .malformed("\"message_id\" is not a UUID")
        }
        guard let from = parser.bytes(Field.from), let sender = AccountID(parsing: from) else {
            return .malformed("\"from\" is not a UUID")
        }
        guard let to = parser.bytes(Field.to), let recipient = AccountID(parsing: to) else {
            return .malformed("\"to\" is not a UUID")
        }
        guard let pair = AccountPair(sender, recipient) else {
            return .malformed("\"from\" and \"to\" are the same")
        }
        guard let text = parser.bytes(Field.connectionID),
            let connection = ConnectionID(parsing: text), connection == pair.connection
        else { return .malformed("\"connection_id\" is not that of \"from\" and \"to\"") }
        guard let body = parser.bytes(Field.body), !body.isEmpty else {
            return .malformed("no \"body\"")
        }
        return .event(
            MessageEvent(
                origin: origin, id: id, pair: pair, sender: sender,
                body: ByteBuffer(copying: body)))
    }
}
