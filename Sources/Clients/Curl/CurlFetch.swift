internal import CCurl
internal import Glibc

/// Takes one answer in as it comes, and decides what a fetch may do. Called on the fetch's thread.
public protocol CurlFetchReceiver: AnyObject {
    /// Whether a connection may be made to this address, of 4 bytes or 16.
    func allows(address: [UInt8]) -> Bool

    /// The answer's status and headers, names in lower case; before any of its body.
    /// - Returns: whether the body is wanted.
    func began(status: Int, headers: [(name: String, value: String)]) -> Bool

    /// A piece of the body.
    /// - Returns: whether more is wanted.
    func received(_ bytes: Span<UInt8>) -> Bool

    /// Asked about once a second, and at every piece.
    var goesOn: Bool { get }
}

/// How a fetch ended, if no error ended it.
public enum CurlFetchEnding: Sendable, Hashable {
    /// The whole answer was received.
    case complete
    /// The receiver wanted no more.
    case stopped
    /// The receiver allowed none of the host's addresses.
    case refusedAddress
}

/// One HTTP request at a time whose answer may be as large as it will: it is handed on piece by piece
/// and kept nowhere. Redirects are answers like others; no proxy is used, so that the addresses that
/// are judged are those of the host itself.
///
/// Blocks its thread. Connections are kept and used again.
/// - Thread safety: not `Sendable`; one for each thread.
/// - SeeAlso: `libcurl-easy(3)`, `CURLOPT_OPENSOCKETFUNCTION(3)`.
@safe public final class CurlFetch {
    public enum Method: Sendable { case get, head }

    public struct Limits: Sendable, Hashable {
        /// Until the connection, with TLS, stands.
        public var connectTimeout: Duration = .seconds(10)
        /// A time in which less than a byte a second comes ends the fetch. Whole seconds.
        public var silence: Duration = .seconds(30)
        /// From the start to the end; `nil`: as long as bytes come.
        public var timeout: Duration?

        public init() {}
    }

    private let handle: UnsafeMutableRawPointer
    private let errorText: UnsafeMutablePointer<CChar>

    // Once a process, before any handle is made (`curl_global_init(3)`, which may be called again).
    private static let isInitialized: Bool = curl_global_init(Int(CURL_GLOBAL_DEFAULT)) == CURLE_OK

    public init() throws(CurlError) {
        guard Self.isInitialized, let handle = unsafe curl_easy_init() else {
            throw CurlError(.configuring, .outOfMemory, reason: "no memory for a transfer")
        }
        unsafe self.handle = handle
        unsafe errorText = .allocate(capacity: Int(CURL_ERROR_SIZE))
        unsafe errorText.initialize(repeating: 0, count: Int(CURL_ERROR_SIZE))
    }

    deinit {
        unsafe curl_easy_cleanup(handle)
        unsafe errorText.deallocate()
    }

    /// - Parameters:
    ///   - url: `http:` or `https:`.
    ///   - headers: without line breaks.
    /// - Throws: why no whole answer came; the reason can name host and port, never headers.
    public func run(
        _ method: Method, _ url: String, headers: [(name: String, value: String)] = [],
        limits: Limits = Limits(), trust: CurlRequest.Trust = .system,
        into receiver: any CurlFetchReceiver
    ) throws(CurlError) -> CurlFetchEnding {
        let request = try CurlRequest(method == .get ? .get : .head, url, headers: headers)
        unsafe curl_easy_reset(handle)
        let context = FetchContext(receiver)
        try configure(request, method, limits, trust, context)
        unsafe errorText[0] = 0
        // What the handle points to must live until it is done.
        let code = withExtendedLifetime((request, context)) { unsafe curl_easy_perform(handle) }
        if code == CURLE_OK { return .complete }
        if context.wasStopped { return .stopped }
        if context.wasRefused, code == CURLE_COULDNT_CONNECT { return .refusedAddress }
        var systemError = 0
        unsafe heartline_curl_get_long(handle, CURLINFO_OS_ERRNO, &systemError)
        let detail = unsafe String(cString: errorText)
        throw CurlError(
            .transferring, CurlError.kind(of: code, systemError: systemError),
            code: Int32(bitPattern: code.rawValue),
            reason: detail.isEmpty ? unsafe String(cString: curl_easy_strerror(code)) : detail)
    }

    private func configure(
        _ request: CurlRequest, _ method: Method, _ limits: Limits, _ trust: CurlRequest.Trust,
        _ context: FetchContext
    ) throws(CurlError) {
        let pointer = unsafe Unmanaged.passUnretained(context).toOpaque()
        unsafe try set(CURLOPT_WRITEDATA, pointer)
        unsafe try set(CURLOPT_HEADERDATA, pointer)
        unsafe try set(CURLOPT_XFERINFODATA, pointer)
        unsafe try set(CURLOPT_OPENSOCKETDATA, pointer)
        try check(unsafe heartline_curl_set_callback(handle, CURLOPT_WRITEFUNCTION, fetchBody))
        try check(unsafe heartline_curl_set_callback(handle, CURLOPT_HEADERFUNCTION, fetchHeader))
        try check(unsafe heartline_curl_set_progress(handle, fetchProgress))
        try check(unsafe heartline_curl_set_socket(handle, fetchSocket))
        try set(CURLOPT_NOPROGRESS, 0)
        unsafe try set(CURLOPT_ERRORBUFFER, UnsafeMutableRawPointer(errorText))
        try set(CURLOPT_NOSIGNAL, 1)
        try set(CURLOPT_PROTOCOLS_STR, "http,https")
        try set(CURLOPT_HTTP_VERSION, Int(CURL_HTTP_VERSION_1_1))
        try set(CURLOPT_URL, request.url)
        unsafe try set(CURLOPT_HTTPHEADER, UnsafeMutableRawPointer(request.headers))
        if method == .head { try set(CURLOPT_NOBODY, 1) } else { try set(CURLOPT_HTTPGET, 1) }
        try set(CURLOPT_CONNECTTIMEOUT_MS, limits.connectTimeout.wholeMilliseconds)
        try set(CURLOPT_LOW_SPEED_LIMIT, 1)
        try set(CURLOPT_LOW_SPEED_TIME, Int(max(1, limits.silence.components.seconds)))
        if let timeout = limits.timeout {
            try set(CURLOPT_TIMEOUT_MS, timeout.wholeMilliseconds)
        }
        try set(CURLOPT_SSLVERSION, Int(CURL_SSLVERSION_TLSv1_2))
        switch trust {
        case .system: break
        case .authorities(let file): try set(CURLOPT_CAINFO, file)
        case .anyone:
            try set(CURLOPT_SSL_VERIFYPEER, 0)
            try set(CURLOPT_SSL_VERIFYHOST, 0)
        }
        try set(CURLOPT_PROXY, "")
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

/// What libcurl's callbacks of one fetch need; all of them run within `curl_easy_perform`.
private final class FetchContext {
    let receiver: any CurlFetchReceiver
    private var status = 0
    private var headers: [(name: String, value: String)] = []
    private var hasBegun = false
    var wasStopped = false
    var wasRefused = false

    /// More than this of one answer's headers is refused.
    private static let maximumHeaders = 200

    init(_ receiver: any CurlFetchReceiver) { self.receiver = receiver }

    /// - Returns: whether to go on.
    func header(_ line: String) -> Bool {
        // Trailers come here as well.
        if hasBegun { return true }
        if line.hasPrefix("HTTP/") {
            let words = line.split(separator: " ", maxSplits: 2)
            status = words.count > 1 ? Int(words[1]) ?? 0 : 0
            headers = []
            return true
        }
        if line.isEmpty {
            if (100..<200).contains(status) { return true }
            hasBegun = true
            return goOn(receiver.began(status: status, headers: headers))
        }
        guard headers.count < Self.maximumHeaders else { return goOn(false) }
        if let colon = line.firstIndex(of: ":") {
            let value = line[line.index(after: colon)...]
            headers.append(
                (
                    name: line[..<colon].lowercased(),
                    value: String(value.drop { $0 == " " || $0 == "\t" })
                ))
        }
        return true
    }

    func body(_ bytes: Span<UInt8>) -> Bool {
        goOn(receiver.received(bytes) && receiver.goesOn)
    }

    func progress() -> Bool { goOn(receiver.goesOn) }

    func allows(_ address: [UInt8]) -> Bool {
        if receiver.allows(address: address) { return true }
        wasRefused = true
        return false
    }

    private func goOn(_ wish: Bool) -> Bool {
        if !wish { wasStopped = true }
        return wish
    }

    static func of(_ pointer: UnsafeMutableRawPointer?) -> FetchContext? {
        unsafe pointer.map { unsafe Unmanaged<FetchContext>.fromOpaque($0).takeUnretainedValue() }
    }
}

private func fetchBody(
    _ bytes: UnsafeMutablePointer<CChar>?, _ size: Int, _ count: Int,
    _ context: UnsafeMutableRawPointer?
) -> Int {
    guard let context = unsafe FetchContext.of(context), let bytes = unsafe bytes else { return 0 }
    let raw = unsafe UnsafeRawBufferPointer(start: bytes, count: size * count)
    return context.body(unsafe raw.assumingMemoryBound(to: UInt8.self).span) ? size * count : 0
}

private func fetchHeader(
    _ bytes: UnsafeMutablePointer<CChar>?, _ size: Int, _ count: Int,
    _ context: UnsafeMutableRawPointer?
) -> Int {
    guard let context = unsafe FetchContext.of(context), let bytes = unsafe bytes else { return 0 }
    let raw = unsafe UnsafeRawBufferPointer(start: bytes, count: size * count)
    var line = unsafe Array(raw)[...]
    while let last = line.last, last == 0x0D || last == 0x0A { line.removeLast() }
    return context.header(String(decoding: line, as: UTF8.self)) ? size * count : 0
}

private func fetchProgress(
    _ context: UnsafeMutableRawPointer?, _: curl_off_t, _: curl_off_t, _: curl_off_t,
    _: curl_off_t
) -> Int32 {
    guard let context = unsafe FetchContext.of(context) else { return 1 }
    return context.progress() ? 0 : 1
}

private func fetchSocket(
    _ context: UnsafeMutableRawPointer?, _ purpose: curlsocktype,
    _ address: UnsafeMutablePointer<curl_sockaddr>?
) -> curl_socket_t {
    guard let context = unsafe FetchContext.of(context), let address = unsafe address else {
        return -1
    }
    // `addr` is only the beginning of what stands there: `addrlen` bytes from it on.
    let start = unsafe UnsafeRawPointer(address)
        .advanced(by: MemoryLayout<curl_sockaddr>.offset(of: \.addr) ?? 0)
    let bytes: [UInt8]
    switch unsafe address.pointee.family {
    case AF_INET:
        bytes = unsafe Array(UnsafeRawBufferPointer(start: start.advanced(by: 4), count: 4))
    case AF_INET6:
        bytes = unsafe Array(UnsafeRawBufferPointer(start: start.advanced(by: 8), count: 16))
    default: return -1
    }
    guard context.allows(bytes) else { return -1 }
    return unsafe socket(
        address.pointee.family, address.pointee.socktype | Int32(SOCK_CLOEXEC.rawValue),
        address.pointee.protocol)
}
