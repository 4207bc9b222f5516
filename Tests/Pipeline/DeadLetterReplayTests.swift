import Bytes
import EventLog
import Pipeline
import Postgres
import Processors
import Schemas
import Simulation
import Sinks
import Synchronization
import System
import TestSupport
import Testing

/// Dead letters on a real log and PostgreSQL: read, and processed again exactly once.
@Suite struct DeadLetterReplayTests {
    private typealias Rig = RebuildRig<TelemetryRollup>

    private static func replay(
        _ connection: PostgresConnection, asNew: Bool = true
    ) -> DeadLetterReplay {
        DeadLetterReplay(
            connection, actor: "tests",
            now: EventTime(milliseconds: SystemClock.wallMilliseconds()), isAsNew: asNew,
            pipelines: PipelineFile.builtIn)
    }

    private func letters(
        _ rig: Rig, _ filter: StoredDeadLetter.Filter = .init()
    ) throws -> [StoredDeadLetter] {
        var reader = DeadLetterReader()
        var found: [StoredDeadLetter] = []
        try reader.letters(in: rig.log, filter) { found.append($0) }
        #expect(reader.unreadable == 0)
        return found.sorted { $0.id < $1.id }
    }

    /// A letter of an older release about a line of a log that it could not read, and this one can.
    private func letter(_ number: Int, partition: Int32 = 0) -> StoredDeadLetter {
        var event = TelemetryEvent(
            device: DeviceID(high: 7, low: UInt64(number)),
            origin: EventOrigin(boot: 3, counter: UInt64(number)))
        let time = EventTime(milliseconds: 1_790_000_000_000)
        event.addLogLine(
            level: ByteBuffer("info".utf8).span, tag: ByteBuffer("wg".utf8).span,
            ByteBuffer("line \(number)".utf8).span, at: time)
        var value = ByteBuffer()
        value.append(event)
        return StoredDeadLetter(
            id: StoredDeadLetter.ID(partition: 0, offset: Int64(number)), time: time,
            pipeline: "telemetry-rollup", sequence: Int64(number),
            content: DeadLetterContent(
                letter: DeadLetter(
                    topic: .telemetry, partition: partition, offset: Int64(1_000 + number),
                    reason: "decoding the record: version"),
                subject: .record(key: ByteBuffer("\(event.device)".utf8), value: value)))
    }

    @Test func lettersSayWhatTheyAreAndAreFound() throws {
        let rig = try Rig()
        let broken = (0..<5).map { number in
            SimulatedRecord(
                key: ByteBuffer("k\(number)".utf8), value: ByteBuffer("{\"v\":1 \(number)".utf8),
                timestamp: EventTime(milliseconds: 1_790_000_000_000 + Int64(number) * 1_000))
        }
        try rig.append([broken, []])
        try rig.run()
        let found = try letters(rig)
        #expect(found.count == 5)
        #expect(found.allSatisfy { $0.pipeline == "telemetry-rollup" && !$0.isRow })
        #expect(Set(found.map(\.content.letter.offset)) == [0, 1, 2, 3, 4])
        #expect(Set(found.map(\.time)) == Set(broken.map(\.timestamp)))
        for letter in found {
            guard case .record(let key, let value?) = letter.content.subject else {
                Issue.record("it is about no record")
                continue
            }
            let origin = broken[Int(letter.content.letter.offset)]
            #expect(key.span.text == origin.key.span.text)
            #expect(value.span.text == origin.value.span.text)
        }
        var filter = StoredDeadLetter.Filter()
        filter.since = broken[1].timestamp
        filter.until = broken[3].timestamp
        #expect(try letters(rig, filter).count == 2)
        filter.reason = "no such reason"
        #expect(try letters(rig, filter).isEmpty)
        filter = StoredDeadLetter.Filter()
        filter.ids = [found[2].id]
        filter.pipeline = "telemetry-rollup"
        filter.topic = .telemetry
        filter.reason = "decoding"
        #expect(try letters(rig, filter).map(\.id) == [found[2].id])
        filter.pipeline = "waves"
        #expect(try letters(rig, filter).isEmpty)
    }

    @Test func aLetterThatWasPublishedTwiceIsListedOnce() throws {
        var reader = DeadLetterReader()
        var json = ByteBuffer()
        DeadLetter(topic: .waves, partition: 1, offset: 2, reason: "r").append(
            to: &json, key: ByteBuffer("k".utf8).span, value: ByteBuffer("v".utf8).span)
        func read(_ offset: Int64, _ outbox: String) -> StoredDeadLetter? {
            var headers = RecordHeaders()
            headers.append("outbox", ByteBuffer(outbox.utf8).span)
            let place = RecordPlace(
                partition: 0, offset: offset, timestamp: EventTime(milliseconds: 5))
            return reader.read(
                place,
                RecordValue(json.span, isTombstone: false, headers: headers.bytes.span))
        }
        #expect(read(0, "mutual-waves/1/7")?.sequence == 7)
        #expect(read(1, "mutual-waves/1/7") == nil)
        // Rows have numbers of their own.
        #expect(read(2, "mutual-waves/rejected/1/7")?.pipeline == "mutual-waves")
        #expect(read(3, "mutual-waves/1/8") != nil)
        #expect(read(4, "mutual-waves/2/7") != nil)
        #expect(reader.unreadable == 0)
    }

    @Test func whateverIsRunTwiceIsReplayedOnce() throws {
        let rig = try Rig()
        let all = (0..<50).map { letter($0, partition: Int32($0 % 2)) }
        let replay = Self.replay(rig.connection)
        // A first run that was killed after some of them.
        #expect(
            try replay.replay(Array(all.prefix(20)))
                == [DeadLetterReplay.Outcome](repeating: .published, count: 20))
        #expect(
            try replay.replay(all)
                == [DeadLetterReplay.Outcome](repeating: .known, count: 20)
                + [DeadLetterReplay.Outcome](repeating: .published, count: 30))
        #expect(try DeadLetterReplay.unpublished(rig.connection) == 50)
        // The publisher is killed between the log's acknowledgement and the deletion: it sends again.
        try rig.connection.run("CREATE TABLE copy AS SELECT * FROM heartline.outbox")
        try rig.publish()
        try rig.connection.run("INSERT INTO heartline.outbox SELECT * FROM copy")
        try rig.publish()
        #expect(try rig.log.drain(.telemetry).records == 100)
        // They went to where they came from.
        for partition: Int32 in [0, 1] {
            #expect(try rig.log.offsets(of: TopicPartition(.telemetry, partition)).next == 50)
        }
        try rig.run()
        #expect(try rig.count("SELECT count(*) FROM heartline.agent_logs") == 50)
        #expect(try rig.count("SELECT count(DISTINCT message) FROM heartline.agent_logs") == 50)
        #expect(try replay.replay(all).allSatisfy { $0 == .known })
        #expect(try DeadLetterReplay.replayed(rig.connection).count == 50)
    }

    @Test func twoReplaysAtOnceShareTheLetters() throws {
        let rig = try Rig()
        let all = (0..<400).map { letter($0) }
        let published = Mutex(0)
        let url = rig.database.url
        let threads = (0..<4).map { number in
            SystemThread.start("replay \(number)") {
                do {
                    let replay = Self.replay(try PostgresConnection(url))
                    for start in stride(from: 0, to: all.count, by: 40) {
                        let outcomes = try replay.replay(Array(all[start..<start + 40]))
                        published.withLock { $0 += outcomes.count { $0 == .published } }
                    }
                } catch { Issue.record(error) }
            }
        }
        for thread in threads { thread.join() }
        #expect(published.withLock { $0 } == 400)
        #expect(try DeadLetterReplay.unpublished(rig.connection) == 400)
    }

    @Test func aReplayThatStillCannotBeReadIsANewLetter() throws {
        let rig = try Rig()
        try rig.append([
            [
                SimulatedRecord(
                    key: ByteBuffer("k".utf8), value: ByteBuffer("{".utf8),
                    timestamp: EventTime(milliseconds: 1_790_000_000_000))
            ], [],
        ])
        try rig.run()
        let first = try letters(rig)
        #expect(try Self.replay(rig.connection).replay(first) == [.published])
        try rig.publish()
        try rig.run()
        let both = try letters(rig)
        #expect(Set(both.map(\.content.letter.offset)) == [0, 1])
        #expect(
            try Set(Self.replay(rig.connection).replay(both)) == [.known, .published])
    }

    @Test func whatCannotBeReplayedSaysWhy() throws {
        let rig = try Rig()
        let old = Self.replay(rig.connection, asNew: false)
        #expect(old.obstacle(letter(1))?.contains("--as-new") == true)
        let new = Self.replay(rig.connection)
        #expect(new.obstacle(letter(1)) == nil)
        var nameless = letter(1)
        nameless.pipeline = ""
        #expect(new.obstacle(nameless) != nil)
        var empty = letter(1)
        empty.content.subject = .record(key: ByteBuffer(), value: nil)
        #expect(new.obstacle(empty) != nil)
        let outcomes = try new.replay([nameless, letter(2), empty])
        guard case .refused = outcomes[0], case .refused = outcomes[2] else {
            Issue.record("\(outcomes)")
            return
        }
        #expect(outcomes[1] == .published)
        #expect(try DeadLetterReplay.replayed(rig.connection).count == 1)
    }

    @Test func aRecordOfAPipelineThatDoesNotRunIsRefused() throws {
        let rig = try Rig()
        var strange = letter(1)
        strange.pipeline = "renamed"
        var elsewhere = letter(2)
        elsewhere.pipeline = "tunnel-health"
        let outcomes = try Self.replay(rig.connection).replay([strange, elsewhere])
        guard case .refused(let unknown) = outcomes[0], case .refused(let other) = outcomes[1]
        else {
            Issue.record("\(outcomes)")
            return
        }
        #expect(unknown.contains("pipeline renamed is not known"))
        #expect(other.contains("tunnel-health reads topic heartbeats now"))
        #expect(try DeadLetterReplay.replayed(rig.connection).isEmpty)
        #expect(try DeadLetterReplay.unpublished(rig.connection) == 0)
    }

    // MARK: - Rows

    private func rowLetter(_ sequence: Int64, _ message: String) -> StoredDeadLetter {
        var rows = RowBuffer(.agentLogs)
        rows.beginRow(origin: 5)
        rows.put(DeviceID(high: 1, low: 2))
        rows.put(int4: 0)
        rows.put(EventTime(milliseconds: 1_790_000_000_000))
        rows.put(EventTime(milliseconds: 1_790_000_000_000))
        rows.put(ByteBuffer("info".utf8).span)
        rows.put(ByteBuffer("wg".utf8).span)
        rows.put(ByteBuffer(message.utf8).span)
        return rowLetter(sequence, "agent_logs", rows.bytes)
    }

    private func rowLetter(
        _ sequence: Int64, _ table: String, _ tuple: ByteBuffer,
        pipeline: String = "telemetry-rollup", topic: Topic = .telemetry
    ) -> StoredDeadLetter {
        StoredDeadLetter(
            id: StoredDeadLetter.ID(partition: 0, offset: sequence),
            time: EventTime(milliseconds: 1_790_000_000_000), pipeline: pipeline,
            sequence: sequence,
            content: DeadLetterContent(
                letter: DeadLetter(
                    topic: topic, partition: 0, offset: 5, reason: "writing the row"),
                subject: .row(table: table, tuple: tuple)))
    }

    @Test func aRejectedRowIsWrittenOnceWhenTheDatabaseTakesIt() throws {
        let rig = try Rig()
        try rig.connection.run(
            "ALTER TABLE heartline.agent_logs ADD CONSTRAINT short CHECK (length(message) < 5)")
        let replay = Self.replay(rig.connection)
        // Two rows of one record.
        let both = [rowLetter(1, "too long"), rowLetter(2, "too long")]
        let refused = try replay.replay(both)
        for outcome in refused {
            guard case .refused(let reason) = outcome, reason.contains("short") else {
                Issue.record("\(outcome)")
                continue
            }
        }
        #expect(try DeadLetterReplay.replayed(rig.connection).isEmpty)
        try rig.connection.run("ALTER TABLE heartline.agent_logs DROP CONSTRAINT short")
        #expect(try replay.replay(both) == [.written, .written])
        #expect(try replay.replay(both) == [.known, .known])
        #expect(try rig.count("SELECT count(*) FROM heartline.agent_logs") == 2)
    }

    @Test func aRowThatARebuildHasWrittenIsNotWrittenAgain() throws {
        let rig = try Rig()
        let replay = Self.replay(rig.connection)
        #expect(try replay.replay([rowLetter(1, "one")]) == [.written])
        try rig.append([[], []])
        try rig.run()
        // A row that is said twice is there twice, unless a rebuild has written what was rejected.
        #expect(try replay.replay([rowLetter(2, "one")]) == [.written])
        try rig.connection.run(
            """
            INSERT INTO heartline.stream_partitions
                (pipeline, partition, epoch, next_offset, start_offset, topic, rebuilt_at)
            VALUES ('telemetry-rollup', 99, 0, 0, 0, 'telemetry', now())
            """)
        #expect(
            try replay.replay([rowLetter(3, "one"), rowLetter(4, "two")]) == [.kept, .written])
        #expect(try rig.count("SELECT count(*) FROM heartline.agent_logs") == 3)
    }

    @Test func aRowThatIsNotOneOfThePipelinesIsRefused() throws {
        let rig = try Rig()
        let replay = Self.replay(rig.connection)
        for letter in [
            rowLetter(1, "devices", ByteBuffer([0, 0])),
            rowLetter(2, "agent_logs", ByteBuffer([0, 1, 0, 0, 0, 9, 1])),
            rowLetter(3, "agent_logs", ByteBuffer()),
            rowLetter(4, "agent_logs", ByteBuffer([0, 7]), pipeline: "unknown"),
        ] {
            guard case .refused = try replay.replay([letter])[0] else {
                Issue.record("letter \(letter.id) was not refused")
                continue
            }
        }
        #expect(try DeadLetterReplay.replayed(rig.connection).isEmpty)
    }

    @Test func aLateRowNeverReplacesANewerOne() throws {
        let rig = try Rig()
        let replay = DeadLetterReplay(
            rig.connection, actor: "tests", now: EventTime(milliseconds: 0), isAsNew: false,
            pipelines: PipelineFile.builtIn)
        var rows = RowBuffer(.rollout)
        rows.beginRow(origin: 5)
        rows.put(ByteBuffer("source".utf8).span)
        rows.put(ByteBuffer("1.0".utf8).span)
        rows.put(int4: 0)
        for number: Int64 in 1...5 { rows.put(int8: number) }
        func letter(_ sequence: Int64) -> StoredDeadLetter {
            rowLetter(
                sequence, "rollout_by_partition", rows.bytes, pipeline: "update-rollout",
                topic: .updates)
        }
        #expect(try replay.replay([letter(1)]) == [.written])
        try rig.connection.run("UPDATE heartline.rollout_by_partition SET installed = 99")
        #expect(try replay.replay([letter(2)]) == [.kept])
        #expect(try rig.count("SELECT installed FROM heartline.rollout_by_partition") == 99)
    }
}
