import Bytes
import EventLog
import Foundation
import HTTP
import Ingest
import Postgres
import Schemas
import Sinks
import System
import TestSupport

/// A server for the contract's tests, and an operator's hands on it. The only file here that knows our
/// own code: the tests themselves know the contract's text.
final class ContractServer {
    static let salt = "a salt of the contract's tests"
    private static let secretKey = [UInt8](repeating: 0x5A, count: 32)

    let database: TestDatabase
    private let directory: String
    private let log: EmbeddedLog
    private let outbox: RegistryOutbox<EmbeddedLog>
    private let frontEnds: [FrontEnd<EmbeddedLog>]
    private let registry: Registry

    /// - Parameters:
    ///   - prefix: where device addresses come from.
    ///   - frontEnds: how many answer, each from memory of its own.
    ///   - database: one on a server of the test's own, if it needs that.
    init(
        prefix: String = "10.0.0.0/8", frontEnds count: Int = 1, database: TestDatabase? = nil
    ) throws {
        self.database = try database ?? TestDatabase.make()
        directory = try FileSystem.makeTemporaryDirectory("/tmp/heartline-contract-")
        var logSettings = EmbeddedLogSettings()
        logSettings.mapBytes = 1 << 30
        log = try EmbeddedLog(directory: directory + "/log", settings: logSettings)
        try log.createTopics(
            [.heartbeats, .configChanges, .deviceConfigs, .alerts].map {
                TopicSettings($0, partitions: 2)
            })
        registry = try Registry(self.database.connect(), secretKey: Self.secretKey)
        var network = NetworkSettings()
        network.prefix = prefix
        network.endpoint = "italy-twenty.example.net:59750"
        try registry.prepareNetwork(network)
        outbox = RegistryOutbox(database: self.database.url, log: log)
        outbox.start()
        var started: [FrontEnd<EmbeddedLog>] = []
        for number in 0..<count {
            var settings = FrontEndSettings(
                server: try ServerConfiguration(host: "127.0.0.1", port: 0, loops: 2),
                secretKey: Self.secretKey)
            settings.name = "front-end-\(number)"
            settings.salt = Array(Self.salt.utf8)
            // All the tests' agents have one address.
            settings.provisioning.limit = nil
            let frontEnd = try FrontEnd(
                log: log, databaseURL: self.database.url, settings: settings)
            try frontEnd.start()
            started.append(frontEnd)
        }
        frontEnds = started
    }

    deinit {
        for frontEnd in frontEnds { frontEnd.stop() }
        outbox.stop()
        log.close()
        try? FileManager.default.removeItem(atPath: directory)
    }

    /// A connection to a front-end.
    func client(_ frontEnd: Int = 0) throws -> RawClient {
        let address = frontEnds[frontEnd].boundAddress
        return try RawClient(host: address.host, port: address.port)
    }

    var address: (host: String, port: UInt16) { frontEnds[0].boundAddress }

    // MARK: - What operators do

    func tokens(_ count: Int) throws -> [String] {
        try registry.createTokens(count: count, ttl: .seconds(86_400), actor: "test").map(\.token)
    }

    func token() throws -> String { try tokens(1)[0] }

    /// A token whose time is over.
    func expiredToken() throws -> String {
        let made = try registry.createTokens(count: 1, ttl: .seconds(60), actor: "test")[0]
        let id = DeviceID(made.id)!
        try database.connect().execute(
            """
            UPDATE heartline.registration_tokens SET expires_at = now() - interval '1 second' \
            WHERE token_id = $1
            """,
            .uuid(id.high, id.low))
        return made.token
    }

    func suspend(_ device: String) throws { try registry.suspend(DeviceID(device)!) }
    func resume(_ device: String) throws { try registry.resume(DeviceID(device)!) }
    var deviceCount: Int64 { get throws { try registry.deviceCount } }
}
