internal import Bytes
internal import Postgres
internal import Schemas

/// A message on its way to a receiver.
struct Delivery {
    var id: Int64
    var alert: DeviceID
    var event: String
    var body: ByteBuffer
    /// Times that sending it failed.
    var attempts: Int

    /// By which the receiver can tell a repeat.
    var key: String { "\(alert):\(event)" }
}

/// What became of messages, until it is in the database.
struct DeliveryResults {
    struct Failure {
        var id: Int64
        /// Until the next try, in milliseconds.
        var delay: Int64
        /// No secrets, no payload.
        var reason: String
    }

    var acknowledged: [Int64] = []
    var failed: [Failure] = []
    /// Everything that waits may be tried now.
    var hasRecovered = false

    var isEmpty: Bool { acknowledged.isEmpty && failed.isEmpty && !hasRecovered }
}

/// The messages of one receiver in the database.
struct DeliveryStore {
    let connection: PostgresConnection
    private let receiver: PostgresValue

    init(_ connection: PostgresConnection, receiver: String) {
        self.connection = connection
        self.receiver = .text(receiver)
    }

    func takeLease() throws -> Bool {
        try connection.execute(DeliveryStatements.lease, receiver).only().bool(0)
    }

    /// Messages that may be sent now, the oldest first, one an entity.
    /// - Parameter flying: messages that are on their way.
    func due(limit: Int, besides flying: [Int64]) throws -> [Delivery] {
        try deliveries(
            connection.execute(
                DeliveryStatements.due, receiver, .int8(Int64(limit)), .int8Array(flying)))
    }

    /// The same as alerts of Alertmanager's API.
    /// - Parameter lifetime: time in milliseconds after which an alert that is not repeated counts as
    ///   resolved.
    func dueForAlertmanager(limit: Int64, lifetime: Int64) throws -> [Delivery] {
        try deliveries(
            connection.execute(
                DeliveryStatements.dueForAlertmanager, receiver, .int8(limit), .int8(lifetime)))
    }

    /// What is firing and was acknowledged, by alert, after `after`.
    func firing(after: DeviceID, limit: Int64, lifetime: Int64) throws -> [Delivery] {
        try deliveries(
            connection.execute(
                DeliveryStatements.firing, receiver, .int8(limit), .int8(lifetime),
                .uuid(after.high, after.low)))
    }

    private func deliveries(_ rows: PostgresResult) throws -> [Delivery] {
        var deliveries: [Delivery] = []
        deliveries.reserveCapacity(rows.count)
        for row in rows {
            deliveries.append(
                Delivery(
                    id: try row.int8(0), alert: try row.deviceID(1), event: try row.text(2),
                    body: ByteBuffer(try row.jsonb(3).utf8), attempts: Int(try row.int4(4))))
        }
        return deliveries
    }

    /// Stores what became of messages. Whoever has the lease: it is true in any case.
    func write(_ results: inout DeliveryResults) throws {
        if results.isEmpty { return }
        if !results.acknowledged.isEmpty {
            try connection.execute(
                DeliveryStatements.acknowledge, .int8Array(results.acknowledged))
            results.acknowledged = []
        }
        if results.hasRecovered {
            try connection.execute(DeliveryStatements.recover, receiver)
            results.hasRecovered = false
        }
        if !results.failed.isEmpty {
            try connection.execute(
                DeliveryStatements.fail, .int8Array(results.failed.map(\.id)),
                .int8Array(results.failed.map(\.delay)),
                .textArray(results.failed.map { String($0.reason.prefix(500)) }))
            results.failed = []
        }
    }

    /// Sends by NOTIFY; the message and its acknowledgement are one transaction.
    /// - Returns: messages that were sent.
    func notify(_ channel: String, limit: Int64) throws -> Int {
        try connection.execute(DeliveryStatements.notify, receiver, .int8(limit), .text(channel))
            .count
    }
}

private enum DeliveryStatements {
    /// "rcvr" in ASCII, and the receiver.
    static let lease = PreparedStatement(
        "receiver lease", "SELECT pg_try_advisory_lock(x'72637672'::int4, hashtext($1))")

    /// An entity's next message waits until the one before is acknowledged.
    private static let isFirst =
        """
        NOT EXISTS (SELECT FROM heartline.alert_deliveries e
                     WHERE e.receiver = d.receiver AND e.entity = d.entity
                       AND e.delivered_at IS NULL AND e.delivery_id < d.delivery_id)
        """

    static let due = PreparedStatement(
        "receiver due",
        """
        SELECT d.delivery_id, d.alert_id, d.event, d.payload, d.attempts
          FROM heartline.alert_deliveries d
         WHERE d.receiver = $1 AND d.delivered_at IS NULL AND d.next_attempt_at <= now()
           AND d.delivery_id <> ALL ($3) AND \(isFirst)
         ORDER BY d.delivery_id LIMIT $2
        """)

    /// One alert as Alertmanager's API takes it; `$3` is its lifetime in milliseconds.
    /// - SeeAlso: Alertmanager, `api/v2/openapi.yaml`, `postableAlert`.
    private static let alert =
        """
        jsonb_strip_nulls(jsonb_build_object(
            'labels', jsonb_build_object(
                'alertname', d.payload->>'kind',
                'device_id', d.payload->>'device_id',
                'entity', CASE WHEN d.payload->>'device_id' IS NULL THEN d.entity END,
                'severity', CASE WHEN d.payload->>'kind' IN
                    ('mass-offline', 'ingest-silent', 'pool-exhausted') THEN 'critical'
                    ELSE 'warning' END),
            'annotations', jsonb_build_object(
                'alert_id', d.payload->>'alert_id', 'reason', d.payload->>'reason',
                'count', d.payload->>'count'),
            'startsAt', d.payload->>'opened_at',
            'endsAt', CASE d.event
                WHEN 'resolved' THEN greatest(d.payload->>'resolved_at', d.payload->>'opened_at')
                ELSE to_char((now() + $3 * interval '1 millisecond') AT TIME ZONE 'UTC',
                             'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') END))
        """

    static let dueForAlertmanager = PreparedStatement(
        "receiver due for alertmanager",
        """
        SELECT d.delivery_id, d.alert_id, d.event, \(alert), d.attempts
          FROM heartline.alert_deliveries d
         WHERE d.receiver = $1 AND d.delivered_at IS NULL AND d.next_attempt_at <= now()
           AND \(isFirst)
         ORDER BY d.delivery_id LIMIT $2
        """)

    static let firing = PreparedStatement(
        "receiver firing",
        """
        SELECT d.delivery_id, d.alert_id, d.event, \(alert), d.attempts
          FROM heartline.alert_dispatch s
          JOIN heartline.alert_deliveries d
            ON d.alert_id = s.alert_id AND d.receiver = $1 AND d.event = 'firing'
         WHERE s.state = 'sent' AND s.alert_id > $4 AND d.delivered_at IS NOT NULL
         ORDER BY s.alert_id LIMIT $2
        """)

    static let acknowledge = PreparedStatement(
        "receiver acknowledge",
        """
        UPDATE heartline.alert_deliveries SET delivered_at = now(), last_error = NULL
         WHERE delivery_id = ANY ($1) AND delivered_at IS NULL
        """)

    static let recover = PreparedStatement(
        "receiver recover",
        """
        UPDATE heartline.alert_deliveries SET next_attempt_at = now()
         WHERE receiver = $1 AND delivered_at IS NULL AND next_attempt_at > now()
        """)

    static let fail = PreparedStatement(
        "receiver fail",
        """
        UPDATE heartline.alert_deliveries d
           SET attempts = d.attempts + 1, last_error = f.reason,
               next_attempt_at = now() + f.delay * interval '1 millisecond'
          FROM unnest($1::int8[], $2::int8[], $3::text[]) AS f (id, delay, reason)
         WHERE d.delivery_id = f.id AND d.delivered_at IS NULL
        """)

    /// NOTIFY takes less than 8,000 bytes.
    static let notify = PreparedStatement(
        "receiver notify",
        """
        WITH due AS (
            SELECT d.delivery_id FROM heartline.alert_deliveries d
             WHERE d.receiver = $1 AND d.delivered_at IS NULL AND \(isFirst)
             ORDER BY d.delivery_id LIMIT $2),
        told AS (
            UPDATE heartline.alert_deliveries d SET delivered_at = now()
              FROM due WHERE d.delivery_id = due.delivery_id
            RETURNING d.delivery_id,
                CASE WHEN octet_length(d.payload::text) < 7900 THEN d.payload::text
                     ELSE (d.payload - 'reason' - 'entity')::text END AS message)
        SELECT pg_notify($3, message) FROM (SELECT * FROM told ORDER BY delivery_id) t
        """)
}
