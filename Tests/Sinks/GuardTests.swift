import Bytes
import Foundation
import Postgres
import Processors
import Schemas
import Sinks
import Synchronization
import TestSupport
import Testing

/// A table whose rows hang on rows of other tables.
private let guarded = TableSchema(
    "guarded",
    [
        .init("key", .int8), .init("owner", .uuid), .init("peer", .uuid), .init("note", .text),
        .init("hidden", .uuid, isStored: false),
    ], key: [0], mode: .insertNew,
    onlyIf: .init(
        [.init("owners", "id", columns: [1, 2, 4])],
        unless: [.init("barred", [.init("a", 1), .init("b", 2)])]))
private let appended = TableSchema(
    "guarded_log", [.init("owner", .uuid), .init("note", .text)], key: [], mode: .append,
    onlyIf: .init([.init("owners", "id", columns: [0])]))
private let upserted = TableSchema(
    "guarded", [.init("key", .int8), .init("owner", .uuid), .init("note", .text)], key: [0],
    mode: .update, onlyIf: .init([.init("owners", "id", columns: [1])]))
private let deleted = TableSchema(
    "guarded_log", [.init("owner", .uuid)], key: [0], mode: .delete)

/// Rows that the database leaves out because of what stands in other tables.
@Suite struct GuardTests {
    private static let tables = [guarded, appended, upserted, deleted]

    private func id(_ number: UInt64) -> DeviceID { DeviceID(high: 0xA, low: number) }

    private func server(copyRows: Int) throws -> SinkOnServer {
        let server = try SinkOnServer(.make(), copyRows: copyRows, tables: Self.tables)
        try server.database.connect().run(
            """
            CREATE TABLE heartline.owners (id uuid PRIMARY KEY);
            CREATE TABLE heartline.barred (a uuid, b uuid);
            CREATE TABLE heartline.guarded (
                key int8 PRIMARY KEY, owner uuid NOT NULL REFERENCES heartline.owners,
                peer uuid NOT NULL REFERENCES heartline.owners, note text);
            CREATE TABLE heartline.guarded_log (
                owner uuid NOT NULL REFERENCES heartline.owners, note text);
            INSERT INTO heartline.owners VALUES ('\(id(1))'), ('\(id(2))'), ('\(id(3))');
            INSERT INTO heartline.barred VALUES ('\(id(1))', '\(id(3))');
            """)
        return server
    }

    private func commit(
        _ epoch: Int64, _ expected: Int64, _ write: (inout PartitionCommit) -> Void
    ) -> PartitionCommit {
        var commit = PartitionCommit(tables: Self.tables)
        commit.epoch = epoch
        commit.expectedOffset = expected
        commit.nextOffset = expected + 1
        write(&commit)
        return commit
    }

    private func put(
        _ commit: inout PartitionCommit, _ key: Int64, _ owner: UInt64, _ peer: UInt64,
        hidden: UInt64, note: String = "n"
    ) {
        commit.rows[0].beginRow(origin: key)
        commit.rows[0].put(int8: key)
        commit.rows[0].put(id(owner))
        commit.rows[0].put(id(peer))
        commit.rows[0].put(ByteBuffer(note.utf8).span)
        commit.rows[0].put(id(hidden))
    }

    /// One statement with arrays; COPY and staging tables.
    @Test(arguments: [8_192, 1])
    func rowsAreWrittenOnlyWithWhatTheyHangOn(copyRows: Int) throws {
        let server = try server(copyRows: copyRows)
        let claim = try #require(server.claim())
        let stored = commit(claim.epoch, 0) { commit in
            put(&commit, 1, 1, 2, hidden: 3)
            put(&commit, 2, 1, 9, hidden: 3)  // no such peer
            put(&commit, 3, 9, 1, hidden: 3)  // no such owner
            put(&commit, 4, 1, 2, hidden: 9)  // nor such a third
            put(&commit, 5, 1, 3, hidden: 2)  // barred
            put(&commit, 6, 3, 1, hidden: 2)  // barred in the other direction only
            for owner in [UInt64(1), 9, 2] {
                commit.rows[1].beginRow(origin: 0)
                commit.rows[1].put(id(owner))
                commit.rows[1].put(ByteBuffer("x".utf8).span)
            }
        }
        guard case .committed(let rejected) = server.ask(.commit(stored)) else {
            Issue.record("the commit was not made")
            return
        }
        // What is left out is no dead letter.
        #expect(rejected.isEmpty)
        let rows = try server.database.connect().execute(
            "SELECT key FROM heartline.guarded ORDER BY key")
        #expect(try rows.map { try $0.int8(0) } == [1, 6])
        #expect(try server.count("guarded_log") == 2)
        let second = commit(claim.epoch, 1) { commit in
            for (key, owner) in [(Int64(1), UInt64(9)), (6, 2)] {
                commit.rows[2].beginRow(origin: 0)
                commit.rows[2].put(int8: key)
                commit.rows[2].put(id(owner))
                commit.rows[2].put(ByteBuffer("changed".utf8).span)
            }
            for owner in [UInt64(1), 3] {
                commit.rows[3].beginRow(origin: 0)
                commit.rows[3].put(id(owner))
            }
        }
        #expect(server.ask(.commit(second))?.isCommitted == true)
        #expect(
            try server.query("SELECT key FROM heartline.guarded WHERE note = 'changed'") == 6)
        #expect(try server.count("guarded_log") == 1)
    }

    @Test func aRejectedRowAmongGuardedOnesIsADeadLetterAndTheOthersAreGuardedStill() throws {
        let server = try server(copyRows: 8_192)
        let claim = try #require(server.claim())
        let stored = commit(claim.epoch, 0) { commit in
            put(&commit, 1, 1, 2, hidden: 3)
            put(&commit, 2, 1, 2, hidden: 3, note: "a\u{0}b")
            put(&commit, 3, 1, 9, hidden: 3)
        }
        guard case .committed(let rejected) = server.ask(.commit(stored)) else {
            Issue.record("the commit was not made")
            return
        }
        #expect(rejected.entries.map(\.origin) == [2])
        #expect(try server.count("guarded") == 1)
    }

    /// The deletion is under way when the row is written: whoever was first, a foreign key does not
    /// fail, and no row stays behind.
    @Test(arguments: [8_192, 1])
    func aRowWhoseOwnerIsBeingDeletedWaitsAndIsLeftOut(copyRows: Int) throws {
        let server = try server(copyRows: copyRows)
        let claim = try #require(server.claim())
        let eraser = try server.database.connect()
        try eraser.run("BEGIN")
        try eraser.run("DELETE FROM heartline.owners WHERE id = '\(id(2))'")
        server.send(
            .commit(
                commit(claim.epoch, 0) { commit in
                    put(&commit, 1, 1, 2, hidden: 3)
                    put(&commit, 2, 1, 1, hidden: 3)
                }))
        let watcher = try server.database.connect()
        var isWaiting = false
        for _ in 0..<3_000 where !isWaiting {
            isWaiting =
                try watcher.execute(
                    """
                    SELECT count(*) FROM pg_stat_activity
                     WHERE wait_event_type = 'Lock' AND datname = current_database()
                    """
                ).only().int8(0) > 0
            if !isWaiting { usleep(10_000) }
        }
        #expect(isWaiting)
        try eraser.run("COMMIT")
        guard case .committed(let rejected) = server.reply() else {
            Issue.record("the commit was not made")
            return
        }
        #expect(rejected.isEmpty)
        #expect(try server.query("SELECT key FROM heartline.guarded") == 2)
    }
}
