internal import Foundation
internal import Glibc
internal import Postgres
internal import Synchronization
internal import System

/// A PostgreSQL server of our own, in a directory, on a Unix socket, that ends with us.
///
/// In `DIRECTORY/postgres`: `cluster` (PostgreSQL's data), `socket`, `start.log` and a lock. When we
/// run as root the server runs as user `postgres`, because PostgreSQL refuses root.
///
/// Sessions need no password. The socket is the only way in, and its directory has mode 0700 and
/// belongs to the server's user: only that user and root, who could read the data's files as well, get
/// to it.
/// - Thread safety: any thread.
public final class PrivateDatabase: Sendable {
    public struct Settings: Sendable {
        /// Default: 256.
        public var sharedBuffersMegabytes = 256
        /// Default: 50.
        public var maximumConnections = 100
        /// `false` loses data when the machine crashes: for tests.
        public var isDurable = true
        /// Starts the server again when it ends by itself.
        public var restartsAfterCrash = true
        /// Longest wait for a start, which can include recovery from a crash. Default: 5 min.
        public var startTimeout: Duration = .seconds(300)
        /// Longest wait for an orderly end, after which it is ended at once. Default: 30 s.
        public var stopTimeout: Duration = .seconds(30)

        public init() {}
    }

    /// Why there is no server: what was wrong, what to do.
    public struct StartError: Error, Hashable, Sendable, CustomStringConvertible {
        public enum Kind: Hashable, Sendable {
            case notInstalled
            /// The server's user cannot reach the directory.
            case unreachable
            /// Another process has the directory.
            case inUse
            case failed
        }

        public var kind: Kind
        public var reason: String

        init(_ kind: Kind, _ reason: String) {
            self.kind = kind
            self.reason = reason
        }

        public var description: String { "starting the private PostgreSQL: \(reason)" }
    }

    /// The address of database `heartline`, for `PostgresConnection` and `psql`.
    public var url: String { url(database: "heartline") }
    /// The server outlived an earlier process of ours and was taken over.
    public let isAdopted: Bool

    private let layout: Layout
    private let settings: Settings
    private let socketDirectory: String
    private let server: PrivateDatabaseServer
    private let lock: Mutex<FileLock?>

    /// The server's main process; `nil` while there is none.
    public var processID: Int32? { server.processID }

    /// The address of any database of the server.
    public func url(database: String) -> String {
        PrivateDatabase.url(socketDirectory, database: database)
    }

    /// Starts the server, and makes its data directory if there is none; takes over a server that
    /// outlived an earlier process of ours.
    ///
    /// - Parameter directory: made if it is missing. Must be reachable for user `postgres` when we
    ///   run as root.
    /// - Throws: `StartError`, `SystemError` or `PostgresError`.
    public static func start(
        directory: String, settings: Settings = Settings()
    ) throws -> PrivateDatabase {
        let layout = try Layout(directory)
        guard let lock = try FileLock.take(layout.lock) else {
            throw StartError(
                .inUse,
                "\(layout.base) is in use by another heartline. Stop it, or choose another --data")
        }
        let isNew = FileSystem.status(layout.cluster) == nil
        let running = isNew ? nil : try findRunning(layout)
        if let running {
            Log.notice(
                "taking a running private PostgreSQL over",
                ["postgres.pid": "\(running.processID)", "postgres.directory": layout.cluster])
        }
        let installation = try PostgresInstallation.find(
            majorVersion: isNew ? nil : try layout.majorVersion())
        if isNew { try initialize(layout, installation, settings) }
        let socketDirectory = try running?.socketDirectory ?? layout.makeSocketDirectory()
        let server = PrivateDatabaseServer(
            command(layout, installation, settings, socketDirectory),
            outputPath: layout.startLog, restartsAfterCrash: settings.restartsAfterCrash,
            adopted: running.map { ($0, layout.cluster) })
        let database = PrivateDatabase(
            layout, settings, socketDirectory, server, isAdopted: running != nil, lock)
        do {
            try database.waitUntilReady()
        } catch {
            database.stop()
            throw error
        }
        return database
    }

    private init(
        _ layout: Layout, _ settings: Settings, _ socketDirectory: String,
        _ server: PrivateDatabaseServer, isAdopted: Bool, _ lock: FileLock
    ) {
        self.layout = layout
        self.settings = settings
        self.socketDirectory = socketDirectory
        self.server = server
        self.isAdopted = isAdopted
        self.lock = Mutex(lock)
    }

    deinit { stop() }

    /// Ends the server, in order if that can be done in time. Later calls do nothing.
    public func stop() {
        guard let lock = lock.withLock({ $0.take() }) else { return }
        server.stop(timeout: settings.stopTimeout)
        layout.removeSocketDirectory(socketDirectory)
        _ = lock  // given up last
    }

    // MARK: Starting

    static func url(_ socketDirectory: String, database: String) -> String {
        var host = ""
        for byte in socketDirectory.utf8 {
            switch byte {
            case 0x61...0x7A, 0x41...0x5A, 0x30...0x39, 0x2D, 0x2E, 0x5F:
                host.unicodeScalars.append(Unicode.Scalar(byte))
            default: host += "%" + (byte < 16 ? "0" : "") + String(byte, radix: 16, uppercase: true)
            }
        }
        return "postgresql:///\(database)?host=\(host)&port=\(port)&user=postgres"
    }

    /// Only names the socket's file.
    private static let port = 5432

    private static func initialize(
        _ layout: Layout, _ installation: PostgresInstallation, _ settings: Settings
    ) throws {
        // Made beside its place and then moved, so that what is there is whole.
        let partial = layout.cluster + ".new"
        if FileSystem.status(partial) != nil { try FileManager.default.removeItem(atPath: partial) }
        try FileSystem.makeDirectory(partial, mode: 0o700, owner: layout.account)
        var command = ChildProcess.Settings(
            installation.program("initdb"),
            [
                // Not "heartline": that would put schema heartline in the search path, and hide names
                // that lack it.
                "--pgdata=\(partial)", "--username=postgres", "--auth-local=trust",
                "--auth-host=reject", "--encoding=UTF8", "--locale=C.UTF-8", "--data-checksums",
                "--no-instructions",
            ] + (settings.isDurable ? [] : ["--no-sync"]))
        command.account = layout.account
        command.deathSignal = SIGKILL
        command.workingDirectory = "/"
        let (status, output) = try ChildProcess.run(command)
        guard status == .exited(0) else {
            let lines = output.split(whereSeparator: \.isNewline).suffix(4)
            throw StartError(
                .failed, "initdb in \(layout.base): \(lines.joined(separator: "; "))")
        }
        try FileSystem.rename(partial, to: layout.cluster)
    }

    private static func command(
        _ layout: Layout, _ installation: PostgresInstallation, _ settings: Settings,
        _ socketDirectory: String
    ) -> ChildProcess.Settings {
        var values = [
            "listen_addresses": "", "port": "\(port)",
            "unix_socket_directories": socketDirectory, "unix_socket_permissions": "0700",
            "max_connections": "\(settings.maximumConnections)",
            "shared_buffers": "\(settings.sharedBuffersMegabytes)MB",
            // Upserts in bulk: few checkpoints, smaller page images.
            "max_wal_size": "4GB", "checkpoint_timeout": "15min", "wal_compression": "on",
            "jit": "off", "timezone": "UTC", "log_timezone": "UTC", "lc_messages": "C.UTF-8",
            // Seven files, one a weekday, begun anew each week; no statements, which can hold data.
            "logging_collector": "on", "log_directory": "log",
            "log_filename": "postgresql-%a.log", "log_truncate_on_rotation": "on",
            "log_rotation_age": "1d", "log_rotation_size": "0",
            "log_min_error_statement": "panic", "log_line_prefix": "%m [%p] ",
        ]
        if !settings.isDurable {
            for name in ["fsync", "synchronous_commit", "full_page_writes"] { values[name] = "off" }
            values["wal_level"] = "minimal"
            values["max_wal_senders"] = "0"
            values["max_wal_size"] = "256MB"
            values["autovacuum"] = "off"
        }
        var arguments = ["-D", layout.cluster]
        for (name, value) in values.sorted(by: { $0.key < $1.key }) {
            arguments += ["-c", "\(name)=\(value)"]
        }
        var command = ChildProcess.Settings(installation.program("postgres"), arguments)
        command.account = layout.account
        // PostgreSQL's "fast" shutdown.
        command.deathSignal = SIGINT
        // Ctrl-C in the terminal is for us; the server ends after us.
        command.startsSession = true
        command.workingDirectory = "/"
        return command
    }

    /// Waits until the server answers and has our database.
    private func waitUntilReady() throws {
        let start = ContinuousClock.now
        while true {
            if let end = server.end {
                throw StartError(
                    .failed, "\(end). See \(layout.startLog) and \(layout.cluster)/log")
            }
            do {
                try makeDatabase()
                server.markAnswered()
                return
            } catch let error as PostgresError where error.isConnectionLoss {
                if ContinuousClock.now - start > settings.startTimeout {
                    throw StartError(
                        .failed,
                        "no answer within \(settings.startTimeout) (\(error.message)). See \(layout.cluster)/log"
                    )
                }
            }
            server.wait(milliseconds: 20)
        }
    }

    /// - Returns: why the server does not answer; `nil` if it does.
    private static func probe(_ socketDirectory: String) -> PostgresError? {
        var options = PostgresOptions(applicationName: "heartline probe")
        options.connectTimeout = .seconds(5)
        options.responseTimeout = .seconds(5)
        do throws(PostgresError) {
            _ = try PostgresConnection(
                url(socketDirectory, database: "postgres"), options: options)
            return nil
        } catch {
            return error
        }
    }

    private func makeDatabase() throws {
        var options = PostgresOptions(applicationName: "heartline start")
        options.connectTimeout = .seconds(5)
        options.responseTimeout = .seconds(60)
        let connection = try PostgresConnection(url(database: "postgres"), options: options)
        let exists = try connection.execute(
            "SELECT FROM pg_database WHERE datname = 'heartline'")
        if exists.isEmpty { try connection.run("CREATE DATABASE heartline") }
    }

    // MARK: Taking over

    /// The server that runs on the cluster, once it answers; `nil` if none does.
    private static func findRunning(_ layout: Layout) throws -> PostmasterFile? {
        let start = ContinuousClock.now
        let pause = Waker()
        while let file = PostmasterFile.read(layout.cluster) {
            guard file.isServer(of: layout.cluster) else {
                if ChildProcess.exists(file.processID) {
                    try PostmasterFile.disown(layout.cluster, account: layout.account)
                }
                return nil
            }
            let answer = probe(file.socketDirectory)
            if answer == nil { return file }
            // It may be on its way up, or down because we died; or its socket was taken away.
            if ContinuousClock.now - start > .seconds(30) {
                end(file, layout.cluster, timeout: .seconds(30))
                if file.isServer(of: layout.cluster) {
                    throw StartError(
                        .inUse,
                        "a server with process id \(file.processID) has \(layout.cluster), does not answer and does not end. Look at it, then run kill -QUIT \(file.processID)"
                    )
                }
                return nil
            }
            pause.wait(milliseconds: 50)
        }
        return nil
    }

    /// Ends a server that is not our child.
    private static func end(_ file: PostmasterFile, _ cluster: String, timeout: Duration) {
        let pause = Waker()
        for (signal, patience) in [(SIGINT, timeout), (SIGQUIT, .seconds(10))] {
            guard file.isServer(of: cluster) else { return }
            ChildProcess.send(signal: signal, to: file.processID)
            let start = ContinuousClock.now
            while file.isServer(of: cluster), ContinuousClock.now - start < patience {
                pause.wait(milliseconds: 20)
            }
        }
    }
}
