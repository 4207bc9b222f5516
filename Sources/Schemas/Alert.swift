public import Bytes
internal import Crypto
internal import JSON

/// What an alert is about.
public enum AlertKind: String, CaseIterable, Sendable {
    case offline, stale, down, flapping
    /// For operators: a front-end stopped reporting while others go on.
    case frontEndLost = "front-end-lost"
    /// For operators: no front-end reports at all.
    case ingestSilent = "ingest-silent"
    /// For operators: the network's prefix has no address left for a new device.
    case poolExhausted = "pool-exhausted"
    /// A large part of the active devices went offline within a minute: one alert for all of them.
    case massOffline = "mass-offline"
}

/// The id of an alert: the same for the same cause, however often the log is read.
public enum AlertID {
    /// - Parameters:
    ///   - entity: a device's id, a front-end's name, or `fleet`.
    ///   - episode: the entity's alerts so far; part of the state that raises them.
    /// - Returns: the first 16 bytes of the SHA-256 of the three, as a UUID of version 8 (RFC 9562).
    public static func make(kind: AlertKind, entity: Span<UInt8>, episode: Int64) -> DeviceID {
        var text = ByteBuffer()
        text.append("heartline-alert\n")
        text.append(text: kind.rawValue)
        text.append(0x0A)
        text.append(entity)
        text.append(0x0A)
        text.append(decimal: episode)
        let (high, low) = SHA256.hash(text.span).uuid
        return DeviceID(high: high, low: low)
    }
}

extension ByteBuffer {
    /// Appends the value of a record of topic `alerts`.
    /// - Parameter count: devices that it is about, where it is about several.
    public mutating func append(
        alert id: DeviceID, kind: AlertKind, isOpen: Bool, entity: Span<UInt8>,
        reason: StaticString, count: Int64? = nil,
        at time: EventTime
    ) {
        append(isOpen ? "{\"v\":1,\"type\":\"opened\"" : "{\"v\":1,\"type\":\"resolved\"")
        append(",\"alert_id\":\"")
        append(id)
        append("\",\"kind\":\"")
        append(text: kind.rawValue)
        append("\",\"entity\":")
        append(jsonString: entity)
        append(",\"reason\":\"")
        append(reason)
        if let count {
            append("\",\"count\":")
            append(decimal: count)
            append(",\"at\":\"")
        } else {
            append("\",\"at\":\"")
        }
        append(time)
        append("\"}")
    }
}

/// Tables of tunnel health, as `TunnelHealth` fills them.
extension TableSchema {
    public static let deviceStatus = TableSchema(
        "device_status",
        [
            Column("device_id", .uuid), Column("partition", .int4), Column("state", .text),
            Column("reason", .text), Column("since", .timestamptz),
            Column("last_seen", .timestamptz), Column("last_handshake", .timestamptz),
            Column("tunnel_up", .bool), Column("agent_status", .text),
            Column("agent_state", .text, keepsOldWhenNull: true), Column("flags", .jsonb),
            Column("flapping", .bool), Column("transitions", .int8),
        ], key: [0], mode: .upsert)

    public static let deviceStateEnded = TableSchema(
        "device_state_ended",
        [
            Column("device_id", .uuid), Column("partition", .int4), Column("transition", .int8),
            Column("state", .text), Column("reason", .text), Column("started_at", .timestamptz),
            Column("ended_at", .timestamptz),
        ], key: [], mode: .append)

    public static let fleetMinutes = TableSchema(
        "fleet_minutes_by_partition",
        [
            Column("minute", .timestamptz), Column("partition", .int4), Column("state", .text),
            Column("devices", .int8),
        ], key: [0, 1, 2], mode: .upsert)

    public static let alertsOpened = TableSchema(
        "alerts",
        [
            Column("alert_id", .uuid), Column("kind", .text), Column("entity", .text),
            Column("device_id", .uuid), Column("episode", .int8), Column("partition", .int4),
            Column("reason", .text), Column("opened_at", .timestamptz),
        ], key: [0], mode: .insertNew)

    public static let alertsResolved = TableSchema(
        "alerts", [Column("alert_id", .uuid), Column("resolved_at", .timestamptz)], key: [0],
        mode: .update)
}
