internal import Postgres
internal import Synchronization
internal import System

/// Deletes sessions and tokens that have expired. Every front-end may do so: they take no row that
/// another is at.
final class ProximitySweeper: Sendable {
    private let databaseURL: String
    private let intervalMilliseconds: Int64
    private let isStopping = Atomic(false)
    private let waker = Waker()
    private let thread = Mutex<SystemThread?>(nil)

    /// Rows of one transaction.
    private static let batch = 5_000

    private static let statements = [
        PreparedStatement(
            "proximity_sweep_presence",
            """
            DELETE FROM heartline.presence WHERE token IN (
                SELECT token FROM heartline.presence
                WHERE registered_at <= now() - interval '5 minutes'
                ORDER BY registered_at LIMIT \(batch) FOR UPDATE SKIP LOCKED)
            """),
        PreparedStatement(
            "proximity_sweep_sessions",
            """
            DELETE FROM heartline.sessions WHERE token_hash IN (
                SELECT token_hash FROM heartline.sessions WHERE expires_at <= now()
                ORDER BY expires_at LIMIT \(batch) FOR UPDATE SKIP LOCKED)
            """),
    ]

    init(databaseURL: String, intervalMilliseconds: Int64) {
        self.databaseURL = databaseURL
        self.intervalMilliseconds = intervalMilliseconds
    }

    func start() {
        thread.withLock { $0 = SystemThread.start("proximity-sweep") { self.run() } }
    }

    func stop() {
        isStopping.store(true, ordering: .releasing)
        waker.signal()
        let running = thread.withLock { $0.take() }
        running?.join()
    }

    private var goesOn: Bool { !isStopping.load(ordering: .acquiring) }

    private func run() {
        var complaints = Complaints("deleting sessions and tokens that have expired")
        while goesOn {
            do {
                try sweep()
                complaints.end()
            } catch {
                complaints.add(error)
            }
            waker.wait(milliseconds: intervalMilliseconds) { goesOn }
        }
    }

    /// With a connection for the moment: in between there is nothing to keep one for.
    private func sweep() throws(PostgresError) {
        var options = PostgresOptions(applicationName: "heartline proximity sweep")
        options.connectTimeout = .seconds(3)
        options.statementTimeout = .seconds(5)
        options.responseTimeout = .seconds(6)
        let connection = try PostgresConnection(databaseURL, options: options)
        defer { connection.close() }
        for statement in Self.statements {
            while goesOn, try connection.execute(statement).affectedRows == Self.batch {}
        }
    }
}
