import System
import Testing

/// A limiter that `#expect` can ask: it takes no mutating calls.
private final class Bench {
    private var limiter: LogLimiter

    init(burst: Int, window: Int64) { limiter = LogLimiter(burst: burst, window: window) }

    func takes(_ kind: LogLimiter.Kind, now: Int64) -> Bool { limiter.takes(kind, now: now) }
    func ended(now: Int64) -> [(kind: LogLimiter.Kind, held: Int)] { limiter.ended(now: now) }
    func flush() -> [(kind: LogLimiter.Kind, held: Int)] { limiter.flush() }
}

@Suite("Log lines like many before") struct LogLimiterTests {
    private let lost = LogLimiter.Kind(level: .warning, message: "the log does not answer")
    private let damaged = LogLimiter.Kind(level: .error, message: "a record is damaged")

    @Test("the first of a window are written, the others counted and told at its end, once")
    func limits() {
        let limiter = Bench(burst: 3, window: 30_000)
        var written = 0
        for index in 0..<100 {
            #expect(limiter.ended(now: Int64(index)).isEmpty)
            if limiter.takes(lost, now: Int64(index)) { written += 1 }
        }
        #expect(written == 3)
        #expect(limiter.ended(now: 29_999).isEmpty)
        let ended = limiter.ended(now: 30_000)
        #expect(ended.map(\.held) == [97])
        #expect(ended.first?.kind == lost)
        #expect(limiter.ended(now: 60_000).isEmpty)
        // A new window begins with the next line.
        #expect(limiter.takes(lost, now: 60_000))
    }

    @Test("lines of another message, or of another level, are not held back by these")
    func kinds() {
        let limiter = Bench(burst: 1, window: 30_000)
        #expect(limiter.takes(lost, now: 0))
        #expect(!limiter.takes(lost, now: 1))
        #expect(limiter.takes(damaged, now: 1))
        #expect(limiter.takes(.init(level: .error, message: lost.message), now: 1))
    }

    @Test("what comes seldom is never held back")
    func seldom() {
        let limiter = Bench(burst: 2, window: 30_000)
        for index in 0..<50 {
            #expect(limiter.takes(lost, now: Int64(index) * 16_000))
        }
    }

    @Test("the end of the process tells what is held back, whatever the time")
    func end() {
        let limiter = Bench(burst: 1, window: 30_000)
        for _ in 0..<5 { _ = limiter.takes(lost, now: 0) }
        for _ in 0..<3 { _ = limiter.takes(damaged, now: 0) }
        #expect(limiter.flush().map(\.held) == [2, 4])
        #expect(limiter.flush().isEmpty)
    }

    @Test("what is kept is bounded by the messages that there are, not by the lines")
    func bounded() {
        let limiter = Bench(burst: 1, window: 10)
        var written = 0
        for index in 0..<1_000_000 {
            _ = limiter.ended(now: Int64(index))
            if limiter.takes(lost, now: Int64(index)) { written += 1 }
        }
        // One line and one count in each window of ten.
        #expect(written == 100_000)
    }
}

@Suite("The log") struct LogTests {
    @Test("a thousand lines alike are twenty, and one that tells how many there were")
    func limited() async throws {
        let result = try await #require(
            processExitsWith: .success, observing: [\.standardErrorContent]
        ) {
            Log.configure(minimum: .info, format: .json)
            for index in 0..<1_000 {
                Log.warning("the log does not answer", ["error": "text \(index)"])
            }
            Log.debug("not this one")
            Log.error("another", ["quoted": "\"a\"\n"])
            Log.summarize(isEnd: true)
            let counts = Log.counts.map { "\($0.level) \($0.count)" }
            precondition(
                counts == ["debug 0", "info 0", "notice 0", "warning 1000", "error 1"])
            precondition(Log.heldCount == 980)
        }
        let lines = String(decoding: result.standardErrorContent, as: UTF8.self)
            .split(separator: "\n")
        #expect(lines.count == 22, "\(lines.prefix(3))")
        #expect(lines.count { $0.contains("the log does not answer\",\"error\":\"text ") } == 20)
        #expect(
            lines.contains { $0.hasSuffix("\"message\":\"another\",\"quoted\":\"\\\"a\\\"\\n\"}") })
        #expect(
            lines.last?.hasSuffix(
                "\"level\":\"warning\",\"message\":\"980 more like this in 30 s\",\"log.message\":\"the log does not answer\"}"
            ) == true, "\(lines.last ?? "")")
    }
}
