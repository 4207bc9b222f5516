import Bytes
import Foundation
import Pipeline
import Postgres
import Schemas
import TestSupport
import Testing

/// What analysts get: a role that may read what names nobody, and queries whose output is real.
@Suite("Analysts") struct AnalystTests {
    private static let folder = URL(filePath: #filePath).deletingLastPathComponent()
    private static let document = folder.appending(path: "../../docs/queries.md")
        .standardizedFileURL

    private static func database() throws -> (TestDatabase, PostgresConnection) {
        let database = try TestDatabase.make()
        let connection = try database.connect()
        try connection.run("SET TimeZone = 'UTC'")
        return (database, connection)
    }

    @Test(
        "docs/queries.md has the output that the queries give: HEARTLINE_WRITE_DOCS=1 writes it anew"
    )
    func queries() throws {
        let (database, connection) = try Self.database()
        defer { withExtendedLifetime(database) {} }
        let data = try String(
            contentsOf: Self.folder.appending(path: "analysts.sql"), encoding: .utf8)
        try connection.run(data)
        try connection.run("SET ROLE heartline_reader; SET default_transaction_read_only = on")
        let committed = (try? String(contentsOf: Self.document, encoding: .utf8)) ?? ""
        let mark = "\n## 1. "
        let head =
            committed.range(of: mark).map { String(committed[..<$0.lowerBound]) } ?? committed
        var text = head.trimmingCharacters(in: .newlines) + "\n"
        for (index, query) in AnalystQuery.all.enumerated() {
            let output = try Self.output(of: query.sql, connection)
            #expect(output.count > 2, "\(query.title): nothing comes of it")
            text += """

                ## \(index + 1). \(query.title)

                \(query.text)

                ```sql
                \(query.sql)
                ```

                ```
                \(output.joined(separator: "\n"))
                ```

                """
        }
        #expect(AnalystQuery.all.count == 10)
        if ProcessInfo.processInfo.environment["HEARTLINE_WRITE_DOCS"] == "1" {
            try text.write(to: Self.document, atomically: true, encoding: .utf8)
        }
        let now = try String(contentsOf: Self.document, encoding: .utf8)
        #expect(
            now == text,
            "docs/queries.md is stale: run this test with HEARTLINE_WRITE_DOCS=1 and commit the file"
        )
    }

    /// As psql shows it, without its last line: columns as wide as what stands in them.
    private static func output(of sql: String, _ connection: PostgresConnection) throws -> [String]
    {
        var rows: [[String]] = []
        let statement = sql.trimmingCharacters(in: .whitespacesAndNewlines).dropLast()
        try connection.copyOut("COPY (\(statement)) TO STDOUT (FORMAT text, NULL '', HEADER)") {
            row in
            rows.append(
                row.text.trimmingCharacters(in: .newlines).split(
                    separator: "\t", omittingEmptySubsequences: false
                ).map(String.init))
        }
        let widths = rows[0].indices.map { column in rows.map { $0[column].count }.max() ?? 0 }
        var lines = rows.map { row in
            var line = ""
            for (cell, width) in zip(row, widths) {
                line +=
                    (line.isEmpty ? " " : " | ")
                    + cell.padding(
                        toLength: width, withPad: " ", startingAt: 0)
            }
            while line.hasSuffix(" ") { line.removeLast() }
            return line
        }
        lines.insert(
            widths.map { String(repeating: "-", count: $0 + 2) }.joined(separator: "+"), at: 1)
        return lines
    }

    @Test("the role reads what names nobody and holds no secret, and changes nothing")
    func role() throws {
        let (database, connection) = try Self.database()
        defer { withExtendedLifetime(database) {} }
        let relations = try connection.execute(
            """
            SELECT c.relname, has_table_privilege('heartline_reader', c.oid, 'SELECT'),
                   has_table_privilege('heartline_reader', c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')
              FROM pg_class c WHERE c.relnamespace = 'heartline'::regnamespace
               AND c.relkind IN ('r', 'p', 'v')
            """)
        var readable: Set<String> = []
        for row in relations {
            let name = try row.text(0)
            if try row.bool(1) { readable.insert(name) }
            #expect(try !row.bool(2), "\(name)")
        }
        #expect(
            readable == [
                "fleet", "alert_history", "telemetry_hours", "match_minutes", "device_status",
                "device_state_history", "device_state_ended", "device_uptime_days", "fleet_minutes",
                "config_versions", "config_delivery", "config_rollout", "installations",
                "update_attempts", "rollout", "telemetry_minutes", "agent_logs", "encounters",
            ])
        try connection.run("SET ROLE heartline_reader")
        for name in [
            "accounts", "sessions", "devices", "network", "messages", "registration_tokens",
        ] {
            let error = #expect(throws: PostgresError.self) {
                try connection.run("SELECT * FROM heartline.\(name)")
            }
            #expect(
                error?.sqlState?.description.contains("42501") == true, "\(name): \(error as Any)")
        }
        #expect(throws: PostgresError.self) {
            try connection.run("DELETE FROM heartline.device_status")
        }
    }

    @Test("an owner of a database who may not make roles migrates it, and lets others read later")
    func withoutRole() throws {
        let database = try TestDatabase.make(isMigrated: false)
        let connection = try database.connect()
        // Roles are of the whole cluster, so these have names of their own.
        let number = UInt32.random(in: 0 ..< .max)
        let (owner, reader) = ("owner_\(number)", "reader_\(number)")
        try connection.run("CREATE ROLE \(owner); CREATE ROLE \(reader)")
        defer {
            _ = try? connection.run("RESET ROLE")
            _ = try? connection.run(
                "DROP OWNED BY \(reader); DROP OWNED BY \(owner); DROP ROLE \(reader); DROP ROLE \(owner)"
            )
        }
        let name = try connection.execute("SELECT current_database()").only().text(0)
        try connection.run("GRANT CREATE ON DATABASE \"\(name)\" TO \(owner); SET ROLE \(owner)")
        try Migrator.migrate(connection, try Migrations.load())
        // Twice is once.
        try connection.run("SELECT heartline.grant_reader('\(reader)')")
        try connection.run("SELECT heartline.grant_reader('\(reader)')")
        try connection.run("RESET ROLE; SET ROLE \(reader)")
        try connection.run("SELECT * FROM heartline.fleet")
        #expect(throws: PostgresError.self) {
            try connection.run("SELECT * FROM heartline.devices")
        }
    }
}
