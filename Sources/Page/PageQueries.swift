package import Postgres

/// What the page asks the database. Every statement reads a bounded number of rows by an index, but for the
/// two that count (`states` and `alertCounts`), which read all of what they count and are asked as seldom as
/// they are slow.
package enum PageQueries {
    /// For each session: nothing of the page takes more than one core, or writes. Statements are planned for
    /// their values, since a range of unknown size would be read from end to end.
    package static let session =
        """
        SET max_parallel_workers_per_gather = 0; SET default_transaction_read_only = on; \
        SET plan_cache_mode = force_custom_plan
        """

    package static let states = PreparedStatement(
        "page_states",
        "SELECT state, count(*) FROM heartline.device_status GROUP BY state")

    package static let alertCounts = PreparedStatement(
        "page_alert_counts",
        """
        SELECT kind, count(*), min(opened_at) FROM heartline.alerts \
        WHERE resolved_at IS NULL GROUP BY kind ORDER BY kind
        """)

    /// How many partitions told of a minute stands beside each row: while some lag behind, the newest
    /// minutes are not whole.
    package static let history = PreparedStatement(
        "page_history",
        """
        SELECT minute, state, sum(devices)::int8, \
        max(sum(partitions)) OVER (PARTITION BY minute)::int8 FROM (\
        SELECT minute, state, devices, 0 AS partitions FROM heartline.fleet_minutes_by_partition \
        WHERE minute >= $1 UNION ALL \
        SELECT minute, '', 0, count(DISTINCT partition) FROM heartline.fleet_minutes_by_partition \
        WHERE minute >= $1 GROUP BY minute) m GROUP BY minute, state ORDER BY minute
        """)

    package static let troubles = PreparedStatement(
        "page_troubles",
        """
        SELECT s.device_id, s.state, s.reason, s.since, s.last_seen FROM unnest($1::text[]) k(state) \
        CROSS JOIN LATERAL (SELECT * FROM heartline.device_status d WHERE d.state = k.state \
        ORDER BY d.since DESC LIMIT 10) s ORDER BY s.since DESC, s.device_id LIMIT 10
        """)

    package static let newestAlerts = PreparedStatement(
        "page_newest_alerts",
        """
        SELECT a.alert_id, a.kind, a.entity, a.device_id, a.reason, a.opened_at, a.resolved_at, \
        a.acknowledged_by, a.device_count FROM unnest($1::text[]) k(kind) CROSS JOIN LATERAL (\
        SELECT * FROM heartline.alerts o WHERE o.kind = k.kind AND o.resolved_at IS NULL \
        ORDER BY o.opened_at DESC LIMIT 10) a ORDER BY a.opened_at DESC, a.alert_id LIMIT 10
        """)

    package static let partitions = PreparedStatement(
        "page_partitions",
        """
        SELECT pipeline, topic, partition, next_offset, updated_at, owner \
        FROM heartline.stream_partitions ORDER BY pipeline, partition
        """)

    /// As many events as are worth telling apart.
    package static let outbox = PreparedStatement(
        "page_outbox", "SELECT count(*) FROM (SELECT FROM heartline.outbox LIMIT 10000) o")

    /// Changes that are looked at: no more, however many there were.
    static let configurationLimit: Int64 = 10_000

    /// Of the newest changes: a row for each minute with how many were made and how many arrived in it, and
    /// one without a minute for all of them.
    package static let configurations = PreparedStatement(
        "page_configurations",
        """
        WITH recent AS MATERIALIZED (\
        SELECT device_id, version, kind, suspended, changed_at FROM heartline.config_versions \
        WHERE changed_at >= $1 ORDER BY changed_at DESC LIMIT $2), \
        newest AS MATERIALIZED (\
        SELECT v.suspended, v.changed_at, d.delivered_at FROM (\
        SELECT DISTINCT ON (device_id) * FROM recent ORDER BY device_id, version DESC) v \
        LEFT JOIN LATERAL (SELECT delivered_at FROM heartline.config_delivery c \
        WHERE c.device_id = v.device_id AND c.version >= v.version ORDER BY c.version LIMIT 1) d ON true \
        WHERE v.kind <> 'removed') \
        SELECT NULL::timestamptz, count(*), count(*) FILTER (WHERE delivered_at IS NOT NULL AND NOT suspended), \
        count(*) FILTER (WHERE suspended), \
        (percentile_disc(0.5) WITHIN GROUP (ORDER BY delivered_at - changed_at) \
        FILTER (WHERE NOT suspended)), \
        max(delivered_at - changed_at) FILTER (WHERE NOT suspended), max(changed_at), \
        (SELECT count(*) FROM recent) FROM newest \
        UNION ALL \
        SELECT minute, sum(made)::int8, sum(arrived)::int8, 0, NULL, NULL, NULL, 0 FROM (\
        SELECT date_trunc('minute', changed_at) AS minute, 1 AS made, 0 AS arrived FROM newest \
        WHERE NOT suspended UNION ALL \
        SELECT date_trunc('minute', delivered_at), 0, 1 FROM newest \
        WHERE delivered_at IS NOT NULL AND NOT suspended) m GROUP BY minute ORDER BY 1 NULLS FIRST
        """)

    package static let releases = PreparedStatement(
        "page_releases",
        """
        SELECT source, release, sum(offered)::int8, sum(downloading)::int8, sum(installed)::int8, \
        sum(failed)::int8, sum(unconfirmed)::int8 FROM heartline.rollout_by_partition \
        GROUP BY source, release \
        HAVING sum(offered + downloading + installed + failed + unconfirmed) > 0 \
        ORDER BY sum(offered + downloading + failed + unconfirmed) DESC, sum(installed) DESC, \
        source, release LIMIT 8
        """)

    package static let matches = PreparedStatement(
        "page_matches",
        """
        SELECT date_trunc('minute', connected_at), count(*) FROM heartline.connections \
        WHERE connected_at >= $1 GROUP BY 1 ORDER BY 1
        """)

    // MARK: - One device

    package static let registration = PreparedStatement(
        "page_registration",
        """
        SELECT host(internal_address), hardware_id, version, suspended, expected_interval, created_at \
        FROM heartline.devices WHERE device_id = $1
        """)

    package static let status = PreparedStatement(
        "page_status",
        """
        SELECT state, reason, since, last_seen, last_handshake, tunnel_up, agent_status, agent_state, \
        flags, flapping FROM heartline.device_status WHERE device_id = $1
        """)

    package static let intervals = PreparedStatement(
        "page_intervals",
        """
        SELECT state, reason, started_at, ended_at FROM heartline.device_state_ended \
        WHERE device_id = $1 AND ended_at >= $2 ORDER BY transition DESC LIMIT 200
        """)

    package static let versions = PreparedStatement(
        "page_versions",
        """
        SELECT v.version, v.kind, v.changed_at, v.changed_by, d.delivered_at FROM (\
        SELECT * FROM heartline.config_versions WHERE device_id = $1 ORDER BY version DESC LIMIT 20) v \
        LEFT JOIN heartline.config_delivery d ON d.device_id = v.device_id AND d.version = v.version \
        ORDER BY v.version DESC
        """)

    package static let deviceAlerts = PreparedStatement(
        "page_device_alerts",
        """
        SELECT alert_id, kind, entity, device_id, reason, opened_at, resolved_at, acknowledged_by, \
        device_count FROM heartline.alerts WHERE device_id = $1 ORDER BY opened_at DESC LIMIT 20
        """)

    package static let forwards = PreparedStatement(
        "page_forwards",
        """
        SELECT protocol, listen_port, target_host, target_port FROM heartline.forwards \
        WHERE device_id = $1 ORDER BY protocol, listen_port LIMIT 50
        """)

    // MARK: - Lists

    /// Devices that a list shows.
    static let listLimit: Int64 = 50

    package static let inState = PreparedStatement(
        "page_in_state",
        """
        SELECT s.device_id, host(r.internal_address), r.hardware_id, s.state, s.since FROM (\
        SELECT device_id, state, since FROM heartline.device_status WHERE state = $1 \
        ORDER BY since DESC LIMIT $2) s LEFT JOIN heartline.devices r ON r.device_id = s.device_id \
        ORDER BY s.since DESC, s.device_id
        """)

    package static let byID = PreparedStatement(
        "page_by_id", search("device_id BETWEEN $1 AND $2 ORDER BY device_id", limit: "$3"))

    package static let byAddress = PreparedStatement(
        "page_by_address",
        search("internal_address BETWEEN $1 AND $2 ORDER BY internal_address", limit: "$3"))

    /// By what hardware ids begin with, byte by byte.
    package static let byHardware = PreparedStatement(
        "page_by_hardware",
        search("hardware_id >= $1 AND hardware_id < $2 ORDER BY hardware_id", limit: "$3"))

    private static func search(_ condition: String, limit: String) -> String {
        """
        SELECT r.device_id, host(r.internal_address), r.hardware_id, s.state, s.since FROM (\
        SELECT device_id, internal_address, hardware_id FROM heartline.devices WHERE \(condition) \
        LIMIT \(limit)) r LEFT JOIN heartline.device_status s ON s.device_id = r.device_id
        """
    }
}
