import Bytes
import HTTP
import Ingest
import Postgres
import Schemas
import System
import TestSupport
import Testing

/// Agents that ask to be provisioned, and an operator's view of what came of it.
struct Provisioning {
    let rig: Rig

    init(
        database: TestDatabase? = nil, devices: Int = 0, prefix: String? = nil,
        databaseURL: String? = nil, _ change: (inout FrontEndSettings) -> Void = { _ in }
    ) throws {
        rig = try Rig(
            database: database, devices: devices, prefix: prefix, databaseURL: databaseURL
        ) { settings in
            settings.salt = Array("a salt for the tests".utf8)
            settings.provisioning.limit = nil
            // Tests hold locks for as long as they need.
            settings.databaseMilliseconds = 120_000
            change(&settings)
        }
    }

    func tokens(_ count: Int) throws -> [RegistrationToken] {
        try rig.registry.createTokens(count: count, ttl: .seconds(3_600), actor: "test")
    }

    func token() throws -> String { try tokens(1)[0].token }

    static func body(_ token: String, _ hardwareID: String) -> String {
        "{\"token\":\"\(token)\",\"hwid\":\"\(hardwareID)\"}"
    }

    @discardableResult
    func provision(_ token: String, _ hardwareID: String) throws -> RawResponse {
        try rig.client().request(
            "POST", "/api/v1/provision", body: Self.body(token, hardwareID).utf8)
    }

    /// Sends without waiting for the answer.
    func ask(_ token: String, _ hardwareID: String) throws -> RawClient {
        let client = try rig.client()
        try client.sendRequest(
            "POST", "/api/v1/provision", body: Self.body(token, hardwareID).utf8)
        return client
    }

    func connect() throws -> PostgresConnection { try rig.database.connect() }

    func number(_ sql: String) throws -> Int64 { try connect().execute(sql).only().int8(0) }

    /// Backends of provisioners that wait for a lock.
    static let waiting =
        """
        FROM pg_stat_activity WHERE datname = current_database() \
        AND application_name = 'heartline provisioner' AND wait_event_type = 'Lock'
        """

    func waitForWaiting(_ count: Int64) throws -> Bool {
        try eventually { try number("SELECT count(*) \(Self.waiting)") >= count }
    }
}

@Suite("Provisioning: what is stored") struct ProvisioningTests {
    @Test("the device, its token, and the events that tell of it are there together")
    func stored() throws {
        let provisioning = try Provisioning()
        let token = try provisioning.tokens(1)[0]
        #expect(try provisioning.provision(token.token, "phone").status == 200)
        let row = try provisioning.connect().execute(
            """
            SELECT d.device_id, convert_from(d.hardware_id, 'UTF8'), t.token_id, \
            t.used_at IS NOT NULL, length(t.token_digest) FROM heartline.devices d \
            JOIN heartline.registration_tokens t USING (device_id)
            """
        ).only()
        let (high, low) = try row.uuid(0)
        let device = DeviceID(high: high, low: low)
        #expect(try row.text(1) == "phone")
        #expect(try row.uuid(2) == (DeviceID(token.id)!.high, DeviceID(token.id)!.low))
        #expect(try row.bool(3))
        let first = try RegistryTests.outbox(provisioning.rig.database)
        #expect(first.map(\.topic) == ["heartbeats", "config-changes", "device-configs"])
        #expect(first.allSatisfy { $0.key == device.description })
        #expect(first[0].value.contains("\"type\":\"provisioned\""))
        #expect(first[1].value.contains("\"type\":\"provisioned\""))
        #expect(first[1].value.contains("\"actor\":\"provision\""))

        #expect(try provisioning.provision(try provisioning.token(), "phone").status == 200)
        let again = Array(try RegistryTests.outbox(provisioning.rig.database).dropFirst(3))
        #expect(again.map(\.topic) == ["heartbeats", "config-changes", "device-configs"])
        #expect(again[0].value.contains("\"type\":\"provisioned\""))
        #expect(again[1].value.contains("\"type\":\"reprovisioned\""))
        #expect(again.allSatisfy { $0.value.contains("\"version\":2") })
        #expect(try provisioning.rig.registry.device(device)?.version == 2)
        // No token stands anywhere, nor can it be read out of anything.
        #expect(
            try provisioning.number(
                "SELECT count(*) FROM heartline.registration_tokens t "
                    + "WHERE t::text LIKE '%\(token.token)%'") == 0)
    }

    @Test("requests that share a transaction come out as if one came after another")
    func batch() throws {
        let provisioning = try Provisioning()
        let tokens = try provisioning.tokens(3).map(\.token)
        let lock = try provisioning.connect()
        try lock.run("BEGIN; SELECT FROM heartline.network FOR UPDATE")
        // Both threads are busy; what comes now shares their next transactions.
        let first = try tokens.prefix(1).map { try provisioning.ask($0, "phone") }
        #expect(try provisioning.waitForWaiting(1))
        let others = try (0..<40).map { index in
            try provisioning.ask(tokens[index % 3], index % 2 == 0 ? "phone" : "tablet")
        }
        #expect(try provisioning.waitForWaiting(2))
        try lock.run("COMMIT")
        let answers = try (first + others).map { try $0.response() }
        #expect(answers.count { $0.status == 200 } == 3)
        #expect(answers.count { $0.text.contains("token already used") } == 38)
        #expect(
            try provisioning.number(
                "SELECT count(DISTINCT device_id) FROM heartline.registration_tokens "
                    + "WHERE used_at IS NOT NULL") == provisioning.rig.registry.deviceCount)
        // Each provisioning is a version of its device.
        #expect(
            try provisioning.number("SELECT sum(version)::int8 FROM heartline.devices") == 3)
        #expect(
            try provisioning.number(
                "SELECT count(*) FROM heartline.outbox WHERE topic = 'config-changes'") == 3)
    }

    @Test("a full prefix raises one alert, which a freed address resolves") func alert() throws {
        let provisioning = try Provisioning(prefix: "10.9.9.0/29")
        let tokens = try provisioning.tokens(12).map(\.token)
        let clients = try tokens.prefix(10).enumerated().map {
            try provisioning.ask($1, "device-\($0)")
        }
        let statuses = try clients.map { try $0.response().status }
        // 8 addresses, less network, broadcast and server.
        #expect(statuses.count { $0 == 200 } == 5)
        #expect(statuses.count { $0 == 500 } == 5)
        #expect(
            try provisioning.number(
                "SELECT count(*) FROM heartline.registration_tokens WHERE used_at IS NOT NULL")
                == 5)
        func alerts() throws -> [String] {
            try provisioning.connect().execute(
                """
                SELECT kind || ' ' || entity || ' ' || reason || ' ' || episode || ' ' || \
                (resolved_at IS NULL) FROM heartline.alerts ORDER BY episode
                """
            ).map { try $0.text(0) }
        }
        #expect(try alerts() == ["pool-exhausted fleet no-free-address 0 true"])
        func events() throws -> [String] {
            try RegistryTests.outbox(provisioning.rig.database).filter { $0.topic == "alerts" }
                .map { event in
                    #expect(event.key == "fleet")
                    return event.value.contains("\"type\":\"opened\"") ? "opened" : "resolved"
                }
        }
        #expect(try events() == ["opened"])
        // The one in the middle goes; its address is given again, and that is the end of it.
        try provisioning.connect().run(
            "DELETE FROM heartline.devices WHERE internal_address = '10.9.9.4'")
        #expect(try provisioning.provision(tokens[10], "late").status == 200)
        #expect(try alerts() == ["pool-exhausted fleet no-free-address 0 false"])
        #expect(try events() == ["opened", "resolved"])
        #expect(
            try provisioning.number(
                "SELECT count(*) FROM heartline.devices WHERE internal_address = '10.9.9.4'") == 1)
        #expect(try provisioning.provision(tokens[11], "too late").status == 500)
        #expect(
            try alerts() == [
                "pool-exhausted fleet no-free-address 0 false",
                "pool-exhausted fleet no-free-address 1 true",
            ])
        // An operator removes a device: that alone is the end of it.
        let device = try #require(try provisioning.rig.registry.devices(limit: 1).first?.device)
        try provisioning.rig.registry.remove(device)
        #expect(try alerts().last == "pool-exhausted fleet no-free-address 1 false")
        #expect(
            try provisioning.number(
                "SELECT count(*) FROM heartline.outbox WHERE topic = 'alerts'") == 4)
    }

    @Test("gaps are found wherever they are, each once") func gaps() throws {
        let provisioning = try Provisioning(devices: 253)
        let connection = try provisioning.connect()
        for round in 0..<3 {
            try connection.run(
                """
                DELETE FROM heartline.devices WHERE internal_address IN \
                ('10.172.21.2', '10.172.21.3', '10.172.21.100', '10.172.21.254') \
                OR internal_address BETWEEN '10.172.21.200' AND '10.172.21.209'
                """)
            let clients = try provisioning.tokens(15).enumerated().map {
                try provisioning.ask($1.token, "device-\(round)-\($0)")
            }
            let statuses = try clients.map { try $0.response().status }
            #expect(statuses.count { $0 == 200 } == 14)
            #expect(try provisioning.rig.registry.deviceCount == 253)
        }
    }
}

@Suite("Provisioning: faults and limits") struct ProvisioningFaultTests {
    @Test(
        "a database session that dies between token and device leaves neither half",
        arguments: [
            // Before anything is written, and after the token was.
            "SELECT FROM heartline.network FOR UPDATE",
            "LOCK TABLE heartline.devices IN SHARE MODE",
            "LOCK TABLE heartline.outbox IN SHARE MODE",
        ])
    func killed(lock: String) throws {
        let provisioning = try Provisioning()
        let token = try provisioning.token()
        let blocker = try provisioning.connect()
        try blocker.run("BEGIN; \(lock)")
        let asked = try provisioning.ask(token, "phone")
        let killer = try provisioning.connect()
        // It is tried once more on a new connection.
        for _ in 0..<2 {
            #expect(
                try eventually {
                    let killed = try killer.execute(
                        "SELECT pg_terminate_backend(pid, 10000) \(Provisioning.waiting)")
                    return !killed.isEmpty
                })
        }
        let answer = try asked.response(milliseconds: 120_000)
        #expect(answer.status == 500)
        #expect(answer.text == "{\"error\":\"provisioning failed\"}")
        try blocker.run("ROLLBACK")
        #expect(try provisioning.rig.registry.deviceCount == 0)
        #expect(try RegistryTests.outbox(provisioning.rig.database).isEmpty)
        #expect(
            try provisioning.number(
                "SELECT count(*) FROM heartline.registration_tokens WHERE used_at IS NULL") == 1)
        #expect(try provisioning.provision(token, "phone").status == 200)
    }

    @Test(
        "a commit whose answer is lost is found out about: the agent gets what was made",
        arguments: [1, 2])
    func lostAnswer(times: Int) throws {
        let database = try TestDatabase.make()
        let cutter = try CommitCutter(url: database.url)
        defer { cutter.stop() }
        let provisioning = try Provisioning(database: database, databaseURL: cutter.url)
        // A first one, so that all connections are there.
        #expect(try provisioning.provision(try provisioning.token(), "warm").status == 200)
        let token = try provisioning.token()
        cutter.loseCommits(times)
        #expect(try provisioning.provision(token, "phone").status == 200)
        #expect(cutter.lostCommits == times)
        #expect(try provisioning.rig.registry.deviceCount == 2)
        #expect(
            try provisioning.number(
                "SELECT count(*) FROM heartline.registration_tokens WHERE used_at IS NOT NULL")
                == 2)
        #expect(
            try provisioning.number(
                "SELECT count(*) FROM heartline.outbox WHERE topic = 'config-changes'") == 2)
        provisioning.rig.frontEnd.stop()
    }

    @Test("one session that dies is not noticed by the agent") func retried() throws {
        let provisioning = try Provisioning()
        let blocker = try provisioning.connect()
        try blocker.run("BEGIN; LOCK TABLE heartline.devices IN SHARE MODE")
        let asked = try provisioning.ask(try provisioning.token(), "phone")
        let killer = try provisioning.connect()
        #expect(
            try eventually {
                try !killer.execute(
                    "SELECT pg_terminate_backend(pid, 10000) \(Provisioning.waiting)"
                ).isEmpty
            })
        try blocker.run("ROLLBACK")
        #expect(try asked.response().status == 200)
        #expect(try provisioning.rig.registry.deviceCount == 1)
    }

    @Test("more requests than may wait are asked to come again, and cost no token")
    func overload() throws {
        let provisioning = try Provisioning { $0.provisioning.queueRequests = 3 }
        let tokens = try provisioning.tokens(4).map(\.token)
        let blocker = try provisioning.connect()
        try blocker.run("BEGIN; SELECT FROM heartline.network FOR UPDATE")
        let asked = try tokens.prefix(3).enumerated().map {
            try provisioning.ask($1, "device-\($0)")
        }
        let frontEnd = provisioning.rig.frontEnd
        #expect(try eventually { frontEnd.serverCounters.requests >= 3 })
        let turnedAway = try provisioning.provision(tokens[3], "device-3")
        #expect(turnedAway.status == 503)
        #expect((1...5).contains(Int(turnedAway.headers["retry-after"] ?? "") ?? 0))
        #expect(frontEnd.provisioning?.overloadedCount == 1)
        // Heartbeats are not concerned.
        #expect(try provisioning.rig.beat(DeviceID(high: 0x4000, low: 1)).status == 400)
        try blocker.run("ROLLBACK")
        for client in asked { #expect(try client.response().status == 200) }
        #expect(try eventually { try provisioning.provision(tokens[3], "device-3").status == 200 })
    }

    @Test("an address that asks too often is told when to come again; heartbeats are not counted")
    func limited() throws {
        let provisioning = try Provisioning(devices: 1) {
            var limit = ProvisionLimit()
            limit.burst = 5
            // None is refilled while this runs.
            limit.perMinute = 1
            $0.provisioning.limit = limit
        }
        let rig = provisioning.rig
        for _ in 0..<5 {
            let found = try rig.client().request(
                "POST", "/api/v1/provision", body: "{}".utf8)
            #expect(found.status == 400)
        }
        let token = try provisioning.token()
        for _ in 0..<3 {
            let found = try provisioning.provision(token, "phone")
            #expect(found.status == 429)
            #expect(found.headers["content-type"] == "application/json")
            #expect((1...64).contains(Int(found.headers["retry-after"] ?? "") ?? 0))
        }
        for _ in 0..<20 { #expect(try rig.beat(rig.devices[0]).status == 200) }
        #expect(rig.frontEnd.provisioning?.limitedCount == 3)
        #expect(rig.frontEnd.provisioning?.refusedCount == 5)
    }

    @Test("without a salt nobody is provisioned") func withoutSalt() throws {
        let rig = try Rig(devices: 0)
        #expect(
            try rig.client().request("POST", "/api/v1/provision", body: "{}".utf8).status == 404)
        #expect(throws: FrontEndError.self) {
            try Rig(devices: 0) { $0.salt = [1, 2, 3] }
        }
    }
}

@Suite("Provisioning: limits by client") struct ClientRatesTests {
    private static func limit(burst: Int, perMinute: Int, clients: Int = 100) -> ProvisionLimit {
        var limit = ProvisionLimit()
        limit.burst = burst
        limit.perMinute = perMinute
        limit.clients = clients
        return limit
    }

    @Test("a bucket gives its burst, then one for each that is refilled, and never more")
    func bucket() {
        let rates = ClientRates<Int>(Self.limit(burst: 3, perMinute: 60))
        var given: [Int64] = []
        for now in stride(from: Int64(1_000_000), to: 1_005_000, by: 100)
        where rates.take(1, now: now) == nil {
            given.append(now - 1_000_000)
        }
        #expect(given == [0, 100, 200, 1_000, 2_000, 3_000, 4_000])
        #expect(rates.take(1, now: 1_004_900) == 100)
        // Another's is its own, and a long rest gives the burst and no more.
        #expect(rates.take(2, now: 1_004_900) == nil)
        let later: Int64 = 90_000_000
        #expect((0..<9).count { _ in rates.take(1, now: later) == nil } == 3)
    }

    @Test("a million clients take bounded memory, and those that find no room share a bucket")
    func bounded() {
        let rates = ClientRates<Int>(Self.limit(burst: 2, perMinute: 60, clients: 50))
        var given = 0
        for client in 0..<1_000_000 where rates.take(client, now: 5_000) == nil { given += 1 }
        #expect(rates.count == 50)
        #expect(given == 52)
        // Who is full again is forgotten for others.
        #expect(rates.take(2_000_000, now: 10_000) == nil)
        #expect(rates.count == 1)
    }
}

@Suite("Registration tokens") struct RegistrationTokenTests {
    @Test("they are random UUIDs, good from now on for as long as was asked") func made() throws {
        let registry = try RegistryTests.registry(TestDatabase.make())
        let before = SystemClock.wallMilliseconds()
        let tokens = try registry.createTokens(
            count: 500, ttl: .seconds(86_400), actor: "anna\0", note: "for the \0 shop")
        #expect(Set(tokens.map(\.token)).count == 500)
        #expect(Set(tokens.map(\.id)).isDisjoint(with: tokens.map(\.token)))
        for token in tokens {
            #expect(DeviceID(token.token) != nil)
            // The database's clock is this machine's.
            #expect(abs(token.expiresAt.milliseconds - before - 86_400_000) < 600_000)
        }
    }

    @Test(
        "what cannot be is refused",
        arguments: [
            (0, Duration.seconds(60)), (100_001, .seconds(60)), (1, .milliseconds(999)),
            (1, .seconds(365 * 86_400 + 1)), (1, .seconds(-5)),
        ])
    func refused(count: Int, ttl: Duration) throws {
        let registry = try RegistryTests.registry(TestDatabase.make())
        #expect(throws: RegistryError.self) {
            try registry.createTokens(count: count, ttl: ttl, actor: "test")
        }
    }

    @Test("those that have been over for a month are forgotten") func forgotten() throws {
        let database = try TestDatabase.make()
        let registry = try RegistryTests.registry(database)
        _ = try registry.createTokens(count: 3, ttl: .seconds(60), actor: "test")
        let connection = try database.connect()
        try connection.run(
            "UPDATE heartline.registration_tokens SET expires_at = now() - interval '31 days'")
        _ = try registry.createTokens(count: 2, ttl: .seconds(60), actor: "test")
        #expect(
            try connection.execute("SELECT count(*) FROM heartline.registration_tokens").only()
                .int8(0) == 2)
    }
}
