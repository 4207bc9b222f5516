import Bytes
import Ingest
import Postgres
import Schemas
import TestSupport

/// A front-end with phones' sockets, and the rows that other parts write.
final class PhoneRig {
    let rig: Rig
    let connection: PostgresConnection
    private var last: UInt64 = 0

    var log: FakeLog { rig.log }
    var frontEnd: FrontEnd<FakeLog> { rig.frontEnd }

    /// - Parameter database: of another front-end, for two of them.
    init(
        database: TestDatabase? = nil, _ change: (inout SocketSettings) -> Void = { _ in }
    ) throws {
        var sockets = SocketSettings()
        change(&sockets)
        rig = try Rig(database: database, devices: 0) { $0.sockets = sockets }
        connection = try rig.database.connect()
        let frontEnd = rig.frontEnd
        guard try eventually({ frontEnd.hearsPushes }) else {
            throw RawHTTPError(description: "the doorbells are not heard")
        }
    }

    func addAccount() throws -> AccountID {
        let row = try connection.execute(
            """
            INSERT INTO heartline.accounts (account_id, provider, provider_subject) \
            SELECT id, 'apple', id::text FROM (SELECT gen_random_uuid() AS id) i \
            RETURNING account_id
            """
        ).only()
        let id = try row.uuid(0)
        return AccountID(high: id.high, low: id.low)
    }

    /// Opens a session.
    /// - Returns: its token.
    func addSession(of account: AccountID, seconds: Double = 3_600) throws -> String {
        try connection.execute(
            """
            WITH made AS (SELECT replace(gen_random_uuid()::text || '-abcdef', '-', '_') AS token) \
            INSERT INTO heartline.sessions (token_hash, account_id, expires_at) \
            SELECT sha256(token::bytea), $1, now() + $2 * interval '1 second' FROM made \
            RETURNING (SELECT token FROM made)
            """, .uuid(account.high, account.low), .float8(seconds)
        ).only().text(0)
    }

    func revoke(_ token: String) throws {
        try connection.execute(
            "DELETE FROM heartline.sessions WHERE token_hash = sha256($1::text::bytea)",
            .text(token))
    }

    /// - Parameter age: of what caused it, in seconds.
    @discardableResult
    func addPush(
        to account: AccountID, of peer: AccountID, _ kind: PushKind = .mutual,
        body: String = "{\"n\":1}", age: Double = 0
    ) throws -> PushID {
        let row = try connection.execute(
            """
            INSERT INTO heartline.pushes (account_id, push_id, peer, kind, body, created_at) \
            VALUES ($1, gen_random_uuid(), $2, $3, $4, clock_timestamp() - $5 * interval '1 second') \
            RETURNING push_id
            """, .uuid(account.high, account.low), .uuid(peer.high, peer.low),
            .text("\(kind.name)"), .text(body), .float8(age)
        ).only()
        let id = try row.uuid(0)
        return PushID(high: id.high, low: id.low)
    }

    func block(_ account: AccountID, by blocker: AccountID) throws {
        try connection.execute(
            "INSERT INTO heartline.blocks (blocker, blocked) VALUES ($1, $2)",
            .uuid(blocker.high, blocker.low), .uuid(account.high, account.low))
    }

    func isDelivered(_ push: PushID) throws -> Bool {
        try connection.execute(
            "SELECT delivered_at IS NOT NULL FROM heartline.pushes WHERE push_id = $1",
            .uuid(push.high, push.low)
        ).only().bool(0)
    }

    func open(
        _ token: String?, path: String = "/ws", receiveBuffer: Int32? = nil
    ) throws -> SocketClient {
        let address = frontEnd.boundAddress
        return try SocketClient(
            host: address.host, port: address.port, path: path, token: token,
            receiveBuffer: receiveBuffer)
    }

    /// Asks for a socket and expects none.
    func refusal(
        _ headers: [String], method: String = "GET", path: String = "/ws"
    ) throws -> RawResponse {
        try rig.client().request(method, path, body: [], headers: headers)
    }
}
