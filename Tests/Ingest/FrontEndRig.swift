import Bytes
import EventLog
import HTTP
import Ingest
import Postgres
import Schemas
import TestSupport

let testKey = [UInt8](repeating: 0x5A, count: 32)

/// A front-end on a real database and socket, and a log that the test controls.
final class Rig {
    let database: TestDatabase
    let log = FakeLog()
    let registry: Registry
    let devices: [DeviceID]
    let frontEnd: FrontEnd<FakeLog>

    init(
        database: TestDatabase? = nil, devices count: Int = 3, prefix: String? = nil,
        databaseURL: String? = nil,
        _ change: (inout FrontEndSettings) -> Void = { _ in }
    ) throws {
        self.database = try database ?? TestDatabase.make()
        registry = try Registry(self.database.connect(), secretKey: testKey)
        var network = NetworkSettings()
        if let prefix { network.prefix = prefix }
        try registry.prepareNetwork(network)
        devices = count == 0 ? [] : try registry.addDevices(count: count)
        var settings = FrontEndSettings(
            server: try ServerConfiguration(host: "127.0.0.1", port: 0, loops: 2),
            admin: try ServerConfiguration(host: "127.0.0.1", port: 0, name: "admin"),
            secretKey: testKey)
        settings.name = "front-end-under-test"
        settings.beaconMilliseconds = 100
        change(&settings)
        frontEnd = try FrontEnd(
            log: log, databaseURL: databaseURL ?? self.database.url, settings: settings)
        try frontEnd.start()
    }

    deinit { frontEnd.stop() }

    func client() throws -> RawClient {
        try RawClient(host: frontEnd.boundAddress.host, port: frontEnd.boundAddress.port)
    }

    func admin(_ path: String) throws -> RawResponse {
        let address = frontEnd.adminAddress!
        return try RawClient(host: address.host, port: address.port)
            .request("GET", path, body: [])
    }

    func beat(_ device: DeviceID, _ fields: String = "") throws -> RawResponse {
        try client().request(
            "POST", "/api/v1/heartbeat", body: Self.body(device, fields).utf8)
    }

    static func body(_ device: DeviceID, _ fields: String = "") -> String {
        "{\"device_id\":\"\(device)\"\(fields)}"
    }
}
