import Crypto
import Foundation
import Ingest
import System

extension Bench {
    /// Provisionings a second, from the first to the last of a fleet whose agents all come at once.
    static func provision(_ agents: Int) throws {
        say("Provisioning: \(agents) agents at once, a token each")
        let pair = try x25519Microseconds()
        let bench = try BenchAgents()
        defer { bench.remove() }
        try bench.startFrontEnd()
        guard let counters = bench.frontEnd?.provisioning else {
            throw Failure("measuring provisioning: the front-end does not provision")
        }
        var tokens: [String] = []
        while tokens.count < agents {
            let some = try bench.registry.createTokens(
                count: min(10_000, agents - tokens.count), ttl: .seconds(86_400), actor: "bench")
            tokens += some.map(\.token)
        }
        let fleet = try bench.startFleet(
            ["--ramp", "1ms", "--connections", "256"], tokens: tokens)
        let pause = Waker()
        while counters.provisionedCount == 0, fleet.isRunning { pause.wait(milliseconds: 1) }
        let first = counters.provisionedCount
        let wall = SystemClock.monotonicNanoseconds()
        let front = SystemClock.processCPUNanoseconds()
        let (database, others) = (try bench.databaseCPU(), fleet.cpu)
        let deadline = SystemClock.monotonicMilliseconds() + 600_000
        while counters.provisionedCount < UInt64(agents), fleet.isRunning,
            SystemClock.monotonicMilliseconds() < deadline
        {
            pause.wait(milliseconds: 5)
        }
        let seconds = Double(SystemClock.monotonicNanoseconds() - wall) / 1e9
        let spent = (
            front: Double(SystemClock.processCPUNanoseconds() - front) / 1e9,
            database: try bench.databaseCPU() - database, agents: fleet.cpu - others
        )
        let count = Double(counters.provisionedCount - first)
        let report = try fleet.stop()
        guard report.provisioned == agents, count > 0 else {
            throw Failure(
                "measuring provisioning: \(report.provisioned) of \(agents) agents were provisioned; answers: \(report.provisioning.answers)"
            )
        }
        let latency = report.provisioning.latency
        say(
            "  \(rounded(count / seconds)) a second; in the agents' eyes p50"
                + " \(milliseconds(latency.p50_microseconds)) ms, p99"
                + " \(milliseconds(latency.p99_microseconds)) ms")
        let cores = Double(ProcessInfo.processInfo.activeProcessorCount)
        say(
            "  CPU time of one: front-end \(rounded(spent.front / count * 1e6)) µs, of which the"
                + " X25519 key pair \(rounded(pair)) µs; PostgreSQL"
                + " \(rounded(spent.database / count * 1e6)) µs")
        let used = (spent.front + spent.database + spent.agents) / seconds
        let most = spent.database > spent.front ? "PostgreSQL" : "the front-end"
        say(
            "  cores in use, of \(rounded(cores)): front-end \(ratio(spent.front / seconds)),"
                + " PostgreSQL \(ratio(spent.database / seconds)), the agents themselves"
                + " \(ratio(spent.agents / seconds)); limited by "
                + (used > 0.85 * cores
                    ? "these cores, most of all by \(most)"
                    : "waiting: for syncs, locks or other work")
        )
        say(
            "  yardstick: key pairs alone, one core: \(rounded(1e6 / pair)) a second; ratio"
                + " \(ratio(count / seconds * pair / 1e6))")
        note(
            "provisionings, \(agents) agents at once", count / seconds, "a second",
            beside: ("X25519 key pairs on one core", 1e6 / pair))
    }

    /// CPU time of making one key pair.
    private static func x25519Microseconds() throws -> Double {
        let rounds = 2_000
        let start = SystemClock.processCPUNanoseconds()
        for _ in 0..<rounds { _ = try X25519KeyPair.generate() }
        return Double(SystemClock.processCPUNanoseconds() - start) / Double(rounds) / 1e3
    }

    static func milliseconds(_ microseconds: UInt64) -> String {
        ratio(Double(microseconds) / 1_000)
    }
}
