internal import COpenSSL

/// Random bytes for keys, nonces and ids, from OpenSSL's generator.
public enum Random {
    public static func fill(_ bytes: inout MutableSpan<UInt8>) throws(CryptoError) {
        let result = unsafe bytes.withUnsafeMutableBufferPointer {
            unsafe RAND_bytes($0.baseAddress, Int32($0.count))
        }
        guard result == 1 else { throw .library(.readingRandomness) }
    }

    public static func bytes(_ count: Int) throws(CryptoError) -> [UInt8] {
        var result = [UInt8](repeating: 0, count: count)
        var span = result.mutableSpan
        try fill(&span)
        return result
    }

    public static func integer() throws(CryptoError) -> UInt64 {
        try bytes(8).reduce(0) { $0 << 8 | UInt64($1) }
    }
}

/// Whether two secrets are equal, in a time that tells only whether their sizes are.
public func equalInConstantTime(_ a: Span<UInt8>, _ b: Span<UInt8>) -> Bool {
    guard a.count == b.count else { return false }
    return unsafe a.withUnsafeBufferPointer { a in
        unsafe b.withUnsafeBufferPointer { b in
            unsafe CRYPTO_memcmp(a.baseAddress, b.baseAddress, a.count) == 0
        }
    }
}
