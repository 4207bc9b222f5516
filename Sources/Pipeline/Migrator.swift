public import Postgres
public import Schemas
internal import System

/// Brings a database to the schema of this program.
public enum Migrator {
    public struct MigrationError: Error, Hashable, Sendable, CustomStringConvertible {
        public enum Kind: Hashable, Sendable {
            /// A file is not the one that was applied.
            case changed(Int32)
            /// The database has a migration that this program does not know.
            case databaseIsNewer(Int32)
            /// The database lacks migrations.
            case pending(Int32)
            /// Another process has been migrating all the while.
            case locked
        }

        public var kind: Kind

        public var description: String {
            switch kind {
            case .changed(let number):
                """
                migrating the database: migration \(number) was applied with another text. \
                Restore the file as it was; changes go into a new migration
                """
            case .databaseIsNewer(let number):
                """
                migrating the database: it has migration \(number), which this program does not \
                know. Run a newer heartline
                """
            case .pending(let number):
                """
                checking the database's schema: migration \(number) is not applied. Run \
                heartline migrate
                """
            case .locked:
                """
                migrating the database: another process has held the lock for too long. Look at \
                pg_locks for the advisory lock \(Migrator.lockKey)
                """
            }
        }
    }

    /// The advisory lock that only one migrator holds: "heartlin" in ASCII, positive.
    static let lockKey: Int64 = 0x6865_6172_746C_696E

    /// Applies what is missing, each migration in a transaction of its own, under an advisory lock.
    ///
    /// Of several that begin at once, one does the work and the others find nothing to do.
    /// - Parameter lockTimeout: how long to wait while another process migrates.
    /// - Returns: what was applied.
    /// - Throws: `MigrationError`, or `PostgresError` with the number of the migration in `subject`.
    @discardableResult
    public static func migrate(
        _ connection: PostgresConnection, _ migrations: [Migration],
        lockTimeout: Duration = .seconds(300)
    ) throws -> [Migration] {
        try takeLock(connection, timeout: lockTimeout)
        defer { _ = try? connection.execute("SELECT pg_advisory_unlock($1)", .int8(lockKey)) }
        try connection.run(table)
        let applied = try checksums(of: connection)
        try check(applied, against: migrations, connection)
        var done: [Migration] = []
        for migration in migrations where applied[migration.number] == nil {
            try apply(migration, to: connection)
            Log.info(
                "migrated the database",
                ["migration.number": "\(migration.number)", "migration.name": migration.name])
            done.append(migration)
        }
        return done
    }

    /// Checks that the database has exactly `migrations`.
    public static func check(
        _ connection: PostgresConnection, _ migrations: [Migration]
    ) throws {
        let exists = try connection.execute(
            "SELECT to_regclass('heartline.schema_migrations') IS NOT NULL"
        ).only().bool(0)
        let applied = exists ? try checksums(of: connection) : [:]
        try check(applied, against: migrations, connection)
        if let missing = migrations.first(where: { applied[$0.number] == nil }) {
            throw MigrationError(kind: .pending(missing.number))
        }
    }

    private static let table = """
        SET client_min_messages = warning;
        CREATE SCHEMA IF NOT EXISTS heartline;
        CREATE TABLE IF NOT EXISTS heartline.schema_migrations (
            number int4 PRIMARY KEY,
            name text NOT NULL,
            checksum text NOT NULL,
            applied_at timestamptz NOT NULL DEFAULT now()
        );
        COMMENT ON TABLE heartline.schema_migrations IS 'Which changes of the schema were applied.';
        COMMENT ON COLUMN heartline.schema_migrations.number IS 'Number of the migration, from 1.';
        COMMENT ON COLUMN heartline.schema_migrations.name IS 'What it is called.';
        COMMENT ON COLUMN heartline.schema_migrations.checksum IS 'SHA-256 of its text, hexadecimal.';
        COMMENT ON COLUMN heartline.schema_migrations.applied_at IS 'When it was applied.';
        RESET client_min_messages;
        """

    /// Polls rather than waits in the server, so that the wait has a bound of its own.
    private static func takeLock(_ connection: PostgresConnection, timeout: Duration) throws {
        let start = ContinuousClock.now
        let pause = Waker()
        while true {
            let isTaken = try connection.execute(
                "SELECT pg_try_advisory_lock($1)", .int8(lockKey)
            ).only().bool(0)
            if isTaken { return }
            if ContinuousClock.now - start >= timeout { throw MigrationError(kind: .locked) }
            pause.wait(milliseconds: 50)
        }
    }

    private static func checksums(of connection: PostgresConnection) throws -> [Int32: String] {
        let rows = try connection.execute(
            "SELECT number, checksum FROM heartline.schema_migrations")
        var applied: [Int32: String] = [:]
        for row in rows { applied[try row.int4(0)] = try row.text(1) }
        return applied
    }

    private static func check(
        _ applied: [Int32: String], against migrations: [Migration],
        _ connection: PostgresConnection
    ) throws {
        let newest = migrations.last?.number ?? 0
        if let unknown = applied.keys.filter({ $0 > newest }).min() {
            throw MigrationError(kind: .databaseIsNewer(unknown))
        }
        for migration in migrations {
            guard let checksum = applied[migration.number] else { continue }
            if checksum != (try self.checksum(of: migration, connection)) {
                throw MigrationError(kind: .changed(migration.number))
            }
        }
    }

    private static func checksum(
        of migration: Migration, _ connection: PostgresConnection
    ) throws -> String {
        try connection.execute(
            "SELECT encode(sha256(convert_to($1, 'UTF8')), 'hex')", .text(migration.sql)
        ).only().text(0)
    }

    private static func apply(_ migration: Migration, to connection: PostgresConnection) throws {
        do {
            try connection.transaction {
                try connection.run(migration.sql)
                try connection.execute(
                    """
                    INSERT INTO heartline.schema_migrations (number, name, checksum)
                    VALUES ($1, $2, encode(sha256(convert_to($3, 'UTF8')), 'hex'))
                    """,
                    .int4(migration.number), .text(migration.name), .text(migration.sql))
            }
        } catch let error as PostgresError {
            var failure = error
            failure.subject = "migration \(migration.number) (\(migration.name))"
            throw failure
        }
    }
}
