internal import Bytes
internal import COpenSSL
internal import Crypto
public import JWT

/// An identity provider's private key, made by OpenSSL. Only tests sign.
@safe public final class SigningKey: @unchecked Sendable {
    public static let rsa = SigningKey(rsaBits: 2048)
    public static let otherRSA = SigningKey(rsaBits: 2048)
    public static let p256 = SigningKey(curve: "P-256")
    public static let otherP256 = SigningKey(curve: "P-256")

    public let isRSA: Bool
    private let key: OpaquePointer

    public init(rsaBits: Int) {
        isRSA = true
        unsafe key = Self.generate("RSA") {
            unsafe EVP_PKEY_CTX_set_rsa_keygen_bits($0, Int32(rsaBits))
        }
    }

    public init(curve: String) {
        isRSA = false
        unsafe key = Self.generate("EC") { unsafe EVP_PKEY_CTX_set_group_name($0, curve) }
    }

    deinit { unsafe EVP_PKEY_free(key) }

    private static func generate(
        _ type: String, _ configure: (OpaquePointer) -> Int32
    )
        -> OpaquePointer
    {
        let context = unsafe EVP_PKEY_CTX_new_from_name(nil, type, nil)!
        defer { unsafe EVP_PKEY_CTX_free(context) }
        var key: OpaquePointer?
        let isMade =
            unsafe EVP_PKEY_keygen_init(context) == 1 && configure(context) == 1
            && EVP_PKEY_generate(context, &key) == 1
        precondition(isMade)
        return unsafe key!
    }

    /// A number of the key, big-endian: `n` and `e`, or `qx` and `qy`.
    public func number(_ name: String) -> [UInt8] {
        var number: OpaquePointer?
        let isRead = unsafe EVP_PKEY_get_bn_param(key, name, &number) == 1
        precondition(isRead)
        defer { unsafe BN_free(number) }
        let size = unsafe isRSA ? Int((BN_num_bits(number) + 7) / 8) : 32
        var bytes = [UInt8](repeating: 0, count: size)
        let written = unsafe BN_bn2binpad(number, &bytes, Int32(size))
        precondition(written == Int32(size))
        return bytes
    }

    /// The DER form that files hold, of the public half.
    public var subjectPublicKeyInfo: [UInt8] {
        let size = unsafe i2d_PUBKEY(key, nil)
        var bytes = [UInt8](repeating: 0, count: Int(size))
        unsafe bytes.withUnsafeMutableBufferPointer {
            var place = $0.baseAddress
            _ = unsafe i2d_PUBKEY(key, &place)
        }
        return bytes
    }

    /// A signature as JWS has it.
    public func sign(_ message: [UInt8]) -> [UInt8] {
        let context = unsafe EVP_MD_CTX_new()
        defer { unsafe EVP_MD_CTX_free(context) }
        var signature = [UInt8](repeating: 0, count: 1024)
        var size = signature.count
        let isSigned =
            unsafe EVP_DigestSignInit_ex(context, nil, "SHA256", nil, nil, key, nil) == 1
            && EVP_DigestSign(context, &signature, &size, message, message.count) == 1
        precondition(isSigned)
        signature.removeLast(signature.count - size)
        if isRSA { return signature }
        var fixed = [UInt8](repeating: 0, count: 64)
        unsafe signature.withUnsafeBufferPointer {
            var place = $0.baseAddress
            let pair = unsafe d2i_ECDSA_SIG(nil, &place, $0.count)
            defer { unsafe ECDSA_SIG_free(pair) }
            unsafe fixed.withUnsafeMutableBufferPointer {
                _ = unsafe BN_bn2binpad(ECDSA_SIG_get0_r(pair), $0.baseAddress, 32)
                _ = unsafe BN_bn2binpad(ECDSA_SIG_get0_s(pair), $0.baseAddress! + 32, 32)
            }
        }
        return fixed
    }

    /// `header.claims.signature`.
    public func token(header: String, claims: String) -> [UInt8] {
        let input = "\(Self.encoded(Array(header.utf8))).\(Self.encoded(Array(claims.utf8)))"
        return Array("\(input).\(Self.encoded(sign(Array(input.utf8))))".utf8)
    }

    /// A JSON Web Key; `more` are further members, each with a comma before it.
    public func jwk(more: String) -> String {
        let numbers =
            isRSA
            ? #""kty":"RSA","n":"\#(Self.encoded(number("n")))","e":"\#(Self.encoded(number("e")))""#
            : #""kty":"EC","crv":"P-256","x":"\#(Self.encoded(number("qx")))","y":"\#(Self.encoded(number("qy")))""#
        return "{\(numbers)\(more)}"
    }

    public func webKey(id: String) throws -> JSONWebKey {
        isRSA
            ? try JSONWebKey(id: id, rsaModulus: number("n"), exponent: number("e"))
            : try JSONWebKey(id: id, p256X: number("qx"), y: number("qy"))
    }

    private static func encoded(_ bytes: [UInt8]) -> String { Base64URL.encode(bytes.span) }
}
