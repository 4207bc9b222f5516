import Bytes
import Ingest
import Postgres
import Schemas
import Synchronization
import System
import TestSupport
import Testing

@Suite("Proximity: sessions") struct SessionTests {
    /// A request that anybody with a session may make.
    static func isOpen(_ rig: ProximityRig, _ person: Person) throws -> Bool {
        let status = try rig.ask("GET", "/v1/nearby?geohash=u4pru&tier=3", as: person).status
        #expect(status == 200 || status == 401)
        return status == 200
    }

    @Test("every route but the exchange asks for a session")
    func unauthorized() throws {
        let rig = try ProximityRig()
        let open = try rig.signIn("one")
        for route in ProximityRoute.allCases where route != .exchange {
            let path = "\(route.path)"
            for bearer in [nil, "", "x", String(repeating: "A", count: 43), open.token + "A"] {
                let response = try rig.ask(route.methodName, path, "{}", as: bearer)
                #expect(response.status == 401, "\(route)")
                #expect(response.text == #"{"error":"unauthorized"}"#, "\(route)")
                #expect(response.headers["www-authenticate"] != nil)
            }
            #expect(try rig.ask("PUT", path, as: open).status == 405)
        }
        let basic = try rig.rig.client().request(
            "GET", "/v1/nearby?geohash=u4pru&tier=3", body: [],
            headers: ["Authorization: Basic \(open.token)"])
        #expect(basic.status == 401)
        #expect(try rig.ask("GET", "/v1/other", as: open).status == 404)
    }

    @Test("a revoked session ends on every front-end within a second")
    func revoke() throws {
        let database = try TestDatabase.make()
        let one = try ProximityRig(database: database)
        let two = try ProximityRig(provider: one.provider, database: database)
        let person = try one.signIn("one")
        let other = try one.signIn("one")
        #expect(try Self.isOpen(one, person))
        #expect(try Self.isOpen(two, person))
        #expect(try eventually { two.rig.frontEnd.hearsSessions })
        #expect(try Self.isOpen(two, person))
        #expect(try Self.isOpen(two, other))
        let response = try one.ask("POST", "/v1/auth/revoke", as: person)
        #expect(response.status == 200)
        #expect(response.text == "{}")
        let start = SystemClock.monotonicMilliseconds()
        #expect(try !Self.isOpen(one, person))
        #expect(try eventually { try !Self.isOpen(two, person) })
        // Measured on a machine that may be busy: what matters is that it does not hang on a lease.
        #expect(SystemClock.monotonicMilliseconds() - start < 10_000)
        #expect(try Self.isOpen(two, other))
        #expect(try one.ask("POST", "/v1/auth/revoke", as: person).status == 401)
    }

    @Test("an expired session is refused, and its row goes")
    func expiry() throws {
        let rig = try ProximityRig { $0.proximity?.sweepMilliseconds = 20 }
        let person = try rig.signIn("one")
        #expect(try Self.isOpen(rig, person))
        try rig.connect().run("UPDATE heartline.sessions SET expires_at = now()")
        #expect(try eventually { try rig.count("SELECT count(*) FROM heartline.sessions") == 0 })
        #expect(try eventually { try !Self.isOpen(rig, person) })
    }

    /// Notes which sessions it is told have ended.
    final class Watcher: SessionWatcher {
        func sessionFound(_ session: SessionID, expiresAt: Int64) {}
        let watched: Mutex<[SessionID]>
        let ended = Mutex<[SessionID]>([])
        init(_ sessions: [SessionID]) { watched = Mutex(sessions) }
        var watchedSessions: [SessionID] { watched.withLock { $0 } }
        func sessionEnded(_ session: SessionID) { ended.withLock { $0.append(session) } }
        func hasHeard(_ session: SessionID) -> Bool { ended.withLock { $0.contains(session) } }
    }

    /// A session's row, as an exchange makes it.
    static func makeSession(
        _ database: TestDatabase, _ number: Int
    ) throws -> (SessionID, AccountID) {
        let token = ByteBuffer("\(String(repeating: "s", count: 40))\(100 + number)".utf8)
        let session = SessionID(token: token.span)!
        let account = AccountID(high: 7, low: UInt64(number))
        let connection = try database.connect()
        try connection.execute(
            "INSERT INTO heartline.accounts VALUES ($1, 'apple', $2) ON CONFLICT DO NOTHING",
            .uuid(account.high, account.low), .text("subject \(number)"))
        try connection.execute(
            "INSERT INTO heartline.sessions VALUES (sha256($1), $2, now(), now() + interval '1 h')",
            .bytea(token), .uuid(account.high, account.low))
        return (session, account)
    }

    static func resolve(_ sessions: Sessions, _ session: SessionID) throws -> SessionAnswer {
        let box = Box()
        sessions.resolve(session) { box.set($0) }
        #expect(try eventually { box.value != nil })
        return try #require(box.value)
    }

    final class Box: Sendable {
        private let answer = Mutex<SessionAnswer?>(nil)
        func set(_ value: SessionAnswer) { answer.withLock { $0 = value } }
        var value: SessionAnswer? { answer.withLock { $0 } }
    }

    @Test("what listens is told of ends, and of those that it missed while its connection was lost")
    func watching() throws {
        let database = try TestDatabase.make()
        let (first, account) = try Self.makeSession(database, 1)
        let (second, _) = try Self.makeSession(database, 2)
        let sessions = Sessions(databaseURL: database.url)
        sessions.start()
        defer { sessions.stop() }
        let watcher = Watcher([first, second])
        sessions.add(watcher)
        #expect(try Self.resolve(sessions, first) == .account(account))
        #expect(try eventually { sessions.isListening })
        #expect(try Self.resolve(sessions, first) == .account(account))
        #expect(sessions.cached(first) == account)
        let connection = try database.connect()
        try connection.execute(
            "DELETE FROM heartline.sessions WHERE account_id = $1",
            .uuid(account.high, account.low))
        #expect(try eventually { watcher.hasHeard(first) })
        #expect(sessions.cached(first) == nil)
        #expect(try Self.resolve(sessions, first) == .unauthorized)
        #expect(!watcher.hasHeard(second))
        // In one transaction with the loss of the listening connection, so that nobody is told in time.
        try connection.run(
            """
            BEGIN; ALTER TABLE heartline.sessions DISABLE TRIGGER session_ended; \
            DELETE FROM heartline.sessions; \
            ALTER TABLE heartline.sessions ENABLE TRIGGER session_ended; COMMIT; \
            SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
            WHERE datname = current_database() AND application_name = 'heartline session ends'
            """)
        #expect(try eventually { watcher.hasHeard(second) })
    }

    @Test("while the ends of sessions cannot be heard, every session is asked of the database")
    func deaf() throws {
        let database = try TestDatabase.make()
        let (session, account) = try Self.makeSession(database, 1)
        let sessions = Sessions(databaseURL: database.url)
        sessions.start()
        defer { sessions.stop() }
        #expect(try Self.resolve(sessions, session) == .account(account))
        #expect(try eventually { sessions.isListening })
        #expect(try Self.resolve(sessions, session) == .account(account))
        #expect(sessions.cached(session) == account)
        // The listening backend hangs: no answer comes, and no end either.
        let connection = try database.connect()
        let backend = try connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
                + "AND application_name = 'heartline session ends'"
        ).only().int4(0)
        ChildProcess.send(signal: 19, to: backend)
        defer { ChildProcess.send(signal: 18, to: backend) }
        #expect(try eventually { !sessions.isListening })
        #expect(sessions.cached(session) == nil)
        #expect(try Self.resolve(sessions, session) == .account(account))
        try connection.run("DELETE FROM heartline.sessions")
        #expect(try Self.resolve(sessions, session) == .unauthorized)
    }
}
