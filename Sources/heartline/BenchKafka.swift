import EventLog
import Foundation
import Kafka
import Pipeline
import Schemas
import System

/// Measures the pipeline on a Kafka cluster: the one that `--brokers` names, or librdkafka's mock in a
/// process of its own.
enum BenchKafka {
    /// Rounds that are measured as one: every fourth writes the row of every device anew.
    private static let rounds = 8

    /// - Parameter isQuick: only what needs no rebalance.
    static func run(_ arguments: Arguments, devices: Int, isQuick: Bool) throws {
        Bench.say("One worker, Kafka to committed rows: \(devices) devices, 4 partitions")
        let embedded = try onEmbedded(devices)
        Bench.say(
            "  its rate on the embedded log: \(Bench.rounded(embedded.wall)) heartbeats a second,"
                + " \(Bench.rounded(embedded.cpu)) a CPU-second")
        try onKafka(arguments, devices) { try oneWorker($0, $1, embedded) }
        if isQuick { return }
        // The mock has forgotten the beginning of what it got, and a restart would miss that.
        try onKafka(arguments, devices) { cluster, bench in
            for _ in 0..<2 { try cluster.append(changing: 10) }
            try scaling(cluster, bench)
            try pauses(cluster, bench)
        }
    }

    private static func onKafka(
        _ arguments: Arguments, _ devices: Int,
        _ body: (BenchCluster, BenchWorker<KafkaLog>) throws -> Void
    ) throws {
        let cluster = try BenchCluster(arguments, devices: devices)
        defer { cluster.stop() }
        let bench = try BenchWorker(devices: devices, close: { $0.close() }) { _ in
            try cluster.makeLog()
        }
        defer { bench.remove() }
        try body(cluster, bench)
    }

    private static func oneWorker(
        _ cluster: BenchCluster, _ bench: BenchWorker<KafkaLog>,
        _ embedded: (wall: Double, cpu: Double)
    ) throws {
        let devices = bench.devices
        let rate = try steady(bench) { try cluster.append(changing: $0) }
        try cluster.append(changing: 10)
        let drain = try cluster.drain(records: devices)
        Bench.say(
            "  1 % of records changing a state: \(Bench.rounded(rate.wall)) heartbeats a second, ratio to"
                + " the embedded log \(Bench.ratio(rate.wall / embedded.wall));"
                + " \(Bench.rounded(rate.cpu)) a CPU-second of this process with librdkafka's threads,"
                + " ratio \(Bench.ratio(rate.cpu / embedded.cpu))")
        Bench.note(
            "heartbeats through one worker from Kafka, \(devices) devices", rate.cpu,
            "a CPU-second", beside: ("the same from the embedded log", embedded.cpu))
        Bench.say(
            "  raw librdkafka drain of the same topic: \(Bench.rounded(drain)) records a CPU-second;"
                + " ratio \(Bench.ratio(rate.cpu / drain))")
        Bench.note(
            "the same", rate.cpu, "a CPU-second",
            beside: ("raw librdkafka drain of the same topic", drain))
    }

    static func median(_ values: [Double]) -> Double { values.sorted()[values.count / 2] }

    private static func onEmbedded(_ devices: Int) throws -> (wall: Double, cpu: Double) {
        let bench = try BenchWorker(devices: devices, close: { $0.close() }) {
            try EmbeddedLog(directory: "\($0)/log")
        }
        defer { bench.remove() }
        return try steady(bench) { try bench.feed.append(changing: $0) }
    }

    /// Heartbeats a second and a CPU-second of a worker that goes on: the log is filled by a round, and the worker
    /// takes it from there to committed rows.
    private static func steady<LogType: EventLog>(
        _ bench: BenchWorker<LogType>, _ append: (Int) throws -> Void
    ) throws -> (wall: Double, cpu: Double) {
        let isFilledElsewhere = LogType.self == KafkaLog.self
        try append(0)
        let running = try BenchWorker<LogType>.Running(bench)
        defer { running.stop() }
        _ = try running.untilCommitted()
        var (walls, rates): ([Double], [Double]) = ([], [])
        for _ in 0..<3 {
            var (wall, cpu, records) = (0.0, 0.0, 0.0)
            for _ in 0..<rounds {
                let before = SystemClock.processCPUNanoseconds()
                try append(10)
                // What librdkafka fetches meanwhile is work too.
                if isFilledElsewhere {
                    cpu += Double(SystemClock.processCPUNanoseconds() - before) / 1e9
                }
                let spent = try running.untilCommitted()
                wall += spent.wall
                cpu += spent.cpu
                records += Double(spent.records)
            }
            walls.append(records / wall)
            rates.append(records / cpu)
        }
        return (median(walls), median(rates))
    }

    // MARK: - Two workers

    private static func scaling(
        _ cluster: BenchCluster, _ bench: BenchWorker<KafkaLog>
    ) throws {
        var spent: [[BenchSpent]] = [[], []]
        // The first one makes the rows.
        for round in 0...3 {
            for workers in 1...2 {
                let run = try bench.catchUp(
                    workers: workers, pipeline: "scaling-\(round)-\(workers)")
                if round > 0 { spent[workers - 1].append(run) }
            }
        }
        let wall = spent.map { median($0.map(\.perSecond)) }
        let cpu = spent.map { median($0.map(\.perCPUSecond)) }
        let cores = ProcessInfo.processInfo.activeProcessorCount
        Bench.say(
            "  two workers beside one, from their start on: \(Bench.rounded(wall[1])) and"
                + " \(Bench.rounded(wall[0])) heartbeats a second, ratio"
                + " \(Bench.ratio(wall[1] / wall[0])); a CPU-second \(Bench.rounded(cpu[1])) and"
                + " \(Bench.rounded(cpu[0])): with cores enough"
                + " \(Bench.ratio(2 * cpu[1] / cpu[0])) times as much")
        Bench.note(
            "two workers, by their CPU time", 2 * cpu[1], "a CPU-second of each",
            beside: ("one worker", cpu[0]))
        Bench.note("two workers, by the clock", wall[1], "a second", beside: ("one", wall[0]))
        if cores < 6 {
            Bench.say(
                "    the limit here are the \(cores) cores, which broker, database and workers share"
            )
        }
    }

    // MARK: - Rebalances

    /// The longest time for which a partition stood still while a worker joined, left or was killed:
    /// real processes, watched in the database.
    private static func pauses(_ cluster: BenchCluster, _ bench: BenchWorker<KafkaLog>) throws {
        let watch = try BenchRebalance(cluster, bench)
        defer { watch.stop() }
        let first = try watch.startWorker()
        try watch.waitUntilMoving(seconds: 60)
        let steady = try watch.longestStandstill(seconds: 5)
        let second = try watch.startWorker()
        let joined = try watch.longestStandstill(seconds: 15)
        second.send(signal: SIGTERM)
        let left = try watch.longestStandstill(seconds: 12)
        _ = second.wait()
        let third = try watch.startWorker()
        try watch.waitUntilShared(seconds: 60)
        third.send(signal: SIGKILL)
        let killed = try watch.longestStandstill(seconds: 20)
        _ = third.wait()
        first.send(signal: SIGTERM)
        _ = first.wait()
        Bench.say(
            "  longest standstill of a partition: steady \(seconds(steady)), a worker joins"
                + " \(seconds(joined)), leaves \(seconds(left)), is killed \(seconds(killed))"
                + " (session.timeout.ms \(seconds(cluster.sessionMilliseconds)))")
    }

    private static func seconds(_ milliseconds: Int64) -> String {
        "\(Bench.ratio(Double(milliseconds) / 1_000)) s"
    }
}
