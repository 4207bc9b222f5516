internal import Bytes
internal import Crypto
internal import Postgres
public import Schemas

/// A registration token as operators see it; never the token itself.
public struct TokenSummary: Sendable, Equatable {
    public enum State: String, Sendable {
        case unused, used, revoked, expired
    }

    /// Names the token; it is not the token. A UUID.
    public var id: String
    public var state: State
    public var createdAt: EventTime
    public var createdBy: String
    public var expiresAt: EventTime
    public var usedAt: EventTime?
    /// The device that was provisioned with it.
    public var device: DeviceID?
    public var note: String
}

extension Registry {
    /// Longest note beside a token, in characters.
    public static let maximumNote = 500

    private struct TokenDetails: Encodable {
        var count: Int
        var ttl_ms: Int64
        var note: String
    }

    /// What is kept of an answer: not the tokens.
    private struct TokensMade: Codable {
        var token_ids: [String]
        var expires_at_ms: Int64
    }

    /// Makes registration tokens for an operator.
    ///
    /// A request with an id gets tokens that follow from it under `HEARTLINE_SECRET_KEY`: so the same
    /// request gets the same tokens again, though they are stored nowhere.
    /// - Parameters:
    ///   - count: 1 to `maximumTokens`.
    ///   - ttl: how long they are good for, 1 s to `maximumTokenLife`.
    ///   - note: at most `maximumNote` characters.
    public func createTokens(
        count: Int, ttl: Duration, note: String = "", by request: OperatorRequest
    ) throws -> [RegistrationToken] {
        guard note.count <= Self.maximumNote, note.isPrintable else {
            throw RegistryError(
                "making registration tokens", .badSetting,
                "a note has at most \(Self.maximumNote) characters and no control characters")
        }
        // Before it is counted in milliseconds, which could overflow.
        try Self.checkTokenLife(ttl)
        let milliseconds =
            ttl.components.seconds * 1_000 + ttl.components.attoseconds / 1_000_000_000_000_000
        let details = TokenDetails(count: count, ttl_ms: milliseconds, note: note)
        var made: [RegistrationToken] = []
        let answer: TokensMade = try audited("token.create", of: "", details, by: request) { _ in
            made = try createTokens(
                count: count, ttl: ttl, actor: request.actor, note: note
            ) { index in
                try request.id.map { token(of: $0, index) } ?? DeviceID.random()
            }
            return TokensMade(
                token_ids: made.map(\.id),
                expires_at_ms: made.first?.expiresAt.milliseconds ?? 0)
        }
        if made.isEmpty, let id = request.id {
            made = answer.token_ids.enumerated().map { index, name in
                RegistrationToken(
                    id: name, token: token(of: id, index).description,
                    expiresAt: EventTime(milliseconds: answer.expires_at_ms))
            }
        }
        return made
    }

    /// The token that follows from a request: a UUID (RFC 9562, version 8) of 122 bits of an HMAC.
    private func token(of requestID: String, _ index: Int) -> DeviceID {
        var message = ByteBuffer()
        message.append("token")
        message.append(UInt8(0))
        message.append(ByteBuffer(requestID.utf8))
        // Ids hold no zero bytes, so no two requests share a message.
        message.append(UInt8(0))
        message.append(decimal: Int64(index))
        let key = secretKey
        let (high, low) = HMACSHA256.authenticate(message.span, key: key.span).uuid
        return DeviceID(high: high, low: low)
    }

    /// Registration tokens, the newest first.
    public func tokens(limit: Int) throws -> [TokenSummary] {
        let rows = try connection.execute(
            """
            SELECT token_id, created_at, created_by, expires_at, used_at, device_id, note, \
            revoked_at IS NOT NULL, expires_at <= now() FROM heartline.registration_tokens \
            ORDER BY created_at DESC, token_id LIMIT $1
            """, .int8(Int64(limit)))
        return try rows.map { row in
            let (high, low) = try row.uuid(0)
            let usedAt = try row.optionalTimestamptz(4)
            let state: TokenSummary.State =
                if usedAt != nil {
                    .used
                } else if try row.bool(7) {
                    .revoked
                } else if try row.bool(8) {
                    .expired
                } else {
                    .unused
                }
            return TokenSummary(
                id: DeviceID(high: high, low: low).description, state: state,
                createdAt: EventTime(postgresMicroseconds: try row.timestamptz(1)),
                createdBy: try row.text(2),
                expiresAt: EventTime(postgresMicroseconds: try row.timestamptz(3)),
                usedAt: usedAt.map { EventTime(postgresMicroseconds: $0) },
                device: try row.optionalUUID(5).map { DeviceID(high: $0.high, low: $0.low) },
                note: try row.text(6))
        }
    }

    /// The id of a token; `nil` if there is no such token.
    /// - Parameter text: the token itself, or its id.
    public func tokenID(_ text: String) throws -> DeviceID? {
        guard let uuid = DeviceID(text) else { return nil }
        let rows = try connection.execute(
            """
            SELECT token_id FROM heartline.registration_tokens \
            WHERE token_id = $1 OR token_digest = $2
            """,
            .uuid(uuid.high, uuid.low), .bytea(ByteBuffer(uuid.tokenDigest.bytes)))
        return try rows.first.map { row in
            let (high, low) = try row.uuid(0)
            return DeviceID(high: high, low: low)
        }
    }

    private struct TokenRevoked: Codable {
        var token_id: String
        var changed: Bool
    }

    /// Makes a token good for nothing: agents are answered as if it had expired.
    ///
    /// - Parameter id: of the token, not the token itself.
    /// - Returns: whether it was good until now.
    /// - Throws: `.unknownToken`, or `.tokenUsed` if a device was provisioned with it.
    @discardableResult
    public func revokeToken(_ id: DeviceID, by request: OperatorRequest) throws -> Bool {
        let operation = "revoking a registration token"
        let answer: TokenRevoked = try audited(
            "token.revoke", of: id.description, NoDetails(), by: request
        ) { _ in
            let rows = try connection.execute(
                """
                SELECT used_at IS NOT NULL, device_id FROM heartline.registration_tokens \
                WHERE token_id = $1 FOR UPDATE
                """, .uuid(id.high, id.low))
            guard let row = rows.first else {
                throw RegistryError(operation, .unknownToken, "no token has the id \(id)")
            }
            if try row.bool(0) {
                let device = try row.optionalUUID(1).map { DeviceID(high: $0.high, low: $0.low) }
                throw RegistryError(
                    operation, .tokenUsed,
                    "device \(device.map { "\($0)" } ?? "of it") was provisioned with it already; "
                        + "suspend or remove the device")
            }
            let updated = try connection.execute(
                """
                UPDATE heartline.registration_tokens \
                SET revoked_at = now(), expires_at = least(expires_at, now()) \
                WHERE token_id = $1 AND revoked_at IS NULL
                """, .uuid(id.high, id.low))
            return TokenRevoked(token_id: id.description, changed: updated.affectedRows == 1)
        }
        return answer.changed
    }
}
