import Bytes
import EventLog
import Foundation
import Pipeline
import Postgres
import Processors
import Schemas
import Sinks
import System

/// What a run of a worker cost.
struct BenchSpent {
    var cpu: Double
    var wall: Double
    var records: Int64
    var rows: Int64
    var perCPUSecond: Double { Double(records) / max(cpu, 1e-9) }
    var perSecond: Double { Double(records) / max(wall, 1e-9) }
}

/// Measures workers on the real thing: a log in, PostgreSQL out.
final class BenchWorker<LogType: EventLog> where LogType.Consumer: SendableMetatype {
    typealias BenchedWorker = Worker<
        LogType.Consumer, LogType.Producer, PostgresSink, TunnelHealth
    >

    let partitions: Int32 = 4

    let devices: Int
    let connections: Int
    let log: LogType
    let producer: LogType.Producer
    let database: PrivateDatabase
    let connection: PostgresConnection
    private let directory: String
    private let closeLog: (LogType) -> Void
    let feed: BenchFeed

    /// - Parameter makeLog: given a folder of its own.
    init(
        devices: Int, connections: Int = PipelineFile.defaultConnections,
        close: @escaping (LogType) -> Void, _ makeLog: (String) throws -> LogType
    ) throws {
        self.devices = devices
        self.connections = connections
        closeLog = close
        directory =
            FileManager.default.temporaryDirectory
            .appendingPathComponent("heartline-bench-\(UUID().uuidString.prefix(8))").path
        try FileManager.default.createDirectory(
            atPath: directory, withIntermediateDirectories: true,
            attributes: [.posixPermissions: 0o711])
        log = try makeLog(directory)
        let count = partitions
        try log.createTopics(
            [.heartbeats, .alerts, .deadLetters].map { TopicSettings($0, partitions: count) })
        producer = try log.makeProducer(ProducerSettings())
        feed = BenchFeed(producer, devices: devices, partitions: count)
        database = try PrivateDatabase.start(directory: "\(directory)/postgres")
        connection = try PostgresConnection(database.url)
        try Migrator.migrate(connection, try Migrations.load())
    }

    func remove() {
        producer.close()
        closeLog(log)
        connection.close()
        database.stop()
        try? FileManager.default.removeItem(atPath: directory)
    }

    // MARK: - The worker

    /// Runs a new worker until everything in the log is committed.
    /// - Parameter grown: told the worker's memory just before it goes.
    func catchUp(_ grown: (Int) -> Void = { _ in }) throws -> BenchSpent {
        let cpu = SystemClock.processCPUNanoseconds()
        let wall = SystemClock.monotonicNanoseconds()
        let running = try Running(self)
        defer { running.stop() }
        var spent = try running.untilCommitted()
        spent.cpu = Double(SystemClock.processCPUNanoseconds() - cpu) / 1e9
        spent.wall = Double(SystemClock.monotonicNanoseconds() - wall) / 1e9
        grown(Bench.anonymousBytes())
        return spent
    }

    /// One worker and its sink, driven by the thread that made it.
    final class Running {
        private let bench: BenchWorker
        private let waker = Waker()
        private let sink: PostgresSink
        private var worker: BenchedWorker

        init(_ bench: BenchWorker) throws {
            self.bench = bench
            sink = bench.makeSink(waker)
            worker = BenchedWorker(
                consumer: try bench.log.makeConsumer(
                    of: .heartbeats, group: "bench", waker: waker),
                producer: bench.producer, store: sink, settings: bench.workerSettings,
                processor: ProcessorSettings(TunnelHealthSettings()), waker: waker,
                now: SystemClock.monotonicMilliseconds())
        }

        /// Goes on until everything that the log has now is committed.
        /// - Returns: what that cost; CPU time is that of the whole process.
        func untilCommitted() throws -> BenchSpent {
            let before = worker.board.current
            let cpu = SystemClock.processCPUNanoseconds()
            let wall = SystemClock.monotonicNanoseconds()
            let ends = try bench.ends()
            while true {
                let wake = worker.step(now: SystemClock.monotonicMilliseconds())
                let status = worker.board.current
                // A database that is slow is what some of this measures; anything else ends it.
                if let fault = status.logFault
                    ?? status.partitions.lazy.compactMap(\.fault).first,
                    !fault.contains("has not answered")
                {
                    throw Failure("the worker: \(fault)")
                }
                let isDone =
                    status.partitions.count == ends.count
                    && status.partitions.allSatisfy {
                        $0.committedOffset >= ends[$0.partition] ?? .max
                    }
                if isDone { break }
                let wait = wake - SystemClock.monotonicMilliseconds()
                if wait > 0 { waker.wait(milliseconds: min(wait, 100)) }
            }
            let after = worker.board.current
            return BenchSpent(
                cpu: Double(SystemClock.processCPUNanoseconds() - cpu) / 1e9,
                wall: Double(SystemClock.monotonicNanoseconds() - wall) / 1e9,
                records: after.records - before.records, rows: after.rows - before.rows)
        }

        func stop() {
            let deadline = SystemClock.monotonicMilliseconds() + 30_000
            worker.stop()
            while !worker.isStopped, SystemClock.monotonicMilliseconds() < deadline {
                _ = worker.step(now: SystemClock.monotonicMilliseconds())
                waker.wait(milliseconds: 20)
            }
            sink.close()
        }
    }

    private func makeSink(
        _ waker: Waker, _ pipeline: String = "tunnel-health"
    ) -> PostgresSink {
        var settings = PostgresSink.Settings(
            address: database.url, pipeline: pipeline, source: .heartbeats,
            tables: TunnelHealth.tables, owner: "bench")
        settings.connections = connections
        return PostgresSink(settings, waker: waker)
    }

    private var workerSettings: WorkerSettings {
        var settings = WorkerSettings(
            pipeline: "tunnel-health",
            outputPartitions: [.alerts: partitions, .deadLetters: partitions])
        settings.ingestSilentAfter = nil
        return settings
    }

    /// What the next record of each partition will get.
    private func ends() throws -> [Int32: Int64] {
        var ends: [Int32: Int64] = [:]
        for partition in 0..<partitions {
            ends[partition] = try log.offsets(of: TopicPartition(.heartbeats, partition)).next
        }
        return ends
    }

    /// Runs several workers of one group until everything in the log is committed, each on a thread of
    /// its own. The time is from the first commit to the last: joining a group is no work.
    ///
    /// - Parameter pipeline: a new one begins where the log begins.
    func catchUp(workers: Int, pipeline: String) throws -> BenchSpent {
        let ends = try ends()
        var start: [Int32: Int64] = [:]
        for partition in 0..<partitions {
            start[partition] =
                try log.offsets(of: TopicPartition(.heartbeats, partition)).earliest
        }
        var settings = workerSettings
        settings.pipeline = pipeline
        let cpu = SystemClock.processCPUNanoseconds()
        let log = log
        let running = (0..<workers).map { _ in
            let waker = Waker()
            let sink = makeSink(waker, pipeline)
            let thread = WorkerThread.start(
                TunnelHealth.self, settings: settings,
                processor: ProcessorSettings(TunnelHealthSettings()), producer: producer,
                store: sink, waker: waker
            ) { () throws(EventLogError) in
                try log.makeConsumer(of: .heartbeats, group: pipeline, waker: waker)
            } failed: { error in
                Terminal.write("\(error)\n", to: .errors)
            }
            return (thread: thread, sink: sink)
        }
        defer {
            for (thread, sink) in running {
                thread.stop(milliseconds: 30_000)
                sink.close()
            }
        }
        var began: UInt64?
        let deadline = SystemClock.monotonicMilliseconds() + 300_000
        while true {
            var committed = start
            for (thread, _) in running {
                let status = thread.board.current
                if let fault = status.partitions.lazy.compactMap(\.fault).first {
                    throw Failure("the worker: \(fault)")
                }
                for partition in status.partitions {
                    committed[partition.partition] = max(
                        committed[partition.partition] ?? 0, partition.committedOffset)
                }
            }
            let now = SystemClock.monotonicNanoseconds()
            if began == nil, committed != start { began = now }
            if ends.allSatisfy({ committed[$0.key] ?? 0 >= $0.value }), let began {
                let statuses = running.map { $0.thread.board.current }
                return BenchSpent(
                    cpu: Double(SystemClock.processCPUNanoseconds() - cpu) / 1e9,
                    wall: Double(now - began) / 1e9,
                    records: ends.reduce(0) { $0 + $1.value - (start[$1.key] ?? 0) },
                    rows: statuses.reduce(0) { $0 + $1.rows })
            }
            guard SystemClock.monotonicMilliseconds() < deadline else {
                throw Failure("measuring \(workers) workers: they do not come to an end")
            }
            usleep(2_000)
        }
    }

    /// The next offset of each partition that is not in the tables yet.
    func storedOffsets() throws -> [Int32: Int64] {
        var offsets: [Int32: Int64] = [:]
        for row in try connection.execute(
            """
            SELECT partition, next_offset FROM heartline.stream_partitions
             WHERE pipeline = 'tunnel-health'
            """)
        { offsets[try row.int4(0)] = try row.int8(1) }
        return offsets
    }

    /// Time until a new worker has restored everything and committed again, in seconds.
    func restart() throws -> Double {
        try feed.appendBeacons()
        return try catchUp().wall
    }

    /// Builds all tables anew from the whole log, as `heartline replay` does.
    /// - Returns: records a second, all of it counted, and for how many milliseconds commits waited.
    func replay() throws -> (perSecond: Double, held: Int64) {
        guard let file = PipelineFile.builtIn.first(where: { $0.name == "tunnel-health" }) else {
            throw Failure("measuring a replay: there is no pipeline tunnel-health")
        }
        let wall = SystemClock.monotonicNanoseconds()
        let report = try Rebuild.run(file, log, from: nil, database: database.url) { _ in }
        let spent = Double(SystemClock.monotonicNanoseconds() - wall) / 1e9
        return (Double(report.records) / spent, report.heldMilliseconds)
    }

    // MARK: - Yardsticks

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

extension BenchWorker where LogType == EmbeddedLog {
    /// Records a CPU-second of reading the topic without looking at it.
    func drain() throws -> Double {
        let cpu = SystemClock.processCPUNanoseconds()
        let count = try log.drain(.heartbeats)
        return Double(count.records) / (Double(SystemClock.processCPUNanoseconds() - cpu) / 1e9)
    }
}
