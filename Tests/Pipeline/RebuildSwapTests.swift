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

/// A rebuild while others look, write and forget: readers, a pipeline at work, a log that has lost its
/// beginning, what an earlier rebuild left.
@Suite struct RebuildSwapTests {
    private typealias Rig = RebuildRig<TunnelHealth>

    private static var settings: TunnelHealthSettings {
        var settings = TunnelHealthSettings()
        settings.refresh = 0
        return settings
    }

    private static func rig() throws -> Rig {
        try Rig(PipelineFile(builtIn: .tunnelHealth(settings)), ProcessorSettings(settings))
    }

    private static func records(_ seed: UInt64, seconds: Int = 3_000) -> [[SimulatedRecord]] {
        var records = TunnelHealthRecords(seed: seed)
        return records.make(partitions: 2, seconds: seconds)
    }

    /// The records in `count` parts, one after the other.
    private static func parts(_ records: [[SimulatedRecord]], _ count: Int) -> [[[SimulatedRecord]]]
    {
        (0..<count).map { part in
            records.map {
                Array($0[$0.count * part / count..<$0.count * (part + 1) / count])
            }
        }
    }

    @Test func readersSeeTheOldRowsOrTheNewOnesAndWaitForNobody() throws {
        let rig = try Self.rig()
        try rig.append(Self.records(1))
        try rig.run()
        let full = try rig.count("SELECT count(*) FROM heartline.fleet_minutes_by_partition")
        let whole = try rig.contents()
        try rig.connection.run("DELETE FROM heartline.fleet_minutes_by_partition")
        let url = rig.database.url
        let seen = Mutex<Set<Int64>>([])
        let isOver = Mutex(false)
        let readers = (0..<2).map { number in
            SystemThread.start("reader \(number)") {
                do {
                    let connection = try PostgresConnection(url)
                    // A reader that waited for a lock would be told.
                    try connection.run("SET lock_timeout = '1ms'")
                    while !isOver.withLock({ $0 }) {
                        let count = try connection.execute(
                            "SELECT COALESCE(sum(1), 0)::int8 FROM heartline.fleet_minutes_by_partition"
                        ).only().int8(0)
                        seen.withLock { _ = $0.insert(count) }
                    }
                } catch { Issue.record(error) }
            }
        }
        let pause = Waker()
        while seen.withLock({ $0.isEmpty }) { pause.wait(milliseconds: 5) }
        try rig.rebuild()
        while !seen.withLock({ $0.contains(full) }) { pause.wait(milliseconds: 5) }
        isOver.withLock { $0 = true }
        for reader in readers { reader.join() }
        #expect(seen.withLock { $0 } == [0, full])
        try expectSame(whole, rig.contents())
    }

    @Test func whatHangsOnTheTablesStays() throws {
        let rig = try Self.rig()
        try rig.append(Self.records(2))
        try rig.run()
        try rig.connection.run(
            """
            CREATE VIEW public.worst AS
                SELECT device_id, state FROM heartline.device_status WHERE state <> 'healthy';
            CREATE ROLE analyst_\(rig.file.name.replacing("-", with: "_"));
            GRANT SELECT ON heartline.device_status, heartline.device_state_ended
                TO analyst_\(rig.file.name.replacing("-", with: "_"))
            """)
        defer {
            _ = try? rig.connection.run(
                """
                DROP OWNED BY analyst_\(rig.file.name.replacing("-", with: "_"));
                DROP ROLE analyst_\(rig.file.name.replacing("-", with: "_"))
                """)
        }
        // Tables with their rights and comments, partitions, indexes, constraints, views.
        let catalog = """
            SELECT string_agg(line, E'\\n' ORDER BY line) FROM (
                SELECT c.oid || ' ' || c.relname || ' ' || c.relkind::text || ' ' || COALESCE(c.relacl::text, '')
                       || ' ' || COALESCE(obj_description(c.oid), '') AS line
                  FROM pg_class c WHERE c.relnamespace IN ('heartline'::regnamespace, 'public'::regnamespace)
                UNION ALL SELECT inhrelid || ' of ' || inhparent FROM pg_inherits
                UNION ALL SELECT conrelid || ' ' || conname FROM pg_constraint WHERE connamespace = 'heartline'::regnamespace
            ) lines
            """
        let before = try rig.connection.execute(catalog).only().text(0)
        let worst = try rig.count("SELECT count(*) FROM public.worst")
        try rig.connection.run("UPDATE heartline.device_status SET state = 'healthy'")
        #expect(try rig.count("SELECT count(*) FROM public.worst") == 0)
        let report = try rig.rebuild()
        #expect(report.tables.first { $0.name == "device_status" }?.written ?? 0 > 0)
        #expect(worst > 0)
        #expect(try rig.count("SELECT count(*) FROM public.worst") == worst)
        #expect(try rig.connection.execute(catalog).only().text(0) == before)
    }

    @Test func aPipelineAtWorkIsFollowedFencedAndGoesOn() throws {
        let rig = try Self.rig()
        let all = Self.records(3, seconds: 9_000)
        let parts = Self.parts(all, 30)
        for part in parts.prefix(10) { try rig.append(part) }
        rig.start()
        try rig.catchUp()
        try rig.connection.run(
            """
            DELETE FROM heartline.fleet_minutes_by_partition;
            UPDATE heartline.device_state_ended SET reason = 'wrong'
            """)
        let epochs = "SELECT min(epoch) FROM heartline.stream_partitions"
        let before = try rig.count(epochs)
        // Records come all the while.
        let url = rig.database.url
        let (file, log) = (rig.file, rig.log)
        let failure = Mutex<String?>(nil)
        let rebuild = SystemThread.start("rebuild") {
            do {
                for _ in 0..<3 {
                    _ = try Rebuild.run(file, log, from: nil, database: url) { _ in }
                }
            } catch { failure.withLock { $0 = "\(error)" } }
        }
        for part in parts.dropFirst(10).dropLast() {
            try rig.append(part)
            Waker().wait(milliseconds: 20)
        }
        rebuild.join()
        #expect(failure.withLock { $0 } == nil)
        try rig.append(parts[29])
        try rig.catchUp()
        // Fenced three times, and claimed again.
        #expect(try rig.count(epochs) >= before + 4)
        rig.stop()
        let clean = try Self.rig()
        try clean.append(all)
        try clean.run()
        try expectSame(clean.contents(), rig.contents())
    }

    // MARK: - Bases

    /// Three parts are processed, and a state is kept at the beginning of each. With the third the log
    /// forgets the first one and some of the second.
    private func rigWithBases(_ seed: UInt64) throws -> Rig {
        let rig = try Self.rig()
        var times: [[Int64]] = [[], []]
        for (index, part) in Self.parts(Self.records(seed, seconds: 6_000), 3).enumerated() {
            if index == 2 {
                let topic = try rig.log.status().first { $0.topic == .heartbeats }
                try rig.keep(bytes: (topic?.contentBytes ?? 0) * 3 / 4)
            }
            // However much a commit comprises, the first one is of few.
            for some in [part.map { Array($0.prefix(50)) }, part.map { Array($0.dropFirst(50)) }] {
                try rig.append(some)
                try rig.run()
            }
            for (partition, records) in part.enumerated() {
                times[partition] += records.map(\.timestamp.milliseconds)
            }
            // It was kept by the first commit. As if it had been then that the
            // last of it came, and hours had gone by since: the next one is kept as well.
            for row in try rig.connection.execute(
                """
                SELECT partition, next_offset FROM heartline.base_snapshots
                 WHERE chunk = 0 AND kept_at > now() - interval '1 hour'
                """)
            {
                let (partition, next) = (try row.int4(0), try row.int8(1))
                let last = times[Int(partition)].prefix(Int(next)).max() ?? 0
                try rig.connection.run(
                    """
                    UPDATE heartline.base_snapshots SET kept_at = to_timestamp(\(last) / 1000.0)
                     WHERE partition = \(partition) AND next_offset = \(next)
                    """)
            }
        }
        return rig
    }

    @Test func aLogThatHasLostItsBeginningIsRebuiltFromAStateThatWasKept() throws {
        let rig = try rigWithBases(4)
        let earliest = try (0..<Int32(2)).map {
            try rig.log.offsets(of: TopicPartition(.heartbeats, $0)).earliest
        }
        try #require(earliest.allSatisfy { $0 > 0 }, "the log has lost nothing")
        let before = try rig.contents()
        let calm = try rig.rebuild()
        let cut = try #require(calm.from)
        #expect(calm.tables.allSatisfy { $0.removed == 0 && $0.written == 0 }, "\(calm.tables)")
        // What came before is not known any more, so it stays as it is; what came after is mended.
        let old = try rig.connection.execute(
            "UPDATE heartline.fleet_minutes_by_partition SET devices = 1000 WHERE minute < '\(cut)'"
        ).affectedRows
        let new = try rig.connection.execute(
            "UPDATE heartline.fleet_minutes_by_partition SET devices = 2000 WHERE minute >= '\(cut)'"
        ).affectedRows
        #expect(old > 0 && new > 0)
        let ended = try rig.connection.execute(
            "DELETE FROM heartline.device_state_ended WHERE ended_at >= '\(cut)'"
        ).affectedRows
        #expect(ended > 0)
        let report = try rig.rebuild()
        #expect(report.tables.first { $0.name == "fleet_minutes_by_partition" }?.written == new)
        #expect(report.tables.first { $0.name == "device_state_ended" }?.written == ended)
        let tables: Set<String> = ["device_status", "device_state_ended"]
        try expectSame(before.filter { tables.contains($0.key) }, rig.contents(of: tables))
        #expect(
            try rig.count(
                "SELECT count(*) FROM heartline.fleet_minutes_by_partition WHERE devices = 1000")
                == Int64(old))
        #expect(
            try rig.count(
                "SELECT count(*) FROM heartline.fleet_minutes_by_partition WHERE devices = 2000")
                == 0)
    }

    @Test func thePipelinesCommitsWaitWhileRowsAreExchanged() throws {
        let rig = try Self.rig()
        try rig.append(Self.records(12, seconds: 500))
        try rig.run()
        let worker = try rig.database.connect()
        try worker.run("SET lock_timeout = '100ms'")
        let pipeline = "WHERE pipeline = 'tunnel-health' AND partition = 1"
        var states: [SQLState?] = []
        _ = try Rebuild.run(rig.file, rig.log, from: nil, database: rig.database.url) { step in
            guard step == .exchanging else { return }
            do throws(PostgresError) {
                // As a commit begins.
                try worker.run(
                    "UPDATE heartline.stream_partitions SET next_offset = next_offset \(pipeline)")
                states.append(nil)
            } catch { states.append(error.sqlState) }
        }
        #expect(states == [.lockNotAvailable])
    }

    @Test func newSettingsHoldFromTheFirstRecordOnThoughTheStateWasMadeByOthers() throws {
        let rig = try rigWithBases(4)
        var calm = Self.settings
        calm.offlineAfter = 3_600_000
        let file = PipelineFile(builtIn: .tunnelHealth(calm))
        let report = try Rebuild.run(
            file, rig.log, from: nil, database: rig.database.url
        ) { _ in }
        let cut = try #require(report.from)
        let offline = """
            SELECT count(*) FROM heartline.device_state_ended WHERE state = 'offline'
               AND started_at
            """
        #expect(try rig.count("\(offline) < '\(cut)'") > 0)
        #expect(try rig.count("\(offline) >= '\(cut)'") == 0)
        #expect(
            try rig.count(
                """
                SELECT count(*) FROM heartline.stream_partitions
                 WHERE settings_revision <> '\(file.settingsRevision)'
                """) == 0)
    }

    @Test func aStateIsOfTheLatestClockThatItHasSeen() throws {
        let rig = try Self.rig()
        try rig.append(Self.records(11, seconds: 500))
        try rig.run()
        try rig.connection.run(
            """
            DELETE FROM heartline.base_snapshots;
            SELECT heartline.keep_base_snapshot('tunnel-health', p, '1h', '1d', n) FROM (VALUES
                (0, now() + interval '5 min'), (1, now() + interval '5 years')) v (p, n);
            -- A worker that has begun anew knows of nothing.
            DELETE FROM heartline.base_snapshots;
            SELECT heartline.keep_base_snapshot('tunnel-health', p, '1h', '1d', now())
              FROM generate_series(0, 1) p
            """)
        let ahead = try rig.connection.execute(
            """
            SELECT round(extract(epoch FROM newest - kept_at) / 60)::int8
              FROM heartline.base_snapshots WHERE chunk = 0 ORDER BY partition
            """
        ).map { try $0.int8(0) }
        #expect(ahead == [5, 60])
        #expect(
            try rig.count("SELECT count(*) FROM heartline.base_snapshots WHERE kept_at > now()")
                == 0)
    }

    @Test func withoutAKeptStateInTheLogsTimeNothingIsTouched() throws {
        let rig = try rigWithBases(5)
        try rig.connection.run("DELETE FROM heartline.base_snapshots")
        let before = try rig.contents()
        #expect {
            try rig.rebuild()
        } throws: { error in
            "\(error)".contains("replaying tunnel-health: the log of heartbeats/0 begins at")
        }
        try expectSame(before, rig.contents())
        #expect(try rig.leftovers() == 0)
    }

    @Test func fromATimeOnOlderRowsStay() throws {
        let rig = try Self.rig()
        let records = Self.records(6)
        try rig.append(records)
        try rig.run()
        let middle = EventTime(
            milliseconds: (records[0][0].timestamp.milliseconds
                + records[0].last!.timestamp.milliseconds) / 2)
        try rig.connection.run("UPDATE heartline.fleet_minutes_by_partition SET devices = 1000")
        let report = try rig.rebuild(from: middle)
        #expect(report.from == middle)
        #expect(
            try rig.count(
                """
                SELECT count(*) FROM heartline.fleet_minutes_by_partition
                 WHERE (devices = 1000) <> (minute < '\(middle)')
                """) == 0)
    }

    @Test func aStateIsKeptNowAndThenAndForgottenLater() throws {
        let rig = try Self.rig()
        let parts = Self.parts(Self.records(7), 4)
        let count =
            "SELECT count(DISTINCT next_offset) FROM heartline.base_snapshots WHERE partition = 0"
        try rig.append(parts[0])
        try rig.run()
        #expect(try rig.count(count) == 1)
        try rig.append(parts[1])
        try rig.run()
        #expect(try rig.count(count) == 1)
        try rig.connection.run(
            "UPDATE heartline.base_snapshots SET kept_at = kept_at - interval '7 hours'")
        try rig.append(parts[2])
        try rig.run()
        #expect(try rig.count(count) == 2)
        try rig.connection.run(
            "UPDATE heartline.base_snapshots SET kept_at = kept_at - interval '31 hours'")
        try rig.append(parts[3])
        try rig.run()
        #expect(try rig.count(count) == 1)
    }

    // MARK: - Refusals, leftovers

    @Test func whatAnEarlierRebuildLeftIsRemoved() throws {
        let rig = try Self.rig()
        try rig.append(Self.records(8, seconds: 500))
        try rig.run()
        try rig.connection.run(
            """
            CREATE SCHEMA "heartline_replay_tunnel-health";
            CREATE TABLE "heartline_replay_tunnel-health".device_status (nonsense int4);
            CREATE TABLE "heartline_replay_tunnel-health".touched (nonsense int4)
            """)
        try rig.rebuild()
        #expect(try rig.leftovers() == 0)
    }

    @Test func anotherRebuildOfThePipelineIsRefused() throws {
        let rig = try Self.rig()
        try rig.append(Self.records(9, seconds: 500))
        try rig.run()
        try rig.connection.execute(
            "SELECT pg_advisory_lock(hashtext('heartline replay'), hashtext('tunnel-health'))")
        #expect {
            try rig.rebuild()
        } throws: { "\($0)".contains("another replay of the pipeline is at work") }
    }

    @Test func aPipelineThatNeverRanOrWasResumedIsRefused() throws {
        let rig = try Self.rig()
        #expect {
            try rig.rebuild()
        } throws: { "\($0)".contains("it never ran") }
        try rig.append(Self.records(10, seconds: 500))
        try rig.run()
        try rig.connection.run(
            "DELETE FROM heartline.base_snapshots; UPDATE heartline.stream_partitions SET resumed = true"
        )
        #expect {
            try rig.rebuild()
        } throws: { "\($0)".contains("no state from the time that it holds is kept") }
    }
}
