import Bytes
import Crypto
import Ingest
import Postgres
import Schemas
import Synchronization
import System
import Simulation
import TestSupport
import Testing

@Suite("Operators' changes of the registry, in PostgreSQL") struct RegistryChangesTests {
    struct Unreadable: Error, CustomStringConvertible {
        var description: String
    }

    /// A registry with one device, and what is known of it.
    struct Rig {
        let database: TestDatabase
        let registry: Registry
        let device: DeviceID

        init() throws {
            database = try TestDatabase.make()
            registry = try RegistryTests.registry(database)
            device = try registry.addDevices(count: 1)[0]
            try forget()
        }

        /// Empties the outbox and the audit log.
        func forget() throws {
            try database.connect().run(
                "DELETE FROM heartline.outbox; DELETE FROM heartline.audit_log")
        }

        func outbox() throws -> [RegistryTests.OutboxRow] { try RegistryTests.outbox(database) }

        func changes() throws -> [ConfigChange] {
            let decoder = ConfigChangesDecoder()
            return try outbox().filter { $0.topic == "config-changes" }.map {
                guard case .event(let change) = decoder.decode(ByteBuffer($0.value.utf8).span)
                else { throw Unreadable(description: "not a change: \($0.value)") }
                return change
            }
        }

        func lifecycles() throws -> [Lifecycle] {
            let decoder = HeartbeatsDecoder()
            return try outbox().filter { $0.topic == "heartbeats" }.map {
                guard
                    case .event(.lifecycle(let lifecycle)) = decoder.decode(
                        ByteBuffer($0.value.utf8).span)
                else { throw Unreadable(description: "not a lifecycle: \($0.value)") }
                return lifecycle
            }
        }

        func topics() throws -> [String] {
            try database.connect().execute(
                "SELECT topic FROM heartline.outbox ORDER BY sequence"
            ).map { try $0.text(0) }
        }

        func audit() throws -> [AuditEntry] { try registry.auditLog(limit: 1_000) }

        func count(_ sql: String) throws -> Int64 {
            try database.connect().execute(sql).only().int8(0)
        }
    }

    static let operatorRequest = try! OperatorRequest(actor: "ada", id: "r-1")

    static func forward(_ text: String) throws -> PortForward { try PortForward(parsing: text) }

    // MARK: - Each change

    @Test("a rotation makes new keys under the next version; id, address and suspension stay")
    func rotation() throws {
        let rig = try Rig()
        let before = try #require(try rig.registry.device(rig.device))
        try rig.registry.suspend(rig.device)
        try rig.forget()
        let change = try rig.registry.rotate(
            rig.device, by: OperatorRequest(actor: "ada", id: "rotate-1"))
        #expect(change == DeviceChange(device: rig.device, version: 3, changed: true))
        let after = try #require(try rig.registry.device(rig.device))
        #expect(after.publicKey != before.publicKey)
        #expect(after.internalAddress == before.internalAddress)
        #expect(after.isSuspended)
        // Liveness is not concerned.
        #expect(try rig.topics() == ["config-changes", "device-configs"])
        let told = try #require(try rig.changes().first)
        #expect(told.kind == .rotated)
        #expect(told.version == 3)
        #expect(told.actor == "ada")
        #expect(told.requestID == "rotate-1")
        #expect(told.isSuspended)
        try rig.registry.rotate(rig.device)
        let again = try #require(try rig.changes().last)
        #expect(again.tunnel.privateKeyFingerprint != told.tunnel.privateKeyFingerprint)
        #expect(again.tunnel.presharedKeyFingerprint != told.tunnel.presharedKeyFingerprint)
        #expect(again.hashes.reload != told.hashes.reload)
        #expect(again.hashes.forwards == told.hashes.forwards)
    }

    @Test("a removal takes the device and its forwards, and tells with a tombstone")
    func removal() throws {
        let rig = try Rig()
        try rig.registry.setForwards(of: rig.device, [Self.forward("tcp/80=10.0.0.1:80")])
        try rig.forget()
        #expect(
            try rig.registry.remove(rig.device)
                == DeviceChange(device: rig.device, version: 3, changed: true))
        #expect(try rig.registry.device(rig.device) == nil)
        #expect(try rig.count("SELECT count(*) FROM heartline.forwards") == 0)
        #expect(try rig.topics() == ["heartbeats", "config-changes", "device-configs"])
        let tombstones = try rig.count(
            "SELECT count(*) FROM heartline.outbox WHERE topic = 'device-configs' AND value IS NULL"
        )
        #expect(tombstones == 1)
        #expect(throws: RegistryError.self) { try rig.registry.remove(rig.device) }
        #expect(throws: RegistryError.self) { try rig.registry.forwards(of: rig.device) }
        // The address is free again, though only once the others are used.
        #expect(try rig.registry.addDevices(count: 253).count == 253)
    }

    @Test("an interval is told to the judges; the same one again changes nothing")
    func interval() throws {
        let rig = try Rig()
        let set = try rig.registry.setInterval(rig.device, .seconds(600))
        #expect(set == DeviceChange(device: rig.device, version: 2, changed: true))
        #expect(try !rig.registry.setInterval(rig.device, .seconds(600)).changed)
        #expect(
            try rig.registry.device(rig.device)?.expectedIntervalMilliseconds == 600_000)
        #expect(try rig.registry.setInterval(rig.device, nil).version == 3)
        #expect(try !rig.registry.setInterval(rig.device, nil).changed)
        #expect(try rig.registry.device(rig.device)?.expectedIntervalMilliseconds == nil)
        #expect(
            try rig.lifecycles() == [
                Lifecycle(
                    device: rig.device, kind: .provisioned, version: 2,
                    expectedIntervalMilliseconds: 600_000),
                Lifecycle(device: rig.device, kind: .provisioned, version: 3),
            ])
        #expect(try rig.changes().map(\.kind) == [.interval, .interval])
        for bad in [Duration.milliseconds(999), .seconds(7 * 86_400 + 1), .seconds(-5)] {
            #expect(throws: RegistryError.self) {
                try rig.registry.setInterval(rig.device, bad)
            }
        }
    }

    @Test("forwards are added, listed, replaced and removed; contradictions change nothing")
    func forwards() throws {
        let rig = try Rig()
        let web = try Self.forward("TCP/8080=Web.Example.ORG.:80")
        #expect(web.text == "tcp/8080=web.example.org:80")
        #expect(try rig.registry.addForward(to: rig.device, web).version == 2)
        #expect(try !rig.registry.addForward(to: rig.device, web).changed)
        let dns = try Self.forward("udp/8080=[FD00:0:0::5]:53")
        #expect(try rig.registry.addForward(to: rig.device, dns).version == 3)
        #expect(
            try rig.registry.forwards(of: rig.device).map(\.text)
                == ["tcp/8080=web.example.org:80", "udp/8080=[fd00::5]:53"])
        let other = try Self.forward("tcp/8080=10.0.0.9:80")
        let error = #expect(throws: RegistryError.self) {
            try rig.registry.addForward(to: rig.device, other)
        }
        #expect(error?.kind == .forwardConflict)
        #expect(error?.reason.contains("tcp/8080=web.example.org:80 is there already") == true)
        #expect(throws: RegistryError.self) {
            try rig.registry.setForwards(of: rig.device, [web, other])
        }
        #expect(try rig.registry.device(rig.device)?.version == 3)
        #expect(try !rig.registry.setForwards(of: rig.device, [dns, web, dns]).changed)
        #expect(try rig.registry.setForwards(of: rig.device, [other]).version == 4)
        let missing = #expect(throws: RegistryError.self) {
            try rig.registry.removeForward(
                from: rig.device, transport: "udp", listenPort: 8_080)
        }
        #expect(missing?.kind == .unknownForward)
        #expect(
            try rig.registry.removeForward(
                from: rig.device, transport: "TCP", listenPort: 8_080
            ).version == 5)
        #expect(try rig.registry.forwards(of: rig.device).isEmpty)
        #expect(try rig.changes().map(\.version) == [2, 3, 4, 5])
        #expect(try rig.changes().allSatisfy { $0.kind == .forwards })
        #expect(try rig.changes()[2].forwards == [other])
        #expect(try rig.lifecycles().isEmpty)
        let unknown = DeviceID(high: 1, low: 1)
        #expect(throws: RegistryError.self) { try rig.registry.addForward(to: unknown, web) }
        #expect(throws: RegistryError.self) { try rig.registry.setForwards(of: unknown, []) }
    }

    @Test(
        "forwards that cannot be are refused",
        arguments: [
            "tcp/0=10.0.0.1:80", "tcp/80=10.0.0.1:0", "icmp/80=10.0.0.1:80", "tcp/65536=h:1",
            "tcp/+80=h:1", "tcp/80=h", "tcp/80", "tcp=h:80", "tcp/80=fd00::5:80", "tcp/80=:80",
            "tcp/80=10.0.0.256:80", "tcp/80=010.0.0.1:80", "tcp/80=10.0.1:80",
            "tcp/80=a b:80", "tcp/80=-a:80", "tcp/80=a..b:80", "tcp/80=ä.example:80",
            "tcp/80=\(String(repeating: "a", count: 64)):80",
            "tcp/80=\(String(repeating: "abcdefg.", count: 32)):80", "tcp/80=a\nb:80", "",
        ])
    func badForwards(text: String) {
        #expect(throws: ForwardFault.self) { try PortForward(parsing: text) }
    }

    @Test("permuted and repeated forward lists hash the same; a changed one never does")
    func forwardHashes() throws {
        let rig = try Rig()
        var random = SplitMix64(seed: 4)
        let hosts = ["10.0.0.5", "FD00::5", "fd00:0:0:0:0:0:0:5", "a.example", "A.Example.", "b"]
        var hashes: [Digest: String] = [:]
        for round in 0..<12 {
            var list: [PortForward] = []
            for port in 1...Int.random(in: 1...6, using: &random) {
                list.append(
                    PortForward(
                        transport: Bool.random(using: &random) ? "tcp" : "UDP",
                        listenPort: UInt16(port * 10 + round),
                        targetHost: hosts[Int.random(in: 0..<hosts.count, using: &random)],
                        targetPort: UInt16.random(in: 1...9, using: &random)))
            }
            try rig.forget()
            try rig.registry.setForwards(of: rig.device, list)
            let first = try #require(try rig.changes().last).hashes
            let canonical = try PortForward.checked(list).map(\.text).joined(separator: " ")
            // Two lists share a hash exactly if they mean the same.
            #expect(hashes.updateValue(canonical, forKey: first.reload) ?? canonical == canonical)
            #expect(hashes.values.filter { $0 == canonical }.count == 1)
            var spelled = (list + list).shuffled(using: &random)
            for index in spelled.indices {
                spelled[index].targetHost = spelled[index].targetHost.uppercased()
            }
            // Empty in between, so that the list is really written again.
            try rig.registry.setForwards(of: rig.device, [])
            let version = try #require(try rig.registry.device(rig.device)).version
            let again = try rig.registry.setForwards(of: rig.device, spelled)
            #expect(again.version == version + 1)
            #expect(try #require(try rig.changes().last).hashes == first, "round \(round)")
            #expect(try !rig.registry.setForwards(of: rig.device, list).changed)
        }
    }

    // MARK: - Requests and the audit log

    @Test("a repeated request is answered the same and done once; another under its id is refused")
    func idempotence() throws {
        let rig = try Rig()
        let request = Self.operatorRequest
        let first = try rig.registry.rotate(rig.device, by: request)
        let key = try rig.registry.device(rig.device)?.publicKey
        try rig.registry.suspend(rig.device)
        let outbox = try rig.outbox()
        #expect(try rig.registry.rotate(rig.device, by: request) == first)
        #expect(try rig.registry.device(rig.device)?.publicKey == key)
        #expect(try rig.registry.device(rig.device)?.version == 3)
        #expect(try rig.outbox() == outbox)
        for act in [
            { try rig.registry.suspend(rig.device, by: request) },
            { try rig.registry.rotate(DeviceID(high: 1, low: 1), by: request) },
            { try rig.registry.setInterval(rig.device, .seconds(60), by: request) },
        ] {
            let error = #expect(throws: RegistryError.self) { _ = try act() }
            #expect(error?.kind == .requestConflict)
        }
        #expect(try rig.outbox() == outbox)
        #expect(try rig.audit().map(\.action) == ["device.suspend", "device.rotate"])

        // Not even with other details of the same action.
        let interval = try OperatorRequest(actor: "ada", id: "r-2")
        try rig.registry.setInterval(rig.device, .seconds(60), by: interval)
        #expect(throws: RegistryError.self) {
            try rig.registry.setInterval(rig.device, .seconds(61), by: interval)
        }
        // Who repeats it does not matter.
        let other = try OperatorRequest(actor: "grace", id: "r-2")
        #expect(try rig.registry.setInterval(rig.device, .seconds(60), by: other).changed)

        let adding = try OperatorRequest(actor: "ada", id: "r-3")
        let added = try rig.registry.addDevices(count: 3, by: adding)
        #expect(try rig.registry.addDevices(count: 3, by: adding) == added)
        #expect(try rig.registry.deviceCount == 4)
        #expect(throws: RegistryError.self) {
            try rig.registry.addDevices(count: 2, by: adding)
        }
        // What failed was not done: the same request may succeed later.
        let late = try OperatorRequest(actor: "ada", id: "r-4")
        #expect(throws: RegistryError.self) {
            try rig.registry.removeForward(
                from: rig.device, transport: "tcp", listenPort: 80, by: late)
        }
        try rig.registry.addForward(to: rig.device, Self.forward("tcp/80=10.0.0.1:80"))
        #expect(
            try rig.registry.removeForward(
                from: rig.device, transport: "tcp", listenPort: 80, by: late
            ).changed)
    }

    @Test("a request that races with itself on many connections is done once")
    func race() throws {
        let rig = try Rig()
        let (database, device) = (rig.database, rig.device)
        let answers = Mutex<[DeviceChange]>([])
        let threads = (0..<6).map { _ in
            SystemThread.start("rotating") {
                guard
                    let registry = try? Registry(database.connect(), secretKey: testKey),
                    let answer = try? registry.rotate(device, by: Self.operatorRequest)
                else { return }
                answers.withLock { $0.append(answer) }
            }
        }
        for thread in threads { thread.join() }
        #expect(
            answers.withLock { $0 }
                == Array(
                    repeating: DeviceChange(device: rig.device, version: 2, changed: true), count: 6
                ))
        #expect(try rig.audit().count == 1)
        #expect(try rig.changes().count == 1)
    }

    @Test(
        "a change whose session dies before its end leaves nothing, and its request succeeds later")
    func dying() throws {
        let rig = try Rig()
        let before = try rig.registry.device(rig.device)
        let holder = try rig.database.connect()
        // The row of the audit log is the last that a change writes.
        try holder.run("BEGIN; LOCK TABLE heartline.audit_log IN EXCLUSIVE MODE")
        let (database, device) = (rig.database, rig.device)
        let hasFailed = Atomic(false)
        let thread = SystemThread.start("rotating") {
            do {
                let registry = try Registry(database.connect(), secretKey: testKey)
                try registry.rotate(device, by: Self.operatorRequest)
            } catch {
                hasFailed.store(true, ordering: .releasing)
            }
        }
        // Not the holder: within a transaction the view shows what it showed first.
        let watcher = try database.connect()
        let isHeld = try eventually {
            try watcher.execute(
                """
                SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                WHERE datname = current_database() AND wait_event_type = 'Lock'
                """
            ).only().int8(0) == 1
        }
        #expect(isHeld)
        thread.join()
        let failed = hasFailed.load(ordering: .acquiring)
        #expect(failed)
        try holder.run("COMMIT")
        #expect(try rig.registry.device(rig.device) == before)
        #expect(try rig.outbox().isEmpty)
        #expect(try rig.audit().isEmpty)
        let change = try rig.registry.rotate(rig.device, by: Self.operatorRequest)
        #expect(change == DeviceChange(device: rig.device, version: 2, changed: true))
        #expect(try rig.changes().count == 1)
    }

    @Test("every operation leaves one row in the audit log, also where nothing had to change")
    func auditRows() throws {
        let rig = try Rig()
        let ada = try OperatorRequest(actor: "ada")
        let device = rig.device
        let forward = try Self.forward("tcp/80=10.0.0.1:80")
        try rig.registry.suspend(device, by: ada)
        try rig.registry.suspend(device, by: ada)
        try rig.registry.resume(device, by: ada)
        try rig.registry.rotate(device, by: ada)
        try rig.registry.setInterval(device, .seconds(60), by: ada)
        try rig.registry.addForward(to: device, forward, by: ada)
        try rig.registry.setForwards(of: device, [forward], by: ada)
        try rig.registry.removeForward(from: device, transport: "tcp", listenPort: 80, by: ada)
        let token = try rig.registry.createTokens(
            count: 1, ttl: .seconds(60), note: "for the roof", by: ada)[0]
        try rig.registry.revokeToken(#require(DeviceID(token.id)), by: ada)
        try rig.registry.remove(device, by: ada)
        _ = try rig.registry.addDevices(count: 2, by: ada)
        let rows = Array(try rig.audit().reversed())
        #expect(
            rows.map(\.action) == [
                "device.suspend", "device.suspend", "device.resume", "device.rotate",
                "device.interval", "forward.add", "forward.set", "forward.remove", "token.create",
                "token.revoke", "device.remove", "device.add",
            ])
        #expect(rows.allSatisfy { $0.actor == "ada" })
        #expect(rows[0].entity == "\(device)")
        #expect(rows[1].answer.contains("\"changed\": false"))
        #expect(rows[4].details.contains("60000"))
        #expect(rows[5].details.contains("10.0.0.1"))
        #expect(rows[8].details.contains("for the roof"))
        #expect(rows[9].entity == token.id)
        #expect(try rig.registry.auditLog(limit: 100, entity: "\(device)").count == 9)
        let page = try rig.registry.auditLog(limit: 2, before: rows[3].number)
        #expect(page == [rows[2], rows[1]])
    }

    @Test("no secret reaches the outbox or the audit log")
    func secrets() throws {
        let rig = try Rig()
        let ada = try OperatorRequest(actor: "ada", id: "r-9")
        let tokens = try rig.registry.createTokens(count: 3, ttl: .seconds(60), by: ada)
        try rig.registry.rotate(rig.device)
        let everything = try rig.database.connect().execute(
            """
            SELECT (SELECT string_agg(a::text, ' ') FROM heartline.audit_log a) || \
            (SELECT string_agg(convert_from(o.value, 'UTF8'), ' ') FROM heartline.outbox o) || \
            (SELECT string_agg(t::text, ' ') FROM heartline.registration_tokens t)
            """
        ).only().text(0)
        for token in tokens {
            #expect(!everything.contains(token.token))
            #expect(!everything.contains(token.token.filter { $0 != "-" }))
            #expect(everything.contains(token.id))
        }
    }

    @Test("names and request ids that cannot be stored are refused")
    func badRequests() throws {
        for actor in ["", "a\nb", "a\u{0}", "\u{202E}x", String(repeating: "a", count: 101)] {
            #expect(throws: RegistryError.self) { try OperatorRequest(actor: actor) }
        }
        for id in ["", "a b", "a\t", "ä", String(repeating: "a", count: 201)] {
            #expect(throws: RegistryError.self) { try OperatorRequest(actor: "ada", id: id) }
        }
        #expect(try OperatorRequest(actor: "Zoë Ångström", id: "x").actor == "Zoë Ångström")
    }
}
