import Bytes
import EventLog
import Foundation
import Pipeline
import Postgres
import Schemas
import Synchronization
import System

/// Watches in the database how long partitions stand still while workers come and go: `heartline
/// process` in processes of its own, and a fleet that goes on.
final class BenchRebalance {
    private let cluster: BenchCluster
    private let bench: BenchWorker<KafkaLog>
    private let directory: String
    private let isStopping = StopSign()
    private let fleet: SystemThread
    private let executable: String

    private final class StopSign: Sendable {
        let isSet = Atomic(false)
    }

    init(_ cluster: BenchCluster, _ bench: BenchWorker<KafkaLog>) throws {
        self.cluster = cluster
        self.bench = bench
        executable = URL(fileURLWithPath: "/proc/self/exe").resolvingSymlinksInPath().path
        directory =
            FileManager.default.temporaryDirectory.appendingPathComponent(
                "heartline-bench-\(UUID().uuidString.prefix(8))"
            ).path
        try FileSystem.makeDirectory("\(directory)/pipelines", mode: 0o755)
        try (["queued.min.messages=10000"] + cluster.properties).joined(separator: "\n").write(
            toFile: "\(directory)/kafka.properties", atomically: true, encoding: .utf8)
        try """
        name: tunnel-health
        source: { topic: heartbeats }
        processor: { tunnel-health: {} }
        sinks:
          - postgres: { tables: [device_status, device_state_history, fleet_minutes, alerts] }
          - topic: alerts

        """.write(
            toFile: "\(directory)/pipelines/tunnel-health.yaml", atomically: true,
            encoding: .utf8)
        _ = try TopicPlan(bench.connection, wanted: bench.partitions, isKafka: true)
        // What stands in every record but its time; a round of a fleet takes 10 s here.
        let (producer, sign, count) = (bench.producer, isStopping, bench.partitions)
        fleet = SystemThread.start("fleet") {
            var tick = 0
            var (key, value) = (ByteBuffer(), ByteBuffer())
            while !sign.isSet.load(ordering: .relaxed) {
                var batch = RecordBatch(.heartbeats)
                let time = EventTime(milliseconds: SystemClock.wallMilliseconds())
                for index in 0..<100 {
                    let heartbeat = BenchRecords.heartbeat(
                        device: (tick * 100 + index) % 10_000, round: 0, changing: 0, time)
                    key.removeAll()
                    key.append(heartbeat.device)
                    value.removeAll()
                    value.append(heartbeat)
                    batch.append(
                        partition: Partitioner.partition(of: key.span, count: count),
                        timestamp: time, key: key.span, value: value.span)
                }
                _ = producer.send(batch, receipt: nil)
                tick += 1
                usleep(50_000)
            }
        }
    }

    func stop() {
        isStopping.isSet.store(true, ordering: .relaxed)
        fleet.join()
        try? FileManager.default.removeItem(atPath: directory)
    }

    func startWorker() throws -> ChildProcess {
        var settings = ChildProcess.Settings(
            executable,
            [
                "process", "--brokers", cluster.brokers, "--database", bench.database.url,
                "--data", directory, "--pipelines", "\(directory)/pipelines",
                "--kafka-config-file", "\(directory)/kafka.properties", "--log-level", "error",
            ])
        settings.environment["SERVER_SALT"] = "of a measurement alone"
        settings.environment["HEARTLINE_SECRET_KEY"] = String(repeating: "5a", count: 32)
        settings.deathSignal = SIGKILL
        return try ChildProcess.start(settings)
    }

    private func owners() throws -> Set<String> {
        Set(
            try bench.connection.execute(
                "SELECT owner FROM heartline.stream_partitions WHERE pipeline = 'tunnel-health'"
            ).map { try $0.text(0) })
    }

    func waitUntilShared(seconds: Int64) throws {
        try wait(seconds, "two workers share the partitions") { try owners().count == 2 }
    }

    func waitUntilMoving(seconds: Int64) throws {
        let before = try bench.storedOffsets()
        try wait(seconds, "a worker processes every partition") {
            let now = try bench.storedOffsets()
            return now.count == Int(bench.partitions)
                && now.allSatisfy { $0.value > before[$0.key] ?? 0 }
        }
    }

    private func wait(_ seconds: Int64, _ what: String, _ holds: () throws -> Bool) throws {
        let deadline = SystemClock.monotonicMilliseconds() + seconds * 1_000
        while try !holds() {
            guard SystemClock.monotonicMilliseconds() < deadline else {
                throw Failure("measuring a rebalance: waiting until \(what) took over \(seconds) s")
            }
            usleep(20_000)
        }
    }

    /// Milliseconds for which a partition stood still, at most, in the next seconds. Each gets records all
    /// the time.
    func longestStandstill(seconds: Int64) throws -> Int64 {
        let end = SystemClock.monotonicMilliseconds() + seconds * 1_000
        var offsets = try bench.storedOffsets()
        var moved: [Int32: Int64] = [:]
        let start = SystemClock.monotonicMilliseconds()
        for partition in offsets.keys { moved[partition] = start }
        var longest: Int64 = 0
        while true {
            let newest = try bench.storedOffsets()
            let now = SystemClock.monotonicMilliseconds()
            for (partition, offset) in newest {
                longest = max(longest, now - (moved[partition] ?? start))
                if offset != offsets[partition] { moved[partition] = now }
            }
            offsets = newest
            if now >= end { return longest }
            usleep(10_000)
        }
    }
}
