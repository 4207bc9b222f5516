internal import Bytes
internal import CCurl

/// One pooled easy handle with the answer that it is receiving.
@safe final class Slot {
    let index: Int
    let handle: UnsafeMutableRawPointer
    var generation: UInt64 = 0
    var tag: UInt64 = 0
    var isRunning = false
    var answer = ByteBuffer()
    private var answerLimit = 0
    private var isTooLarge = false
    /// What the handle is set up for; holds the headers that the handle points to.
    var request: CurlRequest?
    private let errorText: UnsafeMutablePointer<CChar>

    init(index: Int, owning handle: UnsafeMutableRawPointer) {
        self.index = index
        unsafe self.handle = handle
        unsafe errorText = .allocate(capacity: Int(CURL_ERROR_SIZE))
        unsafe errorText.initialize(repeating: 0, count: Int(CURL_ERROR_SIZE))
    }

    /// Frees the handle; the owner calls it exactly once, after the multi handle let go of it.
    func free() {
        unsafe curl_easy_cleanup(handle)
        unsafe errorText.deallocate()
    }

    static func of(_ handle: UnsafeMutableRawPointer?) -> Slot? {
        var context: UnsafeMutableRawPointer?
        unsafe heartline_curl_get_pointer(handle, CURLINFO_PRIVATE, &context)
        return unsafe context.map { unsafe Unmanaged<Slot>.fromOpaque($0).takeUnretainedValue() }
    }

    func prepare(_ request: CurlRequest, body: Span<UInt8>) throws(CurlError) {
        if self.request !== request { try configure(request) }
        answer.removeAll()
        isTooLarge = false
        unsafe errorText[0] = 0
        switch request.method {
        case .get, .head: return
        case .delete where body.isEmpty: return
        case .post, .put, .patch, .delete: break
        }
        // The size first: libcurl copies so many bytes, zero bytes among them.
        try set(CURLOPT_POSTFIELDSIZE, body.count)
        let code = unsafe body.withUnsafeBytes { bytes in
            var nothing: UInt8 = 0
            return unsafe withUnsafeMutableBytes(of: &nothing) { empty in
                let start = unsafe bytes.baseAddress ?? UnsafeRawPointer(empty.baseAddress)
                return unsafe heartline_curl_set_pointer(
                    handle, CURLOPT_COPYPOSTFIELDS, UnsafeMutableRawPointer(mutating: start))
            }
        }
        try check(code)
    }

    private func configure(_ request: CurlRequest) throws(CurlError) {
        self.request = nil
        unsafe curl_easy_reset(handle)
        let context = unsafe Unmanaged.passUnretained(self).toOpaque()
        unsafe try set(CURLOPT_PRIVATE, context)
        unsafe try set(CURLOPT_WRITEDATA, context)
        try check(
            unsafe heartline_curl_set_callback(handle, CURLOPT_WRITEFUNCTION, receiveAnswer))
        unsafe try set(CURLOPT_ERRORBUFFER, UnsafeMutableRawPointer(errorText))
        // Without it, a timeout while resolving would raise a signal in the whole process.
        try set(CURLOPT_NOSIGNAL, 1)
        try set(CURLOPT_PROTOCOLS_STR, "http,https")
        try set(CURLOPT_HTTP_VERSION, Int(CURL_HTTP_VERSION_1_1))
        try set(CURLOPT_URL, request.url)
        unsafe try set(CURLOPT_HTTPHEADER, UnsafeMutableRawPointer(request.headers))
        switch request.method {
        case .get: try set(CURLOPT_HTTPGET, 1)
        case .head: try set(CURLOPT_NOBODY, 1)
        case .post: try set(CURLOPT_POST, 1)
        case .put, .patch, .delete: try set(CURLOPT_CUSTOMREQUEST, request.method.rawValue)
        }
        try set(CURLOPT_CONNECTTIMEOUT_MS, request.limits.connectTimeout.wholeMilliseconds)
        try set(CURLOPT_TIMEOUT_MS, request.limits.timeout.wholeMilliseconds)
        if let silence = request.limits.silence {
            // Less than a byte a second for so long.
            try set(CURLOPT_LOW_SPEED_LIMIT, 1)
            try set(CURLOPT_LOW_SPEED_TIME, Int(max(1, silence.components.seconds)))
        }
        answerLimit = request.limits.answerBytes
        if request.limits.redirects > 0 {
            try set(CURLOPT_FOLLOWLOCATION, 1)
            try set(CURLOPT_MAXREDIRS, request.limits.redirects)
            try set(CURLOPT_REDIR_PROTOCOLS_STR, "http,https")
        }
        try set(CURLOPT_SSLVERSION, Int(CURL_SSLVERSION_TLSv1_2))
        switch request.trust {
        case .system: break
        case .authorities(let file): try set(CURLOPT_CAINFO, file)
        case .anyone:
            try set(CURLOPT_SSL_VERIFYPEER, 0)
            try set(CURLOPT_SSL_VERIFYHOST, 0)
        }
        if !request.usesEnvironmentProxy { try set(CURLOPT_PROXY, "") }
        self.request = request
    }

    func completion(_ code: CURLcode) -> CurlCompletion {
        var status = 0
        var opened = 0
        var systemError = 0
        var microseconds: curl_off_t = 0
        unsafe heartline_curl_get_long(handle, CURLINFO_RESPONSE_CODE, &status)
        unsafe heartline_curl_get_long(handle, CURLINFO_NUM_CONNECTS, &opened)
        unsafe heartline_curl_get_offset(handle, CURLINFO_TOTAL_TIME_T, &microseconds)
        var error: CurlError?
        if code != CURLE_OK {
            unsafe heartline_curl_get_long(handle, CURLINFO_OS_ERRNO, &systemError)
            var kind = CurlError.kind(of: code, systemError: systemError)
            if kind == .answerTooLarge && !isTooLarge { kind = .other }
            let detail = unsafe String(cString: errorText)
            error = CurlError(
                .transferring, kind, code: Int32(bitPattern: code.rawValue),
                reason: detail.isEmpty
                    ? unsafe String(cString: curl_easy_strerror(code)) : detail)
        }
        return CurlCompletion(
            id: CurlTransferID(slot: index, generation: generation), tag: tag,
            status: error == nil ? status : 0, error: error,
            microseconds: UInt64(max(0, microseconds)), connectionsOpened: opened)
    }

    /// - Returns: the bytes taken; fewer than were given end the transfer.
    fileprivate func receive(_ bytes: UnsafeRawBufferPointer) -> Int {
        guard answer.count + bytes.count <= answerLimit else {
            isTooLarge = true
            return 0
        }
        unsafe answer.append(bytes.assumingMemoryBound(to: UInt8.self).span)
        return bytes.count
    }

    private func set(_ option: CURLoption, _ value: Int) throws(CurlError) {
        try check(unsafe heartline_curl_set_long(handle, option, value))
    }

    private func set(_ option: CURLoption, _ text: String) throws(CurlError) {
        try check(unsafe heartline_curl_set_text(handle, option, text))
    }

    private func set(_ option: CURLoption, _ pointer: UnsafeMutableRawPointer?) throws(CurlError) {
        try check(unsafe heartline_curl_set_pointer(handle, option, pointer))
    }

    private func check(_ code: CURLcode) throws(CurlError) {
        guard code != CURLE_OK else { return }
        throw CurlError(
            .starting, code == CURLE_OUT_OF_MEMORY ? .outOfMemory : .invalidRequest,
            code: Int32(bitPattern: code.rawValue),
            reason: unsafe String(cString: curl_easy_strerror(code)))
    }
}

/// Called by libcurl within `curl_multi_perform`, on the thread of the transfers' owner.
private func receiveAnswer(
    _ bytes: UnsafeMutablePointer<CChar>?, _ size: Int, _ count: Int,
    _ context: UnsafeMutableRawPointer?
) -> Int {
    guard let context = unsafe context, let bytes = unsafe bytes else { return 0 }
    let slot = unsafe Unmanaged<Slot>.fromOpaque(context).takeUnretainedValue()
    return unsafe slot.receive(UnsafeRawBufferPointer(start: bytes, count: size * count))
}
