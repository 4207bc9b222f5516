/// When to fetch a provider's keys, and which of them hold meanwhile. Reads no clock and does no
/// I/O: the caller fetches when told to, and reports what came of it.
///
/// Times are milliseconds of a clock that does not go back. Thread safety: a value; the caller
/// guards it.
public struct JWKSCache: Sendable {
    public struct Settings: Hashable, Sendable {
        /// How old a set may be before it is fetched anew. Default: 1 h.
        public var refreshInterval: Duration = .seconds(3600)
        /// Least time from the start of any fetch to one that an unknown key id asks for: tokens
        /// with invented ids must not make us a nuisance to the provider. Default: 30 s.
        public var unknownKeyInterval: Duration = .seconds(30)
        /// Wait after a failed fetch; doubles with each further one, up to `retryLimit`.
        /// Default: 5 s.
        public var retryInterval: Duration = .seconds(5)
        /// Default: 5 min.
        public var retryLimit: Duration = .seconds(300)
        /// How long after it was fetched a set serves while the source is away. Default: 24 h.
        public var staleLimit: Duration = .seconds(24 * 3600)
        /// A fetch that has not been reported after this is given up, and its result no longer
        /// taken. Default: 30 s.
        public var fetchLimit: Duration = .seconds(30)

        public init() {}
    }

    /// Permission for one fetch, to be handed back with its result.
    public struct Fetch: Hashable, Sendable {
        let number: UInt64
    }

    /// The keys that hold, and which fetch they are from.
    public struct Current: Sendable {
        public var set: JWKSet
        /// Grows with every set.
        public var generation: UInt64
    }

    /// What to do with a token whose key id is in no key of the current set.
    public enum UnknownKey: Hashable, Sendable {
        /// The set has changed since it was looked at: verify again.
        case lookAgain
        /// Fetch, report, and verify again.
        case fetch(Fetch)
        /// Somebody is fetching: wait for the report, and verify again.
        case wait
        /// The set is fresh enough: the token is bad.
        case refuse
        /// The source was away at the last attempt, so nobody can tell: an error of ours.
        case unavailable
    }

    private let settings: Settings
    private var set: JWKSet?
    private var generation: UInt64 = 0
    private var fetchedAt: Int64 = 0
    private var running: Fetch?
    private var fetches: UInt64 = 0
    private var startedAt: Int64 = 0
    /// Failed fetches since the last good one.
    private var failures = 0
    private var nextFetch: Int64 = .min
    private var latest: Int64 = .min

    public init(_ settings: Settings = Settings()) { self.settings = settings }

    /// The keys that hold; `nil` if none were fetched yet, or so long ago that a key may have been
    /// withdrawn without our knowing.
    public func current(now: Int64) -> Current? {
        guard let set, max(now, latest) <= fetchedAt.adding(settings.staleLimit.milliseconds)
        else { return nil }
        return Current(set: set, generation: generation)
    }

    /// Whether a fetch has been allowed and not reported.
    public var isFetching: Bool { running != nil }

    /// Permission to fetch, if it is time and nobody else does.
    public mutating func fetchIfDue(now: Int64) -> Fetch? {
        advance(to: now)
        guard running == nil, latest >= nextFetch else { return nil }
        return start()
    }

    /// What to do with a key id that the set of `generation` does not know.
    ///
    /// - Parameter generation: of the set that was looked at; 0 if there was none.
    public mutating func unknownKey(generation seen: UInt64, now: Int64) -> UnknownKey {
        advance(to: now)
        if generation > seen, current(now: latest) != nil { return .lookAgain }
        if running != nil { return .wait }
        if latest >= nextFetch { return .fetch(start()) }
        if failures > 0 { return .unavailable }
        if latest >= startedAt.adding(settings.unknownKeyInterval.milliseconds) {
            return .fetch(start())
        }
        return .refuse
    }

    /// Takes what a fetch brought.
    ///
    /// - Returns: whether it was taken: a fetch that was given up for a later one is not.
    @discardableResult
    public mutating func finish(_ fetch: Fetch, with set: JWKSet, now: Int64) -> Bool {
        advance(to: now)
        guard running == fetch else { return false }
        running = nil
        self.set = set
        generation += 1
        // Its age counts from when it was asked for.
        fetchedAt = startedAt
        failures = 0
        nextFetch = startedAt.adding(settings.refreshInterval.milliseconds)
        return true
    }

    /// Notes that a fetch brought nothing: no answer, or no set with a usable key in it.
    public mutating func fail(_ fetch: Fetch, now: Int64) {
        advance(to: now)
        guard running == fetch else { return }
        noteFailure()
    }

    private mutating func start() -> Fetch {
        fetches += 1
        let fetch = Fetch(number: fetches)
        running = fetch
        startedAt = latest
        return fetch
    }

    private mutating func advance(to now: Int64) {
        latest = max(latest, now)
        if running != nil, latest >= startedAt.adding(settings.fetchLimit.milliseconds) {
            noteFailure()
        }
    }

    private mutating func noteFailure() {
        running = nil
        let doublings = min(failures, 16)
        failures += 1
        let wait = min(
            settings.retryInterval.milliseconds << Int64(doublings),
            settings.retryLimit.milliseconds)
        nextFetch = latest.adding(wait)
    }
}
