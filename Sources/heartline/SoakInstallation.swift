import Bytes
import Crypto
import EventLog
import Foundation
import Glibc
import Ingest
import Pipeline
import Postgres
import Schemas
import System

/// Front-end and pipelines in processes of their own on one data directory, as an operator would
/// start them, and the database they share.
///
/// Used by one thread, whose end is the end of all the processes.
final class SoakInstallation {
    /// The pipelines of each of the two processes that are killed in turn.
    static let groups = [
        (name: "heartbeats", pipelines: ["tunnel-health", "config-delivery"]),
        (
            name: "others",
            pipelines: [
                "config-hash", "mutual-waves", "encounters", "messages", "update-rollout",
                "telemetry-rollup",
            ]
        ),
    ]
    static let partitions: Int32 = 4
    /// Nothing of the log may be deleted before the clean pass has read it.
    private static let retentionGibibytes = 64
    private static let secretKey = String(repeating: "5a", count: 32)
    private static let addition = 10_000

    let directory: String
    let database: PrivateDatabase
    let connection: PostgresConnection
    let log: EmbeddedLog
    let registry: Registry
    private(set) var outputPartitions: [Topic: Int32] = [:]
    private var data: String { "\(directory)/data" }
    private let executable: String
    private(set) var frontEnd: SoakProcess?
    /// By the index of their group.
    private(set) var workers: [SoakProcess] = []

    init() throws {
        directory = try FileSystem.makeTemporaryDirectory("/tmp/heartline-soak-")
        // PostgreSQL's user must get through.
        try FileSystem.setMode(directory, 0o711)
        executable = try FileSystem.realPath("/proc/self/exe")
        try FileSystem.makeDirectory("\(directory)/data", mode: 0o711)
        var settings = PrivateDatabase.Settings()
        settings.stopTimeout = .seconds(20)
        database = try PrivateDatabase.start(directory: directory, settings: settings)
        connection = try PostgresConnection(database.url)
        try Migrator.migrate(connection, try Migrations.load())
        let key = [UInt8](repeating: 0x5A, count: 32)
        registry = try Registry(try PostgresConnection(database.url), secretKey: key)
        var network = NetworkSettings()
        network.prefix = "10.0.0.0/8"
        try registry.prepareNetwork(network)
        log = try EmbeddedLog(directory: LogAccess.folder(in: "\(directory)/data"))
        let plan = try TopicPlan(connection, wanted: Self.partitions)
        try plan.create(in: log, retentionBytes: Int64(Self.retentionGibibytes) << 30)
        outputPartitions = plan.partitions
        for group in Self.groups {
            let folder = "\(directory)/\(group.name)"
            try FileSystem.makeDirectory(folder, mode: 0o755)
            for file in PipelineFile.builtIn where group.pipelines.contains(file.name) {
                try FileSystem.write(
                    Self.text(of: file), to: "\(folder)/\(file.name).yaml", mode: 0o644)
            }
        }
    }

    /// The pipeline with its defaults, as a file says it.
    private static func text(of file: PipelineFile) -> String {
        let tables = file.tables.map(\.rawValue).joined(separator: ", ")
        var text = """
            name: \(file.name)
            source: { topic: \(file.source.rawValue) }
            processor: { \(file.processor.name): {} }
            sinks:
              - postgres: { tables: [\(tables)] }

            """
        for topic in file.topics { text += "  - topic: \(topic.rawValue)\n" }
        return text
    }

    /// Ends what still runs and removes everything.
    func remove() {
        for process in workers + [frontEnd].compactMap({ $0 }) { process.kill() }
        log.close()
        connection.close()
        database.stop()
        FileSystem.removeTree(directory)
    }

    // MARK: - Who takes part

    func addDevices(_ count: Int) throws -> [DeviceID] {
        var made: [DeviceID] = []
        while made.count < count {
            made += try registry.addDevices(count: min(Self.addition, count - made.count))
        }
        return made
    }

    /// People who are signed in.
    func addPeople(_ count: Int) throws -> [SoakPerson] {
        let people = (0..<count).map { SoakPerson($0) }
        var start = 0
        while start < count {
            let some = people[start..<min(count, start + 500)]
            let accounts = some.map {
                "('\($0.account)', 'apple', 'soak-\($0.number)')"
            }.joined(separator: ", ")
            let sessions = some.map {
                let token = ByteBuffer($0.session.utf8)
                return "('\\x\(SHA256.hash(token.span).hex)', '\($0.account)',"
                    + " now() + interval '7 days')"
            }.joined(separator: ", ")
            try connection.run(
                """
                INSERT INTO heartline.accounts (account_id, provider, provider_subject)
                VALUES \(accounts);
                INSERT INTO heartline.sessions (token_hash, account_id, expires_at)
                VALUES \(sessions)
                """)
            start += some.count
        }
        return people
    }

    /// Apps that are installed from the source.
    /// - Returns: the id that each shows.
    func addApps(_ count: Int, from source: SoakSource) throws -> [String] {
        let request = try OperatorRequest(actor: "soak")
        return try (0..<count).map { number in
            let added = try registry.addInstallation(
                .init(device: SoakUpdates.device(number), app: "Example", source: source.url),
                by: request)
            guard let token = added.token else {
                throw Failure("adding an app: there was one by this request already")
            }
            return token
        }
    }

    // MARK: - Processes

    /// Starts the front-end and waits until it is ready.
    /// - Returns: where devices send to.
    func startFrontEnd() throws -> String {
        let updates = "\(directory)/updates.yaml"
        try FileSystem.write(
            SoakUpdates.configuration(in: directory), to: updates, mode: 0o600)
        let process = try start(
            "front-end",
            [
                "ingest", "--name", "soak", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
                "--provision-limit", "0", "--updates", updates,
            ])
        frontEnd = process
        try process.wait(for: "/readyz")
        let words = process.output.split(whereSeparator: \.isWhitespace)
        guard let url = words.first(where: { $0.hasPrefix("http://") }),
            url.hasSuffix("/api/v1/heartbeat")
        else { throw Failure("starting the front-end: it does not say where it is") }
        return String(url.dropLast("/api/v1/heartbeat".count))
    }

    /// Starts both processes of pipelines and waits until they are ready.
    func startWorkers() throws {
        for index in Self.groups.indices { workers.append(try makeWorker(index)) }
        for worker in workers { try worker.wait(for: "runs the pipelines") }
    }

    private func makeWorker(_ index: Int) throws -> SoakProcess {
        let name = Self.groups[index].name
        return try start(name, ["process", "--pipelines", "\(directory)/\(name)"])
    }

    /// Kills one of them at once and starts it anew.
    func replaceWorker(_ index: Int) throws {
        workers[index].kill()
        workers[index] = try makeWorker(index)
    }

    private func start(_ name: String, _ words: [String]) throws -> SoakProcess {
        var settings = ChildProcess.Settings(
            executable,
            words + [
                "--data", data, "--database", database.url, "--log-level", "warning",
                "--retention-gib", "\(Self.retentionGibibytes)",
            ])
        settings.environment["SERVER_SALT"] = "a salt for the soak, of some length"
        settings.environment["HEARTLINE_SECRET_KEY"] = Self.secretKey
        settings.deathSignal = SIGKILL
        return try SoakProcess(name, settings, file: "\(directory)/\(name).output")
    }

    func stopFrontEnd() throws {
        try frontEnd?.stop()
        frontEnd = nil
    }

    func stopWorkers() throws {
        for worker in workers { try worker.stop() }
        workers = []
    }

    /// Fails if one of them has ended by itself.
    func checkProcesses() throws {
        for process in [frontEnd].compactMap({ $0 }) + workers where !process.isRunning {
            throw Failure("the \(process.name) process ended by itself: \(process.output)")
        }
    }

    // MARK: - How far they are

    /// Next offset of the log, over all partitions.
    func end(of topic: Topic) throws -> Int64 {
        try (0..<Self.partitions).reduce(0) {
            $0 + (try log.offsets(of: TopicPartition(topic, $1)).next)
        }
    }

    /// Where the pipelines stand, over all partitions.
    func committed(_ connection: PostgresConnection) throws -> [String: Int64] {
        var result: [String: Int64] = [:]
        for row in try connection.execute(
            """
            SELECT pipeline, sum(next_offset)::int8 FROM heartline.stream_partitions
             GROUP BY pipeline
            """)
        { result[try row.text(0)] = try row.int8(1) }
        return result
    }

    /// Waits until everything in the log is in the tables.
    func waitUntilCommitted(milliseconds: Int64) throws {
        let deadline = SystemClock.monotonicMilliseconds() + milliseconds
        let pause = Waker()
        while true {
            let committed = try committed(connection)
            let late = try PipelineFile.builtIn.filter {
                try committed[$0.name, default: 0] < end(of: $0.source)
            }
            if late.isEmpty { return }
            try checkProcesses()
            guard SystemClock.monotonicMilliseconds() < deadline else {
                let names = late.map(\.name).joined(separator: ", ")
                throw Failure(
                    "waiting until everything is committed: not after \(milliseconds / 1_000) s;"
                        + " behind: \(names)")
            }
            pause.wait(milliseconds: 20)
        }
    }
}

/// Somebody who takes part in the soak.
struct SoakPerson: Sendable {
    var number: Int

    init(_ number: Int) { self.number = number }

    var account: AccountID {
        AccountID(high: 0x50AC_0000_0000_4000, low: 1 << 63 | UInt64(number))
    }
    /// Made up: sessions have 43 characters.
    var session: String {
        let digits = String(number)
        return String(repeating: "s", count: 43 - digits.count) + digits
    }
}

/// One process of the installation; its output goes to a file.
final class SoakProcess {
    let name: String
    private let file: String
    private let process: ChildProcess
    private var hasEnded = false

    init(_ name: String, _ settings: ChildProcess.Settings, file: String) throws {
        self.name = name
        self.file = file
        let output = try FileSystem.openForWriting(file, mode: 0o600)
        defer { FileSystem.close(output) }
        var settings = settings
        settings.output = output
        process = try ChildProcess.start(settings)
    }

    var isRunning: Bool { !hasEnded && ChildProcess.exists(process.processID) }
    var anonymousBytes: Int { MachineFacts.anonymousBytes(of: "\(process.processID)") }
    var output: String { (try? FileSystem.read(file)) ?? "" }

    func wait(for text: String) throws {
        let deadline = SystemClock.monotonicMilliseconds() + 120_000
        let pause = Waker()
        while !output.contains(text) {
            guard isRunning, SystemClock.monotonicMilliseconds() < deadline else {
                throw Failure("starting the \(name) process: it is not ready: \(output)")
            }
            pause.wait(milliseconds: 20)
        }
    }

    func kill() {
        guard !hasEnded else { return }
        process.send(signal: SIGKILL)
        _ = process.wait()
        hasEnded = true
    }

    func stop() throws {
        process.send(signal: SIGTERM)
        let status = process.wait()
        hasEnded = true
        guard status == .exited(0) else {
            throw Failure("ending the \(name) process: it ended with \(status): \(output)")
        }
    }
}
