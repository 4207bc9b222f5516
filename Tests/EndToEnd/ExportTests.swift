import Foundation
import Postgres
import Schemas
import System
import TestSupport
import Testing

@Suite("heartline export") struct ExportTests {
    private struct Rig {
        let database: TestDatabase
        let folder: TemporaryFolder

        init() throws {
            database = try TestDatabase.make()
            folder = try TemporaryFolder()
            let connection = try database.connect()
            defer { connection.close() }
            try connection.run(
                """
                INSERT INTO heartline.device_status (device_id, partition, state, reason, since, flags,
                    flapping, transitions, agent_state)
                SELECT gen_random_uuid(), 0, 'healthy', 'handshake-fresh', '2026-06-01T12:00:00+02', '[]', false,
                    n, CASE n WHEN 0 THEN E'a "quoted", word\\nand a line — \\u00e9' END
                  FROM generate_series(0, 4999) n
                """)
        }

        func run(_ words: [String]) async throws -> Executable.Outcome {
            try await Executable.run(["export", "--database", database.url] + words)
        }
    }

    @Test("a table is a file with a line of names and every row, times in UTC")
    func table() async throws {
        let rig = try Rig()
        let file = "\(rig.folder.path)/status.csv"
        let outcome = try await rig.run(["device_status", "--to", file])
        try #require(outcome.status == 0, "\(outcome.errors)")
        #expect(outcome.errors.contains("5000 rows"))
        let text = try String(contentsOfFile: file, encoding: .utf8)
        #expect(text.hasPrefix("device_id,partition,state,reason,since,"))
        #expect(text.contains(",2026-06-01 10:00:00+00,"))
        #expect(text.contains("\"a \"\"quoted\"\", word\nand a line — é\""))
        // One line break is within a text.
        #expect(text.split(separator: "\n").count == 5_002)
        #expect(!FileSystem.exists(file + ".partial"))
    }

    @Test("rows that a full disk does not take are an error, not a shorter file")
    func fullDisk() async throws {
        let rig = try Rig()
        let shell = try HeartlineProcess(
            [
                "-c", "exec \"$0\" export --database \"$1\" device_status > /dev/full",
                Executable.url.path, rig.database.url,
            ], executable: "/bin/sh")
        #expect(await shell.waitForEnd() == 1)
        #expect(shell.errors().contains("writing to standard output: No space left"))
        #expect(!shell.errors().contains("5000 rows"))
    }

    @Test("a query goes to the standard output, and changes nothing")
    func query() async throws {
        let rig = try Rig()
        let outcome = try await rig.run([
            "--query", "SELECT state, count(*) AS devices FROM heartline.device_status GROUP BY 1;",
        ])
        #expect(
            outcome.status == 0 && outcome.output == "state,devices\nhealthy,5000\n",
            "\(outcome.errors)")
        let writing = try await rig.run([
            "--query", "DELETE FROM heartline.device_status RETURNING device_id",
        ])
        #expect(writing.status == 1)
        let connection = try rig.database.connect()
        defer { connection.close() }
        #expect(try connection.number("SELECT count(*) FROM heartline.device_status") == 5_000)
    }

    @Test("what analysts may not see is refused, and what is not there is told apart")
    func refusals() async throws {
        let rig = try Rig()
        let secret = try await rig.run(["network"])
        #expect(secret.status == 1 && secret.errors.contains("analysts may not read it"))
        #expect(secret.errors.contains("alert_history") && secret.output.isEmpty)
        let byQuery = try await rig.run(["--query", "SELECT * FROM heartline.sessions"])
        #expect(byQuery.status == 1 && byQuery.output.isEmpty)
        let unknown = try await rig.run(["device_statuz"])
        #expect(unknown.status == 2 && unknown.errors.contains("did you mean device_status?"))
        let both = try await rig.run(["fleet", "--query", "SELECT 1"])
        #expect(both.status == 2)
        let file = "\(rig.folder.path)/x.csv"
        let broken = try await rig.run(["--query", "SELECT 1 / 0", "--to", file])
        #expect(
            broken.status == 1 && !FileSystem.exists(file) && !FileSystem.exists(file + ".partial"))
    }
}
