/// How apps are updated; `updates.yaml` has it.
public struct UpdatesConfiguration: Sendable, Hashable {
    public struct GitHub: Sendable, Hashable {
        /// Where the releases API is, without a last slash.
        public var api = "https://api.github.com"
        /// For all sources that have no credential of their own.
        public var credential: SourceCredential?

        public init() {}
    }

    public struct Cache: Sendable, Hashable {
        /// Files that nobody uses are removed above it, the oldest first.
        public var sizeBytes: Int64 = 4 << 30
        /// Largest app that is downloaded.
        public var fileBytes: Int64 = 4 << 30

        public init() {}
    }

    public struct Sources: Sendable, Hashable {
        /// Checks that run at once.
        public var checks = 4
        /// Downloads that run at once.
        public var downloads = 4
        /// A source that sends nothing for so long is given up, in milliseconds.
        public var silence: Int64 = 30_000
        /// Longest check, in milliseconds; less than the time in which an answer must come.
        public var checkTimeout: Int64 = 45_000
        /// How often a download that broke off is taken up again.
        public var retries = 5

        public init() {}
    }

    /// Commands as lists of arguments, the first an absolute path; placeholders stand in braces.
    public struct Installer: Sendable, Hashable {
        public var sign: [String]
        public var install: [String]
        /// `nil`: whether an app was running is not known, and none is reopened.
        public var running: [String]?
        public var open: [String]?
        /// Longest run of each, in milliseconds.
        public var signTimeout: Int64 = 600_000
        public var installTimeout: Int64 = 600_000
        public var runningTimeout: Int64 = 30_000
        public var openTimeout: Int64 = 60_000
        /// Installations that run at once.
        public var concurrency = 4
        /// What the commands see of an environment, beside `PATH` and the language.
        public var environment: [String: String] = [:]

        public init(sign: [String], install: [String]) {
            self.sign = sign
            self.install = install
        }

        public func arguments(_ command: UpdateJob.Command) -> [String]? {
            switch command {
            case .sign: sign
            case .install: install
            case .running: running
            case .open: open
            }
        }

        public func timeout(_ command: UpdateJob.Command) -> Int64 {
            switch command {
            case .sign: signTimeout
            case .install: installTimeout
            case .running: runningTimeout
            case .open: openTimeout
            }
        }
    }

    public var gitHub = GitHub()
    public var cache = Cache()
    public var sources = Sources()
    /// Hosts that may have private addresses.
    public var allowedHosts: [String] = []
    /// `nil`: nothing can be installed from here.
    public var installer: Installer?
    /// Host names and addresses that are written into apps, instead of what this machine has.
    public var destinations: [String]?
    /// How servers' certificates are judged: a PEM file of authorities instead of the machine's.
    public var certificateAuthorities: String?

    public init() {}

    /// What can stand in braces in a command.
    public static let placeholders = [
        "ipa", "signed", "metadata", "work", "device", "app", "team", "version", "source",
    ]
}
