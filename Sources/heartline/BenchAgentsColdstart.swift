import Foundation
import HTTP
import Ingest
import System

extension Bench {
    /// A front-end that starts with nothing in memory while a whole fleet beats.
    static func coldstart(_ agents: Int, heartbeatsPerSecond wanted: Int) throws {
        say(
            "Restart of a front-end under load: \(agents) devices, \(wanted) heartbeats a second wanted"
        )
        let bench = try BenchAgents()
        defer { bench.remove() }
        try bench.addDevices(agents)
        try bench.startFrontEnd()
        let before = anonymousBytes()
        let speed = max(1, 30 * Double(wanted) / Double(agents))
        let fleet = try bench.startFleet([
            "--agents", "\(agents)", "--speed", "\(speed)", "--connections", "256",
        ])
        let meter = ColdstartMeter(bench, fleet)
        try meter.untilCached(agents)
        guard let warm = bench.frontEnd else { return }
        let size = (
            answers: warm.cachedBytes / max(1, warm.cachedAnswers),
            grown: (anonymousBytes() - before) / agents
        )
        let usual = meter.rate(over: 3)
        say(
            "  cache: \(size.answers) bytes a device, of 1024 allowed; the process grew by"
                + " \(size.grown) bytes a device; yardstick: an answer is about 600 bytes")
        note(
            "memory of the configuration cache, a device", Double(size.answers), "bytes",
            beside: ("what it may take", 1_024))
        bench.stopFrontEnd()
        let start = SystemClock.monotonicMilliseconds()
        try bench.startFrontEnd()
        let listening = SystemClock.monotonicMilliseconds() - start
        let steady = meter.untilSteady(usual, since: start)
        let after = meter.rate(over: 3)
        let inFlight = bench.frontEnd?.serverCounters.bytesInFlight ?? 0
        let counters = bench.frontEnd?.counters
        let report = try fleet.stop()
        say(
            "  \(rounded(usual)) heartbeats a second before; listening again after \(listening) ms,"
                + " the same rate with every device in memory after"
                + " \(steady.map { "\($0) ms" } ?? "more than 60 s"); \(rounded(after)) a second then"
        )
        note(
            "cold start of a front-end, \(agents) devices, until the usual rate",
            Double(steady ?? 60_000) / 1_000, "s")
        note(
            "worst answer of it", Double(report.heartbeats.latency.max_microseconds) / 1_000, "ms",
            beside: ("p99", Double(report.heartbeats.latency.p99_microseconds) / 1_000))
        say(
            "  worst answer of the run, which holds two cold starts:"
                + " \(milliseconds(report.heartbeats.latency.max_microseconds)) ms; yardstick: p50"
                + " \(milliseconds(report.heartbeats.latency.p50_microseconds)) ms, p99"
                + " \(milliseconds(report.heartbeats.latency.p99_microseconds)) ms")
        say(
            "  queues at the end: \(inFlight) bytes in flight at the front-end, \(report.waiting)"
                + " requests at the agents, which were behind by"
                + " \(milliseconds(report.delay.max_microseconds)) ms at most")
        say(
            "  of the new front-end: \(counters?.misses ?? 0) misses, \(counters?.failed ?? 0)"
                + " answers 500, \(counters?.unavailable ?? 0) answers 503, \(counters?.shed ?? 0)"
                + " events shed; requests that found nobody: "
                + "\(report.unanswered.values.reduce(0, +))")
    }
}

/// Looks at a front-end under load.
private struct ColdstartMeter {
    private static let patienceMilliseconds: Int64 = 300_000
    private static let steadyMilliseconds: Int64 = 60_000

    private let bench: BenchAgents
    private let fleet: BenchFleet
    private let pause = Waker()

    init(_ bench: BenchAgents, _ fleet: BenchFleet) {
        self.bench = bench
        self.fleet = fleet
    }

    private var accepted: UInt64 { bench.frontEnd?.counters.accepted ?? 0 }

    /// Waits until every device has been heard.
    func untilCached(_ agents: Int) throws {
        let deadline = SystemClock.monotonicMilliseconds() + Self.patienceMilliseconds
        while (bench.frontEnd?.cachedAnswers ?? 0) < agents {
            guard fleet.isRunning, SystemClock.monotonicMilliseconds() < deadline else {
                throw Failure(
                    "measuring a restart: only \(bench.frontEnd?.cachedAnswers ?? 0) of \(agents) devices were heard"
                )
            }
            pause.wait(milliseconds: 50)
        }
    }

    /// Heartbeats a second.
    func rate(over seconds: Int64) -> Double {
        let (count, time) = (accepted, SystemClock.monotonicNanoseconds())
        pause.wait(milliseconds: seconds * 1_000)
        return Double(accepted - count) * 1e9
            / Double(SystemClock.monotonicNanoseconds() - time)
    }

    /// The milliseconds since `start` at which a second began that had the usual rate and no misses;
    /// `nil` if none did within a minute.
    func untilSteady(_ usual: Double, since start: Int64) -> Int64? {
        while true {
            let begin = SystemClock.monotonicMilliseconds()
            guard begin - start < Self.steadyMilliseconds else { return nil }
            let misses = bench.frontEnd?.counters.misses
            let rate = rate(over: 1)
            if rate >= 0.9 * usual, misses == bench.frontEnd?.counters.misses {
                return begin - start
            }
        }
    }
}
