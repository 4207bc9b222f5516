internal import Foundation
internal import Pipeline
internal import Postgres
internal import Schemas
internal import Synchronization
internal import System

/// A real PostgreSQL of its own, without durability, that can be stopped, killed and started again.
///
/// Its directory is removed at its end. If the process is killed, the server ends with it, and the next
/// test process removes the directory.
public final class TestServer: Sendable {
    private struct State {
        var database: PrivateDatabase?
        var hasTemplate = false
        var nextNumber = 0
        /// Databases whose tests are over, to be dropped once their sessions have ended.
        var retired: [String] = []
    }

    private let directory: String
    private let lock: FileLock
    private let state = Mutex(State())

    public init() throws {
        TestServer.sweep()
        directory = try FileSystem.makeTemporaryDirectory(TestServer.prefix)
        // The server's user must be able to pass.
        try FileSystem.setMode(directory, 0o711)
        guard let lock = try FileLock.take("\(directory)/lock") else {
            preconditionFailure("a new directory is locked")
        }
        self.lock = lock
        try start()
    }

    deinit { remove() }

    /// Ends the server and removes its directory.
    public func remove() {
        stop()
        try? FileManager.default.removeItem(atPath: directory)
    }

    public func start() throws {
        try state.withLock { state in
            guard state.database == nil else { return }
            var settings = PrivateDatabase.Settings()
            settings.sharedBuffersMegabytes = 32
            settings.maximumConnections = 200
            settings.isDurable = false
            settings.restartsAfterCrash = false
            state.database = try PrivateDatabase.start(directory: directory, settings: settings)
        }
    }

    /// Ends the server in order; sessions are cut off.
    public func stop() {
        state.withLock { state in
            state.database?.stop()
            state.database = nil
        }
    }

    /// Ends the server's main process with SIGKILL; the others follow by themselves.
    public func kill() {
        state.withLock { state in
            if let process = state.database?.processID {
                ChildProcess.send(signal: SIGKILL, to: process)
            }
            state.database?.stop()
            state.database = nil
        }
    }

    /// The address of a database of the server; it stays the same when the server is started again.
    public func url(database: String) throws -> String {
        try state.withLock { state in
            guard let server = state.database else { throw TestServerError.stopped }
            return server.url(database: database)
        }
    }

    /// A fresh database, dropped at its end.
    /// - Parameter isMigrated: with Heartline's schema, otherwise empty.
    public func makeDatabase(isMigrated: Bool = true) throws -> TestDatabase {
        let name = try state.withLock { state in
            guard let server = state.database else { throw TestServerError.stopped }
            if isMigrated && !state.hasTemplate {
                try makeTemplate(server)
                state.hasTemplate = true
            }
            state.nextNumber += 1
            return "test_\(state.nextNumber)"
        }
        let template = isMigrated ? " TEMPLATE heartline_template" : ""
        let connection = try PostgresConnection(try url(database: "postgres"))
        try dropRetired(connection)
        try connection.run("CREATE DATABASE \(name)\(template)")
        return TestDatabase(self, name: name, url: try url(database: name))
    }

    func retire(_ name: String) { state.withLock { $0.retired.append(name) } }

    private func dropRetired(_ connection: PostgresConnection) throws {
        let names = state.withLock { state in
            defer { state.retired = [] }
            return state.retired
        }
        for name in names {
            let sessions = try connection.execute(
                "SELECT FROM pg_stat_activity WHERE datname = $1", .text(name))
            if sessions.isEmpty {
                try connection.run("DROP DATABASE IF EXISTS \(name)")
            } else {
                retire(name)
            }
        }
    }

    private func makeTemplate(_ server: PrivateDatabase) throws {
        let maker = try PostgresConnection(server.url(database: "postgres"))
        // An earlier attempt can have failed half-way.
        try maker.run("DROP DATABASE IF EXISTS heartline_template")
        try maker.run("CREATE DATABASE heartline_template")
        let connection = try PostgresConnection(server.url(database: "heartline_template"))
        try Migrator.migrate(connection, try Migrations.load())
        connection.close()
    }

    // MARK: What killed test processes have left

    private static let prefix = "/tmp/heartline-test-"

    private static func sweep() {
        let names = (try? FileManager.default.contentsOfDirectory(atPath: "/tmp")) ?? []
        for name in names where "/tmp/\(name)".hasPrefix(prefix) {
            let path = "/tmp/\(name)"
            // The log is there only after the lock was taken.
            guard FileSystem.status(path)?.ownerID == geteuid(),
                FileSystem.status("\(path)/postgres/start.log") != nil,
                let lock = try? FileLock.take("\(path)/lock")
            else { continue }
            try? FileManager.default.removeItem(atPath: path)
            _ = lock
        }
    }
}

public enum TestServerError: Error { case stopped }
