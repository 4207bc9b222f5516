import Foundation
import Postgres
import Schemas
import System
import Testing

/// An agent that shares no code with us: Tests/Contract/agent.py, written from the agents' documents.
@Suite("heartline up: a second agent, written from the documents alone, in Python", .realTime)
struct SecondAgentTests {
    private static let root = URL(filePath: #filePath).deletingLastPathComponent()
        .deletingLastPathComponent().deletingLastPathComponent().path(percentEncoded: false)
    private static let python = root + ".build/agent-python/bin/python3"
    private static var isInstalled: Bool { FileSystem.exists(python) }

    /// What the agent prints.
    private struct Event: Decodable, Sendable {
        var event: String
        var device_id: String?
        var internal_ip: String?
        var public_key: String?
        var fingerprint: String?
        var forwards_hash: String?
        var number: Int?
        var changed: [String]?
        var status: Int?
        var error: String?
        var what: String?
    }

    private struct SecondAgent: Sendable {
        let process: HeartlineProcess

        init(_ running: RunningHeartline, token: String, hardwareID: String) throws {
            process = try HeartlineProcess(
                [
                    SecondAgentTests.root + "Tests/Contract/agent.py", "--server",
                    running.places.listen, "--hwid", hardwareID, "--salt-file",
                    running.data + "/server-salt", "--interval", "0.1",
                ], executable: SecondAgentTests.python, input: token + "\n")
        }

        var events: [Event] {
            process.output().split(separator: "\n").compactMap {
                try? JSONDecoder().decode(Event.self, from: Data($0.utf8))
            }
        }

        /// Waits for an event that comes after the first `count`.
        func next(
            after count: Int = 0, _ condition: @Sendable (Event) -> Bool
        ) async throws -> Event {
            var found: Event?
            let isThere = await holds(within: 120) {
                found = events.dropFirst(count).first(where: condition)
                return found != nil || process.hasEnded
            }
            #expect(isThere)
            return try #require(
                found, "\(process.errors()) \(events.last.map { "\($0)" } ?? "no event")")
        }

        func rebuilt(_ number: Int) async throws -> Event {
            try await next { $0.event == "rebuilt" && $0.number == number }
        }
    }

    private func publicKey(_ running: RunningHeartline, _ device: DeviceID) throws -> String {
        let connection = try running.connect()
        defer { connection.close() }
        return try connection.execute(
            "SELECT public_key FROM heartline.devices WHERE device_id = $1",
            .uuid(device.high, device.low)
        ).only().text(0)
    }

    private func heartline(_ running: RunningHeartline, _ words: String...) async throws -> String {
        let outcome = try await running.run(words)
        #expect(outcome.status == 0, "\(words.prefix(2)): \(outcome.errors)")
        return outcome.output.trimmingCharacters(in: .whitespacesAndNewlines)
    }

    @Test(
        "It provisions, decrypts, beats, and rebuilds exactly when something changed",
        .enabled(if: isInstalled, "scripts/bootstrap test installs what it needs"))
    func lifeOfAnAgent() async throws {
        let running = try await RunningHeartline()
        let token = try await heartline(running, "token", "create")
        let agent = try SecondAgent(running, token: token, hardwareID: "тел-1 of Tests")
        let provisioned = try await agent.next { $0.event == "provisioned" }
        let device = try #require(DeviceID(provisioned.device_id ?? ""))
        let id = "\(device)"
        // What another library computes of the private key is what the registry holds.
        #expect(try publicKey(running, device) == provisioned.public_key)

        // The document's agent has no hash at first, so the first one it sees is a change.
        let first = try await agent.rebuilt(1)
        #expect(first.changed == [], "a heartbeat answers what provisioning gave")
        #expect(first.fingerprint == provisioned.fingerprint)
        #expect(try await running.waitFor("healthy", of: device))

        _ = try await heartline(
            running, "forward", "add", id, "--proto", "tcp", "--listen", "8080", "--to",
            "10.0.0.5:80")
        let second = try await agent.rebuilt(2)
        #expect(second.forwards_hash != first.forwards_hash)
        #expect(second.fingerprint == first.fingerprint, "forwards are not in the answer")

        // Changes that change nothing: added again, and the same list in another order.
        _ = try await heartline(
            running, "forward", "add", id, "--proto", "tcp", "--listen", "8080", "--to",
            "10.0.0.5:80")
        _ = try await heartline(running, "forward", "set", id, "tcp/8080=10.0.0.5:80")
        let beats = agent.events.count { $0.event == "heartbeat" }
        #expect(
            await holds(within: 120) {
                agent.events.count { $0.event == "heartbeat" } >= beats + 10
            })
        #expect(agent.events.last { $0.event == "rebuilt" }?.number == 2)

        _ = try await heartline(running, "device", "rotate", id)
        let third = try await agent.rebuilt(3)
        #expect(third.changed == ["private_key", "preshared_key"])
        #expect(third.forwards_hash != second.forwards_hash)
        #expect(third.public_key != provisioned.public_key)
        #expect(try publicKey(running, device) == third.public_key)

        _ = try await heartline(running, "device", "suspend", id)
        let refused = try await agent.next { $0.event == "heartbeat-failed" }
        #expect(refused.status == 403)
        #expect(refused.error == "device is suspended")
        _ = try await heartline(running, "device", "resume", id)
        let seen = agent.events.count
        _ = try await agent.next(after: seen) { $0.event == "heartbeat" }
        // Back to the first list, back to the first hash: it is of what is configured, not of when.
        _ = try await heartline(
            running, "forward", "remove", id, "--proto", "tcp", "--listen", "8080")
        let fourth = try await agent.rebuilt(4)
        #expect(fourth.forwards_hash != first.forwards_hash, "the keys are others")
        #expect(fourth.fingerprint == third.fingerprint)

        // A token is good once: the agent asks three times, then tells its user.
        let other = try SecondAgent(running, token: token, hardwareID: "phone-2")
        let gaveUp = try await other.next { $0.event == "gave-up" }
        #expect(gaveUp.status == 400)
        #expect(gaveUp.error == "token already used")
        #expect(await other.process.waitForEnd() == 1)

        agent.process.send(SIGTERM)
        #expect(await agent.process.waitForEnd() == 0)
        #expect(agent.events.allSatisfy { $0.what == nil })
        #expect(agent.process.errors() == "")
        #expect(await running.stop() == 0)
    }
}
