public import Postgres

/// Removes what is older than anybody wants to look at, a little at a time, while everything runs.
///
/// What is never removed, however old: what holds now, alerts that are open or not delivered yet, the
/// newest version of every configuration, and the last alert of each kind about the fleet, whose
/// number the next one continues.
public struct Pruning: Sendable {
    /// What was removed, or would be.
    public struct Removed: Sendable, Hashable {
        /// In words, for people.
        public var what: String
        public var count: Int64
    }

    private struct Step {
        var what: String
        var table: String
        /// Of rows of `table`, as `t`; `$1` is the moment before which things are old.
        var condition: String
    }

    private let days: Int32
    private let includesAudit: Bool

    /// - Parameters:
    ///   - days: age in whole days from which things are old. At least 1.
    ///   - includesAudit: whether `audit_log` is pruned as well.
    public init(olderThanDays days: Int32, includesAudit: Bool = false) {
        precondition(days >= 1, "the age is at least a day")
        self.days = days
        self.includesAudit = includesAudit
    }

    /// Removes what is old; each batch is a transaction of its own, so an end in between loses nothing.
    ///
    /// - Parameter isDry: only counts.
    /// - Throws: `PostgresError`. A day partition is dropped under a lock that is waited for 10 s at
    ///   most: whoever reads the history for longer makes this fail, and it can be run again.
    public func run(
        _ connection: PostgresConnection, isDry: Bool
    ) throws(PostgresError) -> [Removed] {
        // The beginning of a day, so that days are whole.
        let cutoff = try connection.execute(
            """
            SELECT (date_trunc('day', now() AT TIME ZONE 'UTC') - make_interval(days => $1))
                       AT TIME ZONE 'UTC'
            """, .int4(days)
        ).only().timestamptz(0)
        try connection.run("SET lock_timeout = '10s'")
        var removed: [Removed] = []
        for table in Self.tablesOfDays {
            removed.append(try dropDays(of: table, connection, before: cutoff, isDry: isDry))
        }
        for step in Self.steps + (includesAudit ? [Self.audit] : []) {
            removed.append(
                Removed(
                    what: step.what,
                    count: isDry
                        ? try count(step, connection, before: cutoff)
                        : try delete(step, connection, before: cutoff)))
        }
        return removed
    }

    /// Tables with a partition a day.
    private static let tablesOfDays = ["device_state_ended", "telemetry_minutes", "agent_logs"]

    /// Day partitions that are old as a whole.
    private func dropDays(
        of table: String, _ connection: PostgresConnection, before cutoff: Int64, isDry: Bool
    ) throws(PostgresError) -> Removed {
        let rows = try connection.execute(
            """
            SELECT quote_ident(c.relname)
              FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
             WHERE i.inhparent = 'heartline.\(table)'::regclass
               AND c.relname ~ '^\(table)_[0-9]{8}$'
               AND to_date(right(c.relname, 8), 'YYYYMMDD') < ($1 AT TIME ZONE 'UTC')::date
             ORDER BY c.relname
            """, .timestamptz(cutoff))
        for row in rows where !isDry {
            try connection.run("DROP TABLE heartline.\(try row.text(0))")
        }
        return Removed(what: "days of \(table)", count: Int64(rows.count))
    }

    private static let isOldAlert = """
        t.resolved_at < $1
        AND NOT EXISTS (SELECT FROM heartline.alert_deliveries d
                         WHERE d.alert_id = t.alert_id AND d.delivered_at IS NULL)
        AND NOT EXISTS (SELECT FROM heartline.alert_dispatch d
                         WHERE d.alert_id = t.alert_id AND d.state <> 'ended')
        AND NOT (t.entity = 'fleet'
                 AND t.episode = (SELECT max(n.episode) FROM heartline.alerts n
                                   WHERE n.kind = t.kind AND n.entity = 'fleet'))
        """

    private static let steps = [
        // Days that no partition was made for in time.
        Step(
            what: "rows of device_state_ended outside of a day",
            table: "device_state_ended_default",
            condition: "t.ended_at < $1"),
        Step(
            what: "rows of telemetry_minutes outside of a day", table: "telemetry_minutes_default",
            condition: "t.minute < $1"),
        Step(
            what: "rows of agent_logs outside of a day", table: "agent_logs_default",
            condition: "t.received_at < $1"),
        Step(
            what: "rows of fleet_minutes", table: "fleet_minutes_by_partition",
            condition: "t.minute < $1"),
        // Alerts go first: what belongs to them is found by their absence, after a crash as well.
        Step(what: "resolved alerts", table: "alerts", condition: isOldAlert),
        Step(
            what: "dispatches of alerts", table: "alert_dispatch",
            condition: """
                t.decided_at < $1
                AND NOT EXISTS (SELECT FROM heartline.alerts a WHERE a.alert_id = t.alert_id)
                """),
        Step(
            what: "deliveries of alerts", table: "alert_deliveries",
            condition: """
                t.delivered_at < $1
                AND NOT EXISTS (SELECT FROM heartline.alerts a WHERE a.alert_id = t.alert_id)
                """),
        Step(what: "silences that are over", table: "silences", condition: "t.ends_at < $1"),
        Step(
            what: "superseded rows of config_delivery", table: "config_delivery",
            condition: """
                t.delivered_at < $1
                AND EXISTS (SELECT FROM heartline.config_delivery n
                             WHERE n.device_id = t.device_id AND n.version > t.version)
                """),
        Step(
            what: "superseded rows of config_versions", table: "config_versions",
            condition: """
                t.changed_at < $1
                AND EXISTS (SELECT FROM heartline.config_versions n
                             WHERE n.device_id = t.device_id AND n.version > t.version)
                """),
        // For as long a phone that was away is told what it missed.
        Step(
            what: "pushes", table: "pushes",
            condition: "t.created_at < least($1, now() - interval '30 days')"),
        Step(
            what: "messages", table: "messages",
            condition: "t.received_at < least($1, now() - interval '30 days')"),
        Step(
            what: "encounters", table: "encounters", condition: "t.met_at < $1"),
        Step(
            what: "reports of encounters", table: "encounter_reports",
            condition: "t.reported_at < $1"),
        // By the others the keys of connected people are found.
        Step(
            what: "waves of people who are not connected", table: "waves",
            condition: """
                t.waved_at < $1
                AND NOT EXISTS (SELECT FROM heartline.connections c
                                 WHERE c.first_account = least(t.from_account, t.to_account)
                                   AND c.second_account = greatest(t.from_account, t.to_account))
                """),
        Step(
            what: "registration tokens past their end", table: "registration_tokens",
            condition: "t.expires_at < $1"),
    ]

    private static let audit = Step(
        what: "rows of audit_log", table: "audit_log", condition: "t.at < $1")

    private func count(
        _ step: Step, _ connection: PostgresConnection, before cutoff: Int64
    ) throws(PostgresError) -> Int64 {
        try connection.execute(
            "SELECT count(*) FROM heartline.\(step.table) t WHERE \(step.condition)",
            .timestamptz(cutoff)
        ).only().int8(0)
    }

    /// In batches, so that nobody waits long for a lock.
    private func delete(
        _ step: Step, _ connection: PostgresConnection, before cutoff: Int64
    ) throws(PostgresError) -> Int64 {
        var total: Int64 = 0
        while true {
            let count = try connection.execute(
                """
                WITH gone AS (
                    DELETE FROM heartline.\(step.table) WHERE ctid = ANY (ARRAY(
                        SELECT t.ctid FROM heartline.\(step.table) t
                         WHERE \(step.condition) LIMIT 10000))
                    RETURNING 1)
                SELECT count(*) FROM gone
                """, .timestamptz(cutoff)
            ).only().int8(0)
            total += count
            if count == 0 { return total }
        }
    }
}
