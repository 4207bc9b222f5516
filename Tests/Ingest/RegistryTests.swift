import Bytes
import Crypto
import Ingest
import Postgres
import Schemas
import Synchronization
import System
import TestSupport
import Testing

@Suite("Registry, in PostgreSQL") struct RegistryTests {
    static func registry(
        _ database: TestDatabase, prefix: String = "10.172.21.0/24"
    ) throws -> Registry {
        let registry = try Registry(database.connect(), secretKey: testKey)
        var settings = NetworkSettings()
        settings.prefix = prefix
        try registry.prepareNetwork(settings)
        return registry
    }

    struct OutboxRow: Equatable {
        var sequence: Int64
        var topic: String
        var key: String
        var value: String
    }

    static func outbox(_ database: TestDatabase) throws -> [OutboxRow] {
        let rows = try database.connect().execute(
            """
            SELECT sequence, topic, convert_from(key, 'UTF8'), convert_from(value, 'UTF8') \
            FROM heartline.outbox WHERE source = 'registry' AND partition = 0 ORDER BY sequence
            """)
        return try rows.map {
            OutboxRow(
                sequence: try $0.int8(0), topic: try $0.text(1), key: try $0.text(2),
                value: try $0.text(3))
        }
    }

    @Test("the network is set up once; its settings stay")
    func network() throws {
        let database = try TestDatabase.make()
        let registry = try Registry(database.connect(), secretKey: testKey)
        #expect(try registry.prepareNetwork())
        var other = NetworkSettings()
        other.prefix = "10.0.0.0/8"
        #expect(try !registry.prepareNetwork(other))
        let row = try database.connect().execute(
            "SELECT prefix::text, host(server_address), length(server_public_key) FROM heartline.network"
        ).only()
        #expect(try row.text(0) == "10.172.21.0/24")
        #expect(try row.text(1) == "10.172.21.1")
        #expect(try row.int8(2) == 64)
    }

    @Test("another key is refused before anything is read or written")
    func wrongKey() throws {
        let database = try TestDatabase.make()
        _ = try Self.registry(database)
        let other = try Registry(
            database.connect(), secretKey: [UInt8](repeating: 9, count: 32))
        #expect(throws: RegistryError.self) { try other.checkKey() }
        #expect(throws: RegistryError.self) { try other.prepareNetwork() }
    }

    @Test(
        "malformed settings are refused",
        arguments: [
            "10.0.0.0", "10.0.0.0/31", "10.0.0.0/7", "10.0.0.1/24", "fd00::/64", "10.0.0/24",
            "10.0.0.256/24", "",
        ])
    func badPrefix(prefix: String) throws {
        let registry = try Registry(TestDatabase.make().connect(), secretKey: testKey)
        var settings = NetworkSettings()
        settings.prefix = prefix
        #expect(throws: RegistryError.self) { try registry.prepareNetwork(settings) }
    }

    @Test("devices get addresses of their own, and their events with them")
    func adding() throws {
        let database = try TestDatabase.make()
        let registry = try Self.registry(database)
        let first = try registry.addDevices(count: 2)
        let second = try registry.addDevices(count: 1, expectedInterval: .seconds(1_800))
        let devices = try registry.devices(limit: 10)
        #expect(devices.count == 3)
        #expect(
            Set(devices.map(\.internalAddress)) == ["10.172.21.2", "10.172.21.3", "10.172.21.4"])
        #expect(Set(devices.map(\.publicKey)).count == 3)
        let shown = try #require(try registry.device(second[0]))
        #expect(shown.internalAddress == "10.172.21.4")
        #expect(shown.expectedIntervalMilliseconds == 1_800_000)
        #expect(shown.version == 1)
        #expect(!shown.isSuspended)
        #expect(try registry.device(DeviceID(high: 1, low: 1)) == nil)
        #expect(try registry.deviceCount == 3)

        let outbox = try Self.outbox(database)
        #expect(
            outbox.map(\.topic)
                == Array(
                    repeating: ["heartbeats", "config-changes", "device-configs"], count: 3
                ).flatMap { $0 })
        #expect(outbox.map(\.sequence) == Array(1...9))
        #expect(
            outbox.map(\.key)
                == (first + second).flatMap { Array(repeating: $0.description, count: 3) })
        let decoder = HeartbeatsDecoder()
        guard
            case .event(.lifecycle(let lifecycle)) = decoder.decode(
                ByteBuffer(outbox[6].value.utf8).span)
        else {
            Issue.record("not a lifecycle event: \(outbox[6].value)")
            return
        }
        #expect(
            lifecycle
                == Lifecycle(
                    device: second[0], kind: .provisioned, version: 1,
                    expectedIntervalMilliseconds: 1_800_000))
        #expect(
            outbox[8].value.hasPrefix(
                "{\"v\":1,\"device_id\":\"\(second[0])\",\"version\":1,\"config_hash\":\""))
        #expect(outbox[8].value.hasSuffix("\"suspended\":false}"))
    }

    @Test("suspending and resuming grow the version and tell; repeating changes nothing")
    func suspension() throws {
        let database = try TestDatabase.make()
        let registry = try Self.registry(database)
        let device = try registry.addDevices(count: 1)[0]
        let hashes = try Self.outbox(database)[2].value.split(separator: "_hash\":\"").dropFirst()
            .map { $0.prefix(64) }
        #expect(
            try registry.suspend(device) == DeviceChange(device: device, version: 2, changed: true))
        #expect(
            try registry.suspend(device) == DeviceChange(device: device, version: 2, changed: false)
        )
        #expect(try registry.device(device)?.isSuspended == true)
        #expect(
            try registry.resume(device) == DeviceChange(device: device, version: 3, changed: true))
        #expect(
            try registry.resume(device) == DeviceChange(device: device, version: 3, changed: false))
        let outbox = try Self.outbox(database)
        #expect(outbox.count == 9)
        #expect(
            outbox[3].value
                == "{\"v\":1,\"type\":\"suspended\",\"device_id\":\"\(device)\",\"version\":2}")
        #expect(outbox[5].value.hasSuffix("\"suspended\":true}"))
        #expect(
            outbox[6].value
                == "{\"v\":1,\"type\":\"resumed\",\"device_id\":\"\(device)\",\"version\":3}")
        // A suspension is not a change of the configuration.
        #expect(hashes.count == 3)
        for hash in hashes { #expect(outbox[8].value.contains(hash)) }
        #expect(throws: RegistryError.self) { try registry.suspend(DeviceID(high: 1, low: 1)) }
        #expect(try Self.outbox(database).count == 9)
    }

    @Test("a full pool is an error that says what is free, and adds nothing")
    func fullPool() throws {
        let database = try TestDatabase.make()
        let registry = try Self.registry(database, prefix: "10.9.8.0/28")
        // 16 addresses, less network, broadcast and server.
        let devices = try registry.addDevices(count: 12)
        do {
            _ = try registry.addDevices(count: 2)
            Issue.record("two devices were added to one address")
        } catch let error as RegistryError {
            #expect(error.kind == .poolFull(free: 1))
        }
        #expect(try registry.deviceCount == 12)
        #expect(try Self.outbox(database).count == 36)
        _ = try registry.addDevices(count: 1)
        // A gap is used once the end is reached.
        try database.connect().execute(
            "DELETE FROM heartline.devices WHERE device_id = $1",
            .uuid(devices[3].high, devices[3].low))
        let last = try registry.addDevices(count: 1)[0]
        #expect(try registry.device(last)?.internalAddress == "10.9.8.5")
        let addresses = try registry.devices(limit: 100).map(\.internalAddress)
        #expect(!addresses.contains("10.9.8.0"))
        #expect(!addresses.contains("10.9.8.1"))
        #expect(!addresses.contains("10.9.8.15"))
    }

    @Test("registries that add at once give each address once, and sequences follow commits")
    func racing() throws {
        let database = try TestDatabase.make()
        _ = try Self.registry(database)
        let failures = Atomic(0)
        let threads = (0..<6).map { _ in
            SystemThread.start("adding") {
                do {
                    let registry = try Registry(database.connect(), secretKey: testKey)
                    for _ in 0..<5 { _ = try registry.addDevices(count: 3) }
                } catch {
                    failures.add(1, ordering: .relaxed)
                }
            }
        }
        for thread in threads { thread.join() }
        #expect(failures.load(ordering: .relaxed) == 0)
        let registry = try Self.registry(database)
        #expect(Set(try registry.devices(limit: 1_000).map(\.internalAddress)).count == 90)
        #expect(try Self.outbox(database).map(\.sequence) == Array(1...270))
    }

    @Test("thousands of devices are added at once, with keys that open")
    func bulk() throws {
        let database = try TestDatabase.make()
        let registry = try Self.registry(database, prefix: "10.0.0.0/8")
        let devices = try registry.addDevices(count: 3_000)
        #expect(Set(devices).count == 3_000)
        #expect(try registry.deviceCount == 3_000)
        #expect(try Self.outbox(database).count == 9_000)
        let page = try registry.devices(limit: 1_000)
        #expect(try registry.devices(limit: 1_000, after: page.last!.device).count == 1_000)
    }

    @Test("what is written rings the bell for those who listen")
    func notification() throws {
        let database = try TestDatabase.make()
        let registry = try Self.registry(database)
        let listener = try database.connect()
        try listener.listen("heartline_outbox")
        _ = try registry.addDevices(count: 1)
        #expect(
            try eventually {
                try listener.notifications().contains { $0.channel == "heartline_outbox" }
            })
    }
}
