internal import Bytes
internal import Postgres
internal import Schemas

/// What the dispatcher reads and writes within one transaction.
struct AlertStore {
    private let connection: PostgresConnection

    init(_ connection: PostgresConnection) { self.connection = connection }

    /// The tables as they are at the beginning of a round.
    struct Look {
        /// Milliseconds by the database's clock.
        var now: Int64
        var news: [AlertDispatch.News]
        var isMore: Bool
        var silences: AlertSilences
    }

    // MARK: - Reading

    /// What was decided before, and what the alerts have become since.
    mutating func restore(
        _ settings: AlertDispatchSettings
    ) throws -> (AlertDispatch, [AlertDispatch.News]) {
        var entries: [DeviceID: AlertDispatch.Entry] = [:]
        var news: [AlertDispatch.News] = []
        var mass: AlertDispatch.MassEvent?
        for row in try connection.execute(AlertStatements.decided) {
            let id = try row.deviceID(0)
            let kind = try row.text(1)
            let device = try row.optionalDeviceID(2)
            guard let state = AlertDispatch.State(rawValue: try row.text(3)) else { continue }
            entries[id] = AlertDispatch.Entry(
                kind: kind, device: device, state: state, group: try row.optionalDeviceID(4),
                seenAt: try row.milliseconds(5), decidedAt: try row.milliseconds(6))
            if try !row.bool(7) {
                news.append(.init(id: id, kind: kind, device: device, isOpen: false))
            }
            if kind == AlertDispatch.massOffline { mass = .init(id: id, members: 0, ended: 0) }
        }
        if let id = mass?.id {
            let row = try connection.execute(AlertStatements.members, .uuid(id.high, id.low)).only()
            mass = .init(id: id, members: try row.int8(0), ended: try row.int8(1))
        }
        for row in try connection.execute(AlertStatements.undecided) {
            news.append(
                .init(
                    id: try row.deviceID(0), kind: try row.text(1),
                    device: try row.optionalDeviceID(2), isOpen: true))
        }
        let episode = try connection.execute(AlertStatements.nextEpisode).only().int8(0)
        return (
            AlertDispatch(
                restoring: entries, mass: mass, nextEpisode: episode, settings: settings), news
        )
    }

    mutating func look(newsLimit: Int64) throws -> Look {
        let now = try connection.execute(AlertStatements.clock).only().milliseconds(0)
        let rows = try connection.execute(AlertStatements.news, .int8(newsLimit))
        var news: [AlertDispatch.News] = []
        news.reserveCapacity(rows.count)
        for row in rows {
            news.append(
                .init(
                    id: try row.deviceID(0), kind: try row.text(1),
                    device: try row.optionalDeviceID(2), isOpen: try row.bool(3)))
        }
        var silences = AlertSilences()
        for row in try connection.execute(AlertStatements.silences) {
            silences.add(kind: try row.optionalText(0), device: try row.optionalDeviceID(1))
        }
        return Look(
            now: now, news: news, isMore: Int64(news.count) >= newsLimit / 2 && !news.isEmpty,
            silences: silences)
    }

    /// Devices that report and may go offline.
    func onlineDevices() throws -> Int64 {
        try connection.execute(AlertStatements.onlineDevices).only().int8(0)
    }

    // MARK: - Writing

    func write(
        _ round: AlertRound, receivers: [AlertReceiverSettings], at now: Int64
    ) throws {
        let time = EventTime(milliseconds: now)
        let stamp = PostgresValue.timestamptz(time.postgresMicroseconds)
        if let opened = round.opened {
            try connection.execute(
                AlertStatements.openMass, .uuid(opened.id.high, opened.id.low),
                .int8(opened.episode), stamp, .int8(opened.devices))
            try publish(opened.id, isOpen: true, count: opened.devices, at: time)
        }
        if let resolved = round.resolved {
            let result = try connection.execute(
                AlertStatements.resolveMass, .uuid(resolved.high, resolved.low), stamp)
            if result.affectedRows == 1 {
                try publish(resolved, isOpen: false, count: nil, at: time)
            }
        }
        for state in AlertDispatch.State.allCases {
            let ids = round.ids(state)
            if ids.isEmpty { continue }
            if state == .ended {
                try connection.execute(AlertStatements.end, uuids(ids), stamp)
            } else {
                let group = ids.first.flatMap { round.changes[$0]?.group }
                try connection.execute(
                    AlertStatements.decide, uuids(ids), .text(state.rawValue),
                    group.map { .uuid($0.high, $0.low) } ?? .null, stamp)
            }
        }
        try enqueue(round, receivers, stamp)
    }

    private func enqueue(
        _ round: AlertRound, _ receivers: [AlertReceiverSettings], _ stamp: PostgresValue
    ) throws {
        var count = 0
        let resolved = round.ids(.resolved)
        if !resolved.isEmpty {
            count += try connection.execute(
                AlertStatements.enqueueResolved, uuids(resolved), stamp
            ).affectedRows
        }
        let firing = round.ids(.firing)
        for receiver in receivers where !firing.isEmpty {
            count += try connection.execute(
                AlertStatements.enqueueFiring, uuids(firing), stamp, .text(receiver.name),
                .bool(receiver.kinds == nil), .textArray(receiver.sentKinds ?? [])
            ).affectedRows
        }
        if count > 0 { try connection.execute(AlertStatements.tellReceivers) }
    }

    /// The registry's outbox takes it to the topic `alerts`; device alerts are there already.
    private func publish(
        _ id: DeviceID, isOpen: Bool, count: Int64?, at time: EventTime
    ) throws {
        let fleet = AlertRound.fleet
        var value = ByteBuffer()
        value.append(
            alert: id, kind: .massOffline, isOpen: isOpen, entity: fleet.span,
            reason: isOpen ? "many-devices" : "most-returned", count: count, at: time)
        try connection.execute(
            AlertStatements.publish, .bytea(fleet), .bytea(value),
            .timestamptz(time.postgresMicroseconds))
    }

    private func uuids(_ ids: [DeviceID]) -> PostgresValue {
        .uuidArray(ids.map { ($0.high, $0.low) })
    }
}

extension PostgresRow {
    func deviceID(_ column: Int) throws(PostgresError) -> DeviceID {
        let (high, low) = try uuid(column)
        return DeviceID(high: high, low: low)
    }

    func optionalDeviceID(_ column: Int) throws(PostgresError) -> DeviceID? {
        guard let (high, low) = try optionalUUID(column) else { return nil }
        return DeviceID(high: high, low: low)
    }

    /// Of a timestamptz, since 1970; fractions are cut off.
    func milliseconds(_ column: Int) throws(PostgresError) -> Int64 {
        EventTime(postgresMicroseconds: try timestamptz(column)).milliseconds
    }
}

enum AlertStatements {
    /// "dispatch" in ASCII.
    static let lease = PreparedStatement(
        "alerts lease", "SELECT pg_try_advisory_lock(x'6469737061746368'::int8)")
    static let clock = PreparedStatement("alerts clock", "SELECT now()")
    static let decided = PreparedStatement(
        "alerts decided",
        """
        SELECT d.alert_id, a.kind, a.device_id, d.state, d.group_id, d.seen_at, d.decided_at,
               a.resolved_at IS NULL
          FROM heartline.alert_dispatch d JOIN heartline.alerts a USING (alert_id)
         WHERE d.state <> 'ended'
        """)
    static let undecided = PreparedStatement(
        "alerts undecided",
        """
        SELECT a.alert_id, a.kind, a.device_id FROM heartline.alerts a
         WHERE a.resolved_at IS NULL
           AND NOT EXISTS (SELECT FROM heartline.alert_dispatch d WHERE d.alert_id = a.alert_id)
        """)
    static let members = PreparedStatement(
        "alerts members",
        """
        SELECT count(*), count(*) FILTER (WHERE state = 'ended')
          FROM heartline.alert_dispatch WHERE group_id = $1
        """)
    static let nextEpisode = PreparedStatement(
        "alerts next episode",
        """
        SELECT coalesce(max(episode) + 1, 0) FROM heartline.alerts
         WHERE kind = 'mass-offline' AND entity = 'fleet'
        """)
    static let news = PreparedStatement(
        "alerts news",
        """
        WITH taken AS (
            DELETE FROM heartline.alert_news
             WHERE ctid = ANY (ARRAY(SELECT ctid FROM heartline.alert_news LIMIT $1))
            RETURNING alert_id)
        SELECT a.alert_id, a.kind, a.device_id, a.resolved_at IS NULL
          FROM (SELECT DISTINCT alert_id FROM taken) t JOIN heartline.alerts a USING (alert_id)
        """)
    static let silences = PreparedStatement(
        "alerts silences",
        """
        SELECT kind, device_id FROM heartline.silences WHERE starts_at <= now() AND ends_at > now()
        """)
    static let onlineDevices = PreparedStatement(
        "alerts online devices",
        """
        SELECT count(*) FROM heartline.device_status
         WHERE state IN ('healthy', 'stale', 'down', 'recovering')
        """)
    static let openMass = PreparedStatement(
        "alerts open mass",
        """
        INSERT INTO heartline.alerts
            (alert_id, kind, entity, episode, partition, reason, opened_at, device_count)
        VALUES ($1, 'mass-offline', 'fleet', $2, 0, 'many-devices', $3, $4)
        ON CONFLICT (alert_id) DO NOTHING
        """)
    static let resolveMass = PreparedStatement(
        "alerts resolve mass",
        """
        UPDATE heartline.alerts SET resolved_at = greatest($2, opened_at)
         WHERE alert_id = $1 AND resolved_at IS NULL
        """)
    static let decide = PreparedStatement(
        "alerts decide",
        """
        INSERT INTO heartline.alert_dispatch (alert_id, state, group_id, seen_at, decided_at)
        SELECT id, $2, $3::uuid, $4, $4 FROM unnest($1::uuid[]) AS id
        ON CONFLICT (alert_id) DO UPDATE
           SET state = excluded.state, group_id = excluded.group_id, decided_at = excluded.decided_at
        """)
    static let end = PreparedStatement(
        "alerts end",
        """
        UPDATE heartline.alert_dispatch SET state = 'ended', decided_at = $2
         WHERE alert_id = ANY ($1)
        """)
    static let enqueueFiring = PreparedStatement(
        "alerts enqueue firing",
        """
        INSERT INTO heartline.alert_deliveries
            (receiver, alert_id, entity, event, payload, created_at, next_attempt_at)
        SELECT $3, a.alert_id, a.entity, 'firing', heartline.alert_payload(a, 'firing'), $2, $2
          FROM heartline.alerts a
         WHERE a.alert_id = ANY ($1) AND ($4 OR a.kind = ANY ($5))
         ORDER BY a.opened_at, a.alert_id
        ON CONFLICT (alert_id, receiver, event) DO NOTHING
        """)
    static let enqueueResolved = PreparedStatement(
        "alerts enqueue resolved",
        """
        INSERT INTO heartline.alert_deliveries
            (receiver, alert_id, entity, event, payload, created_at, next_attempt_at)
        SELECT f.receiver, a.alert_id, a.entity, 'resolved',
               heartline.alert_payload(a, 'resolved'), $2, $2
          FROM heartline.alerts a
          JOIN heartline.alert_deliveries f ON f.alert_id = a.alert_id AND f.event = 'firing'
         WHERE a.alert_id = ANY ($1)
         ORDER BY a.resolved_at, a.alert_id
        ON CONFLICT (alert_id, receiver, event) DO NOTHING
        """)
    static let tellReceivers = PreparedStatement(
        "alerts tell receivers", "SELECT pg_notify('heartline_alert_deliveries', '')")
    static let publish = PreparedStatement(
        "alerts publish", "SELECT heartline.add_registry_event('alerts', $1, $2, $3)")
}
