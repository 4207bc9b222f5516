internal import COpenSSL
internal import Glibc
internal import Synchronization

/// A server's certificate, key and rules, from which the sessions of its connections are made.
///
/// TLS 1.2 and 1.3 only, no renegotiation, resumption by tickets, ALPN `http/1.1`.
/// - Thread safety: every method may be called from any thread.
public final class TLSContext: Sendable {
    /// The PEM files that a context is made from.
    public struct Files: Hashable, Sendable {
        /// The server's certificate, followed by the intermediate ones.
        public var certificateChain: String
        /// The private key of the first certificate, without a passphrase.
        public var privateKey: String
        /// Authorities for client certificates; with them, clients are asked for one, and one that
        /// they did not certify is refused.
        public var clientAuthority: String?
        /// Whether a client without a certificate is refused; counts with `clientAuthority` only.
        public var requiresClientCertificate: Bool

        public init(
            certificateChain: String, privateKey: String, clientAuthority: String? = nil,
            requiresClientCertificate: Bool = true
        ) {
            self.certificateChain = certificateChain
            self.privateKey = privateKey
            self.clientAuthority = clientAuthority
            self.requiresClientCertificate = requiresClientCertificate
        }
    }

    public let files: Files
    private let native: Mutex<NativeContext>

    /// Reads the files and checks that they fit together.
    /// - Throws: `TLSError` for what cannot be read, parsed or matched.
    public init(_ files: Files) throws(TLSError) {
        self.files = files
        native = Mutex(try NativeContext(files))
    }

    /// Reads the files again; connections made from now on use them, those that exist keep theirs.
    /// - Throws: `TLSError`, and what was in use stays in use.
    public func reload() throws(TLSError) {
        let fresh = try NativeContext(files)
        native.withLock { $0 = fresh }
    }

    /// What an operator should know though it stops nothing, such as an expired certificate.
    public var warnings: [String] { native.withLock { $0.warnings } }

    /// When the certificate in use ends, in seconds since 1970.
    public var expirySeconds: Int64 { native.withLock { $0.expirySeconds } }

    /// Makes the session of one accepted connection; the handshake comes with the first `read`.
    /// - Throws: `TLSError` if OpenSSL is out of memory.
    public func makeSession(descriptor: Int32) throws(TLSError) -> TLSSession {
        let context = native.withLock { $0 }
        return try context.makeSession(descriptor: descriptor)
    }
}

/// Owns one `SSL_CTX`. OpenSSL counts references itself, so sessions outlive a reload.
///
/// `@unchecked`: `SSL_CTX` is not changed after `init`, and `SSL_new` on it is thread-safe.
@safe private final class NativeContext: @unchecked Sendable {
    private let pointer: OpaquePointer
    let warnings: [String]
    let expirySeconds: Int64

    init(_ files: TLSContext.Files) throws(TLSError) {
        ERR_clear_error()
        guard let made = unsafe SSL_CTX_new(TLS_server_method()) else {
            throw TLSError(.makingContext, reason: TLSError.takeReason())
        }
        unsafe pointer = made
        do throws(TLSError) {
            try unsafe Self.setRules(made)
            try unsafe Self.load(files, into: made)
        } catch {
            unsafe SSL_CTX_free(made)
            throw error
        }
        warnings = unsafe Self.validityWarnings(made, files)
        expirySeconds = unsafe Self.expirySeconds(made)
    }

    deinit { unsafe SSL_CTX_free(pointer) }

    func makeSession(descriptor: Int32) throws(TLSError) -> TLSSession {
        guard let session = unsafe SSL_new(pointer) else {
            throw TLSError(.makingSession, reason: TLSError.takeReason())
        }
        guard unsafe SSL_set_fd(session, descriptor) == 1 else {
            unsafe SSL_free(session)
            throw TLSError(.makingSession, reason: TLSError.takeReason())
        }
        unsafe SSL_set_accept_state(session)
        return unsafe TLSSession(owning: session)
    }

    private static func setRules(_ context: OpaquePointer) throws(TLSError) {
        let isMinimumSet =
            unsafe heartline_ssl_ctx_set_min_proto_version(context, TLS1_2_VERSION) == 1
        // TLS 1.2 with forward secrecy and authenticated encryption only; TLS 1.3 has nothing else.
        let areCiphersSet =
            unsafe SSL_CTX_set_cipher_list(
                context, "ECDHE+AESGCM:ECDHE+CHACHA20:!aNULL:!eNULL:!MD5:!SHA1") == 1
        guard isMinimumSet, areCiphersSet else {
            throw TLSError(.makingContext, reason: TLSError.takeReason())
        }
        _ = unsafe heartline_ssl_ctx_set_mode(
            context,
            Int(SSL_MODE_RELEASE_BUFFERS) | Int(SSL_MODE_ENABLE_PARTIAL_WRITE)
                | Int(SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER))
        // `1 << 30` is SSL_OP_NO_RENEGOTIATION, `1 << 17` SSL_OP_NO_COMPRESSION, `1 << 22`
        // SSL_OP_CIPHER_SERVER_PREFERENCE: macros over a cast, which Swift does not import.
        _ = unsafe SSL_CTX_set_options(context, (1 << 30) | (1 << 17) | (1 << 22))
        // Tickets keep the sessions with the clients; a cache of ours would only use memory.
        _ = unsafe SSL_CTX_ctrl(
            context, SSL_CTRL_SET_SESS_CACHE_MODE, Int(SSL_SESS_CACHE_OFF), nil)
        let name: StaticString = "heartline"
        _ = unsafe SSL_CTX_set_session_id_context(
            context, name.utf8Start, UInt32(name.utf8CodeUnitCount))
        unsafe SSL_CTX_set_alpn_select_cb(context, selectProtocol, nil)
    }

    private static func load(
        _ files: TLSContext.Files, into context: OpaquePointer
    ) throws(TLSError) {
        try TLSError.checkReadable(.readingCertificate, files.certificateChain)
        guard unsafe SSL_CTX_use_certificate_chain_file(context, files.certificateChain) == 1
        else {
            throw TLSError(
                .readingCertificate, file: files.certificateChain,
                reason: "it holds no PEM certificate (\(TLSError.takeReason()))")
        }
        try TLSError.checkReadable(.readingKey, files.privateKey)
        // A server cannot ask for a passphrase; without this, OpenSSL would on the terminal.
        unsafe SSL_CTX_set_default_passwd_cb(context) { _, _, _, _ in -1 }
        guard unsafe SSL_CTX_use_PrivateKey_file(context, files.privateKey, SSL_FILETYPE_PEM) == 1
        else {
            let reason = TLSError.takeReason()
            // OpenSSL compares the two while loading, and says so in this one reason.
            if reason.contains("mismatch") { throw mismatch(files) }
            throw TLSError(
                .readingKey, file: files.privateKey,
                reason: "it holds no PEM key without a passphrase (\(reason))")
        }
        guard unsafe SSL_CTX_check_private_key(context) == 1 else {
            ERR_clear_error()
            throw mismatch(files)
        }
        guard let authority = files.clientAuthority else { return }
        try TLSError.checkReadable(.readingClientAuthority, authority)
        guard unsafe SSL_CTX_load_verify_locations(context, authority, nil) == 1,
            let names = unsafe SSL_load_client_CA_file(authority)
        else {
            throw TLSError(
                .readingClientAuthority, file: authority,
                reason: "it holds no PEM certificate (\(TLSError.takeReason()))")
        }
        unsafe SSL_CTX_set_client_CA_list(context, names)
        unsafe SSL_CTX_set_verify(
            context,
            files.requiresClientCertificate
                ? SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT : SSL_VERIFY_PEER, nil)
    }

    private static func mismatch(_ files: TLSContext.Files) -> TLSError {
        TLSError(
            .matchingKey, file: files.privateKey,
            reason: "it is not the key of \(files.certificateChain); give the pair that belongs "
                + "together")
    }

    private static func expirySeconds(_ context: OpaquePointer) -> Int64 {
        var parts = unsafe tm()
        guard let certificate = unsafe SSL_CTX_get0_certificate(context),
            unsafe ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &parts) == 1
        else { return 0 }
        return Int64(unsafe timegm(&parts))
    }

    private static func validityWarnings(
        _ context: OpaquePointer, _ files: TLSContext.Files
    ) -> [String] {
        guard let certificate = unsafe SSL_CTX_get0_certificate(context) else { return [] }
        var result: [String] = []
        if unsafe X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0 {
            result.append(
                "the certificate in \(files.certificateChain) has expired; clients will refuse it")
        }
        if unsafe X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0 {
            result.append(
                "the certificate in \(files.certificateChain) is not valid yet; check the clock")
        }
        return result
    }
}

/// Picks `http/1.1` where a client offers protocols; one that offers only others goes on without.
private func selectProtocol(
    _: OpaquePointer?, _ chosen: UnsafeMutablePointer<UnsafePointer<UInt8>?>?,
    _ chosenCount: UnsafeMutablePointer<UInt8>?, _ offered: UnsafePointer<UInt8>?,
    _ offeredCount: UInt32, _: UnsafeMutableRawPointer?
) -> Int32 {
    guard let chosen = unsafe chosen, let chosenCount = unsafe chosenCount,
        let offered = unsafe offered
    else { return SSL_TLSEXT_ERR_NOACK }
    let name: StaticString = "http/1.1"
    let count = Int(offeredCount)
    var offset = 0
    while offset < count {
        let size = unsafe Int(offered[offset])
        guard offset + 1 + size <= count else { break }
        let start = unsafe offered + offset + 1
        if size == name.utf8CodeUnitCount, unsafe memcmp(start, name.utf8Start, size) == 0 {
            unsafe chosen.pointee = start
            unsafe chosenCount.pointee = UInt8(size)
            return SSL_TLSEXT_ERR_OK
        }
        offset += 1 + size
    }
    return SSL_TLSEXT_ERR_NOACK
}
