import Glibc
import Postgres
import Synchronization
import System
import TestSupport
import Testing

@Suite struct ConnectionTests {
    @Test func aSessionHasTheSettingsThatBatchesNeed() throws {
        let database = try TestDatabase.make(isMigrated: false)
        let connection = try database.connect()
        for (name, value) in [
            ("plan_cache_mode", "force_generic_plan"), ("TimeZone", "UTC"),
            ("client_encoding", "UTF8"), ("application_name", "test"),
        ] {
            let row = try connection.execute("SELECT current_setting($1)", .text(name)).only()
            #expect(try row.text(0) == value)
        }
        #expect(connection.serverVersion >= 130_000)
        #expect(connection.transactionStatus == .idle)
    }

    @Test(arguments: [
        "postgresql://user:s3cret@[::1]x/db", "postgresql://user:s3%zzcret@host/db",
        "host=x password=s3cret port", "postgresql://u:s3cret@127.0.0.1:1/x",
        "postgresql://u:s3cret@127.0.0.1:99999/x", "password='s3cret",
    ]) func errorsShowNoPassword(address: String) {
        let error = #expect(throws: PostgresError.self) { try PostgresConnection(address) }
        #expect(error?.operation == .connecting)
        #expect(error?.description.contains("s3cret") == false)
        #expect(error?.description.contains("cret") == false)
    }

    @Test func aDatabaseThatIsNotThereIsNoConnectionLoss() throws {
        let server = try TestDatabase.make(isMigrated: false).server
        let url = try server.url(database: "nobody")
        let error = #expect(throws: PostgresError.self) { try PostgresConnection(url) }
        #expect(error?.sqlState == .undefinedDatabase)
        #expect(error?.isConnectionLoss == false)
    }

    @Test func noServerIsAConnectionLoss() {
        let error = #expect(throws: PostgresError.self) {
            try PostgresConnection("host=/nonexistent-heartline dbname=x user=x")
        }
        #expect(error?.sqlState == nil)
        #expect(error?.isConnectionLoss == true)
    }

    @Test func aServerThatNeverAnswersIsGivenUp() throws {
        // A listener that accepts into its backlog and says nothing.
        let listener = try SilentListener()
        var options = PostgresOptions()
        options.connectTimeout = .milliseconds(200)
        let error = #expect(throws: PostgresError.self) {
            try PostgresConnection(
                "host=127.0.0.1 port=\(listener.port) dbname=x user=x sslmode=disable",
                options: options)
        }
        #expect(error?.isConnectionLoss == true)
        #expect(error?.message.contains("no answer within") == true)
    }

    @Test func anAnswerThatDoesNotComeBreaksTheConnectionOff() throws {
        let database = try TestDatabase.make(isMigrated: false)
        var options = PostgresOptions()
        options.responseTimeout = .milliseconds(300)
        let connection = try database.connect(options)
        let error = #expect(throws: PostgresError.self) {
            try connection.execute("SELECT pg_sleep(600)")
        }
        #expect(error?.isConnectionLoss == true)
        #expect(!connection.isUsable)
        #expect(throws: PostgresError.self) { try connection.run("SELECT 1") }
        try connection.reconnect()
        #expect(try connection.execute("SELECT 1").count == 1)
    }

    @Test func aStatementThatTakesTooLongIsEndedByTheServer() throws {
        let database = try TestDatabase.make(isMigrated: false)
        var options = PostgresOptions()
        options.statementTimeout = .milliseconds(100)
        let connection = try database.connect(options)
        let error = #expect(throws: PostgresError.self) {
            try connection.execute("SELECT pg_sleep(600)")
        }
        #expect(error?.sqlState == .queryCanceled)
        #expect(error?.isRetryable == true)
        #expect(connection.isUsable)
    }

    @Test func aStatementIsCancelled() throws {
        let database = try TestDatabase.make(isMigrated: false)
        let connection = try database.connect()
        connection.submit(simple: "SELECT pg_sleep(600)")
        #expect(!connection.advance())
        // It may not have begun yet: cancelling an idle session does nothing.
        while !connection.advance() {
            try connection.cancel()
            _ = connection.waitReadable(timeout: .milliseconds(50))
        }
        let error = #expect(throws: PostgresError.self) { try connection.takeResults() }
        #expect(error?.sqlState == .queryCanceled)
        #expect(try connection.execute("SELECT 1").count == 1)
    }

    @Test func aSessionEndedMidQueryIsATypedLossAndReconnects() throws {
        let database = try TestDatabase.make(isMigrated: false)
        let connection = try database.connect()
        let other = try database.connect()
        let statement = PreparedStatement("one", "SELECT 1")
        try connection.execute(statement)
        connection.submit(simple: "SELECT pg_sleep(600)")
        try other.execute("SELECT pg_terminate_backend($1)", .int4(connection.backendProcessID))
        while !connection.advance() { _ = connection.waitReadable(timeout: .seconds(1)) }
        let error = #expect(throws: PostgresError.self) { try connection.takeResults() }
        #expect(error?.sqlState == .adminShutdown)
        #expect(error?.isConnectionLoss == true)
        #expect(connection.transactionStatus == .unknown)
        try connection.reconnect()
        // Prepared anew: the session that knew it is gone.
        #expect(try connection.execute(statement).count == 1)
    }

    @Test func anIdleSessionThatWasEndedIsATypedLoss() throws {
        let database = try TestDatabase.make(isMigrated: false)
        let connection = try database.connect()
        try database.connect().execute(
            "SELECT pg_terminate_backend($1, 10000)", .int4(connection.backendProcessID))
        let error = #expect(throws: PostgresError.self) { try connection.execute("SELECT 1") }
        #expect(error?.isConnectionLoss == true)
    }

    @Test func aServerKilledMidQueryIsALossUntilItIsBack() throws {
        let server = try TestServer()
        let database = try server.makeDatabase(isMigrated: false)
        let connection = try database.connect()
        connection.submit(simple: "SELECT pg_sleep(600)")
        server.kill()
        while !connection.advance() { _ = connection.waitReadable(timeout: .seconds(1)) }
        let error = #expect(throws: PostgresError.self) { try connection.takeResults() }
        #expect(error?.isConnectionLoss == true)
        let refused = #expect(throws: PostgresError.self) { try connection.reconnect() }
        #expect(refused?.isConnectionLoss == true)
        try server.start()
        try connection.reconnect()
        #expect(try connection.execute("SELECT 1").count == 1)
        server.stop()
        #expect(throws: PostgresError.self) { try connection.run("SELECT 1") }
        try server.start()
        try connection.reconnect()
        #expect(try connection.execute("SELECT 1").count == 1)
    }

    @Test func errorsSayWhatTheServerSaid() throws {
        let database = try TestDatabase.make(isMigrated: false)
        let connection = try database.connect()
        try connection.run(
            "CREATE TABLE device (id int8 CONSTRAINT only_once PRIMARY KEY); INSERT INTO device VALUES (7)"
        )
        let insert = PreparedStatement("add-device", "INSERT INTO device VALUES ($1)")
        let error = #expect(throws: PostgresError.self) { try connection.execute(insert, .int8(7)) }
        #expect(error?.sqlState == .uniqueViolation)
        #expect(error?.constraint == "only_once")
        #expect(error?.table == "device")
        #expect(error?.isDataError == true)
        #expect(error?.isRetryable == false)
        #expect(error?.detail?.contains("7") == true)
        let text = error?.description ?? ""
        #expect(text.hasPrefix("executing add-device: "))
        #expect(text.contains("(23505), constraint only_once"))
        #expect(!text.contains("(id)=(7)"), "the row's values are not for the log")
    }

    @Test(arguments: [
        ("SELECT * FROM nowhere", "42P01", false), ("SELECT 1/0", "22012", true),
        ("SELEC 1", "42601", false), ("SELECT 'x'::int8", "22P02", true),
    ]) func sqlStatesAreMapped(sql: String, code: String, isDataError: Bool) throws {
        let connection = try TestDatabase.make(isMigrated: false).connect()
        for error in [
            #expect(throws: PostgresError.self) { try connection.run(sql) },
            #expect(throws: PostgresError.self) { try connection.execute(sql) },
        ] {
            #expect(error?.sqlState?.code == code)
            #expect(error?.isDataError == isDataError)
            #expect(error?.isConnectionLoss == false)
        }
    }

    @Test func theLoserOfTwoTransactionsIsToldToTryAgain() throws {
        let database = try TestDatabase.make(isMigrated: false)
        let (first, second) = (try database.connect(), try database.connect())
        try first.run("CREATE TABLE t (x int8); INSERT INTO t VALUES (1)")
        for connection in [first, second] {
            try connection.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM t")
        }
        try first.run("UPDATE t SET x = 2; COMMIT")
        let error = #expect(throws: PostgresError.self) { try second.run("UPDATE t SET x = 3") }
        #expect(error?.sqlState == .serializationFailure)
        #expect(error?.isSerialization == true)
        #expect(error?.isRetryable == true)
        #expect(second.transactionStatus == .failedTransaction)
        second.rollBack()
        #expect(second.transactionStatus == .idle)
    }

    @Test func aTransactionCommitsOrRollsBack() throws {
        let connection = try TestDatabase.make(isMigrated: false).connect()
        struct Refusal: Error {}
        try connection.run("CREATE TABLE t (x int8)")
        try connection.transaction { try connection.run("INSERT INTO t VALUES (1)") }
        #expect(throws: Refusal.self) {
            try connection.transaction {
                try connection.run("INSERT INTO t VALUES (2)")
                throw Refusal()
            }
        }
        #expect(throws: PostgresError.self) {
            try connection.transaction {
                try connection.run("INSERT INTO t VALUES (3)")
                _ = try? connection.run("SELECT 1/0")
            }
        }
        #expect(connection.transactionStatus == .idle)
        #expect(try connection.execute("SELECT sum(x)::int8 FROM t").only().int8(0) == 1)
    }

    @Test func aStatementIsPreparedOnceASession() throws {
        let connection = try TestDatabase.make(isMigrated: false).connect()
        let statement = PreparedStatement("double", "SELECT $1::int8 * 2")
        for value in Int64(1)...5 {
            #expect(try connection.execute(statement, .int8(value)).only().int8(0) == value * 2)
        }
        let known = try connection.execute("SELECT generic_plans FROM pg_prepared_statements")
            .only()
        #expect(try known.int8(0) == 5)
    }

    @Test func noticesAreForwarded() throws {
        let seen = Notices()
        var options = PostgresOptions()
        options.notice = { seen.add($0) }
        let connection = try TestDatabase.make(isMigrated: false).connect(options)
        try connection.run("DO $$ BEGIN RAISE NOTICE 'hello there'; END $$")
        #expect(seen.all.contains { $0.contains("hello there") })
    }

    @Test func notificationsArrive() throws {
        let database = try TestDatabase.make(isMigrated: false)
        let (listener, speaker) = (try database.connect(), try database.connect())
        try listener.listen("heartline_outbox")
        #expect(try listener.notifications().isEmpty)
        try speaker.run("NOTIFY heartline_outbox, 'ding'")
        var received: [PostgresNotification] = []
        while received.isEmpty {
            _ = listener.waitReadable(timeout: .seconds(1))
            received = try listener.notifications()
        }
        #expect(received.map(\.payload) == ["ding"])
        #expect(received[0].processID == speaker.backendProcessID)
        try speaker.execute("SELECT pg_terminate_backend($1)", .int4(listener.backendProcessID))
        #expect(throws: PostgresError.self) {
            while true {
                _ = listener.waitReadable(timeout: .seconds(1))
                _ = try listener.notifications()
            }
        }
    }

    @Test func backoffDoublesUpToItsLimit() {
        let backoff = Backoff(initialMilliseconds: 100, limitMilliseconds: 5_000)
        #expect(
            (0...7).map { backoff.delay(afterFailures: $0) } == [
                0, 100, 200, 400, 800, 1_600, 3_200, 5_000,
            ])
        #expect(backoff.delay(afterFailures: .max) == 5_000)
        #expect(Backoff(initialMilliseconds: .max).delay(afterFailures: 9) == 5_000)
    }
}

final class Notices: Sendable {
    private let texts = Mutex<[String]>([])
    func add(_ text: String) { texts.withLock { $0.append(text) } }
    var all: [String] { texts.withLock { $0 } }
}

/// Listens on a port of its own and never says a word.
struct SilentListener: ~Copyable {
    private let descriptor: Int32
    let port: UInt16

    init() throws {
        let descriptor = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
        var size = socklen_t(MemoryLayout<sockaddr_in>.size)
        let isBound = unsafe withUnsafeMutablePointer(to: &address) {
            unsafe $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                unsafe bind(descriptor, $0, size) == 0 && listen(descriptor, 8) == 0
                    && getsockname(descriptor, $0, &size) == 0
            }
        }
        precondition(isBound, "listening on a port of the loopback")
        self.descriptor = descriptor
        port = UInt16(bigEndian: address.sin_port)
    }

    deinit { close(descriptor) }
}
