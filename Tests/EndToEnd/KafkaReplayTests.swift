import Bytes
import EventLog
import Foundation
import Kafka
import Postgres
import Schemas
import Simulation
import System
import TestSupport
import Testing

extension KafkaRolesTests {
    @Test(
        "dead letters and replays work on a cluster as they do on the embedded log, beside workers that run",
        .timeLimit(.minutes(5)))
    func replays() async throws {
        let installation = try await Installation()
        try installation.makeTopics(partitions: 2)
        try FileSystem.makeDirectory("\(installation.folder.path)/pipelines", mode: 0o755)
        _ = try installation.folder.write(
            FaultTests.ReplayTests.rollup, to: "pipelines/rollup.yaml")
        let pipelines = ["--pipelines", "\(installation.folder.path)/pipelines"]
        let connection = try installation.database.connect()
        defer { connection.close() }
        func stored() throws -> Int64 {
            try connection.number("SELECT count(*) FROM heartline.agent_logs")
        }

        let log = try installation.mock.makeLog()
        defer { log.close() }
        var batch = RecordBatch(.deadLetters)
        let time = EventTime(milliseconds: SystemClock.wallMilliseconds() - 60_000)
        for (number, letter) in FaultTests.ReplayTests.letters(24).enumerated() {
            batch.append(
                partition: Int32(number % 2), timestamp: time, key: letter.key.span,
                value: letter.value.span, headers: letter.headers)
        }
        try log.store(batch)
        // Without an instance, as on the embedded log.
        let list = try await installation.run(["dead-letters", "list", "--waiting", "--json"])
        #expect(list.status == 0, "\(list.errors)")
        #expect(list.output.split(separator: "\n").count == 24)
        let shown = try await installation.run(["dead-letters", "show", "1:3"])
        #expect(shown.output.contains("telemetry/1 at offset 1000007"), "\(shown.errors)")

        let ingest = try installation.start([
            "ingest", "--partitions", "2", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
        ])
        let process = try installation.start(["process", "--partitions", "2"] + pipelines)
        #expect(
            await holds(within: 120) { ingest.output().contains("/readyz") },
            "\(ingest.errors())")
        for (count, again) in [(24, 0), (0, 24)] {
            let replay = try await installation.run(
                ["dead-letters", "replay", "--all"] + pipelines)
            #expect(replay.status == 0, "\(replay.errors)")
            #expect(
                replay.output.contains("\(count) records published again") == (count > 0)
                    && replay.output.contains("\(again) letters had been replayed before")
                        == (again > 0),
                "\(replay.output)")
        }
        #expect(
            try await holds(within: 60) { try stored() == 24 }, "\(process.errors())")

        // A row is missing, one is wrong, and one is there that should not be.
        let digest =
            "SELECT md5(string_agg(t::text, ' ' ORDER BY t::text)) FROM heartline.agent_logs t"
        let whole = try connection.execute(digest).only().text(0)
        try connection.run(
            """
            INSERT INTO heartline.agent_logs
                (device_id, partition, received_at, ts, level, tag, message)
            SELECT gen_random_uuid(), partition, received_at, ts, level, tag, message
              FROM heartline.agent_logs WHERE message = 'line 3';
            DELETE FROM heartline.agent_logs WHERE message = 'line 4';
            UPDATE heartline.agent_logs SET level = 'error' WHERE message = 'line 5'
            """)
        #expect(try connection.execute(digest).only().text(0) != whole)
        let replay = try await installation.run(
            ["replay", "--pipeline", "telemetry-rollup", "--json"] + pipelines)
        #expect(replay.status == 0, "\(replay.errors)")
        struct Outcome: Decodable {
            struct Table: Decodable, Equatable {
                var name: String
                var written: Int
                var removed: Int
            }
            var tables: [Table]
        }
        let outcome = try JSONDecoder().decode(Outcome.self, from: Data(replay.output.utf8))
        #expect(
            outcome.tables.contains(.init(name: "agent_logs", written: 2, removed: 2)),
            "\(replay.output)")
        #expect(try connection.execute(digest).only().text(0) == whole)

        // The worker was fenced, and goes on behind it.
        let device = DeviceID(high: 7, low: 99)
        var event = TelemetryEvent(device: device, origin: EventOrigin(boot: 9, counter: 1))
        event.addLogLine(
            level: ByteBuffer("info".utf8).span, tag: ByteBuffer("wg".utf8).span,
            ByteBuffer("afterwards".utf8).span,
            at: EventTime(milliseconds: SystemClock.wallMilliseconds()))
        var value = ByteBuffer()
        value.append(event)
        var next = RecordBatch(.telemetry)
        next.append(0, "\(device)", value.span.text)
        try log.store(next)
        #expect(
            try await holds(within: 60) { try stored() == 25 }, "\(process.errors())")
        for running in [ingest, process] {
            running.send(SIGTERM)
            #expect(await running.waitForEnd() == 0, "\(running.errors())")
        }
    }
}
