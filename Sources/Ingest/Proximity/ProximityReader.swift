internal import Bytes
internal import Crypto
internal import HTTP
internal import JSON
internal import Schemas

/// Reads what requests of the proximity service bring. One for each thread.
struct ProximityReader: ~Copyable {
    /// Ciphertext of a message, decoded. Unit: bytes.
    static let ciphertextBytes = 64 << 10
    /// A raw X25519 public key (RFC 7748). Unit: bytes.
    private static let publicKeyBytes = 32

    private static let fields = JSONFields([
        "provider", "idToken", "nonce", "token", "tier", "geohash", "id", "remoteAnonToken",
        "engine", "publicKey", "connectionID", "senderID", "ciphertext",
    ])

    private enum Field {
        static let provider = 0, idToken = 1, nonce = 2, token = 3, tier = 4, geohash = 5, id = 6
        static let remoteToken = 7, engine = 8, publicKey = 9, connectionID = 10, senderID = 11
        static let ciphertext = 12
    }

    private let parser = JSONParser(fields)

    func exchange(_ body: Span<UInt8>) throws(ProximityFault) -> ExchangeRequest {
        try parse(body)
        guard let name = parser.string(Field.provider),
            let provider = IdentityProvider.Name(rawValue: name)
        else { throw ProximityFault(.badRequest, "unknown provider") }
        guard let idToken = parser.withString(Field.idToken, { ByteBuffer(copying: $0) }) else {
            throw ProximityFault(.badRequest, "invalid id token")
        }
        var nonce = ByteBuffer()
        if isGiven(Field.nonce) {
            guard let given = parser.withString(Field.nonce, { ByteBuffer(copying: $0) }) else {
                throw ProximityFault(.badRequest, "invalid nonce")
            }
            nonce = given
        }
        return ExchangeRequest(provider: provider, idToken: idToken, nonce: nonce)
    }

    /// What `route` is asked for; any but `exchange`.
    /// - Parameter query: of routes that are read from, as it came.
    func request(
        _ route: ProximityRoute, _ body: Span<UInt8>, query: String?
    ) throws(ProximityFault) -> ProximityRequest {
        switch route {
        case .exchange: preconditionFailure("an exchange needs no session")
        case .revoke: return .revoke
        case .erase: return .erase
        case .nearby:
            let query = try Self.query(query)
            guard let text = query["geohash"], let cell = Geohash(text) else {
                throw ProximityFault(.badRequest, "invalid geohash")
            }
            guard let text = query["tier"], let raw = UInt8(text),
                let tier = DistanceTier(rawValue: raw)
            else { throw ProximityFault(.badRequest, "invalid tier") }
            return .nearby(cell, tier)
        case .fetchKey:
            let query = try Self.query(query)
            let text = ByteBuffer((query["token"] ?? "").utf8)
            guard let token = InlineText(token: text.span) else { throw Self.invalidToken }
            return .fetchKey(token)
        case .register:
            try parse(body)
            return .register(
                token: try token(Field.token), tier: try tier(), cell: try cell())
        case .wave:
            try parse(body)
            return .wave(try token(Field.token))
        case .block:
            try parse(body)
            return .block(try token(Field.token))
        case .storeKey:
            try parse(body)
            guard let text = parser.string(Field.publicKey) else { throw Self.invalidKey }
            let bytes = ByteBuffer(text.utf8)
            guard Base64.decode(bytes.span)?.count == Self.publicKeyBytes else {
                throw Self.invalidKey
            }
            return .storeKey(text)
        case .encounter:
            try parse(body)
            guard let id = parser.withString(Field.id, { EncounterID(parsing: $0) }) ?? nil else {
                throw Self.invalidID
            }
            let token = try token(Field.remoteToken)
            let tier = try tier()
            var engine = InlineText()
            if isGiven(Field.engine) {
                guard let text = parser.withString(Field.engine, { InlineText($0) }) else {
                    throw ProximityFault(.badRequest, "invalid engine")
                }
                engine = text
            }
            return .encounter(
                EncounterReport(
                    id: id, remoteToken: token, tier: tier, engine: engine, cell: try cell()))
        case .message: return try message(body)
        }
    }

    private func message(_ body: Span<UInt8>) throws(ProximityFault) -> ProximityRequest {
        try parse(body)
        guard let id = parser.withString(Field.id, { MessageID(parsing: $0) }) ?? nil else {
            throw Self.invalidID
        }
        let connection = parser.withString(Field.connectionID) { ConnectionID(parsing: $0) }
        guard let connection = connection ?? nil else {
            throw ProximityFault(.badRequest, "invalid connection id")
        }
        guard parser.withString(Field.senderID, { !$0.isEmpty }) == true else {
            throw ProximityFault(.badRequest, "invalid sender id")
        }
        let size = parser.withString(Field.ciphertext) { text -> Int? in
            // What is too long need not be decoded.
            text.count > (Self.ciphertextBytes + 2) / 3 * 4 ? .max : Base64.decode(text)?.count
        }
        guard let size = size ?? nil, size > 0 else {
            throw ProximityFault(.badRequest, "invalid ciphertext")
        }
        guard size <= Self.ciphertextBytes else {
            throw ProximityFault(.contentTooLarge, "ciphertext too large")
        }
        return .message(id, connection, ByteBuffer(copying: body))
    }

    // MARK: - Fields

    private static let invalidToken = ProximityFault(.badRequest, "invalid token")
    private static let invalidKey = ProximityFault(.badRequest, "invalid public key")
    private static let invalidID = ProximityFault(.badRequest, "invalid id")
    private static let invalidJSON = ProximityFault(.badRequest, "invalid json")

    private func parse(_ body: Span<UInt8>) throws(ProximityFault) {
        // A message is relayed as it came, so what a parser may skip must not be there.
        guard let first = body.firstVisible, first == UInt8(ascii: "{") else {
            throw Self.invalidJSON
        }
        do throws(JSONError) {
            try parser.parse(body)
        } catch {
            if error == .outOfMemory { throw .overloaded }
            throw Self.invalidJSON
        }
    }

    private func isGiven(_ field: Int) -> Bool {
        switch parser.kind(field) {
        case .absent, .null: false
        default: true
        }
    }

    private func token(_ field: Int) throws(ProximityFault) -> InlineText {
        guard let token = parser.withString(field, { InlineText(token: $0) }) ?? nil else {
            throw Self.invalidToken
        }
        return token
    }

    private func tier() throws(ProximityFault) -> DistanceTier {
        guard let number = parser.integer(Field.tier), let raw = UInt8(exactly: number),
            let tier = DistanceTier(rawValue: raw)
        else { throw ProximityFault(.badRequest, "invalid tier") }
        return tier
    }

    /// Absent, null or empty: not told.
    private func cell() throws(ProximityFault) -> Geohash? {
        guard isGiven(Field.geohash) else { return nil }
        let isEmpty = parser.withString(Field.geohash) { $0.isEmpty }
        if isEmpty == true { return nil }
        guard let cell = parser.withString(Field.geohash, { Geohash(parsing: $0) }) ?? nil else {
            throw ProximityFault(.badRequest, "invalid geohash")
        }
        return cell
    }

    private static func query(_ text: String?) throws(ProximityFault) -> QueryParameters {
        do throws(AdminFault) {
            return try QueryParameters(text)
        } catch {
            throw ProximityFault(.badRequest, "invalid query")
        }
    }
}

extension InlineText {
    /// A token of 1 to 120 bytes; `nil` for anything else, U+0000 in it included, which PostgreSQL
    /// cannot hold: another character in its place would make it another token.
    init?(token bytes: Span<UInt8>) {
        guard !bytes.isEmpty else { return nil }
        self.init(bytes)
        guard Int(count) == bytes.count else { return nil }
    }
}

extension Span where Element == UInt8 {
    /// The first byte that is not JSON's white space.
    fileprivate var firstVisible: UInt8? {
        for index in indices {
            switch self[index] {
            case 0x20, 0x09, 0x0A, 0x0D: continue
            default: return self[index]
            }
        }
        return nil
    }
}
