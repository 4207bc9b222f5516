import Bytes
import EventLog
import Foundation
import Pipeline
import Postgres
import Processors
import Schemas
import Sinks
import System

/// Measures one worker on the real thing: the embedded log in, PostgreSQL out.
final class BenchWorker {
    typealias BenchedWorker = Worker<
        EmbeddedLog.Consumer, EmbeddedLog.Producer, PostgresSink, TunnelHealth
    >

    struct Spent {
        var cpu: Double
        var wall: Double
        var records: Int64
        var rows: Int64
        var perCPUSecond: Double { Double(records) / max(cpu, 1e-9) }
    }

    static let partitions: Int32 = 4

    let devices: Int
    let log: EmbeddedLog
    let producer: EmbeddedLog.Producer
    let database: PrivateDatabase
    let connection: PostgresConnection
    private let directory: String
    private var round = 0

    /// Whether nobody says "recovering" in the next round.
    var isNextRoundCalm: Bool { round % 2 == 0 }

    init(devices: Int) throws {
        self.devices = devices
        directory =
            FileManager.default.temporaryDirectory
            .appendingPathComponent("heartline-bench-\(UUID().uuidString.prefix(8))").path
        try FileManager.default.createDirectory(
            atPath: directory, withIntermediateDirectories: true,
            attributes: [.posixPermissions: 0o711])
        log = try EmbeddedLog(directory: "\(directory)/log")
        try log.createTopics(
            [.heartbeats, .alerts, .deadLetters].map {
                TopicSettings($0, partitions: Self.partitions)
            })
        producer = try log.makeProducer(ProducerSettings())
        database = try PrivateDatabase.start(directory: "\(directory)/postgres")
        connection = try PostgresConnection(database.url)
        try Migrator.migrate(connection, try Migrations.load())
    }

    func remove() {
        producer.close()
        log.close()
        connection.close()
        database.stop()
        try? FileManager.default.removeItem(atPath: directory)
    }

    // MARK: - Records

    /// Appends a heartbeat of every device, 30 s after the round before, with beacons every 5 s.
    /// - Parameter changing: devices of 1,000 whose state changes with this record.
    func append(changing: Int) throws {
        var value = ByteBuffer()
        var key = ByteBuffer()
        var batch = RecordBatch(.heartbeats)
        var lastBeacon: Int64 = -1
        for device in 0..<devices {
            let at = Int64(round) * 30_000 + Int64(device) * 30_000 / Int64(devices)
            let time = EventTime(milliseconds: BenchRecords.start + at)
            if at / 5_000 != lastBeacon {
                lastBeacon = at / 5_000
                value.removeAll()
                value.append(
                    Beacon(
                        frontEnd: InlineText("bench"),
                        origin: EventOrigin(boot: 1, counter: UInt64(at)),
                        monotonicMilliseconds: at + 1))
                for partition in 0..<Self.partitions {
                    batch.append(
                        partition: partition, timestamp: time, key: key.span, value: value.span)
                }
            }
            let heartbeat = BenchRecords.heartbeat(
                device: device, round: round, changing: changing, time)
            key.removeAll()
            key.append(heartbeat.device)
            value.removeAll()
            value.append(heartbeat)
            batch.append(
                partition: Partitioner.partition(of: key.span, count: Self.partitions),
                timestamp: time, key: key.span, value: value.span)
            if batch.count >= 2_000 || device == devices - 1 {
                while true {
                    let outcome = producer.send(batch, receipt: nil)
                    if case .accepted = outcome { break }
                    guard case .queueFull = outcome else {
                        throw Failure("filling the log: the producer is closed")
                    }
                    usleep(1_000)
                }
                batch = RecordBatch(.heartbeats)
            }
        }
        guard producer.flush(milliseconds: 120_000) else {
            throw Failure("filling the log: it does not store what was sent")
        }
        round += 1
    }

    // MARK: - The worker

    /// Runs a new worker until everything in the log is committed.
    /// - Parameter grown: told the worker's memory just before it goes.
    func catchUp(_ grown: (Int) -> Void = { _ in }) throws -> Spent {
        let waker = Waker()
        let sink = PostgresSink(
            PostgresSink.Settings(
                address: database.url, pipeline: "tunnel-health", source: .heartbeats,
                tables: TunnelHealth.tables, owner: "bench"), waker: waker)
        var settings = WorkerSettings(
            pipeline: "tunnel-health",
            outputPartitions: [.alerts: Self.partitions, .deadLetters: Self.partitions])
        settings.ingestSilentAfter = nil
        let cpu = SystemClock.processCPUNanoseconds()
        let wall = SystemClock.monotonicNanoseconds()
        var worker = BenchedWorker(
            consumer: try log.makeConsumer(of: .heartbeats, group: "bench", waker: waker),
            producer: producer, store: sink, settings: settings,
            processor: ProcessorSettings(TunnelHealthSettings()), waker: waker,
            now: SystemClock.monotonicMilliseconds())
        var ends: [Int32: Int64] = [:]
        for partition in 0..<Self.partitions {
            ends[partition] = try log.offsets(of: TopicPartition(.heartbeats, partition)).next
        }
        while true {
            let wake = worker.step(now: SystemClock.monotonicMilliseconds())
            let status = worker.board.current
            // A database that is slow is what some of this measures; anything else ends it.
            if let fault = status.logFault ?? status.partitions.lazy.compactMap(\.fault).first,
                !fault.contains("has not answered")
            {
                throw Failure("the worker: \(fault)")
            }
            let isDone =
                status.partitions.count == ends.count
                && status.partitions.allSatisfy { $0.committedOffset >= ends[$0.partition] ?? .max }
            if isDone { break }
            let wait = wake - SystemClock.monotonicMilliseconds()
            if wait > 0 { waker.wait(milliseconds: min(wait, 100)) }
        }
        let spent = Spent(
            cpu: Double(SystemClock.processCPUNanoseconds() - cpu) / 1e9,
            wall: Double(SystemClock.monotonicNanoseconds() - wall) / 1e9,
            records: worker.board.current.records, rows: worker.board.current.rows)
        grown(Bench.anonymousBytes())
        let deadline = SystemClock.monotonicMilliseconds() + 30_000
        worker.stop()
        while !worker.isStopped, SystemClock.monotonicMilliseconds() < deadline {
            _ = worker.step(now: SystemClock.monotonicMilliseconds())
            waker.wait(milliseconds: 20)
        }
        sink.close()
        return spent
    }

    /// Time until a new worker has restored everything and committed again, in seconds.
    func restart() throws -> Double {
        try appendBeacons()
        return try catchUp().wall
    }

    private func appendBeacons() throws {
        var value = ByteBuffer()
        var batch = RecordBatch(.heartbeats)
        let at = Int64(round) * 30_000
        value.append(
            Beacon(
                frontEnd: InlineText("bench"), origin: EventOrigin(boot: 1, counter: UInt64(at)),
                monotonicMilliseconds: at + 1))
        for partition in 0..<Self.partitions {
            batch.append(
                partition: partition, timestamp: EventTime(milliseconds: BenchRecords.start + at),
                key: ByteBuffer().span, value: value.span)
        }
        _ = producer.send(batch, receipt: nil)
        guard producer.flush(milliseconds: 10_000) else { throw Failure("writing a beacon") }
    }

    // MARK: - Yardsticks

    /// Records a CPU-second of reading the topic without looking at it.
    func drain() throws -> Double {
        let cpu = SystemClock.processCPUNanoseconds()
        let count = try log.drain(.heartbeats)
        return Double(count.records) / (Double(SystemClock.processCPUNanoseconds() - cpu) / 1e9)
    }

    /// Seconds of a plain `COPY … TO` of the device table.
    func copyOut() throws -> Double {
        let wall = SystemClock.monotonicNanoseconds()
        var bytes = 0
        try connection.copyOut("COPY heartline.device_status TO STDOUT (FORMAT binary)") {
            bytes += $0.count
        }
        return Double(SystemClock.monotonicNanoseconds() - wall) / 1e9
    }

    /// Both tables are measured as vacuum leaves them.
    func vacuum(_ table: String) throws {
        try connection.run("VACUUM ANALYZE heartline.\(table)")
        try connection.run("CHECKPOINT")
    }

    /// Rows a second of the best batch upsert of the same rows: sorted batches of 100,000 devices,
    /// COPY to a temporary table and ON CONFLICT, the ended intervals by COPY.
    func bestUpsert() throws -> Double {
        try connection.run(
            """
            CREATE TABLE heartline.bench_status (LIKE heartline.device_status INCLUDING ALL);
            CREATE TABLE heartline.bench_ended (LIKE heartline.device_state_ended INCLUDING ALL);
            CREATE TEMPORARY TABLE bench_staging (LIKE heartline.device_status);
            INSERT INTO heartline.bench_status SELECT * FROM heartline.device_status;
            INSERT INTO heartline.bench_ended SELECT * FROM heartline.device_state_ended;
            """)
        defer {
            _ = try? connection.run(
                "DROP TABLE heartline.bench_status, heartline.bench_ended, bench_staging")
        }
        try vacuum("bench_status")
        let columns = TableSchema.deviceStatus.columns.map(\.name)
        let assignments = columns.dropFirst().map { "\($0) = excluded.\($0)" }
        var health = TunnelHealth(partition: 0, settings: TunnelHealthSettings())
        var effects = Effects(tables: TunnelHealth.tables)
        var rows = 0
        var spent: UInt64 = 0
        for pass in 0...1 {
            var device = 0
            while device < devices {
                let end = min(devices, device + 100_000)
                for index in device..<end {
                    let time = EventTime(
                        milliseconds: BenchRecords.start + Int64(pass) * 30_000 + Int64(index))
                    let heartbeat = BenchRecords.heartbeat(
                        device: index, round: pass, changing: 1_000, time)
                    health.apply(
                        .heartbeat(heartbeat),
                        at: RecordPlace(partition: 0, offset: 0, timestamp: time), into: &effects)
                }
                health.drain(into: &effects)
                if pass == 1 {
                    let wall = SystemClock.monotonicNanoseconds()
                    try connection.run("BEGIN")
                    try connection.copyIn(
                        "COPY bench_staging (\(columns.joined(separator: ", "))) FROM STDIN (FORMAT binary)",
                        tuples: effects.rows[0].bytes)
                    try connection.run(
                        """
                        INSERT INTO heartline.bench_status (\(columns.joined(separator: ", ")))
                        SELECT \(columns.joined(separator: ", ")) FROM bench_staging
                        ON CONFLICT (device_id) DO UPDATE SET \(assignments.joined(separator: ", "));
                        TRUNCATE bench_staging
                        """)
                    let ended = TableSchema.deviceStateEnded.columns.map(\.name)
                    try connection.copyIn(
                        "COPY heartline.bench_ended (\(ended.joined(separator: ", "))) FROM STDIN (FORMAT binary)",
                        tuples: effects.rows[1].bytes)
                    try connection.run("COMMIT")
                    spent += SystemClock.monotonicNanoseconds() - wall
                    rows += effects.rows[0].count + effects.rows[1].count
                }
                effects.removeAll()
                device = end
            }
        }
        return Double(rows) / (Double(spent) / 1e9)
    }
}
