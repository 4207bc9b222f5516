import Foundation
import Pipeline
import Postgres
import Schemas
import Synchronization
import System
import TestSupport
import Testing

@Suite struct MigratorTests {
    private let first = Migration(
        number: 1, name: "first", sql: "CREATE TABLE heartline.one (x int8); SELECT pg_sleep(0.05)")
    private let second = Migration(
        number: 2, name: "second",
        sql: "ALTER TABLE heartline.one ADD y int8; INSERT INTO heartline.one VALUES (1, 2)")

    @Test func theShippedMigrationsApplyOnceAndInOrder() throws {
        let database = try TestDatabase.make(isMigrated: false)
        let connection = try database.connect()
        let migrations = try Migrations.load()
        #expect(throws: Migrator.MigrationError.self) { try Migrator.check(connection, migrations) }
        #expect(try Migrator.migrate(connection, migrations) == migrations)
        #expect(try Migrator.migrate(connection, migrations).isEmpty)
        try Migrator.check(connection, migrations)
        let rows = try connection.execute(
            "SELECT number, name FROM heartline.schema_migrations ORDER BY number")
        #expect(try rows.map { try $0.int4(0) } == migrations.map(\.number))
        #expect(connection.transactionStatus == .idle)
    }

    @Test func ofEightThatBeginAtOnceOneDoesTheWork() throws {
        let database = try TestDatabase.make(isMigrated: false)
        let applied = Mutex<[Int]>([])
        let errors = Mutex<[String]>([])
        let url = database.url
        let (first, second) = (first, second)
        let threads = (0..<8).map { number in
            SystemThread.start("migrator-\(number)") {
                do {
                    let connection = try PostgresConnection(url)
                    let done = try Migrator.migrate(connection, [first, second])
                    applied.withLock { $0.append(done.count) }
                } catch {
                    errors.withLock { $0.append("\(error)") }
                }
            }
        }
        for thread in threads { thread.join() }
        #expect(errors.withLock { $0 } == [])
        #expect(applied.withLock { $0.sorted() } == [0, 0, 0, 0, 0, 0, 0, 2])
        let connection = try database.connect()
        #expect(try connection.execute("SELECT FROM heartline.one").count == 1)
    }

    @Test func aChangedMigrationIsAnError() throws {
        let connection = try withDatabase()
        try Migrator.migrate(connection.1, [first])
        var changed = first
        changed.sql += " "
        let error = #expect(throws: Migrator.MigrationError.self) {
            try Migrator.migrate(connection.1, [changed, second])
        }
        #expect(error?.kind == .changed(1))
        #expect(try connection.1.execute("SELECT FROM heartline.schema_migrations").count == 1)
    }

    @Test func aDatabaseThatIsNewerIsAnError() throws {
        let connection = try withDatabase()
        try Migrator.migrate(connection.1, [first, second])
        let error = #expect(throws: Migrator.MigrationError.self) {
            try Migrator.migrate(connection.1, [first])
        }
        #expect(error?.kind == .databaseIsNewer(2))
        #expect(error?.description.contains("Run a newer heartline") == true)
    }

    @Test func aMigrationThatFailsLeavesNothingBehind() throws {
        let connection = try withDatabase()
        var broken = second
        broken.sql = "CREATE TABLE heartline.two (x int8); SELECT 1/0"
        let error = #expect(throws: PostgresError.self) {
            try Migrator.migrate(connection.1, [first, broken])
        }
        #expect(error?.subject == "migration 2 (second)")
        #expect(try connection.1.execute("SELECT FROM heartline.schema_migrations").count == 1)
        #expect(try Migrator.migrate(connection.1, [first, second]) == [second])
    }

    @Test func aLockThatIsNotGivenUpIsAnError() throws {
        let connection = try withDatabase()
        let other = try connection.0.connect()
        try other.execute("SELECT pg_advisory_lock(x'68656172746c696e'::int8)")
        let error = #expect(throws: Migrator.MigrationError.self) {
            try Migrator.migrate(connection.1, [first], lockTimeout: .milliseconds(100))
        }
        #expect(error?.kind == .locked)
    }

    @Test func filesWithAGapOrAWrongNameAreErrors() throws {
        let directory = try FileSystem.makeTemporaryDirectory("/tmp/heartline-migrations-")
        defer { try? FileManager.default.removeItem(atPath: directory) }
        try FileSystem.write("SELECT 1", to: "\(directory)/0001_one.sql", mode: 0o600)
        try FileSystem.write("SELECT 3", to: "\(directory)/0003_three.sql", mode: 0o600)
        #expect(throws: Migrations.LoadingError.self) { try Migrations.load(from: directory) }
        try FileSystem.write("SELECT 2", to: "\(directory)/0002_two_words.sql", mode: 0o600)
        #expect(try Migrations.load(from: directory).map(\.name) == ["one", "two_words", "three"])
        try FileSystem.write("", to: "\(directory)/four.sql", mode: 0o600)
        #expect(throws: Migrations.LoadingError.self) { try Migrations.load(from: directory) }
        #expect(throws: Migrations.LoadingError.self) { try Migrations.load(from: "/nowhere") }
    }

    @Test func dayPartitionsAreMadeOnceAndTakeTheirRows() throws {
        let database = try TestDatabase.make()
        let connection = try database.connect()
        let insert = """
            INSERT INTO heartline.device_state_ended
            SELECT gen_random_uuid(), 0, 0, 'healthy', '', now(), d
              FROM unnest(ARRAY['2026-06-25 23:59:59.999Z', '2026-06-26Z', '2030-01-01Z']::timestamptz[]) d
            """
        for _ in 0..<2 {
            try connection.run(
                "SELECT heartline.ensure_day_partitions('2026-06-25', '2026-06-27')")
        }
        try connection.run(insert)
        // A day whose rows are in the default partition already stays there, without an error.
        try connection.run("SELECT heartline.ensure_day_partitions('2030-01-01', '2030-01-02')")
        let rows = try connection.execute(
            "SELECT tableoid::regclass::text FROM heartline.device_state_ended ORDER BY ended_at")
        let names = try rows.map { try $0.text(0) }
        #expect(
            names == [
                "heartline.device_state_ended_20260625", "heartline.device_state_ended_20260626",
                "heartline.device_state_ended_default",
            ])
    }

    private func withDatabase() throws -> (TestDatabase, PostgresConnection) {
        let database = try TestDatabase.make(isMigrated: false)
        return (database, try database.connect())
    }
}
