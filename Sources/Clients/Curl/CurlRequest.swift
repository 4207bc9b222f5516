internal import CCurl

/// What many transfers have in common: method, URL, headers, limits. Immutable, so any number of
/// transfers and threads may share one.
@safe public final class CurlRequest: Sendable {
    public enum Method: String, Sendable {
        case get = "GET"
        case head = "HEAD"
        case post = "POST"
        case put = "PUT"
        case patch = "PATCH"
        case delete = "DELETE"
    }

    public struct Limits: Sendable, Hashable {
        /// Until the connection, with TLS, stands. At least 1 ms.
        public var connectTimeout: Duration
        /// From the start to the last byte of the answer, waiting for a connection included. At
        /// least 1 ms.
        public var timeout: Duration
        /// A time in which no byte comes or goes ends the transfer as `timeout`; `nil`: any may.
        /// Whole seconds, at least 1.
        public var silence: Duration?
        /// A longer answer ends the transfer as `answerTooLarge`.
        public var answerBytes: Int
        /// Redirects that are followed; 0 hands the redirect itself to the caller.
        public var redirects: Int

        public init(
            connectTimeout: Duration = .seconds(10), timeout: Duration = .seconds(30),
            silence: Duration? = nil, answerBytes: Int = 1 << 20, redirects: Int = 0
        ) {
            self.connectTimeout = connectTimeout
            self.timeout = timeout
            self.silence = silence
            self.answerBytes = answerBytes
            self.redirects = redirects
        }
    }

    /// How the server's certificate is judged. TLS 1.2 is the least in any case.
    public enum Trust: Sendable, Hashable {
        /// The machine's certificate authorities.
        case system
        /// The authorities of a PEM file, instead of the machine's.
        case authorities(file: String)
        /// Any certificate at all: for tests on one machine only.
        case anyone
    }

    public let method: Method
    public let url: String
    public let limits: Limits
    public let trust: Trust
    /// Whether `http_proxy` and its kin are followed.
    public let usesEnvironmentProxy: Bool

    // Written once, here; libcurl only reads it.
    nonisolated(unsafe) let headers: UnsafeMutablePointer<curl_slist>?

    /// - Throws: `invalidRequest` if the URL is not `http:` or `https:`, or if a header holds a line
    ///   break; whether the URL is otherwise sound is found when a transfer starts.
    public init(
        _ method: Method, _ url: String, headers: [(name: String, value: String)] = [],
        limits: Limits = Limits(), trust: Trust = .system, usesEnvironmentProxy: Bool = true
    ) throws(CurlError) {
        let scheme = url.prefix { $0 != ":" }.lowercased()
        guard scheme == "http" || scheme == "https", !url.utf8.contains(0) else {
            throw CurlError(
                .configuring, .invalidRequest,
                reason: "the URL must begin with http:// or https://")
        }
        for (name, value) in headers {
            guard !name.isEmpty,
                !(name + value).utf8.contains(where: { $0 == 0x0A || $0 == 0x0D || $0 == 0 })
            else {
                throw CurlError(
                    .configuring, .invalidRequest,
                    reason: "the header `\(name.filter { !$0.isNewline })` holds a line break")
            }
        }
        // Without a value and a semicolon it is a removal: libcurl would wait for a 100 before larger bodies,
        // which few servers send, and some refuse to be asked for (417).
        var list = unsafe curl_slist_append(nil, "Expect:")
        guard unsafe list != nil else {
            throw CurlError(.configuring, .outOfMemory, reason: "no memory for headers")
        }
        for (name, value) in headers {
            // A header without a value must end in `;`, or libcurl takes it for a removal.
            let line = value.isEmpty ? "\(name);" : "\(name): \(value)"
            guard let longer = unsafe curl_slist_append(list, line) else {
                unsafe curl_slist_free_all(list)
                throw CurlError(.configuring, .outOfMemory, reason: "no memory for headers")
            }
            unsafe list = longer
        }
        self.method = method
        self.url = url
        self.limits = limits
        self.trust = trust
        self.usesEnvironmentProxy = usesEnvironmentProxy
        unsafe self.headers = list
    }

    deinit { unsafe curl_slist_free_all(headers) }
}

extension Duration {
    /// Rounded up, so that a short timeout never becomes none; kept within what libcurl takes.
    var wholeMilliseconds: Int {
        let (seconds, attoseconds) = components
        guard seconds < 1_000_000 else { return 1_000_000_000 }
        let milliseconds =
            seconds * 1_000 + (attoseconds + 999_999_999_999_999) / 1_000_000_000_000_000
        return Int(max(1, milliseconds))
    }
}
