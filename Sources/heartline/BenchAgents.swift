import Crypto
import EventLog
import Foundation
import Glibc
import HTTP
import Ingest
import Pipeline
import Postgres
import Schemas
import Sinks
import System

/// A front-end with its log and its PostgreSQL, for measurements against agents, which are a process of
/// their own: the CPU time of ours is the front-end's.
final class BenchAgents {
    private static let salt = "a salt for measurements"
    private static let secretKey = [UInt8](repeating: 0x5A, count: 32)
    private static let partitions: Int32 = 4
    /// Devices that are added in one transaction.
    private static let addition = 10_000

    let registry: Registry
    private(set) var frontEnd: FrontEnd<EmbeddedLog>?
    private let directory: String
    private let log: EmbeddedLog
    private let database: PrivateDatabase
    private let connection: PostgresConnection
    private let outbox: RegistryOutbox<EmbeddedLog>
    private var port: UInt16 = 0

    init() throws {
        directory = try FileSystem.makeTemporaryDirectory("/tmp/heartline-bench-")
        // PostgreSQL's user must get through.
        try FileSystem.setMode(directory, 0o711)
        log = try EmbeddedLog(directory: "\(directory)/log")
        try log.createTopics(
            Topic.allCases.map { TopicSettings($0, partitions: Self.partitions) })
        database = try PrivateDatabase.start(directory: directory)
        connection = try PostgresConnection(database.url)
        try Migrator.migrate(connection, try Migrations.load())
        registry = try Registry(
            try PostgresConnection(database.url), secretKey: Self.secretKey)
        var network = NetworkSettings()
        network.prefix = "10.0.0.0/8"
        try registry.prepareNetwork(network)
        try FileSystem.write(Self.salt, to: "\(directory)/salt", mode: 0o600)
        outbox = RegistryOutbox(database: database.url, log: log)
        outbox.start()
    }

    func remove() {
        stopFrontEnd()
        outbox.stop()
        log.close()
        connection.close()
        database.stop()
        FileSystem.removeTree(directory)
    }

    func addDevices(_ count: Int) throws {
        var rest = count
        while rest > 0 {
            rest -= try registry.addDevices(count: min(rest, Self.addition)).count
        }
    }

    // MARK: - The front-end

    /// Starts it with nothing in memory; always on the same port.
    func startFrontEnd(updates: ((_ directory: String) -> UpdateSettings)? = nil) throws {
        let cores = ProcessInfo.processInfo.activeProcessorCount
        var settings = FrontEndSettings(
            server: try ServerConfiguration(
                host: "127.0.0.1", port: port, loops: min(8, cores)),
            secretKey: Self.secretKey)
        settings.name = "bench"
        settings.salt = Array(Self.salt.utf8)
        // All the agents have one address.
        settings.provisioning.limit = nil
        settings.updates = updates?("\(directory)/updates")
        let started = try FrontEnd(
            log: log, databaseURL: database.url, settings: settings)
        port = started.boundAddress.port
        try started.start()
        frontEnd = started
    }

    func stopFrontEnd() {
        frontEnd?.stop()
        frontEnd = nil
    }

    // MARK: - Agents

    /// Starts `heartline simulate` against the front-end.
    func startFleet(_ options: [String], tokens: [String] = []) throws -> BenchFleet {
        var words = ["--url", "http://127.0.0.1:\(port)", "--database", database.url]
        if !tokens.isEmpty { words += ["--salt-file", "\(directory)/salt"] }
        return try BenchFleet(words + options, tokens: tokens)
    }

    // MARK: - Costs

    /// CPU seconds of PostgreSQL's processes that run now.
    func databaseCPU() throws -> Double {
        try connection.execute("SELECT pid FROM pg_stat_activity").map {
            Self.cpu(of: try $0.int4(0))
        }.reduce(0, +)
    }

    /// CPU seconds that a process has used; 0 if it is gone.
    static func cpu(of process: Int32) -> Double {
        guard let text = try? String(contentsOfFile: "/proc/\(process)/stat", encoding: .utf8),
            let end = text.lastIndex(of: ")")
        else { return 0 }
        // `proc(5)`: state is the third field, and the first after the name.
        let fields = text[text.index(after: end)...].split(separator: " ")
        guard fields.count > 12, let user = Double(fields[11]), let system = Double(fields[12])
        else { return 0 }
        return (user + system) / Double(sysconf(Int32(_SC_CLK_TCK)))
    }
}

/// `heartline simulate` in a process of its own.
final class BenchFleet {
    /// What measurements read of its report.
    struct Report: Decodable {
        struct Latency: Decodable {
            var p50_microseconds: UInt64
            var p99_microseconds: UInt64
            var max_microseconds: UInt64
        }
        struct Traffic: Decodable {
            var answers: [String: Int]
            var latency: Latency
        }
        var provisioned: Int
        var waiting: Int
        var unanswered: [String: Int]
        var configuration_changes: Int
        var provisioning: Traffic
        var heartbeats: Traffic
        var delay: Latency
    }

    /// Its output, and the tokens that it is given.
    private let folder: String
    private let process: ChildProcess
    private var hasEnded = false

    /// It ends with the thread that starts it, however that ends.
    /// - Parameter tokens: registration tokens that its agents provision themselves with.
    init(_ options: [String], tokens: [String] = []) throws {
        folder = try FileSystem.makeTemporaryDirectory("/tmp/heartline-bench-fleet-")
        var words = ["simulate", "--json"] + options
        if !tokens.isEmpty {
            let text = tokens.joined(separator: "\n")
            try FileSystem.write(text, to: "\(folder)/tokens", mode: 0o600)
            words += ["--provision", "--tokens", "\(folder)/tokens"]
        }
        let output = try FileSystem.openForWriting("\(folder)/output", mode: 0o600)
        defer { FileSystem.close(output) }
        var settings = ChildProcess.Settings(try FileSystem.realPath("/proc/self/exe"), words)
        settings.deathSignal = SIGKILL
        settings.output = output
        process = try ChildProcess.start(settings)
    }

    deinit {
        if !hasEnded {
            process.send(signal: SIGKILL)
            _ = process.wait()
        }
        FileSystem.removeTree(folder)
    }

    var isRunning: Bool { !hasEnded && ChildProcess.exists(process.processID) }
    var cpu: Double { BenchAgents.cpu(of: process.processID) }

    /// Ends it, and reads what its agents saw.
    func stop() throws -> Report {
        process.send(signal: SIGTERM)
        hasEnded = true
        let status = process.wait()
        let output = try FileSystem.read("\(folder)/output")
        guard status == .exited(0), let report = output.split(separator: "\n").last else {
            throw Failure("simulating agents: the process that does it ended with: \(output)")
        }
        return try JSONDecoder().decode(Report.self, from: Data(report.utf8))
    }
}
