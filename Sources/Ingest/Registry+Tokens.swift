internal import Bytes
internal import Crypto
internal import Postgres
public import Schemas

/// A registration token as it leaves the server: once, to the operator who asked for it.
public struct RegistrationToken: Sendable {
    /// Names the token in lists and in the records of what was done; it is not the token. A UUID.
    public var id: String
    /// What an agent provisions itself with, once: a UUID of 122 random bits. Secret.
    public var token: String
    /// From here on it is refused.
    public var expiresAt: EventTime
}

extension Registry {
    /// Tokens that are made at once.
    public static let maximumTokens = 100_000
    /// Longest life of a token: a year.
    public static let maximumTokenLife: Duration = .seconds(365 * 86_400)
    /// Tokens that expired longer ago are deleted when new ones are made.
    private static let forgottenAfterDays = 30

    /// Makes registration tokens. Only their SHA-256 is stored: nobody can read one out again.
    ///
    /// It is one statement, so it can stand in a transaction of the caller's.
    /// - Parameters:
    ///   - count: from 1 to `maximumTokens`.
    ///   - ttl: how long they are good for, 1 s to 365 d; counted on the database's clock.
    ///   - actor: the operator who makes them.
    ///   - note: what the operator writes beside them.
    /// - Throws: `RegistryError` of kind `.badSetting`, `PostgresError` or `CryptoError`; then no token
    ///   was made.
    public func createTokens(
        count: Int, ttl: Duration, actor: String, note: String = ""
    ) throws -> [RegistrationToken] {
        try createTokens(count: count, ttl: ttl, actor: actor, note: note) { _ in
            try DeviceID.random()
        }
    }

    static func checkTokenLife(_ ttl: Duration) throws {
        guard ttl >= .seconds(1), ttl <= maximumTokenLife else {
            throw RegistryError(
                "making registration tokens", .badSetting, "a life of \(ttl) is not 1 s to 365 d")
        }
    }

    /// - Parameter makeToken: given the token's place; no two are the same.
    func createTokens(
        count: Int, ttl: Duration, actor: String, note: String,
        makeToken: (_ index: Int) throws -> DeviceID
    ) throws -> [RegistrationToken] {
        guard count >= 1, count <= Self.maximumTokens else {
            throw RegistryError(
                "making registration tokens", .badSetting,
                "\(count) tokens are not 1 to \(Self.maximumTokens)")
        }
        try Self.checkTokenLife(ttl)
        var tokens: [DeviceID] = []
        var ids: [(UInt64, UInt64)] = []
        var digests = ByteBuffer()
        for index in 0..<count {
            let token = try makeToken(index)
            digests.appendBigEndian(Int32(32))
            digests.append(token.tokenDigest)
            tokens.append(token)
            let id = try DeviceID.random()
            ids.append((id.high, id.low))
        }
        let (seconds, attoseconds) = ttl.components
        var parameters = PostgresParameters(.uuidArray(ids))
        parameters.append(arrayOf: .bytea, count: count, elements: digests.span)
        parameters.append(text: actor.withoutZeroes)
        parameters.append(
            intervalMicroseconds: seconds * 1_000_000 + attoseconds / 1_000_000_000_000)
        parameters.append(text: note.withoutZeroes)
        let made = try connection.execute(
            """
            WITH forgotten AS (DELETE FROM heartline.registration_tokens \
            WHERE expires_at < now() - interval '\(Self.forgottenAfterDays) days') \
            INSERT INTO heartline.registration_tokens \
            (token_id, token_digest, created_by, expires_at, note) \
            SELECT id, digest, $3, now() + $4, $5 FROM unnest($1::uuid[], $2::bytea[]) \
            AS made (id, digest) RETURNING expires_at
            """, parameters: parameters)
        let expiresAt = EventTime(postgresMicroseconds: try made[0].timestamptz(0))
        return zip(tokens, ids).map { token, id in
            RegistrationToken(
                id: DeviceID(high: id.0, low: id.1).description, token: token.description,
                expiresAt: expiresAt)
        }
    }
}

extension DeviceID {
    /// A random UUID (RFC 9562, version 4): 122 bits from OpenSSL's generator.
    static func random() throws(CryptoError) -> DeviceID {
        DeviceID(
            high: try Random.integer() & ~0xF000 | 0x4000,
            low: try Random.integer() & ~(3 << 62) | (2 << 62))
    }

    /// What is stored of a registration token: SHA-256 of its 16 bytes.
    var tokenDigest: Digest {
        var bytes = ByteBuffer()
        bytes.appendBigEndian(high)
        bytes.appendBigEndian(low)
        return SHA256.hash(bytes.span)
    }
}

extension String {
    /// PostgreSQL cannot hold U+0000 in text.
    fileprivate var withoutZeroes: String {
        contains("\0") ? String(map { $0 == "\0" ? "\u{FFFD}" : $0 }) : self
    }
}
