import EventLog
import Foundation
import Postgres
import Schemas
import System
import Simulation
import TestSupport
import Testing

extension FaultTests {
    /// 200,000 heartbeats, and a `kill -9` whenever it hurts.
    @Suite struct KillTests {
        private static let heartbeats = 200_000
        private static let devices = 400

        @Test(
            "kill -9 at any moment: what was answered is in the log, and the tables are a clean pass's",
            .timeLimit(.minutes(15)))
        func killed() async throws {
            let seed = UInt64.random(in: 0...999_999)
            var random = SplitMix64(seed: seed)
            let folder = try TemporaryFolder()
            try FileSystem.makeDirectory("\(folder.path)/pipelines", mode: 0o755)
            _ = try folder.write(
                """
                name: tunnel-health
                source: { topic: heartbeats }
                processor:
                  tunnel-health:
                    offline_after: 1h
                    refresh: 2s
                    flapping: { transitions: 6, within: 20s }
                sinks:
                  - postgres: { tables: [device_status, device_state_history, fleet_minutes, alerts] }
                  - topic: alerts

                """, to: "pipelines/health.yaml")

            var heartline = try await RunningHeartline(in: folder, ["--heartbeats", "acked"])
            let devices = try await heartline.addDevices(Self.devices)
            let load = HeartbeatLoad(.init(devices, body: Self.body))
            load.send(to: heartline.places.listen)
            for kill in 1...10 {
                let goal =
                    Self.heartbeats * kill / 11 + random.below(Self.heartbeats / 25)
                try #require(
                    await holds(within: 300) {
                        load.accepted >= goal || heartline.process.hasEnded
                    },
                    "seed \(seed): \(load.accepted) answers before kill \(kill)")
                try await Task.sleep(for: .milliseconds(random.below(40)))
                #expect(!heartline.process.hasEnded, "\(heartline.process.errors())")
                await heartline.kill()
                load.send(to: nil)
                if kill % 4 == 0 {
                    // And once more while it is coming up.
                    let half = try HeartlineProcess([
                        "up", "--data", heartline.data, "--listen", "127.0.0.1:0", "--admin",
                        "127.0.0.1:0", "--pipelines", "\(folder.path)/pipelines",
                    ])
                    try await Task.sleep(for: .milliseconds(random.below(1_500)))
                    half.send(SIGKILL)
                    _ = await half.waitForEnd()
                }
                heartline = try await RunningHeartline(in: folder, ["--heartbeats", "acked"])
                load.send(to: heartline.places.listen)
            }
            #expect(
                await holds(within: 300) {
                    load.accepted >= Self.heartbeats || heartline.process.hasEnded
                })
            let book = load.stop()
            #expect(Array(book.statuses.keys) == [200], "\(book.refusal ?? "")")

            let log = try EmbeddedLog(of: heartline.data)
            defer { log.close() }
            let connection = try heartline.connect()
            defer { connection.close() }
            #expect(try await CleanPass.waitForTables(log, connection))
            let (pass, difference) = try CleanPass.check(
                log, connection, pipelines: "\(folder.path)/pipelines", .states)
            let missing = book.accepted.filter { !pass.agentStates.contains("n\($0)") }
            #expect(
                missing.isEmpty,
                "seed \(seed): \(missing.count) of \(book.accepted.count) answered heartbeats are not in the log"
            )
            #expect(difference.isEmpty, "seed \(seed): \(difference)")
            #expect(pass.malformed == 0)
            #expect(try log.count(of: .deadLetters) == 0)

            // The test is worth nothing if little happened.
            let states = Set(
                try connection.execute(
                    "SELECT DISTINCT state FROM heartline.device_state_history"
                ).map { try $0.text(0) })
            #expect(states.isSuperset(of: ["healthy", "down", "stale", "recovering"]))
            #expect(!states.contains("offline"), "nobody was silent")
            try expectSeen(connection, pass)
            try await expectAlerts(connection, log)

            #expect(await heartline.stop() == 0)
            #expect(
                await holds(within: 30) { processes(on: folder.path).isEmpty },
                "left behind: \(processes(on: folder.path))")
        }

        @Test(
            "What a device says right after a restart counts, however soon the front-end was killed",
            .timeLimit(.minutes(10)))
        func restartedAtOnce() async throws {
            let folder = try TemporaryFolder()
            let first = try await RunningHeartline(in: folder, ["--heartbeats", "acked"])
            let devices = try await first.addDevices(20)
            // Watched time runs by beacons; these stand well behind the last of them.
            try await Task.sleep(for: .seconds(3))
            for device in devices { #expect(try first.heartbeat(device).status == 200) }
            await first.kill()
            let second = try await RunningHeartline(in: folder, ["--heartbeats", "acked"])
            for device in devices {
                #expect(try second.heartbeat(device, status: "stopped").status == 200)
            }
            for device in devices {
                try #require(try await second.waitFor("stopped", of: device))
            }
            #expect(await second.stop() == 0)
        }

        /// `last_seen` may be as old as `refresh`, and is never newer than the truth.
        private func expectSeen(_ connection: PostgresConnection, _ pass: CleanPass) throws {
            for row in try connection.execute(
                "SELECT device_id, last_seen FROM heartline.device_status WHERE last_seen IS NOT NULL"
            ) {
                let id = try row.uuid(0)
                let device = DeviceID(high: id.high, low: id.low)
                let truth = try #require(pass.lastSeen[device]).postgresMicroseconds
                let lag = truth - (try row.timestamptz(1))
                #expect((0...3_000_000).contains(lag), "\(device): \(lag) µs")
            }
        }

        /// Every alert of the table was told, and nothing else was.
        private func expectAlerts(
            _ connection: PostgresConnection, _ log: EmbeddedLog
        ) async throws {
            struct Event: Decodable {
                var type: String
                var alert_id: String
            }
            var stored: Set<String> = []
            var told: Set<String> = []
            let areEqual = try await holds(within: 60) {
                stored = []
                for row in try connection.execute(
                    "SELECT alert_id::text, resolved_at IS NOT NULL FROM heartline.alerts")
                {
                    stored.insert("opened \(try row.text(0))")
                    if try row.bool(1) { stored.insert("resolved \(try row.text(0))") }
                }
                told = Set(
                    try log.records(of: .alerts).map {
                        let event = try JSONDecoder().decode(Event.self, from: Data($0.value.utf8))
                        return "\(event.type) \(event.alert_id)"
                    })
                return stored == told
            }
            #expect(
                areEqual,
                "\(stored.subtracting(told).count) untold, \(told.subtracting(stored).count) not stored"
            )
            #expect(stored.count > 100)
        }

        /// A third of the devices go through everything; the others have a hole now and then.
        private static func body(_ number: Int, _ device: DeviceID) -> String {
            let (round, index) = number.quotientAndRemainder(dividingBy: devices)
            let phase = (round + index * 7) % (index % 3 == 0 ? 24 : 180)
            let now = SystemClock.wallMilliseconds()
            let isStale = index % 10 == 1 && round % 200 < 100
            let handshake = EventTime(milliseconds: isStale ? 1_700_000_000_000 : now)
            return """
                {"device_id":"\(device)","status":"\(phase == 12 ? "recovering" : "connected")",\
                "state":"n\(number)","tunnel_up":\(!(5..<9).contains(phase)),\
                "last_handshake":"\(handshake)"}
                """
        }
    }
}
