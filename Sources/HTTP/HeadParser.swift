internal import CLlhttp

/// llhttp, which reads every head after `HeadFacts` did: the request line's grammar, the method and
/// what `Connection` asks. Where the two disagree about the body's framing, the request is refused.
@safe struct HeadParser: ~Copyable {
    private let parser: UnsafeMutablePointer<llhttp_t>
    private let settings: UnsafeMutablePointer<llhttp_settings_t>

    enum Refusal: Error { case malformed, methodNotImplemented }

    init() {
        unsafe parser = .allocate(capacity: 1)
        unsafe settings = .allocate(capacity: 1)
        unsafe llhttp_settings_init(settings)
        // Pausing there keeps llhttp from the body, whose framing is ours.
        unsafe settings.pointee.on_headers_complete = { _ in Int32(HPE_PAUSED.rawValue) }
        unsafe llhttp_init(parser, HTTP_REQUEST, settings)
    }

    deinit {
        unsafe parser.deallocate()
        unsafe settings.deallocate()
    }

    /// Reads a whole head and completes `facts`.
    func check(_ head: UnsafeRawBufferPointer, _ facts: inout HeadFacts) throws(Refusal) {
        unsafe llhttp_reset(parser)
        let start = unsafe head.baseAddress!.assumingMemoryBound(to: CChar.self)
        let outcome = unsafe llhttp_execute(parser, start, head.count)
        guard outcome == HPE_PAUSED else {
            // `HeadFacts` has made sure that it is a token, so it is only unknown.
            throw outcome == HPE_INVALID_METHOD ? .methodNotImplemented : .malformed
        }
        let state = unsafe parser.pointee
        let flags = unsafe Int(state.flags)
        let isChunked = flags & Int(F_CHUNKED.rawValue) != 0
        let hasLength = flags & Int(F_CONTENT_LENGTH.rawValue) != 0
        guard unsafe state.http_major == 1, unsafe Int(state.http_minor) == facts.minorVersion,
            isChunked == facts.isChunked, hasLength == (facts.contentLength >= 0),
            unsafe !hasLength || state.content_length == UInt64(facts.contentLength)
        else { throw .malformed }
        facts.keepsAlive = unsafe llhttp_should_keep_alive(parser) != 0
        facts.method =
            switch unsafe llhttp_method(rawValue: UInt32(state.method)) {
            case HTTP_GET: .get
            case HTTP_HEAD: .head
            case HTTP_POST: .post
            case HTTP_PUT: .put
            case HTTP_DELETE: .delete
            case HTTP_PATCH: .patch
            case HTTP_OPTIONS: .options
            default: .other
            }
    }
}
