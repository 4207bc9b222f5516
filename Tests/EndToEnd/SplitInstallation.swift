import Foundation
import Postgres
import Schemas
import System
import TestSupport
import Testing

/// An installation of several processes on one data directory: front-ends and pipelines apart, and a
/// database of its own on the tests' server.
final class SplitInstallation: Sendable {
    /// One `heartline ingest`.
    struct FrontEnd: Sendable {
        var process: HeartlineProcess
        /// Where heartbeats go to.
        var url: String

        func kill() async {
            process.send(SIGKILL)
            _ = await process.waitForEnd()
        }

        func stop() async -> Int32 {
            process.send(SIGTERM)
            return await process.waitForEnd()
        }
    }

    let folder: TemporaryFolder
    let database: TestDatabase
    private let environment: [String: String]

    var data: String { "\(folder.path)/data" }
    var pipelines: String { "\(folder.path)/pipelines" }

    /// Prepares the database and the log as an operator would.
    /// - Parameter settings: of `tunnel-health`, as a pipeline file writes them.
    init(settings: String) async throws {
        folder = try TemporaryFolder()
        database = try TestDatabase.make(isMigrated: false)
        environment = [
            "SERVER_SALT": "a salt for tests, of some length",
            "HEARTLINE_SECRET_KEY": String(repeating: "5a", count: 32),
            "HEARTLINE_DATABASE": database.url,
            "HEARTLINE_DATA": "\(folder.path)/data",
        ]
        try FileSystem.makeDirectory("\(folder.path)/pipelines", mode: 0o755)
        _ = try folder.write(Self.pipeline(settings), to: "pipelines/health.yaml")
        for words in [["migrate"], ["topics", "create", "--partitions", "2"]] {
            let outcome = try await run(words)
            try #require(outcome.status == 0, "\(words): \(outcome.errors)")
        }
    }

    static func pipeline(_ settings: String) -> String {
        """
        name: tunnel-health
        source: { topic: heartbeats }
        processor: { tunnel-health: { \(settings) } }
        sinks:
          - postgres: { tables: [device_status, device_state_history, fleet_minutes, alerts] }
          - topic: alerts

        """
    }

    func run(_ words: [String]) async throws -> Executable.Outcome {
        try await Executable.run(words, environment: environment)
    }

    /// Starts a command, to be looked after, or killed.
    func start(_ words: [String]) throws -> HeartlineProcess {
        try HeartlineProcess(words, environment: environment)
    }

    func addDevices(_ count: Int) async throws -> [DeviceID] {
        let outcome = try await run(["device", "add", "--count", "\(count)"])
        try #require(outcome.status == 0, "\(outcome.errors)")
        return outcome.output.split(separator: "\n").compactMap { DeviceID(String($0)) }
    }

    func connect() throws -> PostgresConnection { try database.connect() }

    /// Starts a front-end and waits until it is ready.
    func startFrontEnd(_ name: String, _ options: [String] = []) async throws -> FrontEnd {
        let process = try HeartlineProcess(
            [
                "ingest", "--name", name, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
            ] + options, environment: environment)
        try await wait(for: "/readyz", of: process)
        let words = process.output().split(whereSeparator: \.isWhitespace)
        let address = try #require(words.first { $0.hasPrefix("http://") })
        return FrontEnd(
            process: process, url: String(address.dropLast("/api/v1/heartbeat".count)))
    }

    /// Starts the pipelines and waits until they are ready.
    func startPipelines(_ options: [String] = []) async throws -> HeartlineProcess {
        let process = try HeartlineProcess(
            ["process", "--pipelines", pipelines] + options, environment: environment)
        try await wait(for: "runs the pipelines", of: process)
        return process
    }

    private func wait(for text: String, of process: HeartlineProcess) async throws {
        let isReady = await holds(within: RunningHeartline.startSeconds) {
            process.hasEnded || process.output().contains(text)
        }
        try #require(isReady && !process.hasEnded, "\(process.errors())")
    }
}

extension PostgresConnection {
    /// The single number that a query answers.
    func number(_ sql: String) throws -> Int64 { try execute(sql).only().int8(0) }

    /// The same of a query about some devices, `$1`.
    func number(_ sql: String, _ devices: [DeviceID]) throws -> Int64 {
        try execute(sql, .uuidArray(devices.map { ($0.high, $0.low) })).only().int8(0)
    }
}
