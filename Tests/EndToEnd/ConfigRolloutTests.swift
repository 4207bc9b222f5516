import Bytes
import EventLog
import Foundation
import Ingest
import Postgres
import Schemas
import System
import TestSupport
import Testing

/// From a change in the registry to the row that says when the device was answered with it.
@Suite("Configurations end to end", .serialized, .realTime) struct ConfigRolloutTests {
    private static let root = URL(filePath: #filePath).deletingLastPathComponent()
        .deletingLastPathComponent().deletingLastPathComponent()

    /// The pipelines as they are delivered.
    private func folder() throws -> TemporaryFolder {
        let folder = try TemporaryFolder()
        try FileSystem.makeDirectory("\(folder.path)/pipelines", mode: 0o755)
        for name in ["tunnel-health", "config-hash", "config-delivery"] {
            let file = Self.root.appending(path: "pipelines/\(name).yaml")
            _ = try folder.write(
                try String(contentsOf: file, encoding: .utf8), to: "pipelines/\(name).yaml")
        }
        return folder
    }

    private func registry(_ heartline: RunningHeartline) throws -> Registry {
        let secrets = try SecretFiles.load(environment: [:], directory: heartline.data)
        return try Registry(heartline.connect(), secretKey: secrets.secretKey)
    }

    /// The device's line of the view: version, state and the version that was answered.
    private func rollout(_ heartline: RunningHeartline, _ device: DeviceID) throws -> String {
        let connection = try heartline.connect()
        defer { connection.close() }
        return try connection.execute(
            """
            SELECT concat_ws(' ', version, state, delivered_version)
              FROM heartline.config_rollout WHERE device_id = $1
            """, .uuid(device.high, device.low)
        ).first?.text(0) ?? "none"
    }

    private func waitFor(
        _ expected: String, _ heartline: RunningHeartline, _ device: DeviceID
    ) async throws {
        var found = ""
        let isThere = try await holds(within: 120) {
            found = try rollout(heartline, device)
            return found == expected
        }
        #expect(isThere, "\(found) instead of \(expected)\n\(heartline.process.errors())")
    }

    /// Beats until the answer has the status; the bell may still be on its way.
    private func beat(
        _ heartline: RunningHeartline, _ device: DeviceID, until status: Int
    ) async throws {
        let isAnswered = try await holds(within: 60) {
            try heartline.heartbeat(device).status == status
        }
        #expect(isAnswered, "no \(status)")
    }

    private struct Keys: Decodable {
        var private_key: String
        var preshared_key: String
    }

    @Test("Added, answered, suspended, resumed, killed: versions, deliveries and bells are right")
    func rollout() async throws {
        let folder = try folder()
        var heartline = try await RunningHeartline(in: folder, ["--heartbeats", "acked"])
        let devices = try await heartline.addDevices(3)
        for device in devices { try await waitFor("1 waiting", heartline, device) }
        var secrets: [String] = []
        for device in devices {
            let answer = try heartline.heartbeat(device)
            let keys = try JSONDecoder().decode(Keys.self, from: Data(answer.text.utf8))
            secrets += [keys.private_key, keys.preshared_key]
        }
        for device in devices { try await waitFor("1 delivered 1", heartline, device) }

        var operators = try registry(heartline)
        #expect(try operators.suspend(devices[0]).version == 2)
        try await beat(heartline, devices[0], until: 403)
        try await waitFor("2 suspended 1", heartline, devices[0])
        #expect(try operators.resume(devices[0]).version == 3)
        try await beat(heartline, devices[0], until: 200)
        try await waitFor("3 delivered 3", heartline, devices[0])

        // A crash right behind a change: the rest of its way is gone after the next start.
        #expect(try operators.suspend(devices[1]).version == 2)
        await heartline.kill()
        heartline = try await RunningHeartline(in: folder, ["--heartbeats", "acked"])
        try await waitFor("2 suspended 1", heartline, devices[1])
        operators = try registry(heartline)

        try await checkTables(heartline, devices)
        try await checkTopic(heartline, devices, secrets)
        try await checkStatus(heartline)
        #expect(await heartline.stop() == 0, "\(heartline.process.errors())")
    }

    private func checkTables(_ heartline: RunningHeartline, _ devices: [DeviceID]) async throws {
        let connection = try heartline.connect()
        defer { connection.close() }
        func lines(_ sql: String) throws -> [String] {
            try connection.execute(sql).map { try $0.text(0) }
        }
        let versions = try lines(
            """
            SELECT concat_ws(' ', device_id, version, kind, changed, suspended)
              FROM heartline.config_versions
            """)
        #expect(
            Set(versions)
                == Set(
                    devices.map { "\($0) 1 provisioned [\"config\"] f" } + [
                        "\(devices[0]) 2 suspended [\"suspended\"] t",
                        "\(devices[0]) 3 resumed [\"suspended\"] f",
                        "\(devices[1]) 2 suspended [\"suspended\"] t",
                    ]))
        let delivered = try lines(
            "SELECT concat_ws(' ', device_id, version) FROM heartline.config_delivery")
        #expect(Set(delivered) == Set(devices.map { "\($0) 1" } + ["\(devices[0]) 3"]))
        #expect(delivered.count == 4)
        // Hashes as the front-end answers them.
        let answer = try heartline.heartbeat(devices[2]).text
        let hash = try lines(
            """
            SELECT reload_hash FROM heartline.config_rollout WHERE device_id = '\(devices[2])'
            """)
        #expect(answer.contains("\"forwards_hash\":\"\(try #require(hash.first))\""))
    }

    /// One newest record a device, and not a word of a key.
    private func checkTopic(
        _ heartline: RunningHeartline, _ devices: [DeviceID], _ secrets: [String]
    ) async throws {
        let connection = try heartline.connect()
        defer { connection.close() }
        let isPublished = try await holds(within: 60) {
            try connection.execute("SELECT count(*) FROM heartline.outbox").only().int8(0) == 0
        }
        #expect(isPublished)
        let log = try EmbeddedLog(of: heartline.data)
        defer { log.close() }
        let expected = [devices[0]: 3, devices[1]: 2, devices[2]: 1]
        var bells: [(place: RecordPlace, key: String, value: String)] = []
        let isRung = try await holds(within: 60) {
            bells = try log.records(of: .deviceConfigs)
            return bells.count == devices.count
                && expected.allSatisfy { device, version in
                    bells.contains {
                        $0.key == "\(device)" && $0.value.contains("\"version\":\(version),")
                    }
                }
        }
        #expect(isRung, "\(bells)")
        #expect(Set(bells.map(\.key)).count == devices.count)
        let changes = try log.records(of: .configChanges)
        #expect(changes.count == 6)
        for record in bells + changes {
            for secret in secrets {
                #expect(!record.value.lowercased().contains(secret.lowercased()))
                let raw = Data(
                    stride(from: 0, to: secret.utf8.count, by: 2).compactMap {
                        UInt8(String(Array(secret)[$0..<($0 + 2)]), radix: 16)
                    })
                #expect(!record.value.contains(raw.base64EncodedString().prefix(40)))
            }
        }
    }

    private func checkStatus(_ heartline: RunningHeartline) async throws {
        let status = try await heartline.run(["status", "--json"])
        for name in ["tunnel-health", "config-hash", "config-delivery"] {
            #expect(status.output.contains("\"pipeline\":\"\(name)\""), "\(status.output)")
        }
        let resume = try await heartline.run([
            "pipeline", "resume", "config-hash", "--partition", "0",
        ])
        #expect(resume.output.contains("nothing to decide"), "\(resume.errors)")
    }

    @Test("A removed device is in the history, and neither in the rollout nor in the topic")
    func removed() async throws {
        let heartline = try await RunningHeartline(in: try folder())
        let device = try await heartline.addDevices(1)[0]
        try await waitFor("1 waiting", heartline, device)
        let log = try EmbeddedLog(of: heartline.data)
        defer { log.close() }
        let change = try #require(try log.records(of: .configChanges).first)
        let removal = change.value.replacingOccurrences(of: "\"provisioned\"", with: "\"removed\"")
            .replacingOccurrences(of: "\"version\":1", with: "\"version\":2")
        let connection = try heartline.connect()
        defer { connection.close() }
        try connection.execute(
            "SELECT heartline.add_registry_event('config-changes', $1, $2, now())",
            .bytea(ByteBuffer("\(device)".utf8)), .bytea(ByteBuffer(removal.utf8)))
        try await waitFor("none", heartline, device)
        #expect(
            try connection.execute(
                "SELECT string_agg(kind, ' ' ORDER BY version) FROM heartline.config_versions"
            ).only().text(0) == "provisioned removed")
        let isGone = try await holds(within: 60) {
            try log.records(of: .deviceConfigs).allSatisfy { $0.value.isEmpty }
        }
        #expect(isGone)
        #expect(await heartline.stop() == 0)
    }

    @Test("kill -9 between a change and its events leaves neither half")
    func neitherHalf() async throws {
        let heartline = try await RunningHeartline(in: try folder())
        let connection = try heartline.connect()
        defer { connection.close() }
        // The devices are written first, then what tells of them: hold the command in between.
        let blocker = try heartline.connect()
        _ = try blocker.run("BEGIN; LOCK TABLE heartline.outbox IN ACCESS EXCLUSIVE MODE")
        let adding = try HeartlineProcess(
            ["device", "add", "--count", "50", "--data", heartline.data])
        let isHeld = try await holds(within: 60) {
            try connection.execute(
                """
                SELECT count(*) FROM pg_stat_activity
                 WHERE application_name = 'heartline device add' AND wait_event_type = 'Lock'
                """
            ).only().int8(0) == 1
        }
        #expect(isHeld, "\(adding.errors())")
        adding.send(SIGKILL)
        #expect(await adding.waitForEnd() == -1)
        _ = try blocker.run("ROLLBACK")
        blocker.close()
        let isOver = try await holds(within: 60) {
            try connection.execute(
                """
                SELECT count(*) FROM pg_stat_activity
                 WHERE application_name = 'heartline device add'
                """
            ).only().int8(0) == 0
        }
        #expect(isOver)
        func count(_ table: String) throws -> Int64 {
            try connection.execute("SELECT count(*) FROM heartline.\(table)").only().int8(0)
        }
        #expect(try count("devices") == 0)
        #expect(try count("outbox") == 0)
        // And both halves of the next one.
        #expect(try await heartline.addDevices(20).count == 20)
        let isTold = try await holds(within: 120) { try count("config_versions") == 20 }
        #expect(isTold)
        #expect(try count("devices") == 20)
        #expect(await heartline.stop() == 0)
    }

    @Test("A reload says which changes wait for the next start")
    func reload() async throws {
        let folder = try folder()
        let heartline = try await RunningHeartline(in: folder)
        _ = try folder.write(
            """
            name: config-hash
            source: { topic: config-changes }
            processor: { config-hash: {} }
            commit_interval: 1s
            sinks: [ { postgres: { tables: [config_versions] } } ]

            """, to: "pipelines/config-hash.yaml")
        heartline.process.send(SIGHUP)
        let isTold = await holds(within: 60) {
            let errors = heartline.process.errors()
            return errors.contains(
                "The pipeline config-hash: sinks, commit_interval changed, which waits for the next start."
            ) && errors.contains("The pipeline tunnel-health has not changed.")
                && errors.contains("The pipeline config-delivery has not changed.")
        }
        #expect(isTold, "\(heartline.process.errors())")
        // What runs goes on.
        let device = try await heartline.addDevices(1)[0]
        try await waitFor("1 waiting", heartline, device)
        #expect(await heartline.stop() == 0)
    }
}
