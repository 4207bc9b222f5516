internal import Bytes
internal import COpenSSL

/// A key pair of Curve25519 (RFC 7748): WireGuard's kind of key. 32 raw bytes each.
public struct X25519KeyPair: Sendable {
    /// Secret.
    public let privateKey: [UInt8]
    public let publicKey: [UInt8]

    /// Makes a new pair from OpenSSL's random generator, clamped as WireGuard expects. Costs about
    /// 70 µs.
    public static func generate() throws(CryptoError) -> X25519KeyPair {
        guard let context = unsafe EVP_PKEY_CTX_new_id(EVP_PKEY_X25519, nil) else {
            throw .library(.makingKeys)
        }
        defer { unsafe EVP_PKEY_CTX_free(context) }
        var key: OpaquePointer?
        guard unsafe EVP_PKEY_keygen_init(context) == 1,
            unsafe EVP_PKEY_keygen(context, &key) == 1, let key = unsafe key
        else { throw .library(.makingKeys) }
        defer { unsafe EVP_PKEY_free(key) }
        return unsafe try X25519KeyPair(key, .makingKeys)
    }

    /// The pair of a private key.
    ///
    /// - Throws: `.keySize` unless it has 32 bytes.
    public init(privateKey: Span<UInt8>) throws(CryptoError) {
        guard privateKey.count == 32 else {
            throw CryptoError(
                .derivingKeys, .keySize, "the key has \(privateKey.count) bytes instead of 32")
        }
        let made = unsafe privateKey.withUnsafeBufferPointer {
            unsafe EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, nil, $0.baseAddress, $0.count)
        }
        guard let key = unsafe made else { throw .library(.derivingKeys) }
        defer { unsafe EVP_PKEY_free(key) }
        unsafe try self.init(key, .derivingKeys)
    }

    private init(_ key: OpaquePointer, _ operation: CryptoError.Operation) throws(CryptoError) {
        var secret = [UInt8](repeating: 0, count: 32)
        var open = [UInt8](repeating: 0, count: 32)
        var secretSize = 32
        var openSize = 32
        guard unsafe EVP_PKEY_get_raw_private_key(key, &secret, &secretSize) == 1,
            unsafe EVP_PKEY_get_raw_public_key(key, &open, &openSize) == 1,
            secretSize == 32, openSize == 32
        else { throw .library(operation) }
        privateKey = secret
        publicKey = open
    }
}
