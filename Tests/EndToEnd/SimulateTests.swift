import Foundation
import Postgres
import Schemas
import Testing

@Suite("heartline simulate: agents that provision themselves", .realTime) struct SimulateTests {
    private struct Report: Decodable {
        struct Traffic: Decodable {
            var answers: [String: Int]
        }
        var agents: Int
        var provisioned: Int
        var provisionings_failed: Int
        var agents_that_gave_up: Int
        var faulty_answers: Int
        var unreadable_answers: Int
        var unanswered: [String: Int]
        var connections_opened: Int
        var provisioning: Traffic
        var heartbeats: Traffic
    }

    private struct Observation: Decodable {
        var at: String
        var device_id: String
        var event: String
        var forwards_hash: String?
    }

    @Test("From tokens on standard input alone, against an address, with what each agent saw")
    func fromTokens() async throws {
        let running = try await RunningHeartline(["--provision-limit", "0"])
        let tokens = try await running.run(["token", "create", "--count", "30"]).output
        let salt = try String(contentsOfFile: "\(running.data)/server-salt", encoding: .utf8)
        let saltFile = try running.folder.write(salt, to: "salt")
        let observations = "\(running.folder.path)/observations"
        // One token twice: its second agent gives up.
        let first = try #require(tokens.split(separator: "\n").first)
        let fleet = try HeartlineProcess(
            [
                "simulate", "--provision", "--tokens", "-", "--url", running.places.listen,
                "--salt-file", saltFile, "--ramp", "1s", "--speed", "30", "--connections", "4",
                "--duration", "5s", "--json", "--observations", observations,
            ], input: "\(tokens)\n  \(first)\n")
        #expect(await fleet.waitForEnd() == 0, "\(fleet.errors())")
        let report = try JSONDecoder().decode(Report.self, from: Data(fleet.output().utf8))
        #expect(report.agents == 31)
        #expect(report.provisioned == 30)
        #expect(report.provisioning.answers == ["200": 30, "400": 3])
        #expect(report.provisionings_failed == 3)
        #expect(report.agents_that_gave_up == 1)
        #expect(report.faulty_answers == 0)
        #expect(report.unreadable_answers == 0)
        #expect(report.unanswered.isEmpty)
        #expect(report.connections_opened <= 4)
        #expect(Array(report.heartbeats.answers.keys) == ["200"])

        let seen = try String(contentsOfFile: observations, encoding: .utf8)
            .split(separator: "\n").map {
                try JSONDecoder().decode(Observation.self, from: Data($0.utf8))
            }
        let devices = Set(seen.filter { $0.event == "provisioned" }.map(\.device_id))
        #expect(devices.count == 30)
        let connection = try running.connect()
        let registered = try connection.execute("SELECT device_id::text FROM heartline.devices")
        #expect(Set(try registered.map { try $0.text(0) }) == devices)
        connection.close()
        let hashes = seen.filter { $0.event == "configuration" }
        #expect(Set(hashes.map(\.device_id)) == devices)
        #expect(hashes.allSatisfy { $0.forwards_hash?.count == 64 && $0.at.hasSuffix("Z") })
        // The same devices again, by their hardware ids, with tokens made here.
        let again = try await running.run([
            "simulate", "--provision", "--agents", "30", "--ramp", "1ms", "--duration", "3s",
        ])
        #expect(again.status == 0)
        #expect(again.output.contains("provisioned: 30, tries that failed: 0"), "\(again.output)")
        let count = try await running.run(["device", "list", "--json"])
        #expect(count.output.split(separator: "\n").count == 30)
        #expect(await running.stop() == 0)
    }

    @Test("What is wrong with tokens is told without showing them") func badTokens() async throws {
        let folder = try TemporaryFolder()
        let salt = try folder.write("a salt that is long enough", to: "salt")
        let secret = "5e3c0a1b-aaaa-4bbb-8ccc-0123456789zz"
        let tokens = try folder.write(
            "5e3c0a1b-aaaa-4bbb-8ccc-0123456789ab\n\n\(secret)\n", to: "tokens")
        func simulate(_ words: String...) async throws -> Executable.Outcome {
            try await Executable.run(["simulate", "--url", "http://127.0.0.1:1"] + words)
        }
        let bad = try await simulate("--provision", "--tokens", tokens, "--salt-file", salt)
        #expect(bad.status == 1)
        #expect(bad.errors.contains("line 3 of"), "\(bad.errors)")
        #expect(!bad.errors.contains(secret))
        let empty = try await simulate("--provision", "--tokens", salt + "x", "--salt-file", salt)
        #expect(empty.status == 1)
        let alone = try await simulate("--tokens", tokens)
        #expect(alone.status == 2)
        #expect(alone.errors.contains("--tokens goes with --provision"))
        let uncounted = try await simulate("--provision", "--salt-file", salt)
        #expect(uncounted.status == 2)
        let saltless = try await Executable.run([
            "simulate", "--url", "http://127.0.0.1:1", "--provision", "--tokens", tokens, "--data",
            folder.path,
        ])
        #expect(saltless.status == 1)
        #expect(saltless.errors.contains("--salt-file"))
    }
}
