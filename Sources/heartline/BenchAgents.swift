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
    func startFrontEnd() throws {
        let cores = ProcessInfo.processInfo.activeProcessorCount
        var settings = FrontEndSettings(
            server: try ServerConfiguration(
                host: "127.0.0.1", port: port, loops: min(8, cores)),
            secretKey: Self.secretKey)
        settings.name = "bench"
        settings.salt = Array(Self.salt.utf8)
        // All the agents have one address.
        settings.provisioning.limit = nil
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
    func startFleet(_ options: [String], input: String = "") throws -> BenchFleet {
        var words = ["--url", "http://127.0.0.1:\(port)", "--database", database.url]
        if options.contains("--provision") { words += ["--salt-file", "\(directory)/salt"] }
        return try BenchFleet(words + options, input: input)
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

    private let process = Process()
    private let output = Pipe()

    init(_ options: [String], input: String = "") throws {
        process.executableURL = URL(fileURLWithPath: "/proc/self/exe").resolvingSymlinksInPath()
        process.arguments = ["simulate", "--json"] + options
        process.standardOutput = output
        let pipe = Pipe()
        process.standardInput = pipe
        try process.run()
        try pipe.fileHandleForWriting.write(contentsOf: Data(input.utf8))
        try pipe.fileHandleForWriting.close()
    }

    var isRunning: Bool { process.isRunning }
    var cpu: Double { BenchAgents.cpu(of: process.processIdentifier) }

    /// Ends it, and reads what its agents saw.
    func stop() throws -> Report {
        process.terminate()
        let data = output.fileHandleForReading.readDataToEndOfFile()
        process.waitUntilExit()
        guard process.terminationStatus == 0 else {
            throw Failure("simulating agents: the process that does it ended with an error")
        }
        return try JSONDecoder().decode(Report.self, from: data)
    }
}
