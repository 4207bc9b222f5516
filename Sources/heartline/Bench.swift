import EventLog
import Foundation
import System

/// `heartline bench`: measurements, each printed beside its yardstick. `make bench` runs it.
enum Bench {
    static let command = Command(
        name: "bench", summary: "measure this build on this machine",
        details: """
            Without a name all measurements are made; with names only those: processor, worker,
            changes, restart, waves, telemetry, provision, rollout, coldstart, return, updates, kafka.
            Those with agents run them as a process of their own. Without --brokers kafka is measured
            on librdkafka's mock cluster, in a process of its own. Times are CPU time of this process where nothing else is said
            (PostgreSQL is another process). The machine should be idle.
            """,
        operands: Operands(
            placeholder: "[NAME…]", count: 0...16, help: "measurements to make"),
        options: [
            .integer(
                "devices", 1_000...10_000_000, default: 1_000_000, "devices of the largest runs"),
            .integer(
                "edges", 10_000...100_000_000, default: 10_000_000,
                "live waves of the largest run of waves, of a tenth as many people"),
            .integer(
                "agents", 100...1_000_000, default: 100_000,
                "agents of rollout, coldstart and return, five times those of provision"),
            .integer(
                "heartbeats", 10...1_000_000, default: 33_000,
                "a second, wanted of coldstart's agents"),
            .integer("streams", 1...20_000, default: 1_000, "streams of updates at once"),
            .integer(
                "kafka-devices", 1_000...10_000_000, default: 100_000,
                "devices of the runs on Kafka"),
        ] + LogAccess.options
    ) { arguments in
        if arguments.operands == [feeder] {
            try BenchCluster.feed(arguments)
            return .done
        }
        if arguments.operands == [streamReader] {
            try readStreams(arguments.integer("streams"))
            return .done
        }
        Log.configure(minimum: .warning, format: .text)
        let all = [
            "processor", "worker", "changes", "restart", "waves", "telemetry", "provision",
            "rollout", "coldstart", "return", "updates", "kafka",
        ]
        let agents = arguments.integer("agents")
        let names = arguments.operands.isEmpty ? all : arguments.operands
        let devices = arguments.integer("devices")
        for name in names where !all.contains(name) {
            throw UsageError("unknown measurement \"\(name)\"")
        }
        if names.contains("processor") { processor(devices) }
        if names.contains("worker") || names.contains("changes") || names.contains("restart") {
            for count in [devices / 100, devices / 10] where count >= 1_000 {
                if names.contains("worker") { try worker(count, ["worker"]) }
            }
            try worker(devices, names)
        }
        if names.contains("waves") {
            let edges = arguments.integer("edges")
            try BenchWaves.run(accounts: edges / 10, edges: edges, waves: edges / 50)
        }
        if names.contains("telemetry") { try telemetry() }
        if names.contains("provision") { try provision(max(100, agents / 5)) }
        if names.contains("rollout") { try rollout(agents) }
        if names.contains("coldstart") {
            try coldstart(agents, heartbeatsPerSecond: arguments.integer("heartbeats"))
        }
        if names.contains("return") { try comeBack(agents) }
        if names.contains("updates") { try updates(arguments.integer("streams")) }
        if names.contains("kafka") { try BenchKafka.run(arguments) }
        return .done
    }

    /// Not for people: the process that `BenchCluster` starts.
    static let feeder = "feeder"

    private static func worker(_ devices: Int, _ names: [String]) throws {
        print("One worker, embedded log to committed rows: \(devices) devices")
        let before = anonymousBytes()
        let bench = try BenchWorker(devices: devices, close: { $0.close() }) {
            try EmbeddedLog(directory: "\($0)/log")
        }
        defer { bench.remove() }
        try bench.feed.append(changing: 0)
        var memory = 0
        let first = try bench.catchUp { memory = $0 - before }
        print(
            "  first heartbeats, a row each: \(rounded(Double(first.rows) / first.wall)) rows a second"
        )
        print("  memory: \(memory / devices) bytes a device, everything counted")
        if names.contains("worker") {
            for _ in 0..<4 { try bench.feed.append(changing: 10) }
            let drained = try bench.drain()
            let spent = try bench.catchUp()
            print(
                "  1 % of records changing a state: \(rounded(spent.perCPUSecond)) heartbeats a"
                    + " CPU-second, \(rounded(Double(spent.records) / spent.wall)) a second;"
                    + " \(rounded(Double(spent.rows))) rows")
            print(
                "  raw drain of the same log: \(rounded(drained)) records a CPU-second;"
                    + " ratio \(ratio(spent.perCPUSecond / drained))")
        }
        if names.contains("changes") {
            // In every other round they say so: one round before that, to be even.
            try bench.feed.append(changing: 0)
            if bench.feed.isNextRoundCalm { try bench.feed.append(changing: 0) }
            _ = try bench.catchUp()
            try bench.feed.append(changing: 1_000)
            try bench.vacuum("device_status")
            let spent = try bench.catchUp()
            let rate = Double(spent.rows) / spent.wall
            let best = try bench.bestUpsert()
            print(
                "  every record changing a state: \(rounded(rate)) rows a second; best batch upsert of"
                    + " the same rows \(rounded(best)); ratio \(ratio(rate / best))")
        }
        if names.contains("restart") {
            let copies = try (0..<3).map { _ in try bench.copyOut() }.sorted()
            let restarts = try (0..<3).map { _ in try bench.restart() }.sorted()
            print(
                "  restart to first commit: \(ratio(restarts[1])) s; COPY of the device table"
                    + " \(ratio(copies[1])) s; ratio \(ratio(restarts[1] / copies[1]))")
        }
    }

    static func ratio(_ value: Double) -> String {
        let hundredths = Int((value * 100).rounded())
        return "\(hundredths / 100).\(hundredths % 100 < 10 ? "0" : "")\(hundredths % 100)"
    }

    private static func processor(_ devices: Int) {
        print("Tunnel health in memory: decode, apply, drain; one core")
        for count in [devices / 100, devices / 10, devices] where count >= 1_000 {
            let result = BenchProcessor.measure(devices: count, rounds: 4, changing: 10)
            print(
                "  \(count) devices: \(rounded(result.nanosecondsPerRecord)) ns a record,"
                    + " \(rounded(result.bytesPerDevice)) bytes a device")
        }
    }

    static func rounded(_ value: Double) -> String { String(Int(value.rounded())) }

    /// Memory of this process that is in RAM and belongs to no file: the log's map is not counted.
    static func anonymousBytes() -> Int {
        guard let text = try? String(contentsOfFile: "/proc/self/status", encoding: .utf8),
            let line = text.split(separator: "\n").first(where: { $0.hasPrefix("RssAnon:") }),
            let number = line.split(separator: " ").dropFirst().first.flatMap({ Int($0) })
        else { return 0 }
        return number * 1_024
    }
}
