/// What a token must say to be accepted.
public struct JWTPolicy: Sendable {
    /// Accepted values of `iss`, byte by byte. Google writes its own in two ways.
    public var issuers: [String]
    /// Accepted values of `aud`: the ids of our own applications. One of them must be among the
    /// token's.
    public var audiences: [String]
    /// How far the issuer's clock may be from ours. Default: 60 s.
    public var leeway: Duration = .seconds(60)
    /// How long after `iat` a token is accepted, whatever its `exp`. Default: no limit; `iat` must
    /// be there if one is set.
    public var maximumAge: Duration?
    /// Whether a token without a nonce is refused even if the caller gives none.
    public var requiresNonce = false

    public init(issuers: [String], audiences: [String]) {
        self.issuers = issuers
        self.audiences = audiences
    }
}

/// What a verified token says.
public struct JWTClaims: Hashable, Sendable {
    public var issuer: String
    /// The issuer's name for the person: 1 to 255 printable ASCII characters (OpenID Connect Core,
    /// section 2).
    public var subject: String
    /// Milliseconds since 1970-01-01T00:00:00Z, as all times here.
    public var expiry: Int64
    public var issuedAt: Int64?
    /// `nil` also if it is no string, longer than 320 bytes or holds control characters.
    public var email: String?
    /// Apple writes the flag as a string, Google as a boolean.
    public var isEmailVerified: Bool
    /// What the person calls themselves; `nil` as for `email`, above 320 bytes.
    public var name: String?

    package init(
        issuer: String, subject: String, expiry: Int64, issuedAt: Int64?, email: String?,
        isEmailVerified: Bool, name: String?
    ) {
        self.issuer = issuer
        self.subject = subject
        self.expiry = expiry
        self.issuedAt = issuedAt
        self.email = email
        self.isEmailVerified = isEmailVerified
        self.name = name
    }
}
