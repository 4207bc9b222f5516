internal import Bytes
internal import Crypto
internal import JSON

/// Checks signed tokens of identity providers: JWT (RFC 7519) in compact JWS (RFC 7515), with the
/// rules of RFC 8725.
///
/// The key decides the algorithm: what the header claims is only compared with it. Keys that a
/// header brings along (`jwk`, `jku`, `x5c`, `x5u`) are never looked at. The caller gives the time.
/// - Note: ECDSA signatures have a second valid spelling, so a token's bytes are no identity of it.
/// - Thread safety: not `Sendable`; one for each thread. Costs about 100 µs a token.
public struct JWTVerifier: ~Copyable {
    /// Longer tokens are refused before anything is decoded. Unit: bytes.
    public static let maximumBytes = 16 << 10
    /// Longer `kid`s name no key. Unit: bytes.
    static let maximumKeyIDBytes = 256
    /// Longer nonces, of a caller or in a token, are refused. Unit: bytes.
    static let maximumNonceBytes = 512
    static let maximumAudiences = 32
    /// 9999-12-31T23:59:59Z: a time in seconds after it is a mistake. Unit: seconds.
    static let latestSeconds = 253_402_300_799.0

    private let header: JSONParser
    private let payload: JSONParser

    public init() {
        header = JSONParser(
            HeaderField.names, maximumBytes: Self.maximumBytes, maximumDepth: 8)
        payload = JSONParser(
            ClaimField.names, maximumBytes: Self.maximumBytes, maximumDepth: 16)
    }

    /// What `token` says, if a key of `keys` signed it and `policy` accepts it.
    ///
    /// - Parameters:
    ///   - nonce: what this sign-in was begun with; empty if with nothing. The token must hold it,
    ///     or its SHA-256 in lower-case hexadecimal or Base64url.
    ///   - now: milliseconds since 1970-01-01T00:00:00Z.
    public func verify(
        _ token: Span<UInt8>, keys: JWKSet, policy: JWTPolicy, nonce: Span<UInt8>, now: Int64
    ) throws(JWTRefusal) -> JWTClaims {
        let signed = try read(token)
        guard let id = signed.keyID else { throw .keyIDMissing }
        guard id.count <= Self.maximumKeyIDBytes else { throw .keyIDUnknown }
        let key = try keys.key(id: id.span, algorithm: signed.algorithm)
        let bytes = try verifiedPayload(of: signed, token, key: key)
        do { try payload.parse(bytes.span) } catch { throw .badJSON(.payload) }
        return try checkClaims(policy: policy, nonce: nonce, now: now)
    }

    /// The payload of a compact JWS that `key` signed, whatever id it names and whatever it says.
    public func verifiedPayload(
        of token: Span<UInt8>, key: JSONWebKey
    ) throws(JWTRefusal)
        -> [UInt8]
    {
        try verifiedPayload(of: try read(token), token, key: key)
    }

    private func verifiedPayload(
        of signed: SignedToken, _ token: Span<UInt8>, key: JSONWebKey
    )
        throws(JWTRefusal) -> [UInt8]
    {
        guard signed.algorithm == key.algorithm else { throw .algorithmMismatch }
        guard let signature = Base64URL.decode(token.extracting(signed.signature)) else {
            throw .badEncoding(.signature)
        }
        let input = token.extracting(0..<signed.payload.upperBound)
        guard key.key.verifies(signature.span, of: input) else { throw .wrongSignature }
        guard let bytes = Base64URL.decode(token.extracting(signed.payload)) else {
            throw .badEncoding(.payload)
        }
        return bytes
    }

    /// Splits a token and reads its header, which nobody has vouched for yet.
    private func read(_ token: Span<UInt8>) throws(JWTRefusal) -> SignedToken {
        guard token.count <= Self.maximumBytes else { throw .tooLarge }
        var first: Int?
        var second: Int?
        for index in token.indices where token[index] == UInt8(ascii: ".") {
            guard second == nil else { throw .notThreeParts }
            if first == nil { first = index } else { second = index }
        }
        // The signature may be empty here: an unsigned token is to be called that.
        guard let first, let second, first > 0, second > first + 1 else { throw .notThreeParts }
        guard let bytes = Base64URL.decode(token.extracting(0..<first)) else {
            throw .badEncoding(.header)
        }
        do { try header.parse(bytes.span) } catch { throw .badJSON(.header) }

        guard header.kind(HeaderField.crit) == .absent else { throw .criticalExtensions }
        if let type = try parameter(HeaderField.typ, .typ) {
            // A media type whose "application/" may be left out (RFC 7515, section 4.1.9).
            let name = type.lowercased()
            guard name == "jwt" || name == "application/jwt" else { throw .wrongType }
        }
        // An ID token's payload is its claims; `cty` would say that it is not.
        guard try parameter(HeaderField.cty, .cty) == nil else { throw .nestedToken }
        guard let name = try parameter(HeaderField.alg, .alg) else { throw .algorithmMissing }
        guard name.lowercased() != "none" else { throw .unsecured }
        guard let algorithm = JWTAlgorithm(rawValue: name) else { throw .algorithmNotSupported }
        let id = try parameter(HeaderField.kid, .kid)
        return SignedToken(
            payload: first + 1..<second, signature: second + 1..<token.count,
            algorithm: algorithm, keyID: id.map { Array($0.utf8) })
    }

    private func parameter(
        _ field: Int, _ name: JWTRefusal.Parameter
    ) throws(JWTRefusal)
        -> String?
    {
        guard header.kind(field) != .absent else { return nil }
        guard let text = header.string(field) else { throw .badHeader(name) }
        return text
    }

    private struct SignedToken {
        var payload: Range<Int>
        var signature: Range<Int>
        var algorithm: JWTAlgorithm
        var keyID: [UInt8]?
    }
}

private enum HeaderField {
    static let alg = 0, kid = 1, typ = 2, cty = 3, crit = 4
    static let names = JSONFields(["alg", "kid", "typ", "cty", "crit"])
}

private enum ClaimField {
    static let iss = 0, sub = 1, aud = 2, exp = 3, nbf = 4, iat = 5, nonce = 6
    static let email = 7, emailVerified = 8, name = 9
    static let names = JSONFields([
        "iss", "sub", "aud", "exp", "nbf", "iat", "nonce", "email", "email_verified", "name",
    ])
}

// MARK: - Claims

extension JWTVerifier {
    /// Checks the claims of the payload that was parsed last.
    private func checkClaims(
        policy: JWTPolicy, nonce: Span<UInt8>, now: Int64
    )
        throws(JWTRefusal) -> JWTClaims
    {
        let issuer = try text(ClaimField.iss, .issuer)
        guard policy.issuers.contains(where: { Array($0.utf8) == Array(issuer.utf8) }) else {
            throw .wrongIssuer
        }
        try checkAudience(policy.audiences)

        let leeway = policy.leeway.milliseconds
        guard let expiry = try time(ClaimField.exp, .expiry) else { throw .missing(.expiry) }
        guard now < expiry.adding(leeway) else { throw .expired }
        if let start = try time(ClaimField.nbf, .notBefore) {
            guard now.adding(leeway) >= start else { throw .notYetValid }
        }
        let issuedAt = try time(ClaimField.iat, .issuedAt)
        if let issuedAt {
            guard now.adding(leeway) >= issuedAt else { throw .issuedInTheFuture }
        }
        if let age = policy.maximumAge {
            guard let issuedAt else { throw .missing(.issuedAt) }
            guard now <= issuedAt.adding(age.milliseconds).adding(leeway) else { throw .tooOld }
        }
        try checkNonce(nonce, isRequired: policy.requiresNonce)

        // It names a person from now on: no characters that a database or a log would change.
        let subject = try text(ClaimField.sub, .subject)
        guard !subject.isEmpty, subject.utf8.count <= 255,
            subject.utf8.allSatisfy({ $0 > 0x20 && $0 < 0x7F })
        else { throw .malformed(.subject) }
        let isVerified =
            payload.bool(ClaimField.emailVerified)
            ?? payload.withString(ClaimField.emailVerified) { $0.equals("true") } ?? false
        return JWTClaims(
            issuer: issuer, subject: subject, expiry: expiry, issuedAt: issuedAt,
            email: optionalText(ClaimField.email), isEmailVerified: isVerified,
            name: optionalText(ClaimField.name))
    }

    private func checkAudience(_ accepted: [String]) throws(JWTRefusal) {
        func isAccepted(_ audience: Span<UInt8>) -> Bool {
            accepted.contains { text in
                let bytes = ByteBuffer(text.utf8)
                return equalInConstantTime(bytes.span, audience)
            }
        }
        switch payload.kind(ClaimField.aud) {
        case .absent, .null: throw .missing(.audience)
        case .string:
            guard payload.withString(ClaimField.aud, isAccepted) == true else {
                throw .wrongAudience
            }
        case .array:
            let count = payload.count(ClaimField.aud)
            guard count <= Self.maximumAudiences else { throw .malformed(.audience) }
            var found = false
            for index in 0..<count {
                let matches = payload.withString(ClaimField.aud, element: index, isAccepted)
                guard let matches else { throw .malformed(.audience) }
                if matches { found = true }
            }
            guard found else { throw .wrongAudience }
        default: throw .malformed(.audience)
        }
    }

    private func checkNonce(_ given: Span<UInt8>, isRequired: Bool) throws(JWTRefusal) {
        guard given.count <= Self.maximumNonceBytes else { throw .wrongNonce }
        switch payload.kind(ClaimField.nonce) {
        case .absent:
            guard given.isEmpty, !isRequired else { throw .missing(.nonce) }
            return
        case .string: break
        default: throw .malformed(.nonce)
        }
        // Whoever stole a token could else leave the nonce out.
        guard !given.isEmpty else { throw .nonceNotGiven }
        let digest = SHA256.hash(given)
        let hex = ByteBuffer(digest.hex.utf8)
        let bytes = digest.bytes
        let encoded = ByteBuffer(Base64URL.encode(bytes.span).utf8)
        let matches = payload.withString(ClaimField.nonce) { nonce in
            // All three are compared, so that the time does not tell which one was close.
            let isPlain = equalInConstantTime(nonce, given)
            let isHex = equalInConstantTime(nonce, hex.span)
            let isBase64 = equalInConstantTime(nonce, encoded.span)
            return isPlain || isHex || isBase64
        }
        guard matches == true else { throw .wrongNonce }
    }

    private func text(_ field: Int, _ claim: JWTRefusal.Claim) throws(JWTRefusal) -> String {
        switch payload.kind(field) {
        case .absent, .null: throw .missing(claim)
        default: break
        }
        guard let text = payload.string(field) else { throw .malformed(claim) }
        return text
    }

    /// A NumericDate (RFC 7519, section 2) in milliseconds; `nil` if it is absent.
    private func time(_ field: Int, _ claim: JWTRefusal.Claim) throws(JWTRefusal) -> Int64? {
        guard payload.kind(field) != .absent else { return nil }
        guard let seconds = payload.number(field), seconds >= 0, seconds <= Self.latestSeconds
        else { throw .malformed(claim) }
        return Int64((seconds * 1000).rounded(.down))
    }

    private func optionalText(_ field: Int) -> String? {
        guard let text = payload.string(field), !text.isEmpty, text.utf8.count <= 320,
            text.utf8.allSatisfy({ $0 >= 0x20 && $0 != 0x7F })
        else { return nil }
        return text
    }
}

extension Int64 {
    /// The sum, or the number nearest to it.
    func adding(_ other: Int64) -> Int64 {
        let (sum, overflows) = addingReportingOverflow(other)
        return overflows ? (other > 0 ? .max : .min) : sum
    }
}

extension Duration {
    /// Whole milliseconds, rounded down; at most what `Int64` holds.
    var milliseconds: Int64 {
        let (seconds, attoseconds) = components
        let (product, overflows) = seconds.multipliedReportingOverflow(by: 1000)
        if overflows { return seconds > 0 ? .max : .min }
        return product.adding(attoseconds / 1_000_000_000_000_000)
    }
}
