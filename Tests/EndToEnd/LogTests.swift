import Foundation
import TestSupport
import Testing

@Suite("The log of a running instance") struct LogTests {
    private struct Line: Decodable {
        var time: String
        var level: String
        var message: String
    }

    @Test("with --log-format json every line is an object, what a signal is answered included")
    func json() async throws {
        let heartline = try await RunningHeartline(["--log-format", "json", "--log-level", "info"])
        heartline.process.send(SIGHUP)
        #expect(
            await holds(within: 60) { heartline.process.errors().contains("has not changed") })
        #expect(await heartline.stop() == 0)
        let lines = heartline.process.errors().split(separator: "\n")
        #expect(lines.count >= 8)
        var messages: [String: String] = [:]
        for line in lines {
            let read = try JSONDecoder().decode(Line.self, from: Data(line.utf8))
            #expect(read.time.count == 20 && read.time.hasSuffix("Z"), "\(line)")
            messages[read.message] = read.level
        }
        #expect(messages["migrated the database"] == "info")
        #expect(messages["stopping"] == "notice")
        #expect(messages.keys.contains { $0.hasPrefix("starting PostgreSQL") })
    }

    @Test("the environment twins hold, and the least level is kept")
    func level() async throws {
        let folder = try TemporaryFolder()
        let process = try HeartlineProcess(
            [
                "up", "--data", "\(folder.path)/data", "--listen", "127.0.0.1:0", "--admin",
                "127.0.0.1:0", "--pipelines", try RunningHeartline.pipelines(in: folder),
            ], environment: ["HEARTLINE_LOG_FORMAT": "json", "HEARTLINE_LOG_LEVEL": "error"])
        #expect(
            await holds(within: RunningHeartline.startSeconds) {
                process.hasEnded || process.output().contains("is ready")
            })
        process.send(SIGTERM)
        #expect(await process.waitForEnd() == 0)
        for line in process.errors().split(separator: "\n") {
            let read = try JSONDecoder().decode(Line.self, from: Data(line.utf8))
            // What is told to who started it is no message of the log.
            #expect(read.message.hasSuffix("...") || read.level == "error", "\(line)")
        }
    }
}
