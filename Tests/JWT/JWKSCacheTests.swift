import JWT
import Testing

/// A cache by reference: an expectation cannot call what changes a value.
private final class SharedCache {
    private var cache = JWKSCache()

    var isFetching: Bool { cache.isFetching }
    func current(now: Int64) -> JWKSCache.Current? { cache.current(now: now) }
    func fetchIfDue(now: Int64) -> JWKSCache.Fetch? { cache.fetchIfDue(now: now) }
    func fail(_ fetch: JWKSCache.Fetch, now: Int64) { cache.fail(fetch, now: now) }

    func unknownKey(generation: UInt64, now: Int64) -> JWKSCache.UnknownKey {
        cache.unknownKey(generation: generation, now: now)
    }

    @discardableResult
    func finish(_ fetch: JWKSCache.Fetch, with set: JWKSet, now: Int64) -> Bool {
        cache.finish(fetch, with: set, now: now)
    }
}

@Suite("When keys are fetched") struct JWKSCacheTests {
    private let set = JWKSet([])
    private let second: Int64 = 1000

    @Test("the first use fetches, once, and the set then serves for an hour")
    func firstUse() throws {
        let cache = SharedCache()
        #expect(cache.current(now: 0) == nil)
        let fetch = try #require(cache.fetchIfDue(now: 0))
        #expect(cache.fetchIfDue(now: 1) == nil)
        #expect(cache.unknownKey(generation: 0, now: 2) == .wait)
        #expect(cache.finish(fetch, with: set, now: 10))
        #expect(cache.unknownKey(generation: 0, now: 11) == .lookAgain)
        #expect(cache.current(now: 11)?.generation == 1)
        #expect(cache.fetchIfDue(now: 3599 * second) == nil)
        #expect(cache.fetchIfDue(now: 3600 * second) != nil)
        // The old set serves while the new one is on its way.
        #expect(cache.current(now: 3601 * second)?.generation == 1)
    }

    @Test("unknown ids ask for no more than one fetch in thirty seconds")
    func unknownKeys() throws {
        let cache = SharedCache()
        let first = try #require(cache.fetchIfDue(now: 0))
        cache.finish(first, with: set, now: 1)
        #expect(cache.unknownKey(generation: 1, now: 29_999) == .refuse)
        guard case .fetch(let fetch) = cache.unknownKey(generation: 1, now: 30_000) else {
            Issue.record("no fetch was allowed")
            return
        }
        #expect(cache.unknownKey(generation: 1, now: 30_001) == .wait)
        cache.finish(fetch, with: set, now: 31_000)
        #expect(cache.unknownKey(generation: 1, now: 31_001) == .lookAgain)
        #expect(cache.unknownKey(generation: 2, now: 31_002) == .refuse)
        #expect(cache.unknownKey(generation: 2, now: 59_999) == .refuse)
        #expect(cache.unknownKey(generation: 2, now: 60_000) != .refuse)
    }

    @Test("while the source is away the old set serves for a day, and nobody is called a liar")
    func sourceAway() throws {
        let cache = SharedCache()
        let first = try #require(cache.fetchIfDue(now: 0))
        cache.finish(first, with: set, now: 0)
        var now: Int64 = 3600 * second
        var waits: [Int64] = []
        var last = now
        while now < 25 * 3600 * second {
            if let fetch = cache.fetchIfDue(now: now) {
                waits.append(now - last)
                last = now
                cache.fail(fetch, now: now)
                #expect(cache.unknownKey(generation: 1, now: now) == .unavailable)
            }
            #expect((cache.current(now: now) != nil) == (now <= 24 * 3600 * second))
            now += second
        }
        #expect(waits.prefix(8) == [0, 5000, 10_000, 20_000, 40_000, 80_000, 160_000, 300_000])
        #expect(waits.dropFirst(8).allSatisfy { $0 == 300_000 })
        // It comes back: everything is as new.
        let fetch = try #require(cache.fetchIfDue(now: now + 300 * second))
        cache.finish(fetch, with: set, now: now + 300 * second)
        #expect(cache.current(now: now + 300 * second)?.generation == 2)
        #expect(cache.unknownKey(generation: 2, now: now + 301 * second) == .refuse)
    }

    @Test("a source that was never there is tried again, and is an error of ours meanwhile")
    func neverThere() throws {
        let cache = SharedCache()
        let first = try #require(cache.fetchIfDue(now: 0))
        cache.fail(first, now: 100)
        #expect(cache.unknownKey(generation: 0, now: 101) == .unavailable)
        #expect(cache.fetchIfDue(now: 5099) == nil)
        guard case .fetch = cache.unknownKey(generation: 0, now: 5100) else {
            Issue.record("no fetch was allowed")
            return
        }
    }

    @Test("a fetch that hangs is given up, and its late result not taken")
    func hangingFetch() throws {
        let cache = SharedCache()
        let hanging = try #require(cache.fetchIfDue(now: 0))
        #expect(cache.fetchIfDue(now: 29_999) == nil)
        #expect(cache.isFetching)
        #expect(cache.fetchIfDue(now: 30_000) == nil)
        #expect(!cache.isFetching)
        let next = try #require(cache.fetchIfDue(now: 35_000))
        #expect(!cache.finish(hanging, with: set, now: 36_000))
        #expect(cache.current(now: 36_000) == nil)
        cache.fail(hanging, now: 36_000)
        #expect(cache.isFetching)
        #expect(cache.finish(next, with: set, now: 37_000))
        #expect(cache.current(now: 37_000)?.generation == 1)
    }

    @Test("a clock that goes back changes nothing")
    func clockGoesBack() throws {
        let cache = SharedCache()
        let fetch = try #require(cache.fetchIfDue(now: 1_000_000))
        cache.finish(fetch, with: set, now: 0)
        #expect(cache.unknownKey(generation: 1, now: 5) == .refuse)
        #expect(cache.fetchIfDue(now: -5) == nil)
        #expect(cache.fetchIfDue(now: 1_000_000 + 3600 * second) != nil)
    }

    @Test("one fetch at a time, never too often, whatever happens", arguments: 0..<UInt64(50))
    func promises(seed: UInt64) {
        var random = SeededNumbers(state: seed)
        let cache = SharedCache()
        var now: Int64 = 0
        var running: [JWKSCache.Fetch] = []
        var lastStart = Int64.min / 2
        var lastSuccess: Int64?
        func begin(_ fetch: JWKSCache.Fetch, _ random: inout SeededNumbers) {
            // Nothing is started within the shortest wait there is, a failed fetch's.
            #expect(now - lastStart >= 5000, "seed \(seed)")
            lastStart = now
            running.append(fetch)
        }
        for _ in 0..<2000 {
            now += Int64.random(in: 0...20_000, using: &random)
            switch Int.random(in: 0..<5, using: &random) {
            case 0:
                if let fetch = cache.fetchIfDue(now: now) { begin(fetch, &random) }
            case 1, 2:
                let seen = cache.current(now: now)?.generation ?? 0
                let answer = cache.unknownKey(generation: seen, now: now)
                if case .fetch(let fetch) = answer { begin(fetch, &random) }
                #expect(answer != .lookAgain, "seed \(seed)")
                if answer == .refuse { #expect(now - lastStart < 30_000, "seed \(seed)") }
            case 3:
                guard let fetch = running.popLast() else { continue }
                if cache.finish(fetch, with: set, now: now) { lastSuccess = lastStart }
            default:
                guard let fetch = running.popLast() else { continue }
                cache.fail(fetch, now: now)
            }
            let serves = cache.current(now: now) != nil
            let isFresh = lastSuccess.map { now - $0 <= 24 * 3600 * second } ?? false
            #expect(serves == isFresh, "seed \(seed)")
        }
    }
}
