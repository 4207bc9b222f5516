import Bytes
import Crypto
import Ingest
import Postgres
import Schemas
import TestSupport
import Testing

@Suite("Registration tokens for operators, in PostgreSQL") struct TokenAdministrationTests {
    static let ada = try! OperatorRequest(actor: "ada")

    /// The stored digests, in the order of the tokens' ids.
    static func digests(_ database: TestDatabase) throws -> [String: ByteBuffer] {
        var result: [String: ByteBuffer] = [:]
        for row in try database.connect().execute(
            "SELECT token_id::text, token_digest FROM heartline.registration_tokens")
        {
            result[try row.text(0)] = try row.bytea(1)
        }
        return result
    }

    static func digest(_ token: String) throws -> ByteBuffer {
        let id = try #require(DeviceID(token))
        var bytes = ByteBuffer()
        bytes.appendBigEndian(id.high)
        bytes.appendBigEndian(id.low)
        return ByteBuffer(SHA256.hash(bytes.span).bytes)
    }

    @Test("a request with an id gets the same tokens again; without, new ones each time")
    func repeated() throws {
        let database = try TestDatabase.make()
        let registry = try RegistryTests.registry(database)
        let request = try OperatorRequest(actor: "ada", id: "r-1")
        let first = try registry.createTokens(count: 3, ttl: .seconds(3_600), by: request)
        #expect(Set(first.map(\.token)).count == 3)
        let again = try registry.createTokens(count: 3, ttl: .seconds(3_600), by: request)
        #expect(again.map(\.token) == first.map(\.token))
        #expect(again.map(\.id) == first.map(\.id))
        #expect(again.map(\.expiresAt) == first.map(\.expiresAt))
        let other = try OperatorRequest(actor: "ada", id: "r-2")
        let others = try registry.createTokens(count: 3, ttl: .seconds(3_600), by: other)
        #expect(Set(first.map(\.token)).isDisjoint(with: others.map(\.token)))
        for (count, ttl, note) in [(2, 3_600, ""), (3, 60, ""), (3, 3_600, "x")] {
            let error = #expect(throws: RegistryError.self) {
                try registry.createTokens(
                    count: count, ttl: .seconds(ttl), note: note, by: request)
            }
            #expect(error?.kind == .requestConflict)
        }
        let random = try registry.createTokens(count: 1, ttl: .seconds(60), by: Self.ada)
        #expect(
            try registry.createTokens(count: 1, ttl: .seconds(60), by: Self.ada)[0].token
                != random[0].token)
        let digests = try Self.digests(database)
        #expect(digests.count == 8)
        for token in first + others + random {
            #expect(digests[token.id] == (try Self.digest(token.token)))
        }
    }

    @Test("tokens follow from the secret key: another installation's request makes others")
    func otherKey() throws {
        let request = try OperatorRequest(actor: "ada", id: "r-1")
        var tokens: Set<String> = []
        for byte in [UInt8(1), 2] {
            let database = try TestDatabase.make()
            let registry = try Registry(
                database.connect(), secretKey: [UInt8](repeating: byte, count: 32))
            try registry.prepareNetwork()
            let made = try registry.createTokens(count: 1, ttl: .seconds(60), by: request)
            tokens.insert(made[0].token)
        }
        #expect(tokens.count == 2)
    }

    @Test("a list tells what became of each token")
    func list() throws {
        let database = try TestDatabase.make()
        let registry = try RegistryTests.registry(database)
        let tokens = try registry.createTokens(
            count: 4, ttl: .seconds(3_600), note: "roof", by: Self.ada)
        let device = DeviceID(high: 7, low: 7)
        let connection = try database.connect()
        try connection.execute(
            """
            UPDATE heartline.registration_tokens SET used_at = now(), device_id = $2 \
            WHERE token_id = $1::text::uuid
            """, .text(tokens[1].id), .uuid(device.high, device.low))
        try connection.execute(
            """
            UPDATE heartline.registration_tokens SET expires_at = now() - interval '1 second' \
            WHERE token_id = $1::text::uuid
            """, .text(tokens[2].id))
        let revoked = try #require(DeviceID(tokens[3].id))
        #expect(try registry.revokeToken(revoked, by: Self.ada))
        #expect(try !registry.revokeToken(revoked, by: Self.ada))
        let states = Dictionary(
            uniqueKeysWithValues: try registry.tokens(limit: 10).map { ($0.id, $0) })
        #expect(tokens.map { states[$0.id]?.state } == [.unused, .used, .expired, .revoked])
        #expect(states[tokens[1].id]?.device == device)
        #expect(states[tokens[0].id]?.createdBy == "ada")
        #expect(states[tokens[0].id]?.note == "roof")
        #expect(try registry.tokens(limit: 2).count == 2)
        // A revoked one has expired: whoever checks that refuses it.
        let isOver = try connection.execute(
            """
            SELECT expires_at <= now() FROM heartline.registration_tokens \
            WHERE token_id = $1::text::uuid
            """, .text(tokens[3].id)
        ).only().bool(0)
        #expect(isOver)
        let used = #expect(throws: RegistryError.self) {
            try registry.revokeToken(#require(DeviceID(tokens[1].id)), by: Self.ada)
        }
        #expect(used?.kind == .tokenUsed)
        let unknown = #expect(throws: RegistryError.self) {
            try registry.revokeToken(device, by: Self.ada)
        }
        #expect(unknown?.kind == .unknownToken)
    }

    @Test("a token is found by itself and by its id")
    func find() throws {
        let database = try TestDatabase.make()
        let registry = try RegistryTests.registry(database)
        let token = try registry.createTokens(count: 1, ttl: .seconds(60), by: Self.ada)[0]
        let id = DeviceID(token.id)
        #expect(try registry.tokenID(token.id) == id)
        #expect(try registry.tokenID(token.token.uppercased()) == id)
        #expect(try registry.tokenID("\(DeviceID(high: 1, low: 1))") == nil)
        #expect(try registry.tokenID("no uuid") == nil)
    }

    @Test("what cannot be is refused and makes nothing")
    func refused() throws {
        let database = try TestDatabase.make()
        let registry = try RegistryTests.registry(database)
        for (count, ttl, note) in [
            (0, 60, ""), (-1, 60, ""), (1, 0, ""), (1, 366 * 86_400, ""), (1, .max, ""),
            (1, 60, "a\nb"), (1, 60, String(repeating: "a", count: 501)),
        ] as [(Int, Int, String)] {
            #expect(throws: RegistryError.self) {
                try registry.createTokens(
                    count: count, ttl: .seconds(ttl), note: note, by: Self.ada)
            }
        }
        #expect(try registry.tokens(limit: 10).isEmpty)
        #expect(try registry.auditLog(limit: 10).isEmpty)
    }
}
