internal import COpenSSL

/// SHA-1 (FIPS 180-4) of whole messages: for protocols that ask for it where nothing depends on its
/// strength, as the WebSocket handshake does.
public enum SHA1 {
    /// The 20 bytes of the hash.
    public static func hash(_ bytes: Span<UInt8>) -> [UInt8] {
        var digest = [UInt8](repeating: 0, count: 20)
        let result = unsafe bytes.withUnsafeBufferPointer {
            unsafe EVP_Digest($0.baseAddress, $0.count, &digest, nil, EVP_sha1(), nil)
        }
        precondition(result == 1, "OpenSSL cannot hash")
        return digest
    }
}
