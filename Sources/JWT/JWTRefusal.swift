/// Why a token was refused. Holds nothing of the token, so all of it may be logged; the client is
/// told only that the token is invalid.
public enum JWTRefusal: Error, Hashable, Sendable, CustomStringConvertible {
    public enum Part: String, Sendable, CaseIterable { case header, payload, signature }

    public enum Parameter: String, Sendable { case alg, kid, typ, cty }

    public enum Claim: String, Sendable {
        case issuer = "iss"
        case subject = "sub"
        case audience = "aud"
        case expiry = "exp"
        case notBefore = "nbf"
        case issuedAt = "iat"
        case nonce
    }

    /// More bytes than the policy allows.
    case tooLarge
    /// Not a compact JWS (RFC 7515, section 7.1); an encrypted token has five parts.
    case notThreeParts
    /// Not Base64url without padding.
    case badEncoding(Part)
    /// Not one JSON object, or one with repeated keys.
    case badJSON(Part)
    /// A parameter of the header that is not a string.
    case badHeader(Parameter)
    /// `crit` names extensions that must be understood (RFC 7515, section 4.1.11); none is.
    case criticalExtensions
    /// `typ` says that this is another kind of token (RFC 8725, section 3.11).
    case wrongType
    /// `cty` says that the payload is another token.
    case nestedToken
    case algorithmMissing
    /// `alg` is `none`: nobody signed it.
    case unsecured
    /// Neither RS256 nor ES256; `HS256` too, for which a public key would be the secret.
    case algorithmNotSupported
    case keyIDMissing
    /// The set holds no key of this id; a newer set may.
    case keyIDUnknown
    /// The key of this id is for another algorithm than `alg` claims.
    case algorithmMismatch
    case wrongSignature

    case missing(Claim)
    /// A claim of the wrong type, out of range or too long.
    case malformed(Claim)
    case wrongIssuer
    case wrongAudience
    case expired
    case notYetValid
    case issuedInTheFuture
    /// Issued longer ago than the policy allows.
    case tooOld
    /// The token carries a nonce and the caller none: it was made for another sign-in.
    case nonceNotGiven
    case wrongNonce

    public var description: String {
        switch self {
        case .tooLarge: "the token is too large"
        case .notThreeParts: "the token does not have three parts"
        case .badEncoding(let part): "the \(part.rawValue) is not Base64url"
        case .badJSON(let part): "the \(part.rawValue) is not a JSON object"
        case .badHeader(let parameter): "the header's \(parameter.rawValue) is not a string"
        case .criticalExtensions: "the header names critical extensions"
        case .wrongType: "the header's typ is not JWT"
        case .nestedToken: "the token holds another token"
        case .algorithmMissing: "the header has no alg"
        case .unsecured: "the token is not signed"
        case .algorithmNotSupported: "the algorithm is neither RS256 nor ES256"
        case .keyIDMissing: "the header has no kid"
        case .keyIDUnknown: "no key has this id"
        case .algorithmMismatch: "the key is for another algorithm"
        case .wrongSignature: "the signature does not fit"
        case .missing(let claim): "the token has no \(claim.rawValue)"
        case .malformed(let claim): "the token's \(claim.rawValue) is malformed"
        case .wrongIssuer: "the token is from another issuer"
        case .wrongAudience: "the token is for another audience"
        case .expired: "the token has expired"
        case .notYetValid: "the token is not valid yet"
        case .issuedInTheFuture: "the token was issued in the future"
        case .tooOld: "the token was issued too long ago"
        case .nonceNotGiven: "the token has a nonce and the request none"
        case .wrongNonce: "the token has another nonce"
        }
    }
}
