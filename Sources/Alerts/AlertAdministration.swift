internal import Bytes
internal import JSON
public import Postgres
public import Schemas

/// What operators see and do about alerts. Everything they do stands in `heartline.audit_log` as well,
/// by the same transaction.
public enum AlertAdministration {
    public struct Listed: Sendable {
        public var id: DeviceID
        public var kind: String
        public var entity: String
        public var device: DeviceID?
        public var reason: String
        public var openedAt: EventTime
        public var resolvedAt: EventTime?
        /// Devices of a `mass-offline` alert.
        public var deviceCount: Int64?
        public var acknowledgedAt: EventTime?
        public var acknowledgedBy: String?
        /// What the dispatcher decided last; `nil`: it has not seen it yet.
        public var state: String?
        /// Messages that a receiver has yet to acknowledge.
        public var waiting: Int64
    }

    public struct Silence: Sendable {
        public var id: DeviceID
        public var device: DeviceID?
        public var kind: String?
        public var startsAt: EventTime
        public var endsAt: EventTime
        public var reason: String
        public var createdBy: String
    }

    /// The newest alerts first.
    /// - Parameter all: those that are resolved as well.
    public static func alerts(
        _ connection: PostgresConnection, all: Bool = false, kind: String? = nil,
        device: DeviceID? = nil, limit: Int64 = 1_000
    ) throws(PostgresError) -> [Listed] {
        let rows = try connection.execute(
            """
            SELECT a.alert_id, a.kind, a.entity, a.device_id, a.reason, a.opened_at, a.resolved_at,
                   a.device_count, a.acknowledged_at, a.acknowledged_by, d.state,
                   (SELECT count(*) FROM heartline.alert_deliveries w
                     WHERE w.alert_id = a.alert_id AND w.delivered_at IS NULL)
              FROM heartline.alerts a LEFT JOIN heartline.alert_dispatch d USING (alert_id)
             WHERE ($1 OR a.resolved_at IS NULL) AND ($2::text IS NULL OR a.kind = $2)
               AND ($3::uuid IS NULL OR a.device_id = $3)
             ORDER BY a.opened_at DESC, a.alert_id LIMIT $4
            """, .bool(all), kind.map { .text($0) } ?? .null, uuid(device), .int8(limit))
        var alerts: [Listed] = []
        for row in rows {
            var alert = Listed(
                id: try row.deviceID(0), kind: try row.text(1), entity: try row.text(2),
                device: nil, reason: try row.text(4),
                openedAt: EventTime(milliseconds: try row.milliseconds(5)), waiting: 0)
            alert.device = try row.optionalDeviceID(3)
            alert.resolvedAt = try row.optionalTime(6)
            alert.deviceCount = try row.optionalInt8(7)
            alert.acknowledgedAt = try row.optionalTime(8)
            alert.acknowledgedBy = try row.optionalText(9)
            alert.state = try row.optionalText(10)
            alert.waiting = try row.int8(11)
            alerts.append(alert)
        }
        return alerts
    }

    /// Silences that hold or are to come; with `all`, those that have ended as well.
    public static func silences(
        _ connection: PostgresConnection, all: Bool = false
    ) throws(PostgresError) -> [Silence] {
        let rows = try connection.execute(
            """
            SELECT silence_id, device_id, kind, starts_at, ends_at, reason, created_by
              FROM heartline.silences WHERE $1 OR ends_at > now() ORDER BY starts_at, silence_id
            """, .bool(all))
        var silences: [Silence] = []
        for row in rows {
            let device = try row.optionalDeviceID(1)
            let kind = try row.optionalText(2)
            let starts = EventTime(milliseconds: try row.milliseconds(3))
            let ends = EventTime(milliseconds: try row.milliseconds(4))
            silences.append(
                Silence(
                    id: try row.deviceID(0), device: device, kind: kind, startsAt: starts,
                    endsAt: ends, reason: try row.text(5), createdBy: try row.text(6)))
        }
        return silences
    }

    /// Begins a silence.
    /// - Parameters:
    ///   - start: `nil`: now, by the database's clock.
    ///   - milliseconds: how long; at least 1.
    /// - Returns: its id and times.
    public static func silence(
        _ connection: PostgresConnection, device: DeviceID? = nil, kind: String? = nil,
        from start: EventTime? = nil, milliseconds: Int64, reason: String, by actor: String
    ) throws -> Silence {
        try connection.transaction {
            let row = try connection.execute(
                """
                INSERT INTO heartline.silences
                    (silence_id, device_id, kind, starts_at, ends_at, reason, created_by)
                SELECT gen_random_uuid(), $1::uuid, $2::text, s, s + $4 * interval '1 millisecond', $5, $6
                  FROM coalesce($3::timestamptz, now()) AS s
                RETURNING silence_id, starts_at, ends_at
                """, uuid(device), kind.map { .text($0) } ?? .null,
                start.map { .timestamptz($0.postgresMicroseconds) } ?? .null,
                .int8(max(1, milliseconds)), .text(reason), .text(actor)
            ).only()
            let silence = Silence(
                id: try row.deviceID(0), device: device, kind: kind,
                startsAt: EventTime(milliseconds: try row.milliseconds(1)),
                endsAt: EventTime(milliseconds: try row.milliseconds(2)), reason: reason,
                createdBy: actor)
            let details = json([
                ("device_id", device.map { "\($0)" }), ("kind", kind),
                ("starts_at", "\(silence.startsAt)"), ("ends_at", "\(silence.endsAt)"),
                ("reason", reason),
            ])
            try audit(
                connection, actor, "alert.silence", of: "\(silence.id)", details: details,
                answer: json([("silence_id", "\(silence.id)")]))
            return silence
        }
    }

    /// Ends a silence now; one that has not begun is taken away.
    /// - Returns: whether there was one that had not ended.
    public static func unsilence(
        _ connection: PostgresConnection, _ id: DeviceID, by actor: String
    ) throws -> Bool {
        try connection.transaction {
            let ended = try connection.execute(
                """
                UPDATE heartline.silences SET ends_at = now()
                 WHERE silence_id = $1 AND starts_at < now() AND ends_at > now()
                """, uuid(id))
            var count = ended.affectedRows
            if count == 0 {
                count = try connection.execute(
                    """
                    DELETE FROM heartline.silences WHERE silence_id = $1 AND starts_at >= now()
                    """, uuid(id)
                ).affectedRows
            }
            if count == 0 { return false }
            try audit(
                connection, actor, "alert.unsilence", of: "\(id)", details: "{}", answer: "{}")
            return true
        }
    }

    /// Says that somebody looks after alerts. Messages go on as before; the first to say so stays.
    /// - Returns: those that are there, whoever acknowledged them.
    public static func acknowledge(
        _ connection: PostgresConnection, _ ids: [DeviceID], by actor: String
    ) throws -> Set<DeviceID> {
        try connection.transaction {
            let list = PostgresValue.uuidArray(ids.map { ($0.high, $0.low) })
            let changed = try connection.execute(
                """
                WITH locked AS (
                    SELECT alert_id FROM heartline.alerts
                     WHERE alert_id = ANY ($1) AND acknowledged_at IS NULL
                     ORDER BY alert_id FOR UPDATE)
                UPDATE heartline.alerts a SET acknowledged_at = now(), acknowledged_by = $2
                  FROM locked WHERE a.alert_id = locked.alert_id RETURNING a.alert_id
                """, list, .text(actor))
            for row in changed {
                try audit(
                    connection, actor, "alert.acknowledge", of: "\(try row.deviceID(0))",
                    details: "{}", answer: "{}", notifies: false)
            }
            var known: Set<DeviceID> = []
            for row in try connection.execute(
                "SELECT alert_id FROM heartline.alerts WHERE alert_id = ANY ($1)", list)
            {
                known.insert(try row.deviceID(0))
            }
            return known
        }
    }

    private static func audit(
        _ connection: PostgresConnection, _ actor: String, _ action: String, of entity: String,
        details: String, answer: String, notifies: Bool = true
    ) throws(PostgresError) {
        try connection.execute(
            """
            INSERT INTO heartline.audit_log (actor, action, entity, details, answer)
            VALUES ($1, $2, $3, $4, $5)
            """, .text(actor), .text(action), .text(entity), .jsonb(details), .jsonb(answer))
        if notifies { try connection.execute("SELECT pg_notify('heartline_alerts', '')") }
    }

    private static func json(_ fields: [(String, String?)]) -> String {
        var text = ByteBuffer()
        for (name, value) in fields {
            guard let value else { continue }
            text.append(UInt8(ascii: text.isEmpty ? "{" : ","))
            text.append(jsonString: name)
            text.append(UInt8(ascii: ":"))
            text.append(jsonString: value)
        }
        text.append(text.isEmpty ? "{}" : "}")
        return text.span.text
    }

    private static func uuid(_ id: DeviceID?) -> PostgresValue {
        id.map { .uuid($0.high, $0.low) } ?? .null
    }
}

extension PostgresRow {
    func optionalTime(_ column: Int) throws(PostgresError) -> EventTime? {
        isNull(column) ? nil : EventTime(milliseconds: try milliseconds(column))
    }
}
