import Alerts
import Bytes
import Foundation
import Postgres
import Schemas
import Synchronization
import System
import TestSupport
import Testing

@Suite("Alerts, from a silent device to whoever is told", .serialized, .realTime)
struct AlertsTests {
    @Test("A silent device is told of, a silence holds another back, and both are resolved")
    func silentDevices() async throws {
        let keys = Mutex<[String]>([])
        let server = HTTPTestServer { request in
            keys.withLock { $0.append(request.header("Idempotency-Key") ?? "") }
            return .status(204, "")
        }
        defer { server.stop() }
        let folder = try TemporaryFolder()
        _ = try folder.write("hush\n", to: "secret")
        func write(waiting: String) throws {
            _ = try folder.write(
                """
                group_wait: \(waiting)
                receivers:
                  - name: people
                    webhook: { url: "\(server.url)", secret_file: secret, proxy: false }

                """, to: "alerts.yaml")
        }
        try write(waiting: "10m")
        // However long a busy machine takes, the devices stay as they said.
        try FileSystem.makeDirectory("\(folder.path)/pipelines", mode: 0o755)
        _ = try folder.write(
            RunningHeartline.pipeline(offlineAfter: "1h", more: ", jitter: 0s"),
            to: "pipelines/health.yaml")
        let heartline = try await RunningHeartline(
            in: folder, ["--alerts", "\(folder.path)/alerts.yaml"])
        let devices = try await heartline.addDevices(2)
        for device in devices {
            #expect(try await heartline.waitFor("unknown", of: device))
            #expect(try heartline.heartbeat(device, tunnelUp: false).status == 200)
            #expect(try heartline.heartbeat(device, tunnelUp: false).status == 200)
        }
        // `down` is not held, and needs no new settings. A machine that stands still for a while loses
        // time, and with it words, so they go on as devices do.
        let areDown = try await holds(within: 120) {
            for device in devices { _ = try heartline.heartbeat(device, tunnelUp: false) }
            return keys.withLock { Set($0).count } == 2
        }
        #expect(areDown)
        let list = try await heartline.run(["alert", "list", "--json", "--kind", "down"])
        #expect(list.status == 0, "\(list.errors)")
        #expect(list.output.split(separator: "\n").count == 2)
        let table = try await heartline.run(["alert", "list", "--device", "\(devices[0])"])
        #expect(table.output.contains("sent") && table.output.contains("\(devices[0])"))
        let id = try #require(keys.withLock { $0.first?.prefix(36) })
        #expect(
            try await heartline.run(["alert", "acknowledge", "\(id)", "--as", "ann"]).status == 0)
        #expect(try await heartline.run(["alert", "acknowledge", "\(devices[0])"]).status == 1)
        let people = try await heartline.run(["alert", "list"])
        #expect(people.output.contains("acknowledged by ann"))

        let silence = try await heartline.run([
            "alert", "silence", "--kind", "stale", "--for", "2h", "--reason", "test",
        ])
        #expect(silence.status == 0, "\(silence.errors)")
        let silenceID = try #require(DeviceID(String(silence.output.prefix(36))))
        let silences = try await heartline.run(["alert", "silences", "--json"])
        #expect(silences.output.contains("\(silenceID)"))
        #expect(try await heartline.run(["alert", "unsilence", "\(silenceID)"]).status == 0)
        #expect(try await heartline.run(["alert", "unsilence", "\(silenceID)"]).status == 1)

        // A faulty file keeps the old settings; a good one takes over.
        _ = try folder.write("group_wait: never\n", to: "alerts.yaml")
        heartline.process.send(SIGHUP)
        #expect(
            await holds(within: 60) {
                heartline.process.errors().contains("The old alert settings stay in force")
            })
        try write(waiting: "1s")
        heartline.process.send(SIGHUP)
        #expect(await holds(within: 60) { heartline.process.errors().contains("go to people") })
        let areBack = try await holds(within: 120) {
            for device in devices { _ = try heartline.heartbeat(device) }
            return keys.withLock { Set($0).count } == 4
        }
        #expect(areBack)
        #expect(keys.withLock { Set($0).count } == 4)
        #expect(try heartline.ready().status == 200)
        #expect(await heartline.stop() == 0)
    }

    @Test("Forty devices that vanish and return are two messages")
    func massEvent() async throws {
        let told = Mutex<[String]>([])
        let server = HTTPTestServer { request in
            told.withLock { $0.append(request.body.span.text) }
            return .status(200, "")
        }
        defer { server.stop() }
        let folder = try TemporaryFolder()
        try FileSystem.makeDirectory("\(folder.path)/pipelines", mode: 0o755)
        _ = try folder.write(
            RunningHeartline.pipeline(offlineAfter: "5s", more: ", jitter: 0s"),
            to: "pipelines/health.yaml")
        _ = try folder.write(
            """
            group_wait: 1m
            receivers:
              - name: people
                webhook: { url: "\(server.url)", proxy: false }

            """, to: "alerts.yaml")
        let heartline = try await RunningHeartline(
            in: folder, ["--alerts", "\(folder.path)/alerts.yaml"])
        let devices = try await heartline.addDevices(40)
        for device in devices { #expect(try heartline.heartbeat(device).status == 200) }
        #expect(await holds(within: 120) { told.withLock { $0.count } == 1 })
        #expect(told.withLock { $0.first }?.contains("\"kind\": \"mass-offline\"") == true)
        let connection = try heartline.connect()
        #expect(
            try await holds(within: 120) {
                try connection.execute(
                    "SELECT FROM heartline.alert_dispatch WHERE state = 'grouped'"
                ).count == 40
            })
        let areBack = try await holds(within: 120) {
            for device in devices { _ = try heartline.heartbeat(device) }
            return told.withLock { $0.count } >= 2
        }
        #expect(areBack)
        let messages = told.withLock { $0 }
        #expect(messages[1].contains("\"event\": \"resolved\""))
        #expect(messages[1].contains("\"kind\": \"mass-offline\""))
        #expect(await heartline.stop() == 0)
    }

    @Test("After kill -9 another process tells of what was held, and nothing is told twice")
    func takeover() async throws {
        let keys = Mutex<[String]>([])
        let server = HTTPTestServer { request in
            keys.withLock { $0.append(request.header("Idempotency-Key") ?? "") }
            return .status(204, "")
        }
        defer { server.stop() }
        let folder = try TemporaryFolder()
        _ = try folder.write(
            """
            group_wait: 10m
            receivers:
              - name: people
                webhook: { url: "\(server.url)", proxy: false }

            """, to: "alerts.yaml")
        let database = try TestDatabase.make()
        let first = try await RunningHeartline(
            in: folder, ["--database", database.url, "--alerts", "\(folder.path)/alerts.yaml"])
        var configuration = AlertsConfiguration()
        configuration.dispatch.groupWait = 100
        var webhook = WebhookSettings(url: server.url)
        webhook.usesEnvironmentProxy = false
        configuration.receivers = [
            AlertReceiverSettings(name: "people", target: .webhook(webhook))
        ]
        let second = AlertDispatcher(database: database.url, configuration: configuration)
        second.start()
        defer { second.stop() }
        let connection = try database.connect()
        try connection.run(
            """
            INSERT INTO heartline.alerts
                (alert_id, kind, entity, device_id, episode, partition, reason, opened_at)
            SELECT gen_random_uuid(), kind, id::text, id, 0, 0, 'test', now()
              FROM (VALUES ('offline', gen_random_uuid()), ('down', gen_random_uuid())) AS v (kind, id)
            """)
        #expect(
            try await holds(within: 120) {
                try connection.execute(
                    "SELECT FROM heartline.alert_deliveries WHERE delivered_at IS NOT NULL"
                ).count == 1
            })
        #expect(!second.hasLease && second.roundCount == 0)
        await first.kill()
        #expect(await holds(within: 120) { keys.withLock { $0.count } == 2 })
        #expect(second.hasLease)
        try connection.run("UPDATE heartline.alerts SET resolved_at = now()")
        #expect(await holds(within: 120) { keys.withLock { $0.count } == 4 })
        let told = keys.withLock { $0 }
        #expect(Set(told).count == 4 && told.suffix(2).allSatisfy { $0.hasSuffix("resolved") })
    }

    @Test("A file of alerts with a fault is named with its place, and nothing is started")
    func faultyFile() async throws {
        let folder = try TemporaryFolder()
        _ = try folder.write("receivers:\n  - nam: a\n", to: "alerts.yaml")
        for path in ["alerts.yaml", "missing.yaml"] {
            let outcome = try await Executable.run([
                "up", "--data", "\(folder.path)/data", "--alerts", "\(folder.path)/\(path)",
            ])
            #expect(outcome.status == 1)
            #expect(
                outcome.errors.contains("\(path):2:5: unknown key \"nam\"")
                    == (path == "alerts.yaml"))
            #expect(!FileSystem.exists("\(folder.path)/data/postgres"))
        }
    }

    @Test(
        "Words that cannot be are refused",
        arguments: [
            (["alert", "silence", "--reason", "x"], "--for is missing"),
            (["alert", "silence", "--for", "2h"], "--reason is missing"),
            (
                ["alert", "silence", "--for", "2h", "--reason", "x", "--from", "noon"],
                "--from is a time"
            ),
            (["alert", "list", "--kind", "ofline"], "--kind is offline or stale"),
            (["alert", "acknowledge", "1"], "an alert's id is a UUID"),
        ])
    func usage(_ words: [String], _ message: String) async throws {
        let outcome = try await Executable.run(words)
        #expect(outcome.status == 2)
        #expect(outcome.errors.contains(message), "\(outcome.errors)")
    }
}
