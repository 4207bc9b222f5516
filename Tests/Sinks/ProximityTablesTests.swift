import Bytes
import Postgres
import Processors
import Schemas
import Sinks
import TestSupport
import Testing

private let alice = AccountID("aaaaaaaa-0000-4000-8000-000000000001")!
private let bob = AccountID("bbbbbbbb-0000-4000-8000-000000000002")!
private let carol = AccountID("cccccccc-0000-4000-8000-000000000003")!

/// What the pipelines about people write on a real PostgreSQL: before a block, after it, and when an
/// account was erased.
@Suite struct ProximityTablesTests {
    /// A processor whose effects go to a sink, record by record.
    private final class Rig<P: Processor> {
        let server: SinkOnServer
        var processor: P
        var effects = Effects(tables: P.tables)
        private let epoch: Int64
        private var offset: Int64

        init(_ database: TestDatabase, _ settings: P.Settings, copyRows: Int = 8_192) throws {
            server = try SinkOnServer(
                database, copyRows: copyRows, pipeline: "\(P.source.rawValue)", source: P.source,
                tables: P.tables)
            processor = P(partition: 0, settings: settings)
            let claim = try #require(server.claim())
            epoch = claim.epoch
            offset = claim.nextOffset
        }

        func apply(_ event: P.Event, at seconds: Int64) {
            processor.apply(
                event,
                at: RecordPlace(
                    partition: 0, offset: offset,
                    timestamp: EventTime(milliseconds: 1_790_000_000_000 + seconds * 1_000)),
                into: &effects)
            offset += 1
        }

        /// Stores what was applied since the last time; nothing may be rejected.
        func commit(_ records: Int64) throws {
            processor.drain(into: &effects)
            var commit = PartitionCommit(tables: P.tables)
            commit.rows = effects.rows
            commit.outbox = effects.outbox
            commit.outboxSequence = effects.nextSequence
            commit.epoch = epoch
            commit.expectedOffset = offset - records
            commit.nextOffset = offset
            effects.removeAll()
            guard case .committed(let rejected) = server.ask(.commit(commit)) else {
                Issue.record("the commit was not made")
                return
            }
            #expect(rejected.isEmpty)
        }
    }

    private func database(_ people: [AccountID] = [alice, bob, carol]) throws -> TestDatabase {
        let database = try TestDatabase.make()
        let connection = try database.connect()
        for person in people {
            try connection.run(
                """
                INSERT INTO heartline.accounts (account_id, provider, provider_subject)
                VALUES ('\(person)', 'apple', '\(person)')
                """)
        }
        return database
    }

    private func wave(_ from: AccountID, _ to: AccountID, _ token: String) -> WavesEvent {
        .wave(
            Wave(
                origin: EventOrigin(boot: 1, counter: 1), pair: AccountPair(from, to)!,
                sender: from, token: InlineText(token)))
    }

    private static let everywhere = [
        "waves", "connections", "encounter_reports", "encounters", "messages", "pushes",
    ]

    private func counts(_ server: SinkOnServer) throws -> [Int64] {
        try Self.everywhere.map { try server.count($0) }
    }

    @Test(arguments: [8_192, 1])
    func aMatchIsAConnectionAndTwoPushesWhateverIsRepeated(copyRows: Int) throws {
        let rig = try Rig<MutualWaves>(database(), MutualWavesSettings(), copyRows: copyRows)
        rig.apply(wave(alice, bob, "b1"), at: 0)
        try rig.commit(1)
        rig.apply(wave(bob, alice, "a1"), at: 5)
        rig.apply(wave(bob, alice, "a1"), at: 6)
        rig.apply(wave(alice, bob, "b2"), at: 7)
        rig.apply(wave(alice, carol, "c1"), at: 7)
        try rig.commit(4)
        // A processor that knows nothing more, as after its waves were over: they match again.
        rig.processor = MutualWaves(partition: 0, settings: MutualWavesSettings())
        rig.apply(wave(alice, bob, "b1"), at: 100_000)
        rig.apply(wave(bob, alice, "a9"), at: 100_001)
        try rig.commit(2)
        #expect(rig.processor.matches == 1)
        #expect(try counts(rig.server) == [5, 1, 0, 0, 0, 2])
        let connection = AccountPair(alice, bob)!.connection
        let rows = try rig.server.database.connect().execute(
            """
            SELECT p.account_id::text, p.body, p.created_at = c.connected_at, p.delivered_at IS NULL,
                   c.connection_id::text, c.first_account::text, p.peer::text, p.push_id::text
              FROM heartline.pushes p CROSS JOIN heartline.connections c ORDER BY 1
            """)
        for (row, (account, peer, token)) in zip(rows, [(alice, bob, "b1"), (bob, alice, "a1")]) {
            let id = PushID(mutualTo: account, of: connection)
            #expect(try row.text(0) == "\(account)")
            #expect(
                try row.text(1) == """
                    {"type":"mutual","remoteToken":"\(token)","connectionID":"\(connection)",\
                    "id":"\(id)"}
                    """)
            #expect(try row.bool(2) && row.bool(3))
            #expect(try row.text(4) == "\(connection)")
            #expect(try row.text(5) == "\(alice)")
            #expect(try row.text(6) == "\(peer)")
            #expect(try row.text(7) == "\(id)")
        }
        #expect(
            try rig.server.query(
                """
                SELECT extract(epoch FROM waved_at)::int8 FROM heartline.waves
                 WHERE from_account = '\(alice)' AND token = 'b1'
                """) == 1_790_100_000)
    }

    @Test func aBlockTakesTheWavesBackAndKeepsTheTablesClosed() throws {
        let rig = try Rig<MutualWaves>(database(), MutualWavesSettings())
        rig.apply(wave(alice, bob, "b1"), at: 0)
        try rig.commit(1)
        // As a front-end does: the block is in the database before anything is said of it.
        try rig.server.database.connect().run(
            """
            INSERT INTO heartline.blocks (blocker, blocked) VALUES ('\(bob)', '\(alice)')
            """)
        // A wave that was let through before, and the block itself, in one batch.
        rig.apply(wave(bob, alice, "a1"), at: 1)
        rig.apply(
            .block(
                Block(
                    origin: EventOrigin(boot: 1, counter: 1), pair: AccountPair(alice, bob)!,
                    sender: bob)), at: 2)
        try rig.commit(2)
        #expect(try counts(rig.server) == [0, 0, 0, 0, 0, 0])
        // What forgot the block is refused by the tables.
        rig.processor = MutualWaves(partition: 0, settings: MutualWavesSettings())
        rig.apply(wave(alice, bob, "b1"), at: 3)
        rig.apply(wave(bob, alice, "a1"), at: 4)
        try rig.commit(2)
        #expect(rig.processor.matches == 1)
        #expect(try counts(rig.server) == [0, 0, 0, 0, 0, 0])
        let messages = try Rig<Messages>(rig.server.database, MessagesSettings())
        messages.apply(message(alice, bob, 1), at: 5)
        try messages.commit(1)
        let encounters = try Rig<Encounters>(rig.server.database, EncountersSettings())
        encounters.apply(encounter(alice, bob, 1), at: 5)
        encounters.apply(encounter(bob, alice, 2), at: 6)
        try encounters.commit(2)
        #expect(try counts(rig.server) == [0, 0, 0, 0, 0, 0])
    }

    private func message(_ from: AccountID, _ to: AccountID, _ number: UInt64) -> MessageEvent {
        MessageEvent(
            origin: EventOrigin(boot: 1, counter: 1), id: MessageID(high: 1, low: number),
            pair: AccountPair(from, to)!, sender: from, body: ByteBuffer("{}".utf8))
    }

    private func encounter(_ from: AccountID, _ to: AccountID, _ number: UInt64) -> Encounter {
        Encounter(
            origin: EventOrigin(boot: 1, counter: 1), id: EncounterID(high: 1, low: number),
            pair: AccountPair(from, to)!, reporter: from, ownToken: InlineText("own"),
            remoteToken: InlineText("remote"), tier: .bluetooth, engine: InlineText("ble"))
    }

    /// Everything of two people, then one of them is erased, then the whole log is read again.
    @Test(arguments: [8_192, 1])
    func aReplayAfterAnErasureBringsNothingBack(copyRows: Int) throws {
        let database = try database()
        func replay() throws -> SinkOnServer {
            // Each time as if nothing had been read before.
            try database.connect().run("DELETE FROM heartline.stream_partitions")
            try database.connect().run("DELETE FROM heartline.outbox")
            let waves = try Rig<MutualWaves>(
                database, MutualWavesSettings(), copyRows: copyRows)
            waves.apply(wave(alice, bob, "b1"), at: 0)
            waves.apply(wave(bob, alice, "a1"), at: 1)
            waves.apply(wave(alice, carol, "c1"), at: 1)
            waves.apply(wave(carol, alice, "a1"), at: 2)
            try waves.commit(4)
            let encounters = try Rig<Encounters>(
                database, EncountersSettings(), copyRows: copyRows)
            encounters.apply(encounter(alice, bob, 1), at: 1)
            encounters.apply(encounter(bob, alice, 2), at: 2)
            encounters.apply(encounter(alice, carol, 3), at: 2)
            try encounters.commit(3)
            let messages = try Rig<Messages>(database, MessagesSettings(), copyRows: copyRows)
            messages.apply(message(alice, bob, 1), at: 3)
            messages.apply(message(bob, alice, 2), at: 3)
            messages.apply(message(carol, alice, 3), at: 3)
            try messages.commit(3)
            return waves.server
        }
        let server = try replay()
        #expect(try counts(server) == [4, 2, 3, 1, 3, 7])
        #expect(try counts(replay()) == [4, 2, 3, 1, 3, 7])
        try database.connect().run("DELETE FROM heartline.encounters")
        try database.connect().run(
            "DELETE FROM heartline.accounts WHERE account_id = '\(bob)'")
        // What is left is between Alice and Carol.
        let left: [Int64] = [2, 1, 1, 0, 1, 3]
        #expect(try counts(server) == left)
        #expect(try counts(replay()) == left)
        try database.connect().run("DELETE FROM heartline.accounts")
        #expect(try counts(replay()) == [0, 0, 0, 0, 0, 0])
        #expect(
            try server.query(
                "SELECT count(*) FROM heartline.outbox WHERE topic = 'dead-letters'") == 0)
    }
}
