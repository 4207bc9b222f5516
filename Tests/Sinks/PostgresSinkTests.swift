import Bytes
import Postgres
import Schemas
import Sinks
import System
import Simulation
import TestSupport
import Testing

@Suite struct PostgresSinkTests {
    /// 8,192: one statement with arrays; 1: COPY and staging tables.
    @Test(arguments: [8_192, 1])
    func everyModeWritesAsItPromises(copyRows: Int) throws {
        let server = try SinkOnServer(.make(), copyRows: copyRows)
        let claim = try #require(server.claim())
        let first = commit(epoch: claim.epoch, 0, 10) { commit in
            for key in UInt64(1)...3 { commit.keep(key, "a\(key)", last: "old") }
            for number in Int64(1)...3 { commit.log(number, "{\"n\":\(number)}") }
            for key in Int64(1)...3 { commit.first(key, Int32(key)) }
        }
        #expect(server.ask(.commit(first))?.isCommitted == true)
        let second = commit(epoch: claim.epoch, 10, 20) { commit in
            commit.keep(2, "b2")
            commit.keep(3, "b3", last: "new")
            commit.keep(4, "b4")
            commit.log(1, "[]")
            commit.log(2, "[]")
            commit.first(3, 99)
            commit.first(4, 4)
            commit.ended(1)
            commit.ended(4)
            commit.ended(77)
        }
        #expect(server.ask(.commit(second))?.isCommitted == true)
        let rows = try server.database.connect().execute(
            "SELECT name, last FROM heartline.sink_kept ORDER BY key")
        let kept = try rows.map { "\(try $0.text(0)) \(try $0.optionalText(1) ?? "-")" }
        #expect(kept == ["a1 old", "b2 old", "b3 new", "b4 -"])
        #expect(try server.count("sink_log") == 5)
        #expect(try server.query("SELECT sum(value)::int8 FROM heartline.sink_first") == 10)
        #expect(
            try server.query("SELECT count(*) FROM heartline.sink_first WHERE ended") == 2)
        #expect(
            try server.query("SELECT next_offset FROM heartline.stream_partitions") == 20)
    }

    @Test func aCommitOfAnOlderEpochOrAnotherOffsetChangesNothing() throws {
        let server = try SinkOnServer(.make())
        let old = try #require(server.claim(start: 5))
        #expect(old.nextOffset == 5)
        let new = try #require(server.claim())
        #expect(new.epoch == old.epoch + 1)
        #expect(new.nextOffset == 5)
        let stale = commit(epoch: old.epoch, 5, 6) { $0.keep(1, "stale") }
        #expect(server.ask(.commit(stale))?.isFenced == true)
        let displaced = commit(epoch: new.epoch, 4, 6) { $0.keep(1, "displaced") }
        #expect(server.ask(.commit(displaced))?.isFenced == true)
        #expect(try server.count("sink_kept") == 0)
        let good = commit(epoch: new.epoch, 5, 6) { $0.keep(1, "good") }
        #expect(server.ask(.commit(good))?.isCommitted == true)
        #expect(server.ask(.commit(good))?.isFenced == true)
    }

    @Test func aSnapshotComesBackByteForByte() throws {
        let server = try SinkOnServer(.make())
        let claim = try #require(server.claim())
        #expect(claim.snapshot == nil)
        var random = SplitMix64(seed: 7)
        var bytes = ByteBuffer()
        for _ in 0..<(9 << 17) { bytes.appendBigEndian(random.next()) }
        let small = ByteBuffer("small".utf8)
        for (offset, snapshot) in [(Int64(1), small), (2, bytes), (3, small), (4, bytes)] {
            let stored = commit(epoch: claim.epoch, offset - 1, offset) { $0.snapshot = snapshot }
            #expect(server.ask(.commit(stored))?.isCommitted == true)
        }
        #expect(try server.count("snapshots") == 3)
        #expect(try #require(server.claim()).snapshot == bytes)
    }

    /// And again when the day changes.
    @Test func aSessionMakesTheDayPartitionsOfTheDaysToCome() throws {
        let server = try SinkOnServer(.make())
        _ = try #require(server.claim())
        let days = try server.database.connect().execute(
            """
            SELECT count(*) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
             WHERE i.inhparent = 'heartline.device_state_ended'::regclass
               AND c.relname = 'device_state_ended_'
                   || to_char((now() AT TIME ZONE 'UTC')::date + 2, 'YYYYMMDD')
            """)
        #expect(try days.only().int8(0) == 1)
    }

    @Test func eventsWaitInTheOutboxUntilTheyAreDeleted() throws {
        let server = try SinkOnServer(.make())
        let claim = try #require(server.claim())
        let stored = commit(epoch: claim.epoch, 0, 9) { commit in
            for sequence in Int64(0)..<5 { commit.event(sequence, "value \(sequence)") }
            commit.outboxSequence = 5
            commit.settings = ("abc", 0)
        }
        #expect(server.ask(.commit(stored))?.isCommitted == true)
        _ = server.ask(.deleteOutbox(.pipeline, through: 2))
        let again = try #require(server.claim())
        #expect(again.outboxSequence == 5)
        #expect(again.settingsRevision == "abc")
        let events = try #require(again.leftovers[.pipeline])
        #expect(events.entries.map(\.sequence) == [3, 4])
        let entry = events.entries[1]
        #expect(events.bytes.span.extracting(entry.value).text == "value 4")
        #expect(events.bytes.span.extracting(entry.key).text == "key")
        #expect(entry.time.milliseconds == 1_790_000_000_123)
        #expect(entry.topic == .alerts)
    }

    @Test(arguments: [8_192, 100])
    func aRejectedRowBecomesADeadLetterAndTheRestIsWritten(copyRows: Int) throws {
        let server = try SinkOnServer(.make(), copyRows: copyRows)
        let claim = try #require(server.claim())
        let stored = commit(epoch: claim.epoch, 1_000, 1_500) { commit in
            for key in UInt64(0)..<500 {
                commit.keep(key, key == 321 ? "forbidden" : "fine", origin: 1_000 + Int64(key))
            }
            commit.log(1, "{}")
            commit.event(0, "event")
        }
        _ = try server.database.connect().run(
            "UPDATE heartline.stream_partitions SET next_offset = 1000")
        guard case .committed(let rejected) = server.ask(.commit(stored)) else {
            Issue.record("the commit was not made")
            return
        }
        #expect(try server.count("sink_kept") == 499)
        #expect(try server.count("sink_log") == 1)
        #expect(rejected.count == 1)
        let entry = try #require(rejected.entries.first)
        #expect(entry.topic == .deadLetters)
        #expect(entry.origin == 1_321)
        #expect(entry.sequence == stored.firstRejectedSequence)
        let json = rejected.bytes.span.extracting(entry.value).text
        #expect(json.contains("\"topic\":\"heartbeats\",\"partition\":0,\"offset\":1321"))
        #expect(json.contains("23514"))
        #expect(json.contains("\"table\":\"sink_kept\""))
        // It is stored with the rest, and so found by whoever claims the partition next.
        let next = try #require(server.claim())
        #expect(next.leftovers[.rejectedRows]?.count == 1)
        #expect(next.leftovers[.pipeline]?.count == 1)
    }

    @Test func textThatPostgresCannotHoldIsRejectedAlone() throws {
        let server = try SinkOnServer(.make())
        let claim = try #require(server.claim())
        let stored = commit(epoch: claim.epoch, 0, 3) { commit in
            commit.keep(1, "fine")
            commit.keep(2, "a\u{0}b", origin: 2)
            commit.log(1, "{")
            commit.log(2, "{}")
        }
        guard case .committed(let rejected) = server.ask(.commit(stored)) else {
            Issue.record("the commit was not made")
            return
        }
        #expect(rejected.count == 2)
        #expect(try server.count("sink_kept") == 1)
        #expect(try server.count("sink_log") == 1)
    }

    @Test func aTableThatIsMissingIsRefusedAndNothingIsWritten() throws {
        let server = try SinkOnServer(.make())
        let claim = try #require(server.claim())
        _ = try server.database.connect().run("DROP TABLE heartline.sink_log")
        let stored = commit(epoch: claim.epoch, 0, 3) { commit in
            commit.keep(1, "fine")
            commit.log(1, "{}")
        }
        #expect(server.ask(.commit(stored))?.failure?.kind == .refused)
        #expect(try server.count("sink_kept") == 0)
    }

    @Test func rowsComeSortedAndUniqueWhateverTheCallerDid() throws {
        let server = try SinkOnServer(.make())
        let claim = try #require(server.claim())
        let stored = commit(epoch: claim.epoch, 0, 3) { commit in
            for key: UInt64 in [9, 3, 9, 1] { commit.keep(key, "key \(key)") }
            commit.keep(3, "last of 3")
        }
        #expect(server.ask(.commit(stored))?.isCommitted == true)
        #expect(try server.count("sink_kept") == 3)
        #expect(
            try server.query(
                "SELECT count(*) FROM heartline.sink_kept WHERE name = 'last of 3'") == 1)
    }

    @Test func dayPartitionsAreMadeAtConnect() throws {
        let server = try SinkOnServer(.make())
        _ = try #require(server.claim())
        #expect(
            try server.query(
                """
                SELECT count(*) FROM pg_inherits
                 WHERE inhparent = 'heartline.device_state_ended'::regclass
                """) == 4)
    }

    @Test func ingestSilentOpensOnceAndResolvesOnce() throws {
        let server = try SinkOnServer(.make())
        func ask(_ action: StoreRequest.Action) -> (isOpen: Bool, events: Int)? {
            if case .ingestSilent(let isOpen, let event) = server.ask(action) {
                (isOpen, event.count)
            } else {
                nil
            }
        }
        func time(_ seconds: Int64) -> EventTime {
            EventTime(milliseconds: 1_790_000_000_000 + seconds * 1_000)
        }
        #expect(try #require(ask(.resolveIngestSilent(beacon: time(0)))) == (false, 0))
        #expect(try #require(ask(.openIngestSilent(since: time(10)))) == (true, 1))
        #expect(try #require(ask(.openIngestSilent(since: time(10)))) == (true, 0))
        // Read late, from before the silence.
        #expect(try #require(ask(.resolveIngestSilent(beacon: time(9)))) == (true, 0))
        #expect(try #require(ask(.resolveIngestSilent(beacon: time(90)))) == (false, 1))
        #expect(try #require(ask(.openIngestSilent(since: time(60)))) == (false, 0))
        #expect(try #require(ask(.openIngestSilent(since: time(95)))) == (true, 1))
        #expect(try server.count("alerts") == 2)
        #expect(
            try server.query("SELECT count(*) FROM heartline.alerts WHERE resolved_at IS NULL") == 1
        )
        #expect(try server.count("outbox") == 3)
        // Whoever claims partition 0 next publishes them.
        #expect(try #require(server.claim()).leftovers[.ingestSilent]?.count == 3)
    }
}
