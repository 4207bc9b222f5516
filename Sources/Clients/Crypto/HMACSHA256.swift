internal import COpenSSL

/// HMAC with SHA-256 (RFC 2104): what only the holder of a key can compute.
public enum HMACSHA256 {
    public static func authenticate(_ message: Span<UInt8>, key: Span<UInt8>) -> Digest {
        var bytes = [UInt8](repeating: 0, count: 32)
        var size: UInt32 = 0
        let made = unsafe key.withUnsafeBufferPointer { key in
            unsafe message.withUnsafeBufferPointer { message in
                unsafe HMAC(
                    EVP_sha256(), key.baseAddress, Int32(key.count), message.baseAddress,
                    message.count, &bytes, &size) != nil
            }
        }
        precondition(made && size == 32, "OpenSSL cannot compute an HMAC")
        return Digest(bytes: bytes.span)
    }
}
