import EventLog
import Foundation
import Postgres
import Schemas
import System
import TestSupport
import Testing

extension FaultTests {
    @Suite struct DatabaseOutageTests {
        /// Longer than the threshold below.
        private static let outage = Duration.seconds(9)

        @Test(
            "PostgreSQL away: known devices are answered, nothing is lost, nobody is called offline",
            .timeLimit(.minutes(10)))
        func outage() async throws {
            let server = try TestServer()
            defer { server.remove() }
            let database = try server.makeDatabase(isMigrated: false)
            let folder = try TemporaryFolder()
            try FileSystem.makeDirectory("\(folder.path)/pipelines", mode: 0o755)
            _ = try folder.write(
                RunningHeartline.pipeline(offlineAfter: "6s"), to: "pipelines/health.yaml")
            let heartline = try await RunningHeartline(in: folder, ["--database", database.url])
            let devices = try await heartline.addDevices(60)
            let (known, strangers) = (Array(devices.prefix(50)), Array(devices.suffix(10)))
            let load = HeartbeatLoad(.init(known, connections: 16, perSecond: 100))
            load.send(to: heartline.places.listen)
            // Each has been there, so each is in the cache.
            try #require(await holds(within: 120) { load.accepted >= 100 })
            for device in known.prefix(3) {
                try #require(try await heartline.waitFor("healthy", of: device))
            }

            server.stop()
            let before = load.accepted
            let end = ContinuousClock.now + Self.outage
            var refused = 0
            while ContinuousClock.now < end {
                let answer = try heartline.heartbeat(strangers[refused % strangers.count])
                #expect(answer.status == 500)
                #expect(answer.text == "{\"error\":\"heartbeat failed\"}")
                refused += 1
                try await Task.sleep(for: .milliseconds(200))
            }
            #expect(await holds(within: 60) { load.accepted >= before + 200 })
            #expect(try heartline.ready().status == 503)
            try server.start()

            #expect(
                try await holds(within: 60) {
                    try heartline.heartbeat(strangers[0]).status == 200
                })
            #expect(try await holds(within: 60) { try heartline.ready().status == 200 })
            let after = load.accepted
            #expect(await holds(within: 60) { load.accepted >= after + 100 })
            let log = try EmbeddedLog(of: heartline.data)
            defer { log.close() }
            let connection = try heartline.connect()
            defer { connection.close() }
            #expect(try await CleanPass.waitForTables(log, connection))
            let (_, difference) = try CleanPass.check(
                log, connection, pipelines: "\(folder.path)/pipelines")
            #expect(difference.isEmpty, "\(difference)")
            let book = load.stop()
            #expect(Array(book.statuses.keys) == [200], "\(book.refusal ?? "")")
            #expect(book.cutAnswers + book.unanswered == 0)
            #expect(try log.count(of: .deadLetters) == 0)
            #expect(try falselyOffline(connection, known, load).isEmpty)

            // And what was answered while it was away is in the log.
            #expect(await heartline.stop() == 0)
            let said = try log.heartbeatNumbers()
            let missing = book.accepted.filter { !said.contains("\($0)") }
            #expect(missing.isEmpty, "\(missing.count) of \(book.accepted.count)")
            #expect(try connection.number("SELECT count(*) FROM heartline.outbox") == 0)
        }

        @Test(
            "The private PostgreSQL killed: it is started again, and nothing is lost or doubled",
            .timeLimit(.minutes(10)))
        func killed() async throws {
            let heartline = try await RunningHeartline(["--heartbeats", "acked"])
            let devices = try await heartline.addDevices(100)
            // Every third heartbeat of a device says that its tunnel is down.
            let load = HeartbeatLoad(
                .init(devices, connections: 16, perSecond: 1_000) { number, device in
                    """
                    {"device_id":"\(device)","state":"n\(number)",\
                    "tunnel_up":\(number / 100 % 6 < 3)}
                    """
                })
            load.send(to: heartline.places.listen)
            try #require(await holds(within: 120) { load.accepted >= 1_000 })
            for _ in 0..<3 {
                let file = "\(heartline.data)/postgres/cluster/postmaster.pid"
                let server = try #require(try Self.postmaster(file))
                kill(server, SIGKILL)
                let accepted = load.accepted
                // On a machine with time to spare it is back before anyone asks.
                #expect(
                    await holds(within: 120) {
                        let now = try? Self.postmaster(file)
                        return now != nil && now != server
                    }, "\(heartline.process.errors())")
                #expect(try await holds(within: 120) { try heartline.ready().status == 200 })
                #expect(await holds(within: 60) { load.accepted >= accepted + 500 })
            }
            let book = load.stop()
            #expect(Array(book.statuses.keys) == [200], "\(book.refusal ?? "")")
            let log = try EmbeddedLog(of: heartline.data)
            defer { log.close() }
            let connection = try heartline.connect()
            defer { connection.close() }
            #expect(try await CleanPass.waitForTables(log, connection))
            let (pass, difference) = try CleanPass.check(
                log, connection, pipelines: "\(heartline.folder.path)/pipelines")
            #expect(difference.isEmpty, "\(difference)")
            #expect(book.accepted.allSatisfy { pass.agentStates.contains("n\($0)") })
            #expect(try log.count(of: .deadLetters) == 0)
            #expect(await heartline.stop() == 0)
            #expect(
                await holds(within: 30) { processes(on: heartline.folder.path).isEmpty },
                "left behind: \(processes(on: heartline.folder.path))")
        }

        private static func postmaster(_ file: String) throws -> Int32? {
            try String(contentsOfFile: file, encoding: .utf8).split(separator: "\n").first
                .flatMap { Int32($0) }
        }
    }
}
