internal import Bytes
internal import Crypto
internal import Postgres
public import Schemas

/// What a change of a device came to.
public struct DeviceChange: Sendable, Equatable {
    public var device: DeviceID
    /// The registry's version of the device, after the change.
    public var version: Int64
    /// Whether there was anything to change.
    public var changed: Bool

    public init(device: DeviceID, version: Int64, changed: Bool) {
        self.device = device
        self.version = version
        self.changed = changed
    }
}

/// As the operators' interfaces and the audit log write it.
extension DeviceChange: Codable {
    private enum CodingKeys: String, CodingKey {
        case device = "device_id"
        case version, changed
    }

    public init(from decoder: any Decoder) throws {
        let values = try decoder.container(keyedBy: CodingKeys.self)
        let text = try values.decode(String.self, forKey: .device)
        guard let id = DeviceID(text) else {
            throw DecodingError.dataCorruptedError(
                forKey: .device, in: values, debugDescription: "not a UUID")
        }
        device = id
        version = try values.decode(Int64.self, forKey: .version)
        changed = try values.decode(Bool.self, forKey: .changed)
    }

    public func encode(to encoder: any Encoder) throws {
        var values = encoder.container(keyedBy: CodingKeys.self)
        try values.encode(device.description, forKey: .device)
        try values.encode(version, forKey: .version)
        try values.encode(changed, forKey: .changed)
    }
}

/// Details of a request that has none.
struct NoDetails: Encodable {}

extension Registry {
    /// Suspends a device: its heartbeats are answered 403.
    @discardableResult
    public func suspend(
        _ id: DeviceID, by request: OperatorRequest = .heartline
    ) throws -> DeviceChange {
        try setSuspended(id, true, request)
    }

    /// Ends a suspension.
    @discardableResult
    public func resume(
        _ id: DeviceID, by request: OperatorRequest = .heartline
    ) throws -> DeviceChange {
        try setSuspended(id, false, request)
    }

    private func setSuspended(
        _ id: DeviceID, _ isSuspended: Bool, _ request: OperatorRequest
    ) throws -> DeviceChange {
        let change = PlannedChange(
            action: isSuspended ? "device.suspend" : "device.resume",
            operation: isSuspended ? "suspending a device" : "resuming a device",
            kind: isSuspended ? .suspended : .resumed,
            lifecycle: isSuspended ? .suspended : .resumed)
        return try make(change, of: id, NoDetails(), by: request) { before in
            guard before.isSuspended != isSuspended else { return false }
            try connection.execute(
                "UPDATE heartline.devices SET suspended = $2 WHERE device_id = $1",
                .uuid(id.high, id.low), .bool(isSuspended))
            return true
        }
    }

    /// Gives a device new keys. It keeps its id and address and stays online: its next heartbeat is
    /// answered with the new keys.
    @discardableResult
    public func rotate(
        _ id: DeviceID, by request: OperatorRequest = .heartline
    ) throws -> DeviceChange {
        // Before the transaction: nobody has to wait for the keys.
        let pair = try X25519KeyPair.generate()
        let secrets = DeviceSecrets(
            privateKey: pair.privateKey, presharedKey: try Random.bytes(32))
        var sealed = ByteBuffer()
        try box.seal(secrets, of: id, into: &sealed)
        let change = PlannedChange(
            action: "device.rotate", operation: "rotating the keys of a device", kind: .rotated)
        return try make(change, of: id, NoDetails(), by: request) { _ in
            try connection.execute(
                """
                UPDATE heartline.devices SET public_key = $2, sealed_secrets = $3 \
                WHERE device_id = $1
                """,
                .uuid(id.high, id.low), .text(Hex.encode(pair.publicKey.span)), .bytea(sealed))
            return true
        }
    }

    /// Takes a device out of the registry, with its forwards. Its address is free again.
    @discardableResult
    public func remove(
        _ id: DeviceID, by request: OperatorRequest = .heartline
    ) throws -> DeviceChange {
        let change = PlannedChange(
            action: "device.remove", operation: "removing a device", kind: .removed,
            lifecycle: .removed)
        return try make(change, of: id, NoDetails(), by: request) { _ in true }
    }

    private struct IntervalDetails: Encodable {
        var expected_interval_ms: Int64?
    }

    /// Sets the device's own heartbeat interval.
    /// - Parameter interval: 1 s to 7 d; `nil`: the fleet's.
    @discardableResult
    public func setInterval(
        _ id: DeviceID, _ interval: Duration?, by request: OperatorRequest = .heartline
    ) throws -> DeviceChange {
        let operation = "setting a device's interval"
        let value = try interval.map { try Self.milliseconds($0, operation) }
        let change = PlannedChange(
            action: "device.interval", operation: operation, kind: .interval,
            // What a device's judges take its interval from; all else stays as they know it.
            lifecycle: .provisioned)
        return try make(change, of: id, IntervalDetails(expected_interval_ms: value), by: request) {
            before in
            guard before.intervalMilliseconds != value else { return false }
            try connection.execute(
                "UPDATE heartline.devices SET expected_interval = $2 WHERE device_id = $1",
                .uuid(id.high, id.low), value.map { .interval($0 * 1_000) } ?? .null)
            return true
        }
    }

    static func milliseconds(
        _ interval: Duration, _ operation: String
    ) throws(RegistryError) -> Int64 {
        guard interval >= .seconds(1), interval <= .seconds(7 * 86_400) else {
            throw RegistryError(
                operation, .badSetting, "an expected interval of \(interval) is not 1 s to 7 d")
        }
        return interval.components.seconds * 1_000
            + interval.components.attoseconds / 1_000_000_000_000_000
    }

    // MARK: - What all changes of one device have in common

    struct PlannedChange {
        /// As the audit log names it.
        var action: String
        /// As errors name it.
        var operation: String
        var kind: ConfigChange.Kind
        /// `nil` where liveness is not concerned.
        var lifecycle: Lifecycle.Kind?
    }

    struct DeviceBefore {
        var version: Int64
        var isSuspended: Bool
        var intervalMilliseconds: Int64?
    }

    /// Makes a change of one device: what `body` does, the next version, and what tells of it.
    ///
    /// - Parameter body: makes the change except for the version; returns whether there was any.
    func make(
        _ change: PlannedChange, of id: DeviceID, _ details: some Encodable,
        by request: OperatorRequest, _ body: (DeviceBefore) throws -> Bool
    ) throws -> DeviceChange {
        try audited(change.action, of: id.description, details, by: request) { _ in
            let rows = try connection.execute(
                """
                SELECT version, suspended, expected_interval FROM heartline.devices \
                WHERE device_id = $1 FOR UPDATE
                """, .uuid(id.high, id.low))
            guard let row = rows.first else { throw Self.unknown(id, change.operation) }
            let before = DeviceBefore(
                version: try row.int8(0), isSuspended: try row.bool(1),
                intervalMilliseconds: try row.optionalInterval(2).map { $0 / 1_000 })
            guard try body(before) else {
                return DeviceChange(device: id, version: before.version, changed: false)
            }
            let after = try connection.execute(
                """
                UPDATE heartline.devices SET version = version + 1, updated_at = now() \
                WHERE device_id = $1 RETURNING version, expected_interval
                """, .uuid(id.high, id.low)
            ).only()
            let version = try after.int8(0)
            let configuration = try configuration(
                try connection.execute(
                    DeviceConfiguration.select, .uuidArray([(id.high, id.low)])
                ).only())
            if change.kind == .removed {
                try connection.execute(
                    "DELETE FROM heartline.devices WHERE device_id = $1", .uuid(id.high, id.low))
                try addressesWereFreed()
            }
            let interval = try after.optionalInterval(1).map { $0 / 1_000 }
            try announce(
                ConfigChange(
                    device: id, kind: change.kind, version: version,
                    isSuspended: configuration.isSuspended, actor: request.actor,
                    requestID: request.id, tunnel: configuration.tunnel(),
                    forwards: configuration.forwards),
                change.lifecycle.map {
                    Lifecycle(
                        device: id, kind: $0, version: version,
                        expectedIntervalMilliseconds: $0 == .provisioned ? interval : nil)
                })
            return DeviceChange(device: id, version: version, changed: true)
        }
    }

    static func unknown(_ id: DeviceID, _ operation: String) -> RegistryError {
        RegistryError(operation, .unknownDevice, "no device has the id \(id)")
    }
}
