import Bytes
import EventLog
import Foundation
import Pipeline
import Postgres
import Processors
import Schemas
import Simulation
import Sinks
import System
import TestSupport
import Testing

/// A pipeline on a real log and a real database, which runs and is rebuilt.
final class RebuildRig<P: Processor> {
    let database: TestDatabase
    let connection: PostgresConnection
    let log: EmbeddedLog
    let file: PipelineFile
    private let directory: String
    private let producer: EmbeddedProducer
    private let settings: ProcessorSettings<P.Settings>
    private var thread: WorkerThread?
    private var sink: PostgresSink?

    static var partitions: Int32 { 2 }

    init(_ file: PipelineFile, _ settings: ProcessorSettings<P.Settings>) throws {
        self.file = file
        self.settings = settings
        directory = try FileSystem.makeTemporaryDirectory("/tmp/heartline-rebuild-")
        log = try EmbeddedLog(directory: directory)
        database = try TestDatabase.make()
        connection = try database.connect()
        producer = try log.makeProducer(ProducerSettings())
        try keep(bytes: 1 << 30)
    }

    deinit {
        stop()
        producer.close()
        log.close()
        try? FileManager.default.removeItem(atPath: directory)
    }

    /// From here on a topic that is written to keeps so many bytes.
    func keep(bytes: Int64) throws {
        try log.createTopics(
            Topic.allCases.map { topic in
                var settings = TopicSettings(
                    topic, partitions: Self.partitions, retentionBytes: bytes)
                // The records' times are not today's.
                if !topic.isCompacted { settings.retentionMilliseconds = 3_650 * 86_400_000 }
                return settings
            })
    }

    func append(_ records: [[SimulatedRecord]]) throws {
        var batch = RecordBatch(P.source)
        for (partition, list) in records.enumerated() {
            for record in list {
                batch.append(
                    partition: Int32(partition), timestamp: record.timestamp, key: record.key.span,
                    value: record.value.span)
            }
        }
        #expect(producer.send(batch, receipt: nil) == .accepted)
        #expect(producer.flush(milliseconds: 60_000))
    }

    // MARK: - The live pipeline

    func start() {
        let waker = Waker()
        let sink = PostgresSink(
            PostgresSink.Settings(
                address: database.url, pipeline: file.name, source: P.source, tables: P.tables,
                owner: "tests"), waker: waker)
        self.sink = sink
        var settings = WorkerSettings(
            pipeline: file.name,
            outputPartitions: Dictionary(
                uniqueKeysWithValues: P.outputTopics.map { ($0, Self.partitions) }))
        settings.commitInterval = 0
        // Many commits, so that they are cut elsewhere than the rebuild's.
        settings.pollLimit = 37
        let log = log
        thread = WorkerThread.start(
            P.self, settings: settings, processor: self.settings, producer: producer, store: sink,
            waker: waker
        ) { () throws(EventLogError) in
            try log.makeConsumer(of: P.source, group: "tests", waker: waker)
        }
    }

    func stop() {
        thread?.stop(milliseconds: 60_000)
        sink?.close()
        thread = nil
        sink = nil
    }

    /// Waits until all that is in the log is in the tables.
    func catchUp() throws {
        let end = SystemClock.monotonicMilliseconds() + 120_000
        let pause = Waker()
        while try (0..<Self.partitions).contains(where: { partition in
            try log.offsets(of: TopicPartition(P.source, partition)).next != committed(partition)
        }) {
            try #require(
                SystemClock.monotonicMilliseconds() < end, "\(thread?.board.current.faults ?? [])")
            pause.wait(milliseconds: 10)
        }
    }

    private func committed(_ partition: Int32) throws -> Int64 {
        try connection.execute(
            """
            SELECT next_offset FROM heartline.stream_partitions
             WHERE pipeline = $1 AND partition = $2
            """, .text(file.name), .int4(partition)
        ).first.map { try $0.int8(0) } ?? 0
    }

    /// Processes all that is in the log, and stops.
    func run() throws {
        start()
        try catchUp()
        stop()
    }

    /// Publishes what waits in the registry's outbox.
    func publish() throws {
        let outbox = RegistryOutbox(database: database.url, log: log)
        outbox.start()
        defer { outbox.stop() }
        let end = SystemClock.monotonicMilliseconds() + 60_000
        let pause = Waker()
        while try DeadLetterReplay.unpublished(connection) > 0 {
            try #require(SystemClock.monotonicMilliseconds() < end)
            pause.wait(milliseconds: 10)
        }
    }

    @discardableResult
    func rebuild(from: EventTime? = nil) throws -> Rebuild.Report {
        try Rebuild.run(file, log, from: from, database: database.url) { _ in }
    }

    // MARK: - The tables

    /// The rows of the pipeline's tables, as text and sorted; or of some of them.
    func contents(of only: Set<String>? = nil) throws -> [String: [String]] {
        var contents: [String: [String]] = [:]
        for table in P.tables where table.mode != .delete && table.mode != .update {
            if let only, !only.contains(table.name) { continue }
            let columns = table.columns.filter(\.isStored).map { "\"\($0.name)\"" }
            // Of a front-end that is lost either partition may tell first.
            let rows = try connection.execute(
                """
                SELECT ROW(\(columns.joined(separator: ", ")))::text FROM heartline.\(table.name)
                \(table.name == "alerts" ? "WHERE kind <> 'front-end-lost'" : "")
                """)
            contents[table.name] = try rows.map { try $0.text(0) }.sorted()
        }
        return contents
    }

    func count(_ sql: String) throws -> Int64 { try connection.execute(sql).only().int8(0) }

    /// Whether anything of a rebuild is left.
    func leftovers() throws -> Int64 {
        try count("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'heartline\\_replay%'")
    }
}

extension RebuildRig where P == TelemetryRollup {
    convenience init() throws {
        let settings = TelemetryRollupSettings()
        try self.init(
            PipelineFile(builtIn: .telemetryRollup(settings)), ProcessorSettings(settings))
    }
}

/// Tables that are to be the same.
func expectSame(
    _ a: [String: [String]], _ b: [String: [String]],
    sourceLocation: SourceLocation = #_sourceLocation
) {
    let found = differences(a, b)
    #expect(found.isEmpty, "\(found)", sourceLocation: sourceLocation)
}

/// What differs between two contents; empty if nothing does.
func differences(_ a: [String: [String]], _ b: [String: [String]]) -> [String] {
    var found: [String] = []
    for table in Set(a.keys).union(b.keys).sorted() {
        let (mine, others) = (a[table] ?? [], b[table] ?? [])
        if mine == others { continue }
        let difference = others.difference(from: mine)
        found.append("\(table): \(mine.count) and \(others.count) rows; \(difference.prefix(4))")
    }
    return found
}
