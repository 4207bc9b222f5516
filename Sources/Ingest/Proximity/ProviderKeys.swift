internal import Bytes
internal import Curl
internal import HTTP
internal import JWT
internal import Synchronization
internal import System

/// An identity provider's public keys: fetched at the start, at intervals, and when a token names one
/// that is not known, on a thread of its own. What was fetched serves on while the provider is away.
/// - Thread safety: any thread.
final class ProviderKeys: Sendable {
    typealias Job = WorkQueue<ProximityCall>.Job

    /// What to do with a token whose key is not known.
    enum Verdict {
        case lookAgain
        /// It was kept, and comes again when the keys have been fetched.
        case parked
        case refuse
        case unavailable
    }

    private struct State {
        var cache: JWKSCache
        var asked: JWKSCache.Fetch?
        var hasFailed = false
        var parked: [Job] = []
    }

    /// Requests that may wait for keys.
    private static let parkedLimit = 2_048
    /// How often the thread looks whether it is time.
    private static let lookMilliseconds: Int64 = 1_000

    let provider: IdentityProvider
    private let fetchMilliseconds: Int64
    private let state: Mutex<State>
    private let resume: @Sendable (Job) -> Void
    private let isStopping = Atomic(false)
    private let waker = Waker()
    private let thread = Mutex<SystemThread?>(nil)

    /// - Parameter resume: takes the jobs that were parked, on the thread of the keys.
    init(
        _ provider: IdentityProvider, settings: JWKSCache.Settings, fetchMilliseconds: Int64,
        resume: @escaping @Sendable (Job) -> Void
    ) {
        self.provider = provider
        self.fetchMilliseconds = fetchMilliseconds
        self.resume = resume
        state = Mutex(State(cache: JWKSCache(settings)))
    }

    func start() {
        thread.withLock {
            $0 = SystemThread.start("\(provider.name.rawValue)-keys") { self.run() }
        }
    }

    /// Ends the thread; a transfer that is under way is given up.
    func stop() {
        isStopping.store(true, ordering: .releasing)
        waker.signal()
        let running = thread.withLock { $0.take() }
        running?.join()
    }

    func current() -> JWKSCache.Current? {
        let now = SystemClock.monotonicMilliseconds()
        return state.withLock { $0.cache.current(now: now) }
    }

    /// - Parameter generation: of the keys that were looked at; 0 if there were none.
    func unknownKey(
        generation: UInt64, _ asked: ExchangeRequest, _ response: DeferredResponse
    ) -> Verdict {
        let now = SystemClock.monotonicMilliseconds()
        var waiting = asked
        waiting.hasWaited = true
        let job = Job(request: .exchange(waiting), response: response)
        let verdict = state.withLock { state -> Verdict in
            if asked.hasWaited {
                return state.hasFailed || state.cache.current(now: now) == nil
                    ? .unavailable : .refuse
            }
            switch state.cache.unknownKey(generation: generation, now: now) {
            case .lookAgain: return .lookAgain
            case .refuse: return .refuse
            case .unavailable: return .unavailable
            case .fetch(let fetch): state.asked = fetch
            case .wait: break
            }
            guard state.parked.count < Self.parkedLimit,
                !isStopping.load(ordering: .acquiring)
            else { return .unavailable }
            state.parked.append(job)
            return .parked
        }
        if case .parked = verdict { waker.signal() }
        return verdict
    }

    // MARK: - On its thread

    private func run() {
        var complaints = Complaints("fetching an identity provider's keys")
        while !isStopping.load(ordering: .acquiring) {
            let now = SystemClock.monotonicMilliseconds()
            let fetch = state.withLock { $0.asked.take() ?? $0.cache.fetchIfDue(now: now) }
            guard let fetch else {
                resumeParked()
                waker.wait(milliseconds: Self.lookMilliseconds)
                continue
            }
            do {
                let set = try load()
                complaints.end()
                let now = SystemClock.monotonicMilliseconds()
                state.withLock {
                    $0.hasFailed = false
                    $0.cache.finish(fetch, with: set, now: now)
                }
            } catch {
                complaints.add(error, ["provider": provider.name.rawValue])
                let now = SystemClock.monotonicMilliseconds()
                state.withLock {
                    $0.hasFailed = true
                    $0.cache.fail(fetch, now: now)
                }
            }
        }
        resumeParked()
    }

    /// Hands back those that wait, unless a fetch is under way.
    private func resumeParked() {
        let jobs = state.withLock { state -> [Job] in
            guard !state.cache.isFetching || isStopping.load(ordering: .acquiring) else {
                return []
            }
            defer { state.parked = [] }
            return state.parked
        }
        for job in jobs { resume(job) }
    }

    private func load() throws -> JWKSet {
        switch provider.keys {
        case .file(let path):
            let bytes = try FileSystem.bytes(of: path, limit: JWKSet.maximumBytes)
            return try JWKSet(parsing: bytes.span)
        case .url(let url): return try fetch(url)
        }
    }

    private func fetch(_ url: String) throws -> JWKSet {
        let timeout = Duration.milliseconds(fetchMilliseconds)
        let request = try CurlRequest(
            .get, url, headers: [(name: "Accept", value: "application/json")],
            limits: .init(
                connectTimeout: timeout, timeout: timeout, answerBytes: JWKSet.maximumBytes))
        var transfers = try CurlTransfers(maximumTransfers: 1, maximumConnections: 1)
        try transfers.start(request)
        var answer: Result<JWKSet, any Error>?
        while answer == nil {
            guard !isStopping.load(ordering: .acquiring) else {
                throw KeyFetchError(reason: "the front-end stops")
            }
            // Not by the waker: those who park would keep it busy.
            try transfers.poll(milliseconds: 200) { completion, body in
                if let error = completion.error {
                    answer = .failure(error)
                } else if completion.status != 200 {
                    answer = .failure(KeyFetchError(reason: "it answered \(completion.status)"))
                } else {
                    do throws(JWKSet.Failure) {
                        answer = .success(try JWKSet(parsing: body))
                    } catch {
                        answer = .failure(error)
                    }
                }
            }
        }
        return try answer!.get()
    }
}

/// A provider that gave no keys.
struct KeyFetchError: Error, CustomStringConvertible {
    var reason: String
    var description: String { "fetching keys: \(reason)" }
}
