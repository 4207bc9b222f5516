import Pipeline
import Postgres
import System

/// A connection to the database of an instance, whether it runs or not: the private PostgreSQL of one
/// that is stopped is started for as long as this lives, and nobody can start the instance meanwhile.
final class StoppedDatabase {
    /// As libpq takes it.
    let address: String
    let connection: PostgresConnection
    /// Whether no instance runs on the data directory.
    let isStopped: Bool
    private let database: PrivateDatabase?
    private let lock: FileLock?

    /// - Parameter role: what the session is called.
    init(_ arguments: Arguments, as role: String) throws {
        let options = PostgresOptions(applicationName: "heartline \(role)")
        let data = arguments.text("data")
        let running = Result { try DatabaseAccess.address(arguments) }
        let isThere = FileSystem.isDirectory("\(data)/postgres")
        if isThere, case .failure = running, let taken = try FileLock.take("\(data)/lock") {
            lock = taken
            isStopped = true
            let started = try PrivateDatabase.start(directory: try FileSystem.realPath(data))
            database = started
            address = started.url
            do {
                connection = try PostgresConnection(started.url, options: options)
            } catch {
                started.stop()
                throw error
            }
        } else {
            lock = nil
            isStopped = false
            database = nil
            address = try running.get()
            connection = try PostgresConnection(address, options: options)
        }
    }

    /// Ends what was started.
    func close() {
        connection.close()
        database?.stop()
    }
}
