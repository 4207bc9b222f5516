import EventLog
import Foundation
import Postgres
import Schemas
import System
import TestSupport
import Testing

/// What docs/operations.md says of backup and restore.
@Suite("Backup and restore") struct BackupTests {
    /// Beside the `initdb` that the private database is made with.
    private static func tool(_ name: String) -> String? {
        let folder = "/usr/lib/postgresql"
        let versions = ((try? FileSystem.names(in: folder)) ?? []).sorted {
            $0.compare($1, options: .numeric) == .orderedAscending
        }
        let places =
            versions.reversed().map { "\(folder)/\($0)/bin/\(name)" } + ["/usr/bin/\(name)"]
        return places.first { FileSystem.isExecutable($0) }
    }

    private func run(_ tool: String, _ words: [String]) async throws {
        let path = try #require(Self.tool(tool))
        let process = try HeartlineProcess(words, executable: path)
        try #require(await process.waitForEnd() == 0, "\(process.errors())")
    }

    private func start(
        _ data: String, _ database: TestDatabase
    ) async throws -> (process: HeartlineProcess, url: String) {
        let process = try HeartlineProcess([
            "up", "--data", data, "--database", database.url, "--listen", "127.0.0.1:0", "--admin",
            "127.0.0.1:0", "--heartbeats", "acked",
        ])
        try #require(
            await holds(within: RunningHeartline.startSeconds) {
                process.hasEnded || FileSystem.exists("\(data)/run.json")
            })
        try #require(!process.hasEnded, "\(process.errors())")
        struct Run: Decodable { var listen: String }
        let run = try JSONDecoder().decode(
            Run.self, from: Data(contentsOf: URL(filePath: "\(data)/run.json")))
        return (process, run.listen)
    }

    private func beat(_ devices: [DeviceID], _ url: String, isUp: Bool) throws {
        let port = try #require(UInt16(url.split(separator: ":").last ?? ""))
        let client = try RawClient(host: "127.0.0.1", port: port)
        let now = EventTime(milliseconds: SystemClock.wallMilliseconds())
        for device in devices {
            let answer = try client.request(
                "POST", "/api/v1/heartbeat",
                body: """
                    {"device_id":"\(device)","status":"\(isUp ? "connected" : "stopped")","tunnel_up":\(isUp),\
                    "last_handshake":"\(now)"}
                    """.utf8)
            try #require(answer.status == 200, "\(answer.text)")
        }
    }

    private func states(_ database: TestDatabase) throws -> [String: Int64] {
        let connection = try database.connect()
        defer { connection.close() }
        var states: [String: Int64] = [:]
        for row in try connection.execute(
            """
            SELECT state, count(*) FROM heartline.device_state_history
             WHERE state <> 'unknown' GROUP BY state
            """)
        { states[try row.text(0)] = try row.int8(1) }
        return states
    }

    @Test(
        "A dump of a running instance goes on from its offsets; on another log it begins anew as told",
        .timeLimit(.minutes(10)),
        .enabled(if: tool("pg_dump") != nil && tool("pg_restore") != nil))
    func dumped() async throws {
        let folder = try TemporaryFolder()
        let data = "\(folder.path)/data"
        let database = try TestDatabase.make(isMigrated: false)
        let (first, url) = try await start(data, database)
        let added = try await Executable.run(["device", "add", "--count", "5", "--data", data])
        let devices = added.output.split(separator: "\n").compactMap { DeviceID(String($0)) }
        try #require(devices.count == 5, "\(added.errors)")
        try beat(devices, url, isUp: true)
        #expect(try await holds(within: 60) { try states(database)["healthy"] == 5 })
        // The backup is of now; what comes after it is in the log alone.
        let dump = "\(folder.path)/heartline.dump"
        try await run("pg_dump", ["-Fc", "--no-owner", "-f", dump, database.url])
        try beat(devices, url, isUp: false)
        #expect(try await holds(within: 60) { try states(database)["stopped"] == 5 })
        let truth = try states(database)
        first.send(SIGTERM)
        #expect(await first.waitForEnd() == 0, "\(first.errors())")

        let restored = try TestDatabase.make(isMigrated: false)
        try await run("pg_restore", ["--no-owner", "--no-acl", "-d", restored.url, dump])
        #expect(try states(restored)["stopped"] == nil)
        let (second, _) = try await start(data, restored)
        _ = try await holds(within: 60) { try states(restored) == truth }
        #expect(try states(restored) == truth)
        second.send(SIGTERM)
        #expect(await second.waitForEnd() == 0, "\(second.errors())")

        // The log is lost too.
        let anew = try TestDatabase.make(isMigrated: false)
        try await run("pg_restore", ["--no-owner", "--no-acl", "-d", anew.url, dump])
        FileSystem.removeTree("\(data)/log")
        let connection = try anew.connect()
        try connection.run(try Self.documented())
        connection.close()
        let (third, place) = try await start(data, anew)
        try beat(devices, place, isUp: false)
        #expect(
            try await holds(within: 60) { try states(anew)["stopped"] == 5 }, "\(third.errors())")
        third.send(SIGTERM)
        #expect(await third.waitForEnd() == 0, "\(third.errors())")
    }

    /// The statements of the document's section, as they stand there.
    private static func documented() throws -> String {
        let file = URL(filePath: #filePath).deletingLastPathComponent()
            .appending(path: "../../docs/operations.md").standardizedFileURL
        let text = try String(contentsOf: file, encoding: .utf8)
        let section = try #require(text.components(separatedBy: "## Restore\n").last)
        let block = try #require(section.components(separatedBy: "```sql\n").dropFirst().first)
        return try #require(block.components(separatedBy: "```").first)
    }
}
