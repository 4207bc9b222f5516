internal import COpenSSL

/// The encrypted side of one accepted connection over a non-blocking socket.
///
/// - Thread safety: not `Sendable`; belongs to the thread that serves the connection.
@safe public final class TLSSession {
    /// What became of a `read` or `write`.
    public enum Outcome: Equatable {
        /// So many bytes, at least one, were moved.
        case moved(Int)
        /// Nothing could be moved until the socket is readable.
        case needsInput
        /// Nothing could be moved until the socket is writable.
        case needsOutput
        /// The peer ended its side properly.
        case ended
        /// A broken handshake, a broken record or a broken socket; only closing is left.
        case failed
    }

    private let pointer: OpaquePointer
    private var isBroken = false

    /// Takes the `SSL` over; its descriptor stays the caller's.
    init(owning pointer: OpaquePointer) { unsafe self.pointer = pointer }

    deinit { unsafe SSL_free(pointer) }

    /// Whether the handshake is over.
    public var isEstablished: Bool { unsafe SSL_is_init_finished(pointer) == 1 }

    /// Whether decrypted bytes wait inside, of which the socket will not tell.
    public var hasPending: Bool { unsafe SSL_pending(pointer) > 0 }

    /// Reads up to `buffer.count` bytes, and does the handshake on the way.
    public func read(into buffer: UnsafeMutableRawBufferPointer) -> Outcome {
        ERR_clear_error()
        let limit = Int32(clamping: buffer.count)
        let result = unsafe SSL_read(pointer, buffer.baseAddress, limit)
        return result > 0 ? .moved(Int(result)) : outcome(of: result)
    }

    /// Writes a first part of `bytes`, which must not be empty.
    public func write(_ bytes: UnsafeRawBufferPointer) -> Outcome {
        ERR_clear_error()
        let limit = Int32(clamping: min(bytes.count, 1 << 20))
        let result = unsafe SSL_write(pointer, bytes.baseAddress, limit)
        return result > 0 ? .moved(Int(result)) : outcome(of: result)
    }

    /// Tells the peer that nothing more will come, as far as the socket takes it.
    public func endOutput() {
        guard !isBroken, isEstablished else { return }
        ERR_clear_error()
        _ = unsafe SSL_shutdown(pointer)
        ERR_clear_error()
    }

    /// The negotiated version, such as `TLSv1.3`.
    public var version: String { unsafe String(cString: SSL_get_version(pointer)) }

    /// The client's certificate, if it showed one and it was verified; `nil` otherwise.
    public var clientCertificate: ClientCertificate? {
        guard unsafe SSL_get_verify_result(pointer) == Int(X509_V_OK),
            let certificate = unsafe SSL_get1_peer_certificate(pointer)
        else { return nil }
        defer { unsafe X509_free(certificate) }
        return unsafe ClientCertificate(certificate)
    }

    private func outcome(of result: Int32) -> Outcome {
        switch unsafe SSL_get_error(pointer, result) {
        case SSL_ERROR_WANT_READ: return .needsInput
        case SSL_ERROR_WANT_WRITE: return .needsOutput
        case SSL_ERROR_ZERO_RETURN: return .ended
        default:
            // After these OpenSSL forbids `SSL_shutdown`.
            isBroken = true
            ERR_clear_error()
            return .failed
        }
    }
}

/// Who a verified client certificate says its owner is.
public struct ClientCertificate: Hashable, Sendable {
    /// The subject's common name; empty if it has none.
    public let commonName: String
    /// SHA-256 of the certificate in DER, 64 lower-case hexadecimal digits.
    public let fingerprint: String

    init(_ certificate: OpaquePointer) {
        var name = [CChar](repeating: 0, count: 256)
        let size = unsafe X509_NAME_get_text_by_NID(
            X509_get_subject_name(certificate), NID_commonName, &name, Int32(name.count))
        commonName = String(
            decoding: name.prefix(max(0, Int(size))).map { UInt8(bitPattern: $0) }, as: UTF8.self)
        var digest = [UInt8](repeating: 0, count: 32)
        var count: UInt32 = 0
        _ = unsafe X509_digest(certificate, EVP_sha256(), &digest, &count)
        let digits = Array("0123456789abcdef".utf8)
        fingerprint = String(
            decoding: digest.flatMap { [digits[Int($0 >> 4)], digits[Int($0 & 15)]] },
            as: UTF8.self)
    }
}
