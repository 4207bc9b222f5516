internal import Bytes
public import Crypto

/// A signature algorithm of JSON Web Algorithms (RFC 7518, section 3.1).
public enum JWTAlgorithm: String, Sendable, Hashable {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    case rs256 = "RS256"
    /// ECDSA on P-256 with SHA-256.
    case es256 = "ES256"
}

/// A public key of an identity provider (RFC 7517), for one algorithm.
public struct JSONWebKey: Sendable {
    /// `kid`: what tokens call it.
    public let id: String
    public let algorithm: JWTAlgorithm
    public let key: VerificationKey
    /// SHA-256 of the key's own numbers (RFC 7638).
    public let thumbprint: Digest

    /// - Parameters: unsigned big-endian numbers.
    /// - Throws: for numbers that are no key, or a weak one.
    public init(
        id: String, rsaModulus modulus: [UInt8], exponent: [UInt8]
    )
        throws(VerificationKeyError)
    {
        self.id = id
        algorithm = .rs256
        key = try VerificationKey(rsaModulus: modulus.span, exponent: exponent.span)
        let n = Base64URL.encode(modulus.span)
        let e = Base64URL.encode(exponent.span)
        thumbprint = Self.hash(#"{"e":"\#(e)","kty":"RSA","n":"\#(n)"}"#)
    }

    /// - Parameters: the coordinates, 32 bytes each, big-endian.
    /// - Throws: for a point that is not on the curve.
    public init(id: String, p256X x: [UInt8], y: [UInt8]) throws(VerificationKeyError) {
        self.id = id
        algorithm = .es256
        key = try VerificationKey(p256X: x.span, y: y.span)
        let first = Base64URL.encode(x.span)
        let second = Base64URL.encode(y.span)
        thumbprint = Self.hash(
            #"{"crv":"P-256","kty":"EC","x":"\#(first)","y":"\#(second)"}"#)
    }

    private static func hash(_ text: String) -> Digest {
        let bytes = ByteBuffer(text.utf8)
        return SHA256.hash(bytes.span)
    }
}
