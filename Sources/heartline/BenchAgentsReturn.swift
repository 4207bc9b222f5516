import Foundation
import Ingest
import System

extension Bench {
    /// A whole fleet that had vanished, because its network broke, and is back within a second.
    static func comeBack(_ agents: Int) throws {
        say("A fleet that returns at once: \(agents) devices, a heartbeat each within a second")
        let bench = try BenchAgents()
        defer { bench.remove() }
        try bench.addDevices(agents)
        try bench.startFrontEnd()
        let usual = try bench.startFleet(["--agents", "\(agents)", "--connections", "256"])
        try untilHeard(agents, by: bench, from: usual)
        _ = try usual.stop()
        let before = anonymousBytes()
        let heard = bench.frontEnd?.counters.accepted ?? 0
        // The agents' timers run thirty times as fast, so every one of them speaks in each second.
        let returned = try bench.startFleet([
            "--agents", "\(agents)", "--speed", "30", "--connections", "256",
        ])
        let pause = Waker()
        while bench.frontEnd?.counters.accepted == heard, returned.isRunning {
            pause.wait(milliseconds: 1)
        }
        let start = SystemClock.monotonicMilliseconds()
        var peak = before
        while (bench.frontEnd?.counters.accepted ?? 0) < heard + UInt64(agents) {
            peak = max(peak, anonymousBytes())
            guard returned.isRunning, SystemClock.monotonicMilliseconds() - start < 120_000 else {
                throw Failure("measuring a return: not every device was answered")
            }
            pause.wait(milliseconds: 5)
        }
        let spent = SystemClock.monotonicMilliseconds() - start
        let counters = bench.frontEnd?.counters
        let report = try returned.stop()
        let refused = report.heartbeats.answers.filter { $0.key != "200" }.values.reduce(0, +)
        say(
            "  as many heartbeats answered as there are devices in \(spent) ms, \(refused) answers"
                + " other than 200, \(counters?.shed ?? 0) events shed, requests that found nobody:"
                + " \(report.unanswered.values.reduce(0, +))")
        note(
            "a fleet of \(agents) returns at once: all answered after", Double(spent) / 1_000, "s",
            beside: ("the second in which they came", 1))
        say(
            "  p50 \(milliseconds(report.heartbeats.latency.p50_microseconds)) ms, p99"
                + " \(milliseconds(report.heartbeats.latency.p99_microseconds)) ms, worst"
                + " \(milliseconds(report.heartbeats.latency.max_microseconds)) ms; the agents were"
                + " behind by \(milliseconds(report.delay.p99_microseconds)) ms at p99")
        say(
            "  memory of the front-end grew by \((peak - before) / 1_048_576) MiB meanwhile;"
                + " yardstick: an event in a queue is about 250 bytes,"
                + " \(agents * 250 / 1_048_576) MiB for one of each device")
    }

    /// Waits until every device has been heard.
    private static func untilHeard(
        _ agents: Int, by bench: BenchAgents, from fleet: BenchFleet
    ) throws {
        let deadline = SystemClock.monotonicMilliseconds() + 300_000
        let pause = Waker()
        while (bench.frontEnd?.cachedAnswers ?? 0) < agents {
            guard fleet.isRunning, SystemClock.monotonicMilliseconds() < deadline else {
                throw Failure(
                    "measuring a return: only \(bench.frontEnd?.cachedAnswers ?? 0) of \(agents) devices were heard"
                )
            }
            pause.wait(milliseconds: 50)
        }
    }
}
