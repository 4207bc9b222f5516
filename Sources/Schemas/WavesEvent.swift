public import Bytes
internal import JSON

/// One person's signal of interest in another, by the accounts behind the tokens they saw.
public struct Wave: Sendable, Equatable {
    public var origin: EventOrigin
    public var pair: AccountPair
    /// Which of the pair waved.
    public var sender: AccountID
    /// The token that the sender waved at, 1 to 120 bytes: what the sender is told when the other
    /// waves back.
    public var token: InlineText

    /// - Precondition: the sender is one of the pair.
    public init(origin: EventOrigin, pair: AccountPair, sender: AccountID, token: InlineText) {
        precondition(pair.other(than: sender) != nil, "the sender is not of the pair")
        self.origin = origin
        self.pair = pair
        self.sender = sender
        self.token = token
    }
}

/// One person's wish never to hear of another again. It holds for both, and for good.
public struct Block: Sendable, Equatable {
    public var origin: EventOrigin
    public var pair: AccountPair
    /// Which of the pair blocked.
    public var sender: AccountID

    /// - Precondition: the sender is one of the pair.
    public init(origin: EventOrigin, pair: AccountPair, sender: AccountID) {
        precondition(pair.other(than: sender) != nil, "the sender is not of the pair")
        self.origin = origin
        self.pair = pair
        self.sender = sender
    }
}

/// A record of topic `waves`; its key is the pair, so both directions come in one order.
public enum WavesEvent: Sendable, Equatable {
    case wave(Wave)
    case block(Block)

    public var pair: AccountPair {
        switch self {
        case .wave(let wave): wave.pair
        case .block(let block): block.pair
        }
    }
}

extension ByteBuffer {
    /// Appends the event as the value of a record of topic `waves`.
    public mutating func append(_ event: WavesEvent) {
        switch event {
        case .wave(let wave):
            append("{\"v\":1,\"type\":\"wave\",\"id\":\"")
            append(wave.origin)
            append(from: wave.sender, in: wave.pair)
            append(",\"token\":")
            append(jsonString: wave.token.span)
        case .block(let block):
            append("{\"v\":1,\"type\":\"block\",\"id\":\"")
            append(block.origin)
            append(from: block.sender, in: block.pair)
        }
        append(UInt8(ascii: "}"))
    }

    /// Appends the end of a string and the members `from` and `to`.
    mutating func append(from sender: AccountID, in pair: AccountPair) {
        append("\",\"from\":\"")
        append(sender)
        append("\",\"to\":\"")
        append(sender == pair.first ? pair.second : pair.first)
        append(UInt8(ascii: "\""))
    }
}

/// Reads records of topic `waves`. One for each thread.
public final class WavesDecoder {
    private let parser: JSONParser

    private static let fields = JSONFields(["v", "type", "id", "from", "to", "token"])

    private enum Field {
        static let v = 0, type = 1, id = 2, from = 3, to = 4, token = 5
    }

    public init() { parser = JSONParser(Self.fields, maximumBytes: 1 << 20) }

    public func decode(_ value: Span<UInt8>) -> Decoded<WavesEvent> {
        do throws(JSONError) { try parser.parse(value) } catch { return .malformed("\(error)") }
        return Self.read(parser)
    }

    // Static over a borrowed parser: the compiler then sees how long what it lends lives.
    private static func read(_ parser: borrowing JSONParser) -> Decoded<WavesEvent> {
        guard let version = parser.integer(Field.v) else { return .malformed("no version \"v\"") }
        guard version == 1 else { return .malformed("version \"v\" \(version) is not known") }
        guard let type = parser.bytes(Field.type) else { return .malformed("no \"type\"") }
        let isWave = type.equals("wave")
        guard isWave || type.equals("block") else { return .skipped }
        guard let id = parser.bytes(Field.id), let origin = EventOrigin(parsing: id) else {
            return .malformed("\"id\" is not an event id")
        }
        guard let from = parser.bytes(Field.from), let sender = AccountID(parsing: from) else {
            return .malformed("\"from\" is not a UUID")
        }
        guard let to = parser.bytes(Field.to), let receiver = AccountID(parsing: to) else {
            return .malformed("\"to\" is not a UUID")
        }
        guard let pair = AccountPair(sender, receiver) else {
            return .malformed("\"from\" and \"to\" are the same")
        }
        guard isWave else {
            return .event(.block(Block(origin: origin, pair: pair, sender: sender)))
        }
        guard let token = InlineText(token: parser, Field.token) else {
            return .malformed("\"token\" is not a text of 1 to 120 bytes")
        }
        return .event(.wave(Wave(origin: origin, pair: pair, sender: sender, token: token)))
    }
}

extension InlineText {
    /// A field's text if it is whole in here: a token that is cut would be another one.
    init?(token parser: borrowing JSONParser, _ field: Int) {
        guard let text = parser.bytes(field), !text.isEmpty else { return nil }
        self.init(text)
        guard Int(count) == text.count else { return nil }
    }
}
