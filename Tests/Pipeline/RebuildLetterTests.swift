import Bytes
import EventLog
import Pipeline
import Postgres
import Processors
import Schemas
import Simulation
import System
import TestSupport
import Testing

/// What a rebuild and a replay of dead letters leave to each other, and what a rebuild has no business with.
@Suite struct RebuildLetterTests {
    private typealias Rig = RebuildRig<TelemetryRollup>

    private static let start = SystemClock.wallMilliseconds() - 600_000

    private static func line(_ number: Int) -> SimulatedRecord {
        var event = TelemetryEvent(
            device: DeviceID(high: 7, low: UInt64(number)),
            origin: EventOrigin(boot: 3, counter: UInt64(number)))
        let time = EventTime(milliseconds: start + Int64(number) * 1_000)
        event.addLogLine(
            level: ByteBuffer("info".utf8).span, tag: ByteBuffer("wg".utf8).span,
            ByteBuffer("line \(number)".utf8).span, at: time)
        var value = ByteBuffer()
        value.append(event)
        return SimulatedRecord(
            key: ByteBuffer("\(event.device)".utf8), value: value, timestamp: time)
    }

    /// A pipeline that has processed six records, but for two that its release could not read.
    private static func rigWithLetters() throws -> (rig: Rig, whole: [String: [String]]) {
        let rig = try Rig()
        try rig.append([[line(0), line(2), line(4)], [line(1), line(3), line(5)]])
        try rig.run()
        let whole = try rig.contents(of: ["agent_logs"])
        try rig.connection.run(
            "DELETE FROM heartline.agent_logs WHERE message IN ('line 2', 'line 3')")
        var batch = RecordBatch(.deadLetters)
        for (partition, number) in [(0, 2), (1, 3)] {
            let record = line(number)
            var json = ByteBuffer()
            DeadLetter(
                topic: .telemetry, partition: Int32(partition), offset: 1,
                reason: "decoding the record: version"
            ).append(to: &json, key: record.key.span, value: record.value.span)
            var headers = RecordHeaders()
            headers.append("outbox", ByteBuffer("telemetry-rollup/\(partition)/1".utf8).span)
            batch.append(
                partition: Int32(partition), timestamp: record.timestamp, key: record.key.span,
                value: json.span, headers: headers)
        }
        try rig.log.store(batch)
        return (rig, whole)
    }

    private func replay(_ rig: Rig) throws -> [DeadLetterReplay.Outcome] {
        var reader = DeadLetterReader()
        var letters: [StoredDeadLetter] = []
        try reader.letters(in: rig.log, .init()) { letters.append($0) }
        let outcomes = try DeadLetterReplay(
            rig.connection, actor: "tests",
            now: EventTime(milliseconds: SystemClock.wallMilliseconds()), isAsNew: false,
            pipelines: PipelineFile.builtIn
        ).replay(letters)
        try rig.publish()
        try rig.run()
        return outcomes
    }

    @Test(arguments: [false, true])
    func aDeadLetterIsProcessedOnceWhoeverComesFirst(isReplayedFirst: Bool) throws {
        let (rig, whole) = try Self.rigWithLetters()
        if isReplayedFirst {
            #expect(try replay(rig) == [.published, .published])
            try expectSame(whole, rig.contents(of: ["agent_logs"]))
        }
        try rig.rebuild()
        try expectSame(whole, rig.contents(of: ["agent_logs"]))
        #expect(try replay(rig) == [.known, .known])
        try rig.rebuild()
        try expectSame(whole, rig.contents(of: ["agent_logs"]))
        let outcome = isReplayedFirst ? "published" : "rebuilt"
        #expect(
            try DeadLetterReplay.replayed(rig.connection).values.sorted() == [outcome, outcome])
    }

    @Test func aLetterThatWaitsToBePublishedIsOneToo() throws {
        let rig = try Rig()
        try rig.append([[Self.line(0), Self.line(2)], []])
        try rig.run()
        let whole = try rig.contents(of: ["agent_logs"])
        try rig.connection.run("DELETE FROM heartline.agent_logs WHERE message = 'line 2'")
        let record = Self.line(2)
        var json = ByteBuffer()
        DeadLetter(
            topic: .telemetry, partition: 0, offset: 1, reason: "decoding the record: version"
        )
        .append(to: &json, key: record.key.span, value: record.value.span)
        try rig.connection.execute(
            """
            INSERT INTO heartline.outbox (source, partition, sequence, topic, key, value, record_time)
            VALUES ('telemetry-rollup', 0, 1, 'dead-letters', '', $1, now())
            """, .bytea(json))
        try rig.rebuild()
        try expectSame(whole, rig.contents(of: ["agent_logs"]))
        #expect(try DeadLetterReplay.replayed(rig.connection).values.map { $0 } == ["rebuilt"])
    }

    @Test func aReplayedRecordWhoseLetterIsGoneIsNotProcessedAgain() throws {
        let (rig, whole) = try Self.rigWithLetters()
        #expect(try replay(rig) == [.published, .published])
        // As if the letters had never been in the log: they are forgotten before the records.
        try rig.connection.run(
            "UPDATE heartline.dead_letter_replays SET record_offset = 2 WHERE partition = 0")
        try rig.connection.run("DELETE FROM heartline.agent_logs WHERE message = 'line 4'")
        try rig.rebuild()
        // Of partition 0 the record at offset 2 is passed over now; the letter of offset 1 waited.
        let messages = try rig.connection.execute(
            "SELECT message FROM heartline.agent_logs WHERE partition = 0 ORDER BY ts"
        ).map { try $0.text(0) }
        #expect(messages.filter { $0 == "line 4" }.isEmpty)
        #expect(whole["agent_logs"]?.count == 6)
    }

    @Test func aDeadLetterFromBeforeTheRebuiltTimeGoesOnWaiting() throws {
        let (rig, whole) = try Self.rigWithLetters()
        try rig.rebuild(from: Self.line(4).timestamp)
        #expect(try rig.count("SELECT count(*) FROM heartline.agent_logs") == 4)
        #expect(try replay(rig) == [.published, .published])
        try expectSame(whole, rig.contents(of: ["agent_logs"]))
    }

    @Test func aLetterThatIsReplayedMeanwhileRefusesTheRebuild() throws {
        let (rig, _) = try Self.rigWithLetters()
        let before = try rig.contents()
        // The mark of one that has not committed yet when the letters are looked at.
        let (url, isMarked) = (rig.database.url, Waker())
        let committer = SystemThread.start("other") {
            do {
                let other = try PostgresConnection(url)
                try other.run(
                    """
                    BEGIN; INSERT INTO heartline.dead_letter_replays
                        (pipeline, topic, partition, record_offset, outcome, replayed_by)
                    VALUES ('telemetry-rollup', 'telemetry', 0, 1, 'published', 'other')
                    """)
                isMarked.signal()
                let observer = try PostgresConnection(url)
                let pause = Waker()
                while try observer.execute(
                    "SELECT count(*) FROM pg_locks WHERE NOT granted"
                ).only().int8(0) == 0 { pause.wait(milliseconds: 5) }
                try other.run("COMMIT")
            } catch { Issue.record(error) }
        }
        isMarked.wait(milliseconds: 30_000)
        #expect {
            try rig.rebuild()
        } throws: { "\($0)".contains("were replayed in this moment; try again") }
        committer.join()
        try expectSame(before, rig.contents())
    }

    @Test func whatIsOlderThanTheLogStays() throws {
        let rig = try Rig()
        try rig.append([[Self.line(0), Self.line(2)], [Self.line(1)]])
        try rig.run()
        func insert(_ message: String, _ age: String) throws {
            try rig.connection.run(
                """
                INSERT INTO heartline.agent_logs
                    (device_id, partition, received_at, ts, level, tag, message)
                VALUES (gen_random_uuid(), 0, now() - interval '\(age)', now(), 'info', '', '\(message)')
                """)
        }
        // Of a log that was lost, and of nothing at all.
        try insert("before the log", "10 days")
        try insert("never said", "9 minutes")
        try rig.rebuild()
        let messages = try rig.connection.execute(
            "SELECT message FROM heartline.agent_logs ORDER BY received_at"
        ).map { try $0.text(0) }
        #expect(messages == ["before the log", "line 0", "line 1", "line 2"])
    }

    @Test func aPipelineWithoutRecordsLosesNothing() throws {
        let rig = try Rig()
        try rig.append([[Self.line(0)], []])
        try rig.run()
        try rig.connection.run(
            """
            UPDATE heartline.stream_partitions SET start_offset = next_offset;
            DELETE FROM heartline.base_snapshots
            """)
        try rig.rebuild()
        #expect(try rig.count("SELECT count(*) FROM heartline.agent_logs") == 1)
    }
}

/// Alerts that come after a rebuild.
@Suite struct RebuildAlertTests {
    private typealias Rig = RebuildRig<TunnelHealth>

    private func opened(_ rig: Rig) throws -> Int {
        var count = 0
        try LogScan.scan(rig.log, .alerts) { _, _, value in
            let text = value.bytes.text
            if text.contains("\"type\":\"opened\""), !text.contains("front-end-lost") { count += 1 }
        }
        return count
    }

    @Test func noAlertIsTakenForOneThatTheRebuiltStateHasForgotten() throws {
        var settings = TunnelHealthSettings()
        settings.refresh = 0
        let rig = try Rig(
            PipelineFile(builtIn: .tunnelHealth(settings)), ProcessorSettings(settings))
        var records = TunnelHealthRecords(seed: 21)
        let all = records.make(partitions: 2, seconds: 12_000)
        let rows = """
            SELECT count(*) FROM heartline.alerts
             WHERE kind IN ('offline', 'stale', 'down', 'flapping')
            """
        try rig.append(all.map { Array($0.prefix($0.count / 2)) })
        try rig.run()
        let before = try opened(rig)
        #expect(try rig.count(rows) == Int64(before) && before > 20)
        let ended = try rig.connection.execute(
            """
            SELECT alert_id::text || resolved_at FROM heartline.alerts
             WHERE resolved_at IS NOT NULL AND device_id IS NOT NULL ORDER BY 1
            """
        ).map { try $0.text(0) }

        // By these settings hardly anything was ever wrong.
        var calm = settings
        calm.offlineAfter = 3_600_000
        calm.staleAfter = 86_400_000
        calm.downAfter = 100
        calm.flappingTransitions = 0
        _ = try Rebuild.run(
            PipelineFile(builtIn: .tunnelHealth(calm)), rig.log, from: nil,
            database: rig.database.url
        ) { _ in }
        try rig.append(all.map { Array($0.dropFirst($0.count / 2)) })
        try rig.run()
        let after = try opened(rig)
        #expect(after > before + 5)
        #expect(try rig.count(rows) == Int64(after))
        // What was over before the rebuild is over since then.
        let still = try rig.connection.execute(
            """
            SELECT alert_id::text || resolved_at FROM heartline.alerts
             WHERE resolved_at IS NOT NULL AND device_id IS NOT NULL ORDER BY 1
            """
        ).map { try $0.text(0) }
        #expect(Set(ended).isSubset(of: Set(still)))
    }
}
