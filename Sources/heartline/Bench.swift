import EventLog
import Foundation
import Pipeline
import System

/// `heartline bench`: measurements, each printed beside its yardstick. `make bench` runs it.
enum Bench {
    static let command = Command(
        name: "bench", summary: "measure this build on this machine",
        details: """
            Without a name all measurements are made; with names only those: processor, worker,
            changes, restart, replay, waves, telemetry, provision, rollout, coldstart, return, updates, kafka.
            Those with agents run them as a process of their own. Without --brokers kafka is measured
            on librdkafka's mock cluster, in a process of its own. Times are CPU time of this process where nothing else is said
            (PostgreSQL is another process). The machine should be idle. --json keeps the figures beside
            their yardsticks; make bench makes docs/performance.md of them.
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
            .integer(
                "connections", 1...32, default: PipelineFile.defaultConnections,
                "of a worker to the database, in worker, changes, restart, replay and waves"),
            .integer("streams", 1...20_000, default: 1_000, "streams of updates at once"),
            .integer(
                "kafka-devices", 1_000...10_000_000, default: 100_000,
                "devices of the runs on Kafka"),
            .flag("quick", "the smallest sizes: to see that every measurement works"),
            .path("json", "FILE", "write the figures there"),
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
            "processor", "worker", "changes", "restart", "replay", "waves", "telemetry",
            "provision", "rollout", "coldstart", "return", "updates", "kafka",
        ]
        let names = arguments.operands.isEmpty ? all : arguments.operands
        for name in names where !all.contains(name) {
            throw UsageError("unknown measurement \"\(name)\"")
        }
        let sizes = Sizes(arguments)
        var journal = BenchJournal(
            version: Version.current, started: MachineFacts.now(), machine: MachineFacts.read(),
            devices: sizes.devices, sections: [])
        // Some are made in one go, on one database.
        let ofWorkers = ["worker", "changes", "restart", "replay"]
        for name in all where names.contains(name) {
            if ofWorkers.contains(name), name != ofWorkers.first(where: { names.contains($0) }) {
                continue
            }
            try section(name, into: &journal) {
                try measure(name, names.filter { ofWorkers.contains($0) }, sizes, arguments)
            }
        }
        if let path = arguments.optionalText("json") {
            let encoder = JSONEncoder()
            encoder.outputFormatting = [.sortedKeys, .prettyPrinted, .withoutEscapingSlashes]
            let text = String(decoding: try encoder.encode(journal), as: UTF8.self)
            try FileSystem.write(text + "\n", to: path, mode: 0o644)
        }
        return .done
    }

    /// How large the measurements are.
    private struct Sizes {
        var devices: Int
        var edges: Int
        var agents: Int
        var heartbeats: Int
        var streams: Int
        var connections: Int
        var kafkaDevices: Int
        /// What telemetry's numbers of requests are divided by.
        var telemetryShare = 1

        /// `--quick` counts for what is not given.
        init(_ arguments: Arguments) {
            let isQuick = arguments.flag("quick")
            func size(_ name: String, quick: Int) -> Int {
                isQuick && !arguments.given.contains(name) ? quick : arguments.integer(name)
            }
            devices = size("devices", quick: 1_000)
            edges = size("edges", quick: 10_000)
            agents = size("agents", quick: 100)
            heartbeats = size("heartbeats", quick: 200)
            streams = size("streams", quick: 4)
            connections = arguments.integer("connections")
            kafkaDevices = size("kafka-devices", quick: 1_000)
            if isQuick { telemetryShare = 60 }
        }
    }

    private static func measure(
        _ name: String, _ ofWorkers: [String], _ sizes: Sizes, _ arguments: Arguments
    ) throws {
        switch name {
        case "processor": processor(sizes.devices)
        case "worker", "changes", "restart", "replay":
            for count in [sizes.devices / 100, sizes.devices / 10]
            where count >= 1_000 && name == "worker" {
                try worker(count, ["worker"], connections: sizes.connections)
            }
            try worker(sizes.devices, ofWorkers, connections: sizes.connections)
        case "waves":
            try BenchWaves.run(
                accounts: sizes.edges / 10, edges: sizes.edges, waves: sizes.edges / 50,
                connections: sizes.connections)
        case "telemetry": try telemetry(oneOf: sizes.telemetryShare)
        case "provision": try provision(max(100, sizes.agents / 5))
        case "rollout": try rollout(sizes.agents)
        case "coldstart": try coldstart(sizes.agents, heartbeatsPerSecond: sizes.heartbeats)
        case "return": try comeBack(sizes.agents)
        case "updates": try updates(sizes.streams)
        default:
            try BenchKafka.run(
                arguments, devices: sizes.kafkaDevices, isQuick: arguments.flag("quick"))
        }
    }

    /// Not for people: the process that `BenchCluster` starts.
    static let feeder = "feeder"

    private static func worker(_ devices: Int, _ names: [String], connections: Int) throws {
        say("One worker, embedded log to committed rows: \(devices) devices")
        let before = anonymousBytes()
        let bench = try BenchWorker(
            devices: devices, connections: connections, close: { $0.close() }
        ) {
            try EmbeddedLog(directory: "\($0)/log")
        }
        defer { bench.remove() }
        try bench.feed.append(changing: 0)
        var memory = 0
        let first = try bench.catchUp { memory = $0 - before }
        say(
            "  first heartbeats, a row each: \(rounded(Double(first.rows) / first.wall)) rows a second"
        )
        say("  memory: \(memory / devices) bytes a device, everything counted")
        note(
            "memory a device, \(devices) devices", Double(memory) / Double(devices), "bytes",
            beside: ("what its state needs", 64))
        if names.contains("worker") {
            for _ in 0..<4 { try bench.feed.append(changing: 10) }
            let drained = try bench.drain()
            let spent = try bench.catchUp()
            say(
                "  1 % of records changing a state: \(rounded(spent.perCPUSecond)) heartbeats a"
                    + " CPU-second, \(rounded(Double(spent.records) / spent.wall)) a second;"
                    + " \(rounded(Double(spent.rows))) rows")
            say(
                "  raw drain of the same log: \(rounded(drained)) records a CPU-second;"
                    + " ratio \(ratio(spent.perCPUSecond / drained))")
            note(
                "heartbeats through one worker, \(devices) devices, 1 % changing a state",
                spent.perCPUSecond, "a CPU-second",
                beside: ("raw drain of the same log", drained))
            note(
                "the same by the clock, \(devices) devices",
                Double(spent.records) / spent.wall, "a second")
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
            say(
                "  every record changing a state: \(rounded(rate)) rows a second; best batch upsert of"
                    + " the same rows \(rounded(best)); ratio \(ratio(rate / best))")
            note(
                "rows when every record changes a state, \(devices) devices", rate, "a second",
                beside: ("best batch upsert of the same rows", best))
        }
        if names.contains("restart") {
            let copies = try (0..<3).map { _ in try bench.copyOut() }.sorted()
            let restarts = try (0..<3).map { _ in try bench.restart() }.sorted()
            say(
                "  restart to first commit: \(ratio(restarts[1])) s; COPY of the device table"
                    + " \(ratio(copies[1])) s; ratio \(ratio(restarts[1] / copies[1]))")
            note(
                "restart to first commit, \(devices) devices", restarts[1], "s",
                beside: ("COPY of the device table", copies[1]))
        }
        if names.contains("replay") {
            let live = try bench.catchUp(workers: 1, pipeline: "first-time").perSecond
            let replay = try bench.replay()
            say(
                "  replay: \(rounded(replay.perSecond)) records a second until its tables were in place, its"
                    + " commits held for \(replay.held) ms; the pipeline itself read them at"
                    + " \(rounded(live)); ratio \(ratio(replay.perSecond / live))")
            note(
                "replay, \(devices) devices", replay.perSecond, "records a second",
                beside: ("the pipeline's own first reading", live))
        }
    }

    static func ratio(_ value: Double) -> String {
        let hundredths = Int((value * 100).rounded())
        return "\(hundredths / 100).\(hundredths % 100 < 10 ? "0" : "")\(hundredths % 100)"
    }

    private static func processor(_ devices: Int) {
        say("Tunnel health in memory: decode, apply, drain; one core")
        var smallest: (devices: Int, nanoseconds: Double)?
        for count in [devices / 100, devices / 10, devices] where count >= 1_000 {
            let result = BenchProcessor.measure(devices: count, rounds: 4, changing: 10)
            let line = smallest ?? (count, result.nanosecondsPerRecord)
            smallest = line
            note(
                "tunnel health in memory, \(count) devices", result.nanosecondsPerRecord,
                "ns a record",
                beside: ("a straight line from \(line.devices) devices", line.nanoseconds))
            say(
                "  \(count) devices: \(rounded(result.nanosecondsPerRecord)) ns a record,"
                    + " \(rounded(result.bytesPerDevice)) bytes a device")
        }
    }

    static func rounded(_ value: Double) -> String { String(Int(value.rounded())) }

    /// Memory of this process that is in RAM and belongs to no file: the log's map is not counted.
    static func anonymousBytes() -> Int { MachineFacts.anonymousBytes(of: "self") }
}
