import Bytes
import EventLog
import Foundation
import Pipeline
import Postgres
import Processors
import Schemas
import System
import Simulation
import TestSupport
import Testing
import Zlib

/// From a device's request to the rows that analysts read.
@Suite("Telemetry end to end", .serialized, .realTime) struct TelemetryTests {
    private static let pipeline = "telemetry-rollup"

    /// The pipeline as it is delivered, beside another.
    private static func folder() throws -> TemporaryFolder {
        let folder = try TemporaryFolder()
        try FileSystem.makeDirectory("\(folder.path)/pipelines", mode: 0o755)
        let root = URL(filePath: #filePath).deletingLastPathComponent()
            .deletingLastPathComponent().deletingLastPathComponent()
        for name in ["tunnel-health", pipeline] {
            let file = root.appending(path: "pipelines/\(name).yaml")
            _ = try folder.write(
                try String(contentsOf: file, encoding: .utf8), to: "pipelines/\(name).yaml")
        }
        return folder
    }

    private static func sample(_ device: DeviceID, _ name: String, _ value: Double) -> String {
        """
        {"device_id":"\(device)","ts":"2026-06-26T09:00:00Z","name":"\(name)","value":\(value)}
        """
    }

    /// Writes a record of a chosen time of receipt, as a front-end would have at that time.
    private static func send(
        _ records: [(partition: Int32, record: SimulatedRecord, time: EventTime)],
        to log: EmbeddedLog
    ) throws {
        let producer = try log.makeProducer(ProducerSettings())
        defer { producer.close() }
        var batch = RecordBatch(.telemetry)
        for (partition, record, time) in records {
            batch.append(
                partition: partition, timestamp: time, key: record.key.span,
                value: record.value.span)
        }
        while true {
            switch producer.send(batch, receipt: nil) {
            case .accepted: break
            case .queueFull: continue
            case .closed: throw Closed()
            }
            break
        }
        #expect(producer.flush(milliseconds: 60_000))
    }

    private struct Closed: Error {}

    private static func texts(_ connection: PostgresConnection, _ sql: String) throws -> [String] {
        try connection.execute(sql).map { try $0.text(0) }
    }

    @Test("What devices send is summed by minute, and their logs are found by their words")
    func fromRequestToRows() async throws {
        let folder = try Self.folder()
        let heartline = try await RunningHeartline(in: folder)
        let devices = try await heartline.addDevices(2)
        let connection = try heartline.connect()
        defer { connection.close() }
        let log = try EmbeddedLog(of: heartline.data)
        defer { log.close() }

        let lines = [
            Self.sample(devices[0], "cpu", 0.5), Self.sample(devices[0], "cpu", 1.5),
            Self.sample(devices[1], "disk", -3), "{broken",
            """
            {"device_id":"\(devices[0])","ts":"2026-06-26T09:00:00Z","level":"WARN","tag":"wireguard",\
            "message":"Handshake did not complete: 'zu' \\u0000 spät"}
            """,
            """
            {"device_id":"\(devices[1])","ts":"2026-06-26T09:00:00Z","level":"info","message":"all is well"}
            """,
        ]
        let body = ByteBuffer(lines.joined(separator: "\r\n").utf8)
        let packed = try Deflate.pack(body.span)
        let response = try heartline.post(
            "/v1/telemetry", packed.bytes, headers: ["Content-Encoding: gzip"])
        #expect(response.status == 200)
        #expect(
            response.text == """
                {"accepted":5,"rejected":1,"errors":[{"line":4,"error":"invalid json"}]}
                """)
        let metrics = """
            {"resourceMetrics":[{"resource":{"attributes":[{"key":"device.id","value":{"stringValue":"\(devices[0])"}}]},
            "scopeMetrics":[{"metrics":[{"name":"latency","histogram":{"dataPoints":[
            {"timeUnixNano":"1790000000000000000","count":"4","sum":2.5,"min":0.5,"max":1}]}}]}]}]}
            """
        #expect(try heartline.post("/v1/metrics", metrics.utf8).text == "{}")

        // Logs are there at once.
        let isThere = try await holds(within: 120) {
            try Self.texts(connection, "SELECT message FROM heartline.agent_logs").count == 2
        }
        #expect(isThere, "\(heartline.process.errors())")
        func found(_ words: String) throws -> [String] {
            try Self.texts(
                connection,
                """
                SELECT concat_ws('|', device_id, level, tag, message) FROM heartline.agent_logs
                 WHERE search @@ websearch_to_tsquery('simple', '\(words)')
                 ORDER BY received_at DESC
                """)
        }
        #expect(
            try found("handshake -well") == [
                "\(devices[0])|warn|wireguard|Handshake did not complete: 'zu' \u{FFFD} spät"
            ])
        #expect(try found("wireguard").count == 1)
        #expect(try found("spät or well").count == 2)
        #expect(try found("nothing").isEmpty)
        let day = try Self.texts(
            connection,
            "SELECT DISTINCT tableoid::regclass::text FROM heartline.agent_logs WHERE message LIKE 'all%'"
        )
        #expect(day.first?.hasPrefix("heartline.agent_logs_2") == true, "\(day)")

        // Minutes when younger records have been read, here of a front-end that is ten minutes ahead.
        let partitions = try #require(try log.partitionCount(of: .telemetry))
        var later: [(partition: Int32, record: SimulatedRecord, time: EventTime)] = []
        for partition in 0..<partitions {
            var event = TelemetryEvent(
                device: DeviceID(high: 1, low: UInt64(partition)),
                origin: EventOrigin(boot: 1, counter: UInt64(partition)))
            event.addSample(
                ByteBuffer("later".utf8).span, 1, at: EventTime(milliseconds: 0))
            var value = ByteBuffer()
            value.append(event)
            let time = EventTime(milliseconds: SystemClock.wallMilliseconds() + 600_000)
            later.append(
                (
                    partition,
                    SimulatedRecord(key: ByteBuffer("later".utf8), value: value, timestamp: time),
                    time
                ))
        }
        try Self.send(later, to: log)
        let sql = """
            SELECT concat_ws('|', device_id, name, samples, sum, min, max, last, late)
              FROM heartline.telemetry_minutes ORDER BY name
            """
        // Both requests may lie in one minute or in two.
        let expected = [
            "\(devices[0])|cpu|2|2|0.5|1.5|1.5|0", "\(devices[1])|disk|1|-3|-3|-3|-3|0",
            "\(devices[0])|latency.count|1|4|4|4|4|0", "\(devices[0])|latency.max|1|1|1|1|1|0",
            "\(devices[0])|latency.min|1|0.5|0.5|0.5|0.5|0",
            "\(devices[0])|latency.sum|1|2.5|2.5|2.5|2.5|0",
        ]
        var rows: [String] = []
        let areSummed = try await holds(within: 120) {
            rows = try Self.texts(connection, sql)
            return rows == expected
        }
        #expect(areSummed, "\(rows)\n\(heartline.process.errors())")
        #expect(try log.count(of: .deadLetters) == 0)
        #expect(await heartline.stop() == 0)
    }

    @Test("kill -9 at any moment: minutes and log lines are those of a clean pass, each once")
    func killed() async throws {
        let seed = UInt64.random(in: 0...999_999)
        var random = SplitMix64(seed: seed)
        let folder = try Self.folder()
        var heartline = try await RunningHeartline(in: folder)
        let partitions: Int32
        do {
            let log = try EmbeddedLog(of: heartline.data)
            defer { log.close() }
            partitions = try #require(try log.partitionCount(of: .telemetry))
        }
        var generator = TelemetryRecords(seed: seed)
        let records = generator.make(partitions: Int(partitions), count: 2_500)
        // What is older than a day is deleted.
        let first = records.joined().map(\.timestamp.milliseconds).min() ?? 0
        let last = records.joined().map(\.timestamp.milliseconds).max() ?? 0
        let span = last - first
        let shift = SystemClock.wallMilliseconds() - min(span, 20 * 3_600_000) - first
        let rounds = 25
        for round in 0..<rounds {
            var batch: [(partition: Int32, record: SimulatedRecord, time: EventTime)] = []
            for (partition, list) in records.enumerated() {
                let share = list.count / rounds
                for record in list[
                    (round * share)..<(round == rounds - 1 ? list.count : (round + 1) * share)]
                {
                    batch.append((Int32(partition), record, record.timestamp + shift))
                }
            }
            let log = try EmbeddedLog(of: heartline.data)
            try Self.send(batch, to: log)
            log.close()
            try await Task.sleep(for: .milliseconds(random.below(400)))
            guard round % 6 == 5 else { continue }
            #expect(!heartline.process.hasEnded, "\(heartline.process.errors())")
            await heartline.kill()
            heartline = try await RunningHeartline(in: folder)
        }
        let log = try EmbeddedLog(of: heartline.data)
        defer { log.close() }
        let connection = try heartline.connect()
        defer { connection.close() }
        var ends: [Int32: Int64] = [:]
        for partition in 0..<partitions {
            ends[partition] = try log.offsets(of: TopicPartition(.telemetry, partition)).next
        }
        let isStored = try await holds(within: 180) {
            var committed: [Int32: Int64] = [:]
            for row in try connection.execute(
                "SELECT partition, next_offset FROM heartline.stream_partitions WHERE pipeline = $1",
                .text(Self.pipeline))
            { committed[try row.int4(0)] = try row.int8(1) }
            return ends.allSatisfy { committed[$0.key, default: -1] >= $0.value }
        }
        #expect(isStored, "\(heartline.process.errors())")
        let calm = try Self.cleanPass(log, ends)
        let tables: [TableSchema] = [.telemetryMinutes, .agentLogs]
        let found = try TableContents(connection, tables)
        let expected = TableContents(calm, tables)
        let difference = found.difference(from: expected)
        #expect(difference == "", "seed \(seed)")
        // The test is worth nothing if little happened.
        #expect(found.count("telemetry_minutes") > 1_000)
        #expect(found.count("agent_logs") > 200)
        let late = try connection.execute(
            "SELECT sum(late)::int8 FROM heartline.telemetry_minutes"
        ).first?.int8(0)
        #expect((late ?? 0) > 0)
        #expect(await heartline.stop() == 0)
    }

    /// What one pass of a new processor over the log makes, without a crash.
    private static func cleanPass(
        _ log: EmbeddedLog, _ ends: [Int32: Int64]
    ) throws -> SimulatedTables {
        var tables = SimulatedTables()
        let decoder = TelemetryDecoder()
        let consumer = try log.makeConsumer(of: .telemetry, group: "clean pass", waker: Waker())
        _ = try consumer.nextAssignmentChange()
        for (partition, end) in ends.sorted(by: { $0.key < $1.key }) {
            try consumer.start(partition, at: 0)
            var processor = TelemetryRollup(
                partition: partition, settings: TelemetryRollupSettings())
            var effects = Effects(tables: TelemetryRollup.tables)
            var position: Int64 = 0
            while position < end {
                let count = try consumer.poll(limit: 10_000) { place, _, value in
                    position = place.offset + 1
                    guard case .event(let event) = decoder.decode(value.bytes) else { return }
                    processor.apply(event, at: place, into: &effects)
                }
                processor.drain(into: &effects)
                tables.write(effects.rows)
                effects.removeAll()
                if count == 0, position < end {
                    throw CleanPass.ShortLog(partition: partition, position: position, end: end)
                }
            }
            consumer.pause(partition)
        }
        return tables
    }
}
