/// The worked queries of docs/queries.md.
struct AnalystQuery {
    var title: String
    /// What it answers, and what to mind.
    var text: String
    var sql: String

    static let all: [AnalystQuery] = [
        AnalystQuery(
            title: "The fleet now, by state",
            text: "`fleet` has every device of the registry, also those that were never heard of.",
            sql: """
                SELECT state, count(*) AS devices, count(*) FILTER (WHERE flapping) AS flapping
                  FROM heartline.fleet
                 WHERE NOT suspended
                 GROUP BY state
                 ORDER BY devices DESC, state;
                """),
        AnalystQuery(
            title: "Devices that need somebody",
            text:
                "What is not healthy, the longest first. `last_seen` is exact to within two minutes (`refresh` of the pipeline).",
            sql: """
                SELECT device_id, internal_address, state, reason, since, last_seen
                  FROM heartline.fleet
                 WHERE NOT suspended AND state NOT IN ('healthy', 'stopped')
                 ORDER BY since;
                """),
        AnalystQuery(
            title: "How long devices were offline, by day",
            text:
                "`device_state_history` has intervals without gaps; `ended_at` is null for the one that holds. An interval counts here for the day on which it began.",
            sql: """
                SELECT (started_at AT TIME ZONE 'UTC')::date AS day, count(*) AS outages,
                       count(DISTINCT device_id) AS devices,
                       justify_interval(avg(ended_at - started_at)) AS mean, max(ended_at - started_at) AS longest
                  FROM heartline.device_state_history
                 WHERE state = 'offline' AND ended_at IS NOT NULL
                 GROUP BY day
                 ORDER BY day;
                """),
        AnalystQuery(
            title: "Uptime of each device on a day",
            text:
                "`share` is the time in state `healthy`, of the time in which its state was known and not wanted otherwise. The five worst.",
            sql: """
                SELECT device_id, round(seconds_up) AS seconds_up, round((100 * share)::numeric, 2) AS percent
                  FROM heartline.device_uptime_days
                 WHERE day = '2026-06-01'
                 ORDER BY share, device_id
                 LIMIT 5;
                """),
        AnalystQuery(
            title: "The fleet over an evening",
            text:
                "`fleet_minutes` has one row for each state and minute; `generate_series` fills minutes without one where that matters.",
            sql: """
                SELECT minute, sum(devices) FILTER (WHERE state = 'healthy') AS healthy,
                       sum(devices) FILTER (WHERE state = 'offline') AS offline
                  FROM heartline.fleet_minutes
                 WHERE minute >= '2026-06-02T20:10Z' AND minute < '2026-06-02T20:30Z'
                 GROUP BY minute
                 ORDER BY minute;
                """),
        AnalystQuery(
            title: "Alerts by kind, and how long they lasted",
            text: "Open ones have no end, so they are in `open` and in no other figure.",
            sql: """
                SELECT kind, count(*) AS alerts, count(*) FILTER (WHERE resolved_at IS NULL) AS open,
                       percentile_disc(0.5) WITHIN GROUP (ORDER BY lasted) AS half, max(lasted) AS longest
                  FROM heartline.alert_history
                 GROUP BY kind
                 ORDER BY kind;
                """),
        AnalystQuery(
            title: "How far a change of configuration has come",
            text:
                "`config_rollout` has each device's newest version beside the one that it was last answered.",
            sql: """
                SELECT state, count(*) AS devices, min(delay) AS soonest, max(delay) AS latest
                  FROM heartline.config_rollout
                 WHERE changed_at >= '2026-06-02T12:00Z'
                 GROUP BY state
                 ORDER BY devices DESC, state;
                """),
        AnalystQuery(
            title: "How a release does",
            text:
                "Attempts that ended without a result are `unconfirmed`: never counted as a success until a later check proves it.",
            sql: """
                SELECT to_release AS release, state, count(*) AS attempts,
                       round(avg(download_ms)) AS download_ms, round(avg(install_ms)) AS install_ms,
                       max(reason) AS a_reason
                  FROM heartline.update_attempts
                 WHERE action = 'install' AND started_at >= '2026-06-02'
                 GROUP BY to_release, state
                 ORDER BY attempts DESC;
                """),
        AnalystQuery(
            title: "A measurement by hour, with the lines of the log beside it",
            text: """
                Minutes are of receipt and closed once, so a sum over `telemetry_minutes` never changes afterwards. Logs are \
                searched by `search`, which an index serves.
                """,
            sql: """
                SELECT t.device_id, t.hour, t.samples, round(t.mean::numeric, 1) AS mean_ms, t.max AS max_ms,
                       count(l.ts) AS timeouts
                  FROM heartline.telemetry_hours t
                  LEFT JOIN heartline.agent_logs l
                    ON l.device_id = t.device_id AND l.received_at >= t.hour
                   AND l.received_at < t.hour + interval '1 hour'
                   AND l.search @@ websearch_to_tsquery('simple', 'handshake timeout')
                 WHERE t.name = 'rtt_ms'
                 GROUP BY t.device_id, t.hour, t.samples, t.mean, t.max
                 ORDER BY t.hour, t.device_id;
                """),
        AnalystQuery(
            title: "Where people meet",
            text:
                "Encounters name nobody and have five characters of a geohash, a cell of about five kilometres. Small numbers may still tell of one person: leave them out before you publish.",
            sql: """
                SELECT geohash, date_trunc('hour', met_at, 'UTC') AS hour, count(*) AS encounters,
                       count(*) FILTER (WHERE tier = 1) AS within_reach
                  FROM heartline.encounters
                 GROUP BY geohash, hour
                HAVING count(*) >= 3
                 ORDER BY hour, geohash;
                """),
    ]
}
