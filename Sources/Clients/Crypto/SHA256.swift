public import Bytes
internal import COpenSSL

/// The 32 bytes of a SHA-256 (FIPS 180-4), or of anything else that is 256 bits and public.
public struct Digest: Hashable, Sendable, CustomStringConvertible {
    // Words in the order of the bytes: `InlineArray` is not `Hashable`.
    private var words: (UInt64, UInt64, UInt64, UInt64) = (0, 0, 0, 0)

    /// - Precondition: 32 bytes.
    public init(bytes: Span<UInt8>) {
        precondition(bytes.count == 32, "a digest has 32 bytes")
        func word(_ start: Int) -> UInt64 {
            var value: UInt64 = 0
            for index in start..<(start + 8) { value = value << 8 | UInt64(bytes[index]) }
            return value
        }
        words = (word(0), word(8), word(16), word(24))
    }

    public static func == (a: Digest, b: Digest) -> Bool { a.words == b.words }

    public func hash(into hasher: inout Hasher) {
        hasher.combine(words.0)
        hasher.combine(words.1)
    }

    public var bytes: [UInt8] {
        var buffer = ByteBuffer()
        buffer.append(self)
        return buffer.bytes
    }

    /// The first 64 bits.
    public var prefix: UInt64 { words.0 }

    /// The first 16 bytes as a UUID of version 8 (RFC 9562, section 5.8).
    public var uuid: (high: UInt64, low: UInt64) {
        (words.0 & ~0xF000 | 0x8000, words.1 & ~(3 << 62) | 2 << 62)
    }

    /// 64 lower-case hexadecimal digits.
    public var hex: String {
        var buffer = ByteBuffer()
        buffer.append(hex: self)
        return buffer.span.text
    }

    public var description: String { hex }

    fileprivate func forEachWord(_ body: (UInt64) -> Void) {
        body(words.0)
        body(words.1)
        body(words.2)
        body(words.3)
    }
}

extension ByteBuffer {
    /// Appends the 32 bytes.
    public mutating func append(_ digest: Digest) {
        digest.forEachWord { appendBigEndian($0) }
    }

    /// Appends 64 lower-case hexadecimal digits.
    public mutating func append(hex digest: Digest) {
        digest.forEachWord { append(hexadecimal: $0, digits: 16) }
    }
}

/// SHA-256 (FIPS 180-4) of whole messages.
public enum SHA256 {
    /// Fetched once: a fetch costs more than the hash of a short message.
    @safe fileprivate struct Algorithm: @unchecked Sendable {
        // Immutable after the fetch; OpenSSL lets threads share it.
        let pointer: OpaquePointer

        init() {
            guard let pointer = unsafe EVP_MD_fetch(nil, "SHA256", nil) else {
                preconditionFailure("OpenSSL has no SHA-256")
            }
            unsafe self.pointer = pointer
        }
    }

    fileprivate static let algorithm = Algorithm()

    public static func hash(_ bytes: Span<UInt8>) -> Digest {
        var hasher = SHA256Hasher()
        return hasher.hash(bytes)
    }
}

/// Hashes message after message with one context.
///
/// Thread safety: not `Sendable`; one for each thread.
@safe public struct SHA256Hasher: ~Copyable {
    private let context: OpaquePointer
    private var isStarted = false

    public init() {
        guard let context = unsafe EVP_MD_CTX_new() else {
            preconditionFailure("no memory for a hash context")
        }
        unsafe self.context = context
    }

    deinit { unsafe EVP_MD_CTX_free(context) }

    /// Adds bytes to the message that is being hashed.
    public mutating func update(_ bytes: Span<UInt8>) {
        start()
        let result = unsafe bytes.withUnsafeBufferPointer {
            unsafe EVP_DigestUpdate(context, $0.baseAddress, $0.count)
        }
        precondition(result == 1, "OpenSSL cannot hash")
    }

    /// The digest of what was added since the last one.
    public mutating func finish() -> Digest {
        start()
        isStarted = false
        var bytes = InlineArray<32, UInt8>(repeating: 0)
        var output = bytes.mutableSpan
        let result = unsafe output.withUnsafeMutableBufferPointer {
            unsafe EVP_DigestFinal_ex(context, $0.baseAddress, nil)
        }
        precondition(result == 1, "OpenSSL cannot hash")
        return Digest(bytes: bytes.span)
    }

    public mutating func hash(_ bytes: Span<UInt8>) -> Digest {
        precondition(!isStarted, "another message is being hashed")
        update(bytes)
        return finish()
    }

    private mutating func start() {
        if isStarted { return }
        let result = unsafe EVP_DigestInit_ex2(context, SHA256.algorithm.pointer, nil)
        precondition(result == 1, "OpenSSL cannot hash")
        isStarted = true
    }
}
