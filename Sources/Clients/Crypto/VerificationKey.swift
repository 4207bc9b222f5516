internal import Bytes
internal import COpenSSL

/// Why numbers were not taken as a public key.
public enum VerificationKeyError: Error, Hashable, Sendable, CustomStringConvertible {
    /// RSA: fewer than 2048 or more than 8192 bits.
    case modulusSize(bits: Int)
    /// RSA: even, below 65537 (FIPS 186-5, A.1.1) or longer than 64 bits.
    case exponent
    /// P-256: a coordinate that does not have 32 bytes.
    case coordinateSize
    /// Numbers that are no key: a point off the curve, a prime or even modulus.
    case notAKey

    public var description: String {
        switch self {
        case .modulusSize(let bits):
            "reading an RSA key: it has \(bits) bits instead of 2048 to 8192"
        case .exponent: "reading an RSA key: the exponent is even, below 65537 or over 64 bits"
        case .coordinateSize: "reading a P-256 key: a coordinate does not have 32 bytes"
        case .notAKey: "reading a public key: the numbers are no key of this kind"
        }
    }
}

/// A public key that checks signatures of SHA-256 digests.
///
/// Thread safety: shared freely. OpenSSL lets threads share a key that nobody changes, and nothing
/// changes it after `init`.
@safe public final class VerificationKey: @unchecked Sendable {
    public enum Scheme: Sendable, Hashable {
        /// RSASSA-PKCS1-v1_5 with SHA-256 (RFC 8017, section 8.2).
        case rsaPKCS1
        /// ECDSA on P-256 with SHA-256 (FIPS 186-5); signatures are r ‖ s, 32 bytes each.
        case ecdsaP256
    }

    public let scheme: Scheme
    /// How long every signature of this key is.
    public let signatureBytes: Int
    private let key: OpaquePointer

    /// - Parameters: unsigned big-endian numbers; leading zeros count for nothing.
    public init(
        rsaModulus modulus: Span<UInt8>, exponent: Span<UInt8>
    )
        throws(VerificationKeyError)
    {
        let modulus = modulus.withoutLeadingZeros
        let exponent = exponent.withoutLeadingZeros
        let bits = modulus.isEmpty ? 0 : modulus.count * 8 - modulus[0].leadingZeroBitCount
        guard bits >= 2048, bits <= 8192 else { throw .modulusSize(bits: bits) }
        guard exponent.count <= 8 else { throw .exponent }
        var number: UInt64 = 0
        for index in exponent.indices { number = number << 8 | UInt64(exponent[index]) }
        guard number >= 65537, number % 2 == 1 else { throw .exponent }

        // SubjectPublicKeyInfo (RFC 3279, section 2.3.1), so that OpenSSL's own reader checks it.
        var numbers = ByteBuffer()
        numbers.append(derInteger: modulus)
        numbers.append(derInteger: exponent)
        var publicKey = ByteBuffer()
        publicKey.append(UInt8(0))  // no unused bits
        publicKey.append(der: 0x30, numbers.span)
        var info = ByteBuffer()
        info.append([0x30, 0x0D, 0x06, 0x09])
        info.append([0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x01, 0x01])  // rsaEncryption
        info.append([0x05, 0x00])
        info.append(der: 0x03, publicKey.span)
        scheme = .rsaPKCS1
        signatureBytes = modulus.count
        unsafe key = try Self.read(info.span)
    }

    /// - Parameters: the affine coordinates, 32 bytes each, big-endian.
    public init(p256X x: Span<UInt8>, y: Span<UInt8>) throws(VerificationKeyError) {
        guard x.count == 32, y.count == 32 else { throw .coordinateSize }
        // SubjectPublicKeyInfo (RFC 5480, section 2) with an uncompressed point.
        var info = ByteBuffer()
        info.append([0x30, 0x13, 0x06, 0x07])
        info.append([0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x02, 0x01])  // id-ecPublicKey
        info.append([0x06, 0x08, 0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x03, 0x01, 0x07])  // P-256
        info.append([0x03, 0x42, 0x00, 0x04])
        info.append(x)
        info.append(y)
        scheme = .ecdsaP256
        signatureBytes = 64
        unsafe key = try Self.read(info.span)
    }

    deinit { unsafe EVP_PKEY_free(key) }

    /// Whether `signature` is one of `message` by this key. Never throws: what OpenSSL cannot check
    /// is not verified. Costs 20 to 100 µs.
    public func verifies(_ signature: Span<UInt8>, of message: Span<UInt8>) -> Bool {
        guard signature.count == signatureBytes else { return false }
        switch scheme {
        case .rsaPKCS1: return verifies(encoded: signature, of: message)
        case .ecdsaP256:
            // OpenSSL takes ECDSA's two numbers as ASN.1 (RFC 3279, section 2.2.3).
            var numbers = ByteBuffer()
            numbers.append(derInteger: signature.extracting(0..<32).withoutLeadingZeros)
            numbers.append(derInteger: signature.extracting(32..<64).withoutLeadingZeros)
            var encoded = ByteBuffer()
            encoded.append(der: 0x30, numbers.span)
            return verifies(encoded: encoded.span, of: message)
        }
    }

    private func verifies(encoded signature: Span<UInt8>, of message: Span<UInt8>) -> Bool {
        guard let context = unsafe EVP_MD_CTX_new() else {
            preconditionFailure("no memory for a signature context")
        }
        defer { unsafe EVP_MD_CTX_free(context) }
        // A refused signature leaves errors in this thread's queue, which others would read.
        defer { ERR_clear_error() }
        var parameters: OpaquePointer?
        guard
            unsafe EVP_DigestVerifyInit_ex(context, &parameters, "SHA256", nil, nil, key, nil)
                == 1
        else { return false }
        if scheme == .rsaPKCS1 {
            guard unsafe EVP_PKEY_CTX_set_rsa_padding(parameters, RSA_PKCS1_PADDING) == 1 else {
                return false
            }
        }
        return unsafe signature.withUnsafeBufferPointer { signature in
            unsafe message.withUnsafeBufferPointer { message in
                unsafe EVP_DigestVerify(
                    context, signature.baseAddress, signature.count, message.baseAddress,
                    message.count) == 1
            }
        }
    }

    /// Reads the contents of a SubjectPublicKeyInfo and checks the numbers in it.
    private static func read(
        _ contents: Span<UInt8>
    ) throws(VerificationKeyError)
        -> OpaquePointer
    {
        var info = ByteBuffer()
        info.append(der: 0x30, contents)
        defer { ERR_clear_error() }
        let made = unsafe info.withUnsafeBytes { bytes -> OpaquePointer? in
            var place = unsafe bytes.baseAddress?.assumingMemoryBound(to: UInt8.self)
            return unsafe d2i_PUBKEY(nil, &place, bytes.count)
        }
        guard let key = unsafe made else { throw .notAKey }
        // Reading a point checks that it is on the curve; this checks the rest (its order, or that
        // a modulus is no prime and has no small factor).
        let context = unsafe EVP_PKEY_CTX_new_from_pkey(nil, key, nil)
        defer { unsafe EVP_PKEY_CTX_free(context) }
        guard unsafe context != nil, unsafe EVP_PKEY_public_check(context) == 1 else {
            unsafe EVP_PKEY_free(key)
            throw .notAKey
        }
        return unsafe key
    }
}

extension Span where Element == UInt8 {
    fileprivate var withoutLeadingZeros: Span<UInt8> {
        @_lifetime(copy self) get {
            var start = 0
            while start < count, self[start] == 0 { start += 1 }
            return extracting(start..<count)
        }
    }
}

extension ByteBuffer {
    /// Appends a value in DER (X.690): tag, length, contents.
    fileprivate mutating func append(der tag: UInt8, _ contents: Span<UInt8>) {
        append(tag)
        let count = contents.count
        if count < 0x80 {
            append(UInt8(count))
        } else if count <= 0xFF {
            append([0x81, UInt8(count)])
        } else {
            precondition(count <= 0xFFFF)
            append([0x82, UInt8(count >> 8), UInt8(count & 0xFF)])
        }
        append(contents)
    }

    /// Appends an INTEGER that is not negative; no bytes are 0.
    fileprivate mutating func append(derInteger number: Span<UInt8>) {
        var contents = ByteBuffer()
        // A high bit would be a sign.
        if number.isEmpty || number[0] >= 0x80 { contents.append(UInt8(0)) }
        contents.append(number)
        append(der: 0x02, contents.span)
    }
}
