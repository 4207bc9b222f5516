import Foundation
import Postgres
import Schemas
import System
import TestSupport
import Testing

@Suite("heartline up", .serialized, .realTime) struct UpTests {
    @Test("From an empty folder to a judged device, and an orderly end")
    func firstHeartbeats() async throws {
        let heartline = try await RunningHeartline()
        #expect(heartline.process.output().contains("is ready"))
        #expect(try heartline.ready().status == 200)
        let mode = try #require(FileSystem.status("\(heartline.data)/run.json")).mode
        #expect(mode == 0o600)
        for secret in ["secret-key", "server-salt"] {
            #expect(FileSystem.status("\(heartline.data)/\(secret)")?.mode == 0o600)
        }

        let devices = try await heartline.addDevices(2)
        #expect(devices.count == 2)
        #expect(try await heartline.waitFor("unknown", of: devices[1]))
        #expect(try heartline.heartbeat(devices[0]).status == 200)
        #expect(try await heartline.waitFor("healthy", of: devices[0]))

        let unknown = try heartline.heartbeat(DeviceID(high: 1, low: 2))
        #expect(unknown.status == 400)
        #expect(unknown.text == "{\"error\":\"invalid device id\"}")

        let list = try await heartline.run(["device", "list", "--json"])
        #expect(list.output.split(separator: "\n").count == 2)
        let show = try await heartline.run(["device", "show", "\(devices[0])"])
        #expect(show.output.contains("state      healthy (handshake-fresh)"))
        let status = try await heartline.run(["status", "--json"])
        #expect(status.output.contains("\"devices\":2"))
        #expect(status.output.contains("\"states\":{\"healthy\":1,\"unknown\":1}"))

        #expect(await heartline.stop() == 0)
        #expect(!FileSystem.exists("\(heartline.data)/run.json"))
        let after = try await heartline.run(["status"])
        #expect(after.status == 1)
        #expect(after.errors.contains("start one with heartline up"))
    }

    @Test("A second up on the same folder is refused, and the first goes on")
    func secondIsRefused() async throws {
        let heartline = try await RunningHeartline()
        let second = try await Executable.run([
            "up", "--data", heartline.data, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
        ])
        #expect(second.status == 1)
        #expect(second.errors.contains("process \(heartline.places.pid) runs on it already"))
        #expect(try heartline.ready().status == 200)
        #expect(RunningHeartline.places(in: heartline.data)?.pid == heartline.places.pid)
        #expect(await heartline.stop() == 0)
    }

    @Test("After kill -9 the next start goes on where it ended") func killed() async throws {
        let folder = try TemporaryFolder()
        let first = try await RunningHeartline(in: folder, ["--heartbeats", "acked"])
        let device = try #require(try await first.addDevices(1).first)
        #expect(try await first.waitFor("unknown", of: device))
        #expect(try first.heartbeat(device).status == 200)
        #expect(try await first.waitFor("healthy", of: device))
        #expect(try first.heartbeat(device, tunnelUp: false).status == 200)
        await first.kill()

        let second = try await RunningHeartline(in: folder, ["--heartbeats", "acked"])
        let isDown = try await holds(within: 120) {
            #expect(try second.heartbeat(device, tunnelUp: false).status == 200)
            return try second.state(of: device) == "down"
        }
        #expect(isDown)
        let connection = try second.connect()
        let rows = try connection.execute(
            "SELECT state FROM heartline.device_state_history ORDER BY transition")
        #expect(try rows.map { try $0.text(0) } == ["unknown", "healthy", "down"])
        connection.close()
        #expect(await second.stop() == 0)
    }

    @Test("SIGHUP takes new settings over, and keeps the old ones where a file is faulty")
    func reload() async throws {
        let heartline = try await RunningHeartline()
        let devices = try await heartline.addDevices(1)
        #expect(try heartline.heartbeat(devices[0]).status == 200)
        #expect(try await heartline.waitFor("healthy", of: devices[0]))

        _ = try heartline.folder.write("name: [", to: "pipelines/health.yaml")
        heartline.process.send(SIGHUP)
        #expect(
            await holds(within: 60) {
                let errors = heartline.process.errors()
                return errors.contains("The old pipeline settings stay in force")
                    && errors.contains("health.yaml:2:1: ")
            }, "\(heartline.process.errors())")

        _ = try heartline.folder.write(
            RunningHeartline.pipeline(offlineAfter: "2s"), to: "pipelines/health.yaml")
        heartline.process.send(SIGHUP)
        #expect(
            await holds(within: 60) { heartline.process.errors().contains("goes on with settings") }
        )
        // Silent since its one heartbeat.
        #expect(try await heartline.waitFor("offline", of: devices[0]))
        #expect(await heartline.stop() == 0)
    }

    @Test("Partitions are fixed when topics are first made") func partitions() async throws {
        let folder = try TemporaryFolder()
        let first = try await RunningHeartline(in: folder, ["--partitions", "2"])
        let connection = try first.connect()
        let counts = try connection.execute("SELECT DISTINCT partitions FROM heartline.topics")
        #expect(try counts.only().int4(0) == 2)
        connection.close()
        #expect(await first.stop() == 0)
        let other = try await Executable.run([
            "up", "--data", first.data, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
            "--partitions", "8",
        ])
        #expect(other.status == 1)
        #expect(other.errors.contains("was made with 2 partitions and keeps them"))
    }

    @Test("Tables and topics that a pipeline does not name stay empty") func omitted() async throws
    {
        let folder = try TemporaryFolder()
        try FileSystem.makeDirectory("\(folder.path)/pipelines", mode: 0o755)
        _ = try folder.write(
            """
            name: tunnel-health
            source: { topic: heartbeats }
            processor: { tunnel-health: { down_after: 1 } }
            sinks: [ { postgres: { tables: [device_status] } } ]

            """, to: "pipelines/health.yaml")
        let heartline = try await RunningHeartline(in: folder)
        let device = try #require(try await heartline.addDevices(1).first)
        #expect(try heartline.heartbeat(device, tunnelUp: false).status == 200)
        #expect(try await heartline.waitFor("down", of: device))
        let connection = try heartline.connect()
        let counts = try connection.execute(
            """
            SELECT (SELECT count(*) FROM heartline.device_state_ended)
                 + (SELECT count(*) FROM heartline.alerts)
            """)
        #expect(try counts.only().int8(0) == 0)
        connection.close()
        #expect(await heartline.stop() == 0)
    }

    @Test("A listener without TLS is refused where others can reach it") func insecure()
        async throws
    {
        let folder = try TemporaryFolder()
        let outcome = try await Executable.run([
            "up", "--data", "\(folder.path)/data", "--listen", "0.0.0.0:0",
        ])
        #expect(outcome.status == 2)
        #expect(outcome.errors.contains("--insecure-listen"))
        #expect(!FileSystem.exists("\(folder.path)/data"))
    }

    @Test("A faulty pipeline file stops the start before anything is made")
    func faultyPipeline() async throws {
        let folder = try TemporaryFolder()
        _ = try folder.write("nme: x\n", to: "bad.yaml")
        let outcome = try await Executable.run([
            "up", "--data", "\(folder.path)/data", "--pipelines", folder.path,
        ])
        #expect(outcome.status == 1)
        #expect(outcome.errors.contains("bad.yaml:1:1: unknown key \"nme\""))
        #expect(!FileSystem.exists("\(folder.path)/data/postgres"))
    }
}

@Suite("The roles of a larger installation", .realTime) struct RolesTests {
    @Test("Another network than the one that was set up is refused, with both named")
    func otherNetwork() async throws {
        let folder = try TemporaryFolder()
        let first = try await RunningHeartline(in: folder, ["--network", "10.99.0.0/16"])
        let device = try #require(try await first.addDevices(1).first)
        let show = try await first.run(["device", "show", "\(device)"])
        #expect(show.output.contains("10.99.0."))
        #expect(await first.stop() == 0)
        let words = [
            "up", "--data", first.data, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
        ]
        let other = try HeartlineProcess(words + ["--network", "10.64.0.0/10"])
        // One that is not refused would go on for good.
        try #require(
            await holds(within: RunningHeartline.startSeconds) {
                other.hasEnded || RunningHeartline.places(in: first.data) != nil
            })
        try #require(RunningHeartline.places(in: first.data)?.pid == nil)
        #expect(await other.waitForEnd() == 1)
        #expect(other.errors().contains("10.99.0.0/16"), "\(other.errors())")
        #expect(other.errors().contains("10.64.0.0/10"))
        // The same, and none, go on as before.
        for options in [["--network", "10.99.0.0/16"], []] {
            let again = try await RunningHeartline(in: folder, options)
            #expect(await again.stop() == 0)
        }
    }

    @Test(
        "A malformed network is a fault of usage, before anything is made",
        arguments: ["10.64.0.1/10", "10.0.0.0/31", "fd00::/64", "ten"])
    func badNetwork(_ network: String) async throws {
        let folder = try TemporaryFolder()
        let outcome = try await Executable.run([
            "up", "--data", "\(folder.path)/data", "--network", network,
        ])
        #expect(outcome.status == 2)
        #expect(outcome.errors.contains("--network: "), "\(outcome.errors)")
        #expect(!FileSystem.exists("\(folder.path)/data"))
    }

    @Test(
        "A port that is taken is noticed before PostgreSQL is started, and nothing is left behind")
    func takenPort() async throws {
        let folder = try TemporaryFolder()
        let running = try await RunningHeartline()
        let taken = running.places.listen.replacing("http://", with: "")
        for (name, other) in [("listen", "admin"), ("admin", "listen")] {
            let outcome = try await Executable.run([
                "up", "--data", "\(folder.path)/data", "--\(name)", taken, "--\(other)",
                "127.0.0.1:0",
            ])
            #expect(outcome.status == 1)
            #expect(outcome.errors.contains(taken), "\(outcome.errors)")
            #expect(!outcome.errors.contains("starting PostgreSQL"))
            #expect(!FileSystem.exists("\(folder.path)/data"))
        }
        // What is not ours stays, and so does a folder that was there before.
        try FileSystem.makeDirectory("\(folder.path)/data", mode: 0o755)
        _ = try folder.write("mine", to: "data/note")
        _ = try await Executable.run([
            "up", "--data", "\(folder.path)/data", "--listen", taken, "--admin", "127.0.0.1:0",
        ])
        #expect(FileSystem.exists("\(folder.path)/data/note"))
        #expect(await running.stop() == 0)
    }

    @Test("A start that never reached its database leaves nothing behind")
    func databaseOutOfReach() async throws {
        let folder = try TemporaryFolder()
        let outcome = try await Executable.run([
            "up", "--data", "\(folder.path)/data", "--listen", "127.0.0.1:0", "--admin",
            "127.0.0.1:0", "--database", "host=/nowhere dbname=none",
        ])
        #expect(outcome.status == 1)
        // Nothing was ever stored there.
        #expect(!FileSystem.exists("\(folder.path)/data"), "\(outcome.errors)")
    }

    @Test("Front-end and pipelines run apart on one log and one database") func roles() async throws
    {
        let folder = try TemporaryFolder()
        let database = try TestDatabase.make(isMigrated: false)
        let environment = [
            "HEARTLINE_DATABASE": database.url, "HEARTLINE_DATA": "\(folder.path)/data",
            "SERVER_SALT": String(repeating: "s", count: 32),
            "HEARTLINE_SECRET_KEY": String(repeating: "0a", count: 32),
        ]
        for words in [["migrate"], ["topics", "create", "--partitions", "3"]] {
            let outcome = try await Executable.run(words, environment: environment)
            #expect(outcome.status == 0, "\(outcome.errors)")
        }
        let added = try await Executable.run(["device", "add"], environment: environment)
        let device = try #require(DeviceID(String(added.output.prefix(36))), "\(added.errors)")

        let pipelines = try RunningHeartline.pipelines(in: folder)
        let process = try HeartlineProcess(
            ["process", "--pipelines", pipelines], environment: environment)
        let ingest = try HeartlineProcess(
            ["ingest", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"],
            environment: environment)
        let isUp = await holds(within: 120) {
            process.hasEnded || ingest.hasEnded
                || process.output().contains("runs the pipelines")
                    && ingest.output().contains("/readyz")
        }
        #expect(
            isUp && !process.hasEnded && !ingest.hasEnded, "\(process.errors())\(ingest.errors())")
        let url = try #require(
            ingest.output().split(whereSeparator: \.isWhitespace).first { $0.hasPrefix("http://") }
                .flatMap { URL(string: String($0)) })
        let client = try RawClient(
            host: try #require(url.host()), port: UInt16(try #require(url.port)))
        let body = "{\"device_id\":\"\(device)\",\"tunnel_up\":false}"
        let connection = try database.connect()
        let isDown = try await holds(within: 120) {
            let answer = try client.request("POST", url.path(), body: body.utf8)
            guard answer.status == 200 else {
                Issue.record("\(answer.status) \(answer.text)")
                return true
            }
            let rows = try connection.execute("SELECT state FROM heartline.device_status")
            return try rows.first?.text(0) == "down"
        }
        #expect(isDown)
        connection.close()
        for role in [ingest, process] {
            role.send(SIGTERM)
            #expect(await role.waitForEnd() == 0)
        }
    }

    @Test("A role refuses to start without secrets, or without a database") func refusals()
        async throws
    {
        let folder = try TemporaryFolder()
        let noDatabase = try await Executable.run(["ingest", "--data", folder.path])
        #expect(noDatabase.status == 2)
        #expect(noDatabase.errors.contains("--database is needed"))
        let salt = "a salt of enough bytes"
        let key = String(repeating: "5a", count: 32)
        for (role, environment, name) in [
            ("ingest", [:], "SERVER_SALT"),
            ("process", [:], "SERVER_SALT"),
            ("ingest", ["SERVER_SALT": salt], "HEARTLINE_SECRET_KEY"),
            ("process", ["SERVER_SALT": salt], "HEARTLINE_SECRET_KEY"),
            ("ingest", ["SERVER_SALT": "short", "HEARTLINE_SECRET_KEY": key], "SERVER_SALT"),
            (
                "process", ["SERVER_SALT": salt, "HEARTLINE_SECRET_KEY": "5a5a"],
                "HEARTLINE_SECRET_KEY"
            ),
            ("up", ["SERVER_SALT": "short"], "SERVER_SALT"),
            (
                "up", ["HEARTLINE_SECRET_KEY": String(repeating: "x", count: 64)],
                "HEARTLINE_SECRET_KEY"
            ),
        ] as [(String, [String: String], String)] {
            let refused = try await Executable.run(
                [role, "--data", folder.path, "--database", "postgresql:///nowhere?host=/nowhere"],
                environment: environment)
            #expect(refused.status == 2, "\(role)")
            #expect(refused.errors.hasPrefix("heartline: reading \(name): "), "\(refused.errors)")
            #expect(refused.errors.contains("openssl rand -hex 32"))
            #expect(refused.errors.split(separator: "\n").count == 1)
            #expect(!refused.errors.contains(key))
        }
    }

    @Test("Pipelines run on a database that has no network yet") func withoutNetwork() async throws
    {
        let folder = try TemporaryFolder()
        let database = try TestDatabase.make(isMigrated: false)
        var environment = [
            "HEARTLINE_DATABASE": database.url, "HEARTLINE_DATA": "\(folder.path)/data",
        ]
        // Without secrets it leaves the network to whoever has them.
        for words in [["migrate"], ["topics", "create", "--partitions", "1"]] {
            let outcome = try await Executable.run(words, environment: environment)
            #expect(outcome.status == 0, "\(outcome.errors)")
        }
        environment["SERVER_SALT"] = "a salt of enough bytes"
        environment["HEARTLINE_SECRET_KEY"] = String(repeating: "5a", count: 32)
        let process = try HeartlineProcess(
            ["process", "--pipelines", try RunningHeartline.pipelines(in: folder)],
            environment: environment)
        #expect(
            await holds(within: 120) {
                process.hasEnded || process.output().contains("runs the pipelines")
            })
        #expect(!process.hasEnded, "\(process.errors())")
        process.send(SIGTERM)
        #expect(await process.waitForEnd() == 0)
    }

    @Test("Another secret key than the one that the data was made with is noticed at the start")
    func wrongKey() async throws {
        let folder = try TemporaryFolder()
        let database = try TestDatabase.make(isMigrated: false)
        var environment = [
            "HEARTLINE_DATABASE": database.url, "HEARTLINE_DATA": "\(folder.path)/data",
            "SERVER_SALT": "a salt of enough bytes",
            "HEARTLINE_SECRET_KEY": String(repeating: "5a", count: 32),
        ]
        for words in [["migrate"], ["topics", "create", "--partitions", "1"]] {
            let outcome = try await Executable.run(words, environment: environment)
            #expect(outcome.status == 0, "\(outcome.errors)")
        }
        environment["HEARTLINE_SECRET_KEY"] = String(repeating: "5b", count: 32)
        for words in [
            ["ingest", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"], ["process"],
            ["up", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"], ["device", "add"],
        ] {
            let outcome = try await Executable.run(words, environment: environment)
            #expect(outcome.status == 1, "\(words)")
            #expect(
                outcome.errors.contains("HEARTLINE_SECRET_KEY is not the key"), "\(outcome.errors)")
            #expect(outcome.output == "")
        }
    }
}

@Suite("heartline demo", .realTime) struct DemoTests {
    @Test("A fleet appears, and the demo ends by itself and leaves nothing behind")
    func demo() async throws {
        let outcome = try await Executable.run([
            "demo", "--duration", "12s", "--agents", "30", "--listen", "127.0.0.1:0", "--admin",
            "127.0.0.1:0",
        ])
        #expect(outcome.status == 0, "\(outcome.errors)")
        #expect(outcome.output.contains("Quicker than production"))
        #expect(outcome.output.contains("SELECT state, count(*)"))
        #expect(outcome.output.contains("healthy"))
        // By the path that it was started with, which need not be found otherwise.
        #expect(outcome.output.contains("keep one running: \(Executable.url.path) up, then"))
        let folder = try #require(
            outcome.output.split(separator: " ").first { $0.hasPrefix("/tmp/heartline-demo-") })
        #expect(!FileSystem.exists(String(folder)))
    }
}
