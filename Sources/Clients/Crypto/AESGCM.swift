public import Bytes
internal import COpenSSL

/// AES-256-GCM (NIST SP 800-38D) under one key: nonce (12 bytes) ‖ ciphertext ‖ tag (16 bytes).
///
/// Nonces are random, so one key must not seal more than about 2³² messages.
/// Thread safety: not `Sendable`; one for each thread. The context is reused: setting the key up
/// costs more than sealing 500 bytes.
@safe public struct AESGCM: ~Copyable {
    public static let keyBytes = 32
    public static let nonceBytes = 12
    public static let tagBytes = 16
    /// How much longer sealed bytes are than their plaintext.
    public static let overheadBytes = 28

    private let sealing: OpaquePointer
    private let opening: OpaquePointer

    @safe private struct Algorithm: @unchecked Sendable {
        // Immutable after the fetch; OpenSSL lets threads share it.
        let pointer: OpaquePointer

        init() {
            guard let pointer = unsafe EVP_CIPHER_fetch(nil, "AES-256-GCM", nil) else {
                preconditionFailure("OpenSSL has no AES-256-GCM")
            }
            unsafe self.pointer = pointer
        }
    }

    private static let algorithm = Algorithm()

    /// - Throws: `.keySize` unless the key has 32 bytes.
    public init(key: Span<UInt8>) throws(CryptoError) {
        guard key.count == Self.keyBytes else {
            throw CryptoError(.sealing, .keySize, "the key has \(key.count) bytes instead of 32")
        }
        guard let sealing = unsafe EVP_CIPHER_CTX_new(),
            let opening = unsafe EVP_CIPHER_CTX_new()
        else { preconditionFailure("no memory for a cipher context") }
        // Nothing of this can fail with a key of the right size, but memory.
        let isReady = unsafe key.withUnsafeBufferPointer { key in
            unsafe EVP_EncryptInit_ex2(
                sealing, Self.algorithm.pointer, key.baseAddress, nil, nil) == 1
                && EVP_DecryptInit_ex2(
                    opening, Self.algorithm.pointer, key.baseAddress, nil, nil) == 1
        }
        precondition(isReady, "OpenSSL cannot take an AES-256-GCM key")
        unsafe self.sealing = sealing
        unsafe self.opening = opening
    }

    deinit {
        // Freeing a context overwrites the key in it.
        unsafe EVP_CIPHER_CTX_free(sealing)
        unsafe EVP_CIPHER_CTX_free(opening)
    }

    /// Appends the sealed form of `plaintext` under a new random nonce.
    ///
    /// - Parameter associatedData: not in the output, and needed again to open it.
    public mutating func seal(
        _ plaintext: Span<UInt8>, associatedData: Span<UInt8>, into output: inout ByteBuffer
    ) throws(CryptoError) {
        var nonce = InlineArray<12, UInt8>(repeating: 0)
        var bytes = nonce.mutableSpan
        try Random.fill(&bytes)
        try seal(plaintext, nonce: nonce.span, associatedData: associatedData, into: &output)
    }

    /// Appends the sealed form under a given nonce. For test vectors: a nonce that is used twice
    /// under one key gives the plaintexts away.
    package mutating func seal(
        _ plaintext: Span<UInt8>, nonce: Span<UInt8>, associatedData: Span<UInt8>,
        into output: inout ByteBuffer
    ) throws(CryptoError) {
        precondition(nonce.count == Self.nonceBytes)
        let start = output.count
        output.append(nonce)
        for _ in 0..<(plaintext.count + Self.tagBytes) { output.append(0) }
        let sealed = unsafe output.withUnsafeMutableBytes { output -> Bool in
            let target = unsafe output.baseAddress!.assumingMemoryBound(to: UInt8.self) + start
            return unsafe Self.run(
                sealing, isSealing: true, nonce: UnsafePointer(target),
                associatedData: associatedData, input: plaintext, output: target + Self.nonceBytes,
                tag: target + Self.nonceBytes + plaintext.count)
        }
        guard sealed else {
            output.truncate(to: start)
            throw .library(.sealing)
        }
    }

    /// Appends the plaintext of what `seal` made.
    ///
    /// - Throws: `.notAuthentic` if a bit of it, of the associated data or of the key differs;
    ///   `output` is as it was then.
    public mutating func open(
        _ sealed: Span<UInt8>, associatedData: Span<UInt8>, into output: inout ByteBuffer
    ) throws(CryptoError) {
        guard sealed.count >= Self.overheadBytes else {
            throw CryptoError(.opening, .notAuthentic, "\(sealed.count) bytes are too few")
        }
        let size = sealed.count - Self.overheadBytes
        let start = output.count
        for _ in 0..<max(size, 1) { output.append(0) }
        let ciphertext = sealed.extracting(Self.nonceBytes..<(Self.nonceBytes + size))
        var tag = InlineArray<16, UInt8>(repeating: 0)
        for index in 0..<Self.tagBytes { tag[index] = sealed[Self.nonceBytes + size + index] }
        var tagSpan = tag.mutableSpan
        let opened = unsafe sealed.withUnsafeBufferPointer { source in
            unsafe tagSpan.withUnsafeMutableBufferPointer { tag in
                unsafe output.withUnsafeMutableBytes { output -> Bool in
                    let target =
                        unsafe output.baseAddress!.assumingMemoryBound(to: UInt8.self) + start
                    return unsafe Self.run(
                        opening, isSealing: false, nonce: source.baseAddress!,
                        associatedData: associatedData, input: ciphertext, output: target,
                        tag: tag.baseAddress!)
                }
            }
        }
        guard opened else {
            ERR_clear_error()
            output.truncate(to: start)
            throw CryptoError(
                .opening, .notAuthentic, "the bytes were changed, or sealed under another key")
        }
        output.truncate(to: start + size)
    }

    private static func run(
        _ context: OpaquePointer, isSealing: Bool, nonce: UnsafePointer<UInt8>,
        associatedData: Span<UInt8>, input: Span<UInt8>, output: UnsafeMutablePointer<UInt8>,
        tag: UnsafeMutablePointer<UInt8>
    ) -> Bool {
        // The key stays in the context; only the nonce is new.
        guard unsafe EVP_CipherInit_ex2(context, nil, nil, nonce, isSealing ? 1 : 0, nil) == 1
        else { return false }
        var written: Int32 = 0
        if !associatedData.isEmpty {
            let added = unsafe associatedData.withUnsafeBufferPointer {
                unsafe EVP_CipherUpdate(context, nil, &written, $0.baseAddress, Int32($0.count))
            }
            guard added == 1 else { return false }
        }
        var total: Int32 = 0
        if !input.isEmpty {
            let done = unsafe input.withUnsafeBufferPointer {
                unsafe EVP_CipherUpdate(context, output, &total, $0.baseAddress, Int32($0.count))
            }
            guard done == 1 else { return false }
        }
        if !isSealing {
            guard
                unsafe EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, Int32(tagBytes), tag)
                    == 1
            else { return false }
        }
        // GCM writes nothing at the end; OpenSSL wants a pointer all the same.
        guard unsafe EVP_CipherFinal_ex(context, output + Int(total), &written) == 1 else {
            return false
        }
        if isSealing {
            return unsafe EVP_CIPHER_CTX_ctrl(
                context, EVP_CTRL_AEAD_GET_TAG, Int32(tagBytes), tag) == 1
        }
        return true
    }
}
