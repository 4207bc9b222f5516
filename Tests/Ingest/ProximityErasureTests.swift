import Bytes
import EventLog
import Foundation
import Ingest
import Postgres
import Schemas
import Synchronization
import System
import TestSupport
import Testing

@Suite("Proximity: erasure and privacy") struct ProximityErasureTests {
    /// Every row of every table as text.
    static func rows(_ connection: PostgresConnection) throws -> [String] {
        var rows: [String] = []
        let tables = try connection.execute(
            """
            SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables \
            WHERE schemaname NOT IN ('pg_catalog', 'information_schema')
            """)
        for table in tables {
            let name = try table.text(0)
            for row in try connection.execute("SELECT t::text FROM \(name) t") {
                rows.append("\(name): \(try row.text(0))")
            }
        }
        return rows
    }

    @Test(
        "after DELETE /v1/account no table knows the account, the provider's subject or the address"
    )
    func erase() throws {
        let people = try ProximityPeerTests.Pair()
        let rig = people.rig
        let database = rig.rig.database
        let elsewhere = try ProximityRig(provider: rig.provider, database: database)
        let me = try rig.signIn(
            "subject-of-mine", ["email": #""mine@example.com""#, "name": #""Mine""#])
        let second = try rig.signIn("subject-of-mine")
        #expect(try rig.register("token-of-mine", as: me) == 200)
        #expect(
            try rig.ask(
                "POST", "/v1/peer-key", #"{"publicKey":"\#(ProximityPeerTests.key(3))"}"#, as: me
            ).status == 200)
        #expect(try rig.block("token-two", as: me).status == 200)
        // What the pipelines have written meanwhile.
        try rig.makeWave(me.account, people.one.account, "token-one")
        try rig.makeWave(people.two.account, me.account, "token-of-mine")
        let connection = try rig.makeConnection(me.account, people.one.account)
        let admin = try rig.connect()
        for (from, to) in [(me.account, people.one.account), (people.one.account, me.account)] {
            try admin.execute(
                """
                INSERT INTO heartline.messages VALUES (gen_random_uuid(), $1, $2, '{}', now())
                """, .uuid(connection.high, connection.low), .uuid(from.high, from.low))
            try admin.execute(
                """
                INSERT INTO heartline.pushes VALUES ($1, gen_random_uuid(), $2, 'mutual', '{}', now())
                """, .uuid(from.high, from.low), .uuid(to.high, to.low))
            try admin.execute(
                """
                INSERT INTO heartline.encounter_reports
                VALUES ($1, gen_random_uuid(), $2, 1, 'uwb', null, now())
                """, .uuid(from.high, from.low), .uuid(to.high, to.low))
        }
        let secrets = [
            me.account.description, "subject-of-mine", "mine@example.com", "token-of-mine",
        ]
        let before = try Self.rows(admin)
        for secret in secrets { #expect(before.contains { $0.contains(secret) }, "\(secret)") }
        // It listens from its first session on.
        #expect(try SessionTests.isOpen(elsewhere, second))
        #expect(try eventually { elsewhere.rig.frontEnd.hearsSessions })
        #expect(try SessionTests.isOpen(elsewhere, second))
        let blocksBefore = rig.waves.count

        let response = try rig.ask("DELETE", "/v1/account", as: me)
        #expect(response.status == 200)
        #expect(response.text == "{}")
        let after = try Self.rows(admin)
        for secret in secrets {
            #expect(!after.contains { $0.contains(secret) }, "\(secret)")
        }
        // Whoever keeps edges in memory was told to let go of them.
        let told = rig.waves.dropFirst(blocksBefore)
        #expect(
            Set(told.map(\.pair)) == [
                AccountPair(me.account, people.one.account)!,
                AccountPair(me.account, people.two.account)!,
            ])
        #expect(told.allSatisfy { if case .block = $0 { true } else { false } })
        // Every session of the account has ended, everywhere.
        #expect(try !SessionTests.isOpen(rig, me))
        #expect(try eventually { try !SessionTests.isOpen(elsewhere, second) })
        // Of the log nothing says who it was.
        for record in rig.log.state.withLock({ $0.records }) {
            let text = record.key.span.text + (record.value?.span.text ?? "")
            for secret in ["subject-of-mine", "mine@example.com", "Mine"] {
                #expect(!text.contains(secret))
            }
        }
        // The others are as they were.
        #expect(try rig.count("SELECT count(*) FROM heartline.accounts") == 2)
        #expect(try SessionTests.isOpen(rig, people.one))
        // Who comes again is somebody new.
        #expect(try rig.signIn("subject-of-mine").account != me.account)
    }

    @Test("an account that had to do with nobody is erased too; if the log fails, nothing is")
    func alone() throws {
        let people = try ProximityPeerTests.Pair()
        let rig = people.rig
        try rig.makeWave(people.one.account, people.two.account, "token-two")
        rig.log.setFull(true)
        #expect(try rig.ask("DELETE", "/v1/account", as: people.one).status == 503)
        #expect(try rig.count("SELECT count(*) FROM heartline.accounts") == 2)
        #expect(try SessionTests.isOpen(rig, people.one))
        let alone = try rig.signIn("alone")
        #expect(try rig.ask("DELETE", "/v1/account", as: alone).status == 200)
        #expect(try rig.count("SELECT count(*) FROM heartline.accounts") == 2)
        rig.log.setFull(false)
        #expect(try rig.ask("DELETE", "/v1/account", as: people.one).status == 200)
        #expect(try rig.count("SELECT count(*) FROM heartline.accounts") == 1)
    }

    @Test(
        "no topic holds an address, a name, a provider's subject, or a session's or provider's token"
    )
    func topics() throws {
        let people = try ProximityPeerTests.Pair()
        let rig = people.rig
        let identity = TestProvider.token("subject-x", ["email": #""x@example.com""#])
        #expect(try rig.exchange(identity).status == 200)
        let me = try rig.signIn("subject-x")
        #expect(try rig.register("mine", as: me) == 200)
        #expect(try rig.wave("token-one", as: me).status == 200)
        let connection = try rig.makeConnection(me.account, people.one.account)
        let body = ProximityPeerTests.message(connection)
        #expect(try rig.ask("POST", "/v1/message", body, as: me).status == 200)
        #expect(try rig.block("token-two", as: me).status == 200)
        let records = rig.log.state.withLock { $0.records }
        #expect(Set(records.map(\.topic)).isSuperset(of: [.waves, .messages]))
        for record in records {
            let text = record.key.span.text + (record.value?.span.text ?? "")
            for secret in ["subject-x", "x@example.com", me.token, identity] {
                #expect(!text.contains(secret), "\(record.topic)")
            }
        }
        // A session's token is not in the database either.
        #expect(try !Self.rows(rig.connect()).contains { $0.contains(me.token) })
    }
}
