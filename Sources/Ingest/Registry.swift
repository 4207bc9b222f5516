internal import Bytes
internal import Crypto
public import Postgres
public import Schemas
internal import System

/// A device as operators see it; no secrets.
public struct DeviceSummary: Sendable, Equatable {
    public var device: DeviceID
    public var internalAddress: String
    /// 64 hexadecimal digits.
    public var publicKey: String
    /// Grows with each change of the device's configuration or suspension.
    public var version: Int64
    public var isSuspended: Bool
    /// The device's own heartbeat interval, in milliseconds; `nil`: the fleet's.
    public var expectedIntervalMilliseconds: Int64?
    public var createdAt: EventTime
}

/// The registry of devices in PostgreSQL: adds, shows and changes them.
///
/// Each change, the version that it makes and the events that tell of it are one transaction. All
/// changes hold the lock of the one row of `heartline.network`, so addresses are given once, and the
/// outbox's sequence grows in the order of the commits.
/// - Thread safety: not `Sendable`; it owns its connection, for one thread at a time.
public final class Registry {
    let connection: PostgresConnection
    let secretKey: [UInt8]
    let box: SecretBox
    private var network: NetworkConfiguration?
    var addressSearch = AddressSearch()

    /// - Parameter secretKey: `HEARTLINE_SECRET_KEY`, 32 bytes.
    /// - Throws: `CryptoError` for a key of another size.
    public init(_ connection: PostgresConnection, secretKey: [UInt8]) throws {
        self.connection = connection
        self.secretKey = secretKey
        box = try SecretBox(key: secretKey)
    }

    // MARK: - The network

    /// Stores the network's settings if there are none yet, and checks the secret key.
    ///
    /// - Returns: whether they were stored; `false` leaves the stored ones as they are.
    /// - Throws: `RegistryError` for malformed settings or another secret key than the stored one's.
    @discardableResult
    public func prepareNetwork(_ settings: NetworkSettings = NetworkSettings()) throws -> Bool {
        let pool = try settings.pool()
        let serverKey: String
        if let given = settings.serverPublicKey {
            let digits = ByteBuffer(given.utf8)
            guard let raw = Hex.decode(digits.span), raw.count == 32 else {
                throw RegistryError(
                    "reading the network's settings", .badSetting,
                    "the server's public key is not 64 hexadecimal digits")
            }
            serverKey = given.lowercased()
        } else {
            let pair = try X25519KeyPair.generate()
            serverKey = Hex.encode(pair.publicKey.span)
        }
        let check = try box.sealCheck()
        let inserted = try connection.execute(
            """
            INSERT INTO heartline.network (prefix, server_address, server_public_key, endpoint, \
            dns, allowed_ips, secret_check) VALUES ($1::text::cidr, $2::text::inet, $3, $4, $5, \
            $6, $7) ON CONFLICT DO NOTHING
            """,
            .text(settings.prefix), .text(AddressPool.text(pool.server)), .text(serverKey),
            .text(settings.endpoint), .text(settings.dns), .text(settings.allowedIPs),
            .bytea(check))
        try checkKey()
        return inserted.affectedRows == 1
    }

    /// - Throws: `.wrongSecretKey`, or `.noNetwork` if the network's settings were never stored.
    public func checkKey() throws {
        let rows = try connection.execute("SELECT secret_check FROM heartline.network")
        guard let row = rows.first else { throw Self.noNetwork }
        let check = try row.bytea(0)
        guard box.opensCheck(check) else { throw RegistryError.wrongKey }
    }

    static let noNetwork = RegistryError(
        "opening the registry", .noNetwork,
        "the network's settings are not stored yet; heartline up and heartline migrate store them")

    /// Takes the lock that every change of the registry holds until its commit.
    func lockNetwork() throws -> (pool: AddressPool, network: NetworkConfiguration) {
        try Self.network(try connection.execute(Self.networkLock))
    }

    static let networkLock = PreparedStatement(
        "lock_network",
        """
        SELECT prefix, host(server_address), server_public_key, endpoint, dns, allowed_ips \
        FROM heartline.network FOR UPDATE
        """)

    /// What `networkLock` has read.
    static func network(
        _ rows: PostgresResult
    ) throws -> (pool: AddressPool, network: NetworkConfiguration) {
        guard let row = rows.first else { throw Self.noNetwork }
        let prefix = try row.inet(0)
        let server = try row.text(1)
        let network = NetworkConfiguration(
            serverPublicKey: try row.text(2), endpoint: try row.text(3), serverAddress: server,
            dns: try row.text(4), allowedIPs: try row.text(5))
        return (try AddressPool(prefix: prefix, server: server), network)
    }

    // MARK: - Reading

    private static let summaryColumns =
        """
        device_id, host(internal_address), public_key, version, suspended, expected_interval, \
        created_at
        """

    private func summary(_ row: PostgresRow) throws -> DeviceSummary {
        let (high, low) = try row.uuid(0)
        return DeviceSummary(
            device: DeviceID(high: high, low: low), internalAddress: try row.text(1),
            publicKey: try row.text(2), version: try row.int8(3), isSuspended: try row.bool(4),
            expectedIntervalMilliseconds: try row.optionalInterval(5).map { $0 / 1_000 },
            createdAt: EventTime(postgresMicroseconds: try row.timestamptz(6)))
    }

    public var deviceCount: Int64 {
        get throws {
            try connection.execute("SELECT count(*) FROM heartline.devices").only().int8(0)
        }
    }

    /// Devices in the order of their ids.
    /// - Parameter after: continues behind the last id of the page before.
    public func devices(limit: Int, after: DeviceID? = nil) throws -> [DeviceSummary] {
        let start = after ?? DeviceID(high: 0, low: 0)
        let rows = try connection.execute(
            """
            SELECT \(Self.summaryColumns) FROM heartline.devices \
            WHERE device_id > $1 ORDER BY device_id LIMIT $2
            """,
            .uuid(start.high, start.low), .int8(Int64(limit)))
        return try rows.map { try summary($0) }
    }

    /// `nil` if there is none of that id.
    public func device(_ id: DeviceID) throws -> DeviceSummary? {
        let rows = try connection.execute(
            "SELECT \(Self.summaryColumns) FROM heartline.devices WHERE device_id = $1",
            .uuid(id.high, id.low))
        guard let row = rows.first else { return nil }
        return try summary(row)
    }

    /// Does nothing but find out whether the database answers.
    func ping() throws { try connection.run("SELECT 1") }

    enum AnswerRow {
        case answer(DeviceAnswer)
        /// Its secrets do not open.
        case damaged
    }

    /// The answers to the heartbeats of these devices; those that do not exist are left out.
    func answers(_ devices: [DeviceID]) throws -> [DeviceID: AnswerRow] {
        let rows = try connection.execute(
            DeviceConfiguration.select, .uuidArray(devices.map { ($0.high, $0.low) }))
        var result: [DeviceID: AnswerRow] = [:]
        result.reserveCapacity(rows.count)
        for row in rows {
            do {
                let read = try configuration(row)
                result[read.device] = .answer(read.answer())
            } catch let error as RegistryError {
                // One device's damage is not the others' outage.
                let (high, low) = try row.uuid(0)
                result[DeviceID(high: high, low: low)] = .damaged
                Log.error("reading a device's configuration", ["error": "\(error)"])
            }
        }
        return result
    }

    func configuration(_ row: PostgresRow) throws -> DeviceConfiguration {
        let read = try DeviceConfiguration(row, box: box, network: network)
        network = read.network
        return read
    }

    // MARK: - Changing

    /// Writes what a change is told by to the outbox.
    /// - Parameter lifecycle: `nil` where liveness is not concerned.
    func announce(_ change: ConfigChange, _ lifecycle: Lifecycle?) throws {
        var events = RegistryEvents()
        events.append(change, lifecycle)
        var pipeline = PostgresPipeline()
        events.add(to: &pipeline)
        try connection.run(pipeline)
    }
}
