import Foundation
import Postgres
import Schemas
import System
import Testing

/// App updates with the executable: from an operator's command to the tables of the rollout.
@Suite("heartline up: app updates", .realTime) struct UpdatesTests {
    private static func start(_ folder: TemporaryFolder) async throws -> RunningHeartline {
        let pipelines = try RunningHeartline.pipelines(in: folder)
        if !FileSystem.exists("\(pipelines)/updates.yaml") {
            _ = try folder.write(
                """
                name: update-rollout
                source: { topic: updates }
                processor: { update-rollout: {} }
                sinks: [ { postgres: { tables: [installations, update_attempts, rollout] } } ]
                """, to: "pipelines/updates.yaml")
            let d = folder.path
            _ = try folder.write(
                """
                installer:
                  sign: [/bin/sh, -c, 'cp "$1" "$2" && cp "$3" \(d)/metadata', sh, "{ipa}", "{signed}", "{metadata}"]
                  install: [/bin/sh, -c, 'echo started; while [ -e \(d)/hold ]; do sleep 0.05; done', sh]
                """, to: "updates.yaml")
            try Data([0x50, 0x4B, 0x03, 0x04, 1, 2, 3]).write(
                to: URL(filePath: "\(d)/app.ipa"))
        }
        return try await RunningHeartline(
            in: folder,
            ["--update-listen", "127.0.0.1:0", "--updates", "\(folder.path)/updates.yaml"])
    }

    private func curl(_ arguments: String...) async throws -> (status: Int32, output: String) {
        let process = try HeartlineProcess(
            ["-s", "-N", "--max-time", "170"] + arguments, executable: "/usr/bin/curl")
        let status = await process.waitForEnd()
        return (status, process.output())
    }

    private func state(_ running: RunningHeartline) throws -> [String] {
        let connection = try running.connect()
        defer { connection.close() }
        return try connection.execute(
            """
            SELECT action || ' ' || state || CASE WHEN late THEN ' late' ELSE '' END \
            FROM heartline.update_attempts ORDER BY started_at
            """
        ).map { try $0.text(0) }
    }

    private func newID(_ folder: TemporaryFolder) throws -> String {
        let text = try String(contentsOfFile: "\(folder.path)/metadata", encoding: .utf8)
        let match = try #require(text.firstMatch(of: #/app/([0-9a-f]{48})/update/#))
        return String(match.output.1)
    }

    @Test(
        "an operator adds an app, it updates itself, a stop in the middle leaves it unconfirmed, and its next check mends that"
    )
    func whole() async throws {
        let folder = try TemporaryFolder()
        var running = try await Self.start(folder)
        let added = try await running.run([
            "installation", "add", "--device", "phone", "--app", "Example", "--source",
            "\(folder.path)/app.ipa", "--json",
        ])
        #expect(added.status == 0, "\(added.errors)")
        struct Added: Decodable {
            var installation_id: String
            var update_url: String
        }
        let app = try JSONDecoder().decode(Added.self, from: Data(added.output.utf8))
        // The routes are on their own listener, and nowhere else.
        #expect(!app.update_url.hasPrefix(running.places.listen))
        let path = String(app.update_url.drop { $0 != "/" }.dropFirst(2).drop { $0 != "/" })
        let elsewhere = try await curl(running.places.listen + path + "/check")
        #expect(elsewhere.output == "{\"error\":\"not found\"}")

        let installed = try await curl("-X", "POST", app.update_url)
        #expect(installed.status == 0 && installed.output.contains("{\"type\":\"result\""))
        #expect(try await holds(within: 60) { try state(running) == ["install succeeded"] })

        // The server is told to stop while the installer is at work.
        _ = try folder.write("", to: "hold")
        let stream = try HeartlineProcess(
            ["-s", "-N", "-X", "POST", app.update_url], executable: "/usr/bin/curl")
        #expect(await holds(within: 120) { stream.output().contains("started") })
        #expect(await running.stop() == 0)
        _ = await stream.waitForEnd()
        #expect(!stream.output().contains("\"type\":\"result\""))
        #expect(!stream.output().contains("\"type\":\"error\""))

        running = try await Self.start(folder)
        #expect(
            try await holds(within: 60) {
                try state(running) == ["install succeeded", "install unconfirmed"]
            })
        let base = try #require(
            try? JSONDecoder().decode(
                Places.self,
                from: Data(contentsOf: URL(filePath: "\(running.data)/run.json"))))
        let check = try await curl(
            "\(base.updates)/api/app/\(try newID(folder))/update/check?prefetch=false")
        #expect(check.output.contains("\"available\":false"), "\(check.output)")
        #expect(
            try await holds(within: 60) {
                try state(running) == ["install succeeded", "install succeeded late"]
            })
        let shown = try await running.run(["installation", "show", app.installation_id])
        #expect(shown.status == 0 && shown.output.contains("install"), "\(shown.errors)")
        let revoked = try await running.run(["installation", "revoke", app.installation_id])
        #expect(revoked.output == "\(app.installation_id) revoked\n")
        let audit = try await running.run(["audit", "list"])
        #expect(audit.output.contains("installation.add"))
        #expect(audit.output.contains("installation.revoke"))
        #expect(await running.stop() == 0)
    }

    private struct Places: Decodable {
        var updates: String
    }
}
