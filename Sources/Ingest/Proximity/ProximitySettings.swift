public import JWT

/// How a front-end serves the proximity service.
public struct ProximitySettings: Sendable {
    /// Who vouches for people. Others are answered 400.
    public var providers: [IdentityProvider] = []
    /// How often one client address may exchange a token at one front-end; `nil`: no limit. Default:
    /// `ProvisionLimit()`.
    public var exchangeLimit: ProvisionLimit? = ProvisionLimit()
    /// Requests that may wait or be worked on at once, above which others are answered 503.
    /// Default: 8,192.
    public var queueRequests = 8_192
    /// Requests that share one round trip to the database. Default: 128.
    public var batchRequests = 128
    /// Threads, each with a connection of its own. Default: 2.
    public var threads = 2
    /// Sessions that are kept in memory. Default: 200,000.
    public var sessions = 200_000
    /// When providers' keys are fetched.
    public var keys = JWKSCache.Settings()
    /// Longest wait for a provider's answer, in milliseconds. Default: 10 s.
    public var fetchMilliseconds: Int64 = 10_000
    /// Time between looks for sessions and tokens that have expired, in milliseconds. Default: 30 s.
    public var sweepMilliseconds: Int64 = 30_000

    public init() {}
}

/// Somebody whose signed word about who a person is we take.
public struct IdentityProvider: Sendable {
    public enum Name: String, Sendable, CaseIterable {
        case apple, google
    }

    /// Where the provider's public keys are (RFC 7517, section 5).
    public enum KeySource: Hashable, Sendable {
        /// `https:`; `http:` only on this machine.
        case url(String)
        /// Read again at intervals and when a key is not known.
        case file(String)
    }

    public var name: Name
    public var keys: KeySource
    /// What its tokens must say.
    public var policy: JWTPolicy

    public init(_ name: Name, keys: KeySource, policy: JWTPolicy) {
        self.name = name
        self.keys = keys
        self.policy = policy
    }
}

extension IdentityProvider.KeySource {
    /// Reads `https://…`, `http://` of this machine, `file:…` or a path.
    /// - Throws: `FrontEndError` for anything else.
    public init(parsing text: String) throws(FrontEndError) {
        let scheme = text.prefix { $0 != ":" }.lowercased()
        switch scheme {
        case "https": self = .url(text)
        case "http":
            let host = text.dropFirst("http://".count).prefix { $0 != "/" }
            let isOurs = ["127.0.0.1", "localhost", "[::1]"].contains { name in
                host == name || host.hasPrefix("\(name):")
            }
            guard isOurs else {
                throw FrontEndError(
                    reason: "keys fetched by http could be anybody's; take https, or a file")
            }
            self = .url(text)
        case "file":
            let path = text.dropFirst("file:".count)
            self = .file(String(path.hasPrefix("///") ? path.dropFirst(2) : path))
        default: self = .file(text)
        }
    }
}
