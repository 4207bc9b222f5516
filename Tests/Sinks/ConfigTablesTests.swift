import Bytes
import Postgres
import Schemas
import Sinks
import System
import TestSupport
import Testing

/// What pipelines about configurations write, and what analysts read of it.
@Suite struct ConfigTablesTests {
    private func server(
        _ source: Topic = .configChanges, copyRows: Int = 8_192, on database: TestDatabase? = nil
    ) throws -> SinkOnServer {
        try SinkOnServer(
            database ?? .make(), copyRows: copyRows, source: source,
            tables: [.configVersions, .configDelivery])
    }

    private func commit(_ claim: PartitionClaim, next: Int64) -> PartitionCommit {
        var commit = PartitionCommit(tables: [.configVersions, .configDelivery])
        commit.epoch = claim.epoch
        commit.expectedOffset = claim.nextOffset
        commit.nextOffset = next
        return commit
    }

    /// Two statements with arrays; COPY and staging tables.
    @Test(arguments: [8_192, 1])
    func eachVersionOfADeviceIsARowAndTheFirstToWriteItStays(copyRows: Int) throws {
        let server = try server(copyRows: copyRows)
        for (first, versions) in [(Int64(0), [Int64(1), 2]), (3, [2, 3])] {
            let claim = try #require(server.claim())
            var commit = commit(claim, next: first + 3)
            for version in versions {
                commit.version(1, version, .forwards, at: first + version)
                commit.delivered(1, version, at: first + version)
            }
            #expect(server.ask(.commit(commit))?.isCommitted == true)
        }
        let rows = try server.database.connect().execute(
            """
            SELECT v.version, v.changed_at, d.delivered_at, v.changed::text, v.request_id IS NULL
              FROM heartline.config_versions v
              JOIN heartline.config_delivery d USING (device_id, partition, version)
             ORDER BY version
            """)
        #expect(try rows.map { try $0.int8(0) } == [1, 2, 3])
        for (row, second) in zip(rows, [Int64(1), 2, 6]) {
            let time = EventTime(milliseconds: 1_790_000_000_000 + second * 1_000)
            #expect(try row.timestamptz(1) == time.postgresMicroseconds)
            #expect(try row.timestamptz(2) == time.postgresMicroseconds)
            #expect(try row.text(3) == "[\"forwards\"]")
            #expect(try row.bool(4))
        }
    }

    @Test func aTombstoneComesBackFromTheOutboxAsOne() throws {
        let server = try server()
        let claim = try #require(server.claim())
        var stored = commit(claim, next: 1)
        let key = ByteBuffer("device".utf8)
        let time = EventTime(milliseconds: 1_790_000_000_123)
        stored.outbox.append(
            sequence: 0, topic: .deviceConfigs, key: key.span, time: time, origin: 0
        ) { _ in }
        stored.outbox.append(
            tombstone: key.span, sequence: 1, topic: .deviceConfigs, time: time, origin: 0)
        stored.outboxSequence = 2
        #expect(server.ask(.commit(stored))?.isCommitted == true)
        #expect(
            try server.query("SELECT count(*) FROM heartline.outbox WHERE value IS NULL") == 1)
        let again = try #require(server.claim())
        let events = try #require(again.leftovers[.pipeline])
        #expect(events.entries.map(\.isTombstone) == [false, true])
        let last = events.entries[1]
        #expect(events.bytes.span.extracting(last.key).text == "device")
    }

    @Test func thePartitionsOfOneTopicAreNotTakenForThoseOfAnother() throws {
        let database = try TestDatabase.make()
        let first = try server(.configChanges, on: database)
        #expect(first.claim() != nil)
        #expect(
            try first.query(
                "SELECT count(*) FROM heartline.stream_partitions WHERE topic = 'config-changes'")
                == 1)
        let second = try server(.heartbeats, on: database)
        let failure = try #require(second.ask(.claim(start: 0))?.failure)
        #expect(failure.kind == .refused)
        #expect(failure.reason.contains("config-changes"))
        #expect(failure.reason.contains("another name"))
        #expect(first.claim() != nil)
    }

    /// A row of the view, as text.
    private func rollout(_ server: SinkOnServer) throws -> [String] {
        try server.database.connect().execute(
            """
            SELECT concat_ws(' ', right(device_id::text, 1), 'v' || version, kind, state,
                             'answered ' || delivered_version,
                             'after ' || extract(epoch FROM delay)::int8)
              FROM heartline.config_rollout ORDER BY device_id
            """
        ).map { try $0.text(0) }
    }

    @Test func theRolloutShowsTheNewestVersionBesideTheOneThatWasAnswered() throws {
        let server = try server()
        let claim = try #require(server.claim())
        var stored = commit(claim, next: 100)
        // Delivered; never seen; one behind; suspended; removed; ahead of what we know of it.
        stored.version(1, 1, .provisioned, at: 0)
        stored.version(1, 2, .forwards, at: 100)
        stored.version(2, 1, .provisioned, at: 0)
        stored.version(3, 1, .provisioned, at: 0)
        stored.version(3, 2, .rotated, at: 200)
        stored.version(4, 1, .provisioned, at: 0)
        stored.version(4, 2, .suspended, at: 300, suspended: true)
        stored.version(5, 1, .provisioned, at: 0)
        stored.version(5, 2, .removed, at: 300)
        stored.version(6, 1, .provisioned, at: 0)
        stored.delivered(1, 1, at: 30)
        stored.delivered(1, 2, at: 130)
        stored.delivered(3, 1, at: 30)
        stored.delivered(4, 1, at: 30)
        stored.delivered(5, 1, at: 30)
        stored.delivered(6, 2, at: 40)
        #expect(server.ask(.commit(stored))?.isCommitted == true)
        #expect(
            try rollout(server) == [
                "1 v2 forwards delivered answered 2 after 30",
                "2 v1 provisioned waiting",
                "3 v2 rotated waiting answered 1",
                "4 v2 suspended suspended answered 1",
                "6 v1 provisioned delivered answered 2 after 40",
            ])
        let again = try #require(server.claim())
        var later = commit(again, next: 200)
        later.delivered(3, 2, at: 245)
        later.version(4, 3, .resumed, at: 400)
        #expect(server.ask(.commit(later))?.isCommitted == true)
        #expect(
            try rollout(server)[2...3] == [
                "3 v2 rotated delivered answered 2 after 45", "4 v3 resumed waiting answered 1",
            ])
        // The delivery of a version that was replaced is still there to be asked for.
        #expect(
            try server.query(
                """
                SELECT extract(epoch FROM d.delivered_at - v.changed_at)::int8
                  FROM heartline.config_versions v
                  JOIN heartline.config_delivery d USING (device_id, version)
                 WHERE version = 1 AND device_id = '00000000-0000-0000-0000-000000000001'
                """) == 30)
    }
}

extension PartitionCommit {
    private func time(_ seconds: Int64) -> EventTime {
        EventTime(milliseconds: 1_790_000_000_000 + seconds * 1_000)
    }

    fileprivate mutating func version(
        _ device: UInt64, _ version: Int64, _ kind: ConfigChange.Kind, at seconds: Int64,
        suspended: Bool = false
    ) {
        let hash = ByteBuffer(String(repeating: "0a", count: 32).utf8)
        rows[0].beginRow(origin: version)
        rows[0].put(DeviceID(high: 0, low: device))
        rows[0].put(int4: 0)
        rows[0].put(int8: version)
        rows[0].put(kind.text)
        rows[0].put(jsonb: ByteBuffer("[\"forwards\"]".utf8).span)
        for _ in 0..<3 { rows[0].put(hash.span) }
        rows[0].put(suspended)
        rows[0].put(time(seconds))
        rows[0].put("operator")
        rows[0].putNull()
    }

    fileprivate mutating func delivered(_ device: UInt64, _ version: Int64, at seconds: Int64) {
        rows[1].beginRow(origin: version)
        rows[1].put(DeviceID(high: 0, low: device))
        rows[1].put(int4: 0)
        rows[1].put(int8: version)
        rows[1].put(time(seconds))
    }
}
