public import Bytes
internal import Crypto
internal import JSON

/// By what means two devices found each other (client's `DistanceTier`).
public enum DistanceTier: UInt8, Sendable, CaseIterable {
    /// Ultra-wideband: within an arm's reach.
    case ultraWideband = 1
    /// Bluetooth: within a room.
    case bluetooth = 2
    /// The same area, by way of the server.
    case area = 3
}

/// One side's report that two devices were near each other. When is the record's receipt time; the
/// reporting device's own clock is never used.
public struct Encounter: Sendable, Equatable {
    public var origin: EventOrigin
    /// The client's id of the report: reported twice, it is one.
    public var id: EncounterID
    public var pair: AccountPair
    /// Which of the pair reports.
    public var reporter: AccountID
    /// The reporter's token at the time, 1 to 120 bytes.
    public var ownToken: InlineText
    /// The token that the reporter saw, 1 to 120 bytes.
    public var remoteToken: InlineText
    public var tier: DistanceTier
    /// The client's word for what measured it, like `uwb`; at most 120 bytes.
    public var engine: InlineText
    /// Where, if the client told.
    public var cell: Geohash?

    /// - Precondition: the reporter is one of the pair.
    public init(
        origin: EventOrigin, id: EncounterID, pair: AccountPair, reporter: AccountID,
        ownToken: InlineText, remoteToken: InlineText, tier: DistanceTier,
        engine: InlineText = InlineText(), cell: Geohash? = nil
    ) {
        precondition(pair.other(than: reporter) != nil, "the reporter is not of the pair")
        self.origin = origin
        self.id = id
        self.pair = pair
        self.reporter = reporter
        self.ownToken = ownToken
        self.remoteToken = remoteToken
        self.tier = tier
        self.engine = engine
        self.cell = cell
    }
}

extension EncounterID {
    /// The mutual encounter of two reports: a UUID of version 8 from the SHA-256 of the pair and both
    /// ids (RFC 9562, section 5.8). Never change how it is made: rows keep it.
    /// - Parameters:
    ///   - first: the report of the account whose id comes first.
    ///   - second: the other's.
    public init(of pair: AccountPair, _ first: EncounterID, _ second: EncounterID) {
        var text = ByteBuffer()
        text.append("encounter:")
        text.append(pair)
        for id in [first, second] {
            text.append(UInt8(ascii: ":"))
            text.append(id)
        }
        let (high, low) = SHA256.hash(text.span).uuid
        self.init(high: high, low: low)
    }
}

extension ByteBuffer {
    /// Appends the event as the value of a record of topic `encounters`; the record's key is the
    /// pair.
    public mutating func append(_ encounter: Encounter) {
        append("{\"v\":1,\"type\":\"encounter\",\"id\":\"")
        append(encounter.origin)
        append("\",\"encounter_id\":\"")
        append(encounter.id)
        append(from: encounter.reporter, in: encounter.pair)
        append(",\"own_token\":")
        append(jsonString: encounter.ownToken.span)
        append(",\"remote_token\":")
        append(jsonString: encounter.remoteToken.span)
        append(",\"tier\":")
        append(decimal: Int64(encounter.tier.rawValue))
        if !encounter.engine.isEmpty {
            append(",\"engine\":")
            append(jsonString: encounter.engine.span)
        }
        if let cell = encounter.cell {
            append(",\"geohash\":\"")
            append(cell)
            append(UInt8(ascii: "\""))
        }
        append(UInt8(ascii: "}"))
    }
}

/// Reads records of topic `encounters`. One for each thread.
public final class EncountersDecoder {
    private let parser: JSONParser

    private static let fields = JSONFields([
        "v", "type", "id", "encounter_id", "from", "to", "own_token", "remote_token", "tier",
        "engine", "geohash",
    ])

    private enum Field {
        static let v = 0, type = 1, id = 2, encounterID = 3, from = 4, to = 5, ownToken = 6
        static let remoteToken = 7, tier = 8, engine = 9, geohash = 10
    }

    public init() { parser = JSONParser(Self.fields, maximumBytes: 1 << 20) }

    public func decode(_ value: Span<UInt8>) -> Decoded<Encounter> {
        do throws(JSONError) { try parser.parse(value) } catch { return .malformed("\(error)") }
        return Self.read(parser)
    }

    // Static over a borrowed parser: the compiler then sees how long what it lends lives.
    private static func read(_ parser: borrowing JSONParser) -> Decoded<Encounter> {
        guard let version = parser.integer(Field.v) else { return .malformed("no version \"v\"") }
        guard version == 1 else { return .malformed("version \"v\" \(version) is not known") }
        guard let type = parser.bytes(Field.type) else { return .malformed("no \"type\"") }
        guard type.equals("encounter") else { return .skipped }
        guard let text = parser.bytes(Field.id), let origin = EventOrigin(parsing: text) else {
            return .malformed("\"id\" is not an event id")
        }
        guard let text = parser.bytes(Field.encounterID), let id = EncounterID(parsing: text)
        else { return .malformed("\"encounter_id\" is not a UUID") }
        guard let from = parser.bytes(Field.from), let reporter = AccountID(parsing: from) else {
            return .malformed("\"from\" is not a UUID")
        }
        guard let to = parser.bytes(Field.to), let other = AccountID(parsing: to) else {
            return .malformed("\"to\" is not a UUID")
        }
        guard let pair = AccountPair(reporter, other) else {
            return .malformed("\"from\" and \"to\" are the same")
        }
        guard let ownToken = InlineText(token: parser, Field.ownToken),
            let remoteToken = InlineText(token: parser, Field.remoteToken)
        else { return .malformed("a token is not a text of 1 to 120 bytes") }
        guard let number = parser.integer(Field.tier), let raw = UInt8(exactly: number),
            let tier = DistanceTier(rawValue: raw)
        else { return .malformed("\"tier\" is not 1, 2 or 3") }
        var encounter = Encounter(
            origin: origin, id: id, pair: pair, reporter: reporter, ownToken: ownToken,
            remoteToken: remoteToken, tier: tier)
        if let engine = parser.bytes(Field.engine) { encounter.engine = InlineText(engine) }
        if parser.kind(Field.geohash) != .absent {
            guard let text = parser.bytes(Field.geohash), let cell = Geohash(parsing: text) else {
                return .malformed("\"geohash\" is not a cell")
            }
            encounter.cell = cell
        }
        return .event(encounter)
    }
}
