import EventLog
import Foundation
import Postgres
import Schemas
import System
import TestSupport
import Testing

extension FaultTests {
    @Suite struct SignalTests {
        @Test(
            "Under load: SIGHUP with a faulty file changes nothing, SIGTERM ends in order",
            .timeLimit(.minutes(10)), arguments: ["acked", "queued"])
        func signals(_ durability: String) async throws {
            let heartline = try await RunningHeartline(["--heartbeats", durability])
            let devices = try await heartline.addDevices(200)
            let load = HeartbeatLoad(.init(devices))
            load.send(to: heartline.places.listen)
            try #require(await holds(within: 120) { load.accepted >= 2_000 })
            let connection = try heartline.connect()
            func revisions() throws -> [String] {
                try connection.execute(
                    """
                    SELECT partition || ' ' || settings_revision FROM heartline.stream_partitions
                     ORDER BY partition
                    """
                ).map { try $0.text(0) }
            }
            try #require(
                try await holds(within: 60) { try revisions().allSatisfy { $0.count > 3 } })
            let before = try revisions()

            let path = "\(heartline.folder.path)/pipelines/health.yaml"
            let good = try String(contentsOfFile: path, encoding: .utf8)
            _ = try heartline.folder.write(
                good.replacingOccurrences(of: "offline_after: 90s", with: "offline_after: soon"),
                to: "pipelines/health.yaml")
            heartline.process.send(SIGHUP)
            #expect(
                await holds(within: 60) {
                    heartline.process.errors().contains("The old pipeline settings stay in force")
                })
            #expect(heartline.process.errors().contains("health.yaml:3:"))
            let marked = load.accepted
            #expect(await holds(within: 120) { load.accepted >= marked + 2_000 })
            #expect(try revisions() == before)
            connection.close()

            let start = ContinuousClock.now
            #expect(await heartline.stop() == 0)
            let duration = ContinuousClock.now - start
            load.send(to: nil)
            let book = load.stop()
            #expect(duration < .seconds(10), "\(duration)")
            #expect(Array(book.statuses.keys) == [200], "\(book.refusal ?? "")")
            #expect(book.cutAnswers == 0)
            #expect(!heartline.process.errors().contains("did not take"))

            let log = try EmbeddedLog(of: heartline.data)
            defer { log.close() }
            let said = try log.heartbeatNumbers()
            let missing = book.accepted.filter { !said.contains("\($0)") }
            #expect(missing.isEmpty, "\(missing.count) of \(book.accepted.count)")
            #expect(processes(on: heartline.folder.path).isEmpty)
        }
    }
}
