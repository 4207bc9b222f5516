import Bytes
import EventLog
import Foundation
import Pipeline
import Postgres
import Schemas
import Simulation
import System
import TestSupport
import Testing

extension FaultTests {
    /// `heartline replay` and `heartline dead-letters`, killed wherever they are.
    @Suite struct ReplayTests {
        static let rollup = """
            name: telemetry-rollup
            source: { topic: telemetry }
            processor: { telemetry-rollup: {} }
            sinks: [ { postgres: { tables: [telemetry_minutes, agent_logs] } } ]

            """

        private static func append(
            _ records: [[SimulatedRecord]], to topic: Topic, of data: String
        ) throws {
            let log = try EmbeddedLog(of: data)
            defer { log.close() }
            let producer = try log.makeProducer(ProducerSettings())
            defer { producer.close() }
            // The records' own times would be too old for the topic.
            let shift =
                SystemClock.wallMilliseconds() - 60_000
                - (records.joined().map(\.timestamp.milliseconds).max() ?? 0)
            var batch = RecordBatch(topic)
            for (partition, list) in records.enumerated() {
                for record in list {
                    batch.append(
                        partition: Int32(partition),
                        timestamp: EventTime(
                            milliseconds: record.timestamp.milliseconds + shift),
                        key: record.key.span, value: record.value.span, headers: record.headers)
                }
            }
            #expect(producer.send(batch, receipt: nil) == .accepted)
            #expect(producer.flush(milliseconds: 60_000))
        }

        private static func next(
            _ connection: PostgresConnection, _ pipeline: String
        ) throws -> Int64 {
            try connection.number(
                """
                SELECT COALESCE(sum(next_offset), 0)::int8 FROM heartline.stream_partitions
                 WHERE pipeline = '\(pipeline)'
                """)
        }

        private static func digest(_ connection: PostgresConnection) throws -> String {
            try connection.execute(
                """
                SELECT md5(string_agg(line, ' ' ORDER BY line)) FROM (
                    SELECT t::text AS line FROM heartline.device_status t
                    UNION ALL SELECT t::text FROM heartline.device_state_ended t
                    UNION ALL SELECT t::text FROM heartline.fleet_minutes_by_partition t) lines
                """
            ).only().text(0)
        }

        @Test(
            "heartline replay, killed at any moment: all of the old or all of the new",
            .timeLimit(.minutes(15)))
        func killedReplay() async throws {
            let installation = try await SplitInstallation(settings: "refresh: 0s")
            let connection = try installation.connect()
            defer { connection.close() }
            var records = TunnelHealthRecords(seed: 11)
            let made = records.make(partitions: 2, seconds: 20_000)
            let total = Int64(made.joined().count)
            try Self.append(made, to: .heartbeats, of: installation.data)
            let process = try await installation.startPipelines()
            try #require(
                await holds(within: 120) {
                    try Self.next(connection, "tunnel-health") == total
                }, "\(process.errors())")
            process.send(SIGTERM)
            #expect(await process.waitForEnd() == 0)
            let whole = try Self.digest(connection)
            try connection.run(
                """
                DELETE FROM heartline.fleet_minutes_by_partition;
                UPDATE heartline.device_status SET reason = 'wrong'
                """)
            let damaged = try Self.digest(connection)
            #expect(whole != damaged)

            let words = [
                "replay", "--pipeline", "tunnel-health", "--pipelines", installation.pipelines,
            ]
            let shadow = "\"heartline_replay_tunnel-health\""
            func isThere(_ table: String) throws -> Bool {
                try connection.number(
                    "SELECT count(*) FROM pg_class WHERE oid = to_regclass('\(shadow).\(table)')")
                    == 1
            }
            /// What is stored of the rebuild; 0 once its tables are gone again.
            func rebuilt() -> Int64 {
                (try? connection.number(
                    "SELECT COALESCE(sum(next_offset), 0)::int8 FROM \(shadow).stream_partitions"))
                    ?? 0
            }
            // What has happened when it is killed.
            let moments: [() throws -> Bool] = [
                { try isThere("stream_partitions") }, { try isThere("device_status") },
                { rebuilt() > total / 10 }, { rebuilt() == total },
            ]
            for (index, moment) in moments.enumerated() {
                let replay = try installation.start(words)
                let hasCome = try await holds(within: 120) { try replay.hasEnded || moment() }
                #expect(hasCome)
                replay.send(SIGKILL)
                _ = await replay.waitForEnd()
                let found = try Self.digest(connection)
                #expect(found == damaged || found == whole, "moment \(index)")
                if found == whole {
                    // It was faster than we.
                    try connection.run("UPDATE heartline.device_status SET reason = 'wrong'")
                    try connection.run("DELETE FROM heartline.fleet_minutes_by_partition")
                }
            }
            // In the middle of its last transaction: a lock of ours keeps it there.
            let blocker = try installation.connect()
            defer { blocker.close() }
            for table in ["device_status", "stream_partitions", "snapshots"] {
                try blocker.run("BEGIN; LOCK TABLE heartline.\(table) IN SHARE MODE")
                let replay = try installation.start(words)
                let waits = try await holds(within: 120) {
                    try replay.hasEnded
                        || connection.number(
                            """
                            SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
                             WHERE NOT l.granted AND a.application_name = 'heartline replay tunnel-health'
                            """) > 0
                }
                #expect(waits && !replay.hasEnded, "\(table): \(replay.errors())")
                replay.send(SIGKILL)
                _ = await replay.waitForEnd()
                try blocker.run("ROLLBACK")
                #expect(try Self.digest(connection) == damaged, "\(table)")
            }
            let outcome = try await installation.run(words)
            #expect(outcome.status == 0, "\(outcome.errors)")
            #expect(outcome.output.contains("device_status"))
            #expect(try Self.digest(connection) == whole)
            #expect(
                try connection.number(
                    "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'heartline\\_replay%'")
                    == 0)
            // The pipeline goes on from the rebuilt state.
            let again = try await installation.startPipelines()
            try await Task.sleep(for: .milliseconds(1))
            again.send(SIGTERM)
            #expect(await again.waitForEnd() == 0)
            #expect(try Self.digest(connection) == whole)
        }

        @Test("heartline replay says what it does not do") func refusals() async throws {
            let installation = try await SplitInstallation(settings: "refresh: 0s")
            let words = ["replay", "--pipelines", installation.pipelines, "--pipeline"]
            let unknown = try await installation.run(words + ["tunel-health"])
            #expect(unknown.status == 2)
            #expect(unknown.errors.contains("did you mean tunnel-health?"))
            let never = try await installation.run(words + ["tunnel-health"])
            #expect(never.status == 1)
            #expect(never.errors.contains("it never ran"))
            let time = try await installation.run(words + ["tunnel-health", "--from", "yesterday"])
            #expect(time.status == 2)
        }

        // MARK: - Dead letters

        /// Letters as an older release would have written them, about lines that this one can read.
        static func letters(_ count: Int) -> [SimulatedRecord] {
            (0..<count).map { number in
                var event = TelemetryEvent(
                    device: DeviceID(high: 7, low: UInt64(number)),
                    origin: EventOrigin(boot: 3, counter: UInt64(number)))
                let time = EventTime(milliseconds: 1_790_000_000_000 + Int64(number))
                event.addLogLine(
                    level: ByteBuffer("info".utf8).span, tag: ByteBuffer("wg".utf8).span,
                    ByteBuffer("line \(number)".utf8).span, at: time)
                var value = ByteBuffer()
                value.append(event)
                let key = ByteBuffer("\(event.device)".utf8)
                var json = ByteBuffer()
                DeadLetter(
                    topic: .telemetry, partition: Int32(number % 2),
                    offset: 1_000_000 + Int64(number),
                    reason: "decoding the record: \(number % 3 == 0 ? "one" : "another") fault"
                ).append(to: &json, key: key.span, value: value.span)
                var headers = RecordHeaders()
                headers.append(
                    "outbox", ByteBuffer("telemetry-rollup/\(number % 2)/\(number)".utf8).span)
                return SimulatedRecord(key: key, value: json, timestamp: time, headers: headers)
            }
        }

        @Test("dead letters are listed, shown, and replayed by the instance that publishes them")
        func lettersByCommand() async throws {
            let installation = try await SplitInstallation(settings: "refresh: 0s")
            _ = try installation.folder.write(Self.rollup, to: "pipelines/rollup.yaml")
            let connection = try installation.connect()
            defer { connection.close() }
            try Self.append([Self.letters(30), []], to: .deadLetters, of: installation.data)
            let list = try await installation.run(["dead-letters", "list", "--json"])
            #expect(list.status == 0, "\(list.errors)")
            #expect(list.output.split(separator: "\n").count == 30)
            #expect(list.output.contains("\"pipeline\":\"telemetry-rollup\""))
            #expect(list.output.contains("\"replay\":\"waiting\""))
            let counts = try await installation.run(["dead-letters", "list", "--counts"])
            #expect(counts.output.contains("20        20        telemetry-rollup"))
            #expect(counts.output.contains("10        10        telemetry-rollup"))
            let shown = try await installation.run(["dead-letters", "show", "0:4"])
            #expect(shown.output.contains("line 4"), "\(shown.output) \(shown.errors)")
            #expect(shown.output.contains("telemetry/0 at offset 1000004"))
            #expect(try await installation.run(["dead-letters", "show", "0:400"]).status == 1)
            #expect(try await installation.run(["dead-letters", "replay"]).status == 2)

            let pipelines = ["--pipelines", installation.pipelines]
            let dry = try await installation.run(
                ["dead-letters", "replay", "--all", "--dry-run"] + pipelines)
            #expect(dry.output.contains("30 records would be published again"))
            let some = try await installation.run(
                ["dead-letters", "replay", "--reason", "one fault"] + pipelines)
            #expect(some.status == 0, "\(some.errors)")
            #expect(some.output.contains("10 records published again"))
            #expect(some.output.contains("no instance publishes them now"))
            let front = try await installation.startFrontEnd("front")
            let process = try await installation.startPipelines()
            let all = try await installation.run(["dead-letters", "replay", "--all"] + pipelines)
            #expect(
                all.output.contains("20 records published again"), "\(all.output) \(all.errors)")
            #expect(all.output.contains("10 letters had been replayed before"))
            #expect(all.output.contains("They are in the log again."))
            #expect(
                try await holds(within: 60) {
                    try connection.number("SELECT count(*) FROM heartline.agent_logs") == 30
                })
            let waiting = try await installation.run(["dead-letters", "list", "--waiting"])
            #expect(waiting.output == "no dead letters\n")
            _ = await front.stop()
            process.send(SIGTERM)
            _ = await process.waitForEnd()
        }

        @Test(
            "kill -9 of the command, of what publishes and of what processes: each letter counts once",
            .timeLimit(.minutes(15)))
        func killedLetters() async throws {
            let seed = UInt64.random(in: 0...999_999)
            var random = SplitMix64(seed: seed)
            let installation = try await SplitInstallation(settings: "refresh: 0s")
            _ = try installation.folder.write(Self.rollup, to: "pipelines/rollup.yaml")
            let connection = try installation.connect()
            defer { connection.close() }
            let count = 4_000
            try Self.append([Self.letters(count), []], to: .deadLetters, of: installation.data)
            let words = [
                "dead-letters", "replay", "--all", "--pipelines", installation.pipelines,
            ]
            func replayed() throws -> Int64 {
                try connection.number("SELECT count(*) FROM heartline.dead_letter_replays")
            }
            for _ in 0..<5 {
                let front = try await installation.startFrontEnd("front")
                let process = try await installation.startPipelines()
                let start = try replayed()
                let command = try installation.start(words)
                let goal = start + Int64(random.below(800))
                _ = try await holds(within: 60) { try command.hasEnded || replayed() > goal }
                try await Task.sleep(for: .milliseconds(random.below(20)))
                command.send(SIGKILL)
                front.process.send(SIGKILL)
                process.send(SIGKILL)
                _ = await command.waitForEnd()
                _ = await front.process.waitForEnd()
                _ = await process.waitForEnd()
            }
            let front = try await installation.startFrontEnd("front")
            let process = try await installation.startPipelines()
            let outcome = try await installation.run(words)
            #expect(outcome.status == 0, "seed \(seed): \(outcome.errors)")
            let logs = "SELECT count(*) FROM heartline.agent_logs"
            #expect(
                try await holds(within: 120) { try connection.number(logs) >= Int64(count) },
                "seed \(seed)")
            // Everything that was published is processed.
            let log = try EmbeddedLog(of: installation.data)
            defer { log.close() }
            let published = try log.count(of: .telemetry)
            #expect(
                try await holds(within: 60) {
                    try Self.next(connection, "telemetry-rollup") == published
                })
            #expect(try connection.number(logs) == Int64(count), "seed \(seed)")
            #expect(
                try connection.number("SELECT count(DISTINCT message) FROM heartline.agent_logs")
                    == Int64(count), "seed \(seed)")
            #expect(try replayed() == Int64(count))
            _ = await front.stop()
            process.send(SIGTERM)
            _ = await process.waitForEnd()
        }
    }
}
