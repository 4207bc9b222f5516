-- For analysts: views whose names and columns stay, and a role that may read them.
-- Applied once, under an advisory lock, in one transaction; never edited after a release.

CREATE VIEW heartline.fleet AS
    SELECT d.device_id, d.internal_address, d.suspended, d.expected_interval, d.created_at,
           d.version AS config_version, coalesce(s.state, 'unknown') AS state,
           coalesce(s.reason, 'never-heard') AS reason, coalesce(s.since, d.created_at) AS since,
           s.last_seen, s.last_handshake, s.tunnel_up, s.agent_status, s.agent_state, s.flags,
           coalesce(s.flapping, false) AS flapping, coalesce(s.transitions, 0) AS transitions
      FROM heartline.devices d LEFT JOIN heartline.device_status s USING (device_id);
COMMENT ON VIEW heartline.fleet IS 'Every device of the registry with the state it is in; no keys and no hardware ids.';
COMMENT ON COLUMN heartline.fleet.device_id IS 'The device.';
COMMENT ON COLUMN heartline.fleet.internal_address IS 'Its address in the tunnel.';
COMMENT ON COLUMN heartline.fleet.suspended IS 'Whether an operator has suspended it.';
COMMENT ON COLUMN heartline.fleet.expected_interval IS 'Its own heartbeat interval; null: the fleet''s.';
COMMENT ON COLUMN heartline.fleet.created_at IS 'When it was provisioned or added.';
COMMENT ON COLUMN heartline.fleet.config_version IS 'Version of its configuration in the registry.';
COMMENT ON COLUMN heartline.fleet.state IS 'State of its tunnel; unknown as long as nothing was heard of it.';
COMMENT ON COLUMN heartline.fleet.reason IS 'Why.';
COMMENT ON COLUMN heartline.fleet.since IS 'Since when.';
COMMENT ON COLUMN heartline.fleet.last_seen IS 'Last record of it, exact to within the pipeline''s refresh.';
COMMENT ON COLUMN heartline.fleet.last_handshake IS 'Last handshake that it told, by its own clock.';
COMMENT ON COLUMN heartline.fleet.tunnel_up IS 'Whether it said that its tunnel is up.';
COMMENT ON COLUMN heartline.fleet.agent_status IS 'The agent''s status.';
COMMENT ON COLUMN heartline.fleet.agent_state IS 'The agent''s own word.';
COMMENT ON COLUMN heartline.fleet.flags IS 'What was wrong with its last heartbeat.';
COMMENT ON COLUMN heartline.fleet.flapping IS 'Whether it changes its state too often to be told of each time.';
COMMENT ON COLUMN heartline.fleet.transitions IS 'Changes of its state so far.';

CREATE VIEW heartline.alert_history AS
    SELECT alert_id, kind, entity, device_id, reason, opened_at, resolved_at,
           resolved_at - opened_at AS lasted, acknowledged_at, acknowledged_by, device_count
      FROM heartline.alerts;
COMMENT ON VIEW heartline.alert_history IS 'Every alert with how long it lasted.';
COMMENT ON COLUMN heartline.alert_history.alert_id IS 'The alert.';
COMMENT ON COLUMN heartline.alert_history.kind IS 'offline, stale, down, flapping, or one for operators.';
COMMENT ON COLUMN heartline.alert_history.entity IS 'A device''s id, a front-end''s name, or fleet.';
COMMENT ON COLUMN heartline.alert_history.device_id IS 'The device; null: it is about none.';
COMMENT ON COLUMN heartline.alert_history.reason IS 'Why it opened.';
COMMENT ON COLUMN heartline.alert_history.opened_at IS 'When it opened.';
COMMENT ON COLUMN heartline.alert_history.resolved_at IS 'When it was resolved; null: it is open.';
COMMENT ON COLUMN heartline.alert_history.lasted IS 'How long it was open; null: it is.';
COMMENT ON COLUMN heartline.alert_history.acknowledged_at IS 'When somebody took it on; null: nobody did.';
COMMENT ON COLUMN heartline.alert_history.acknowledged_by IS 'Who.';
COMMENT ON COLUMN heartline.alert_history.device_count IS 'Devices that it is about, where it is about several.';

CREATE VIEW heartline.telemetry_hours AS
    SELECT device_id, name, date_trunc('hour', minute, 'UTC') AS hour, sum(samples)::int8 AS samples,
           CASE WHEN sum(samples) > 0 THEN sum(sum) / sum(samples) END AS mean,
           min(min) AS min, max(max) AS max, sum(late)::int8 AS late
      FROM heartline.telemetry_minutes GROUP BY device_id, name, date_trunc('hour', minute, 'UTC');
COMMENT ON VIEW heartline.telemetry_hours IS 'What devices measured, by name and hour of receipt.';
COMMENT ON COLUMN heartline.telemetry_hours.device_id IS 'The device.';
COMMENT ON COLUMN heartline.telemetry_hours.name IS 'The measurement.';
COMMENT ON COLUMN heartline.telemetry_hours.hour IS 'The hour, by its start.';
COMMENT ON COLUMN heartline.telemetry_hours.samples IS 'Samples received in it.';
COMMENT ON COLUMN heartline.telemetry_hours.mean IS 'Their mean; null without samples.';
COMMENT ON COLUMN heartline.telemetry_hours.min IS 'The smallest.';
COMMENT ON COLUMN heartline.telemetry_hours.max IS 'The largest.';
COMMENT ON COLUMN heartline.telemetry_hours.late IS 'Samples that came after their minute had closed; in no other column.';

CREATE VIEW heartline.match_minutes AS
    SELECT date_trunc('minute', connected_at, 'UTC') AS minute, count(*) AS matches
      FROM heartline.connections GROUP BY 1;
COMMENT ON VIEW heartline.match_minutes IS 'How many pairs came to be connected, by minute; it names nobody.';
COMMENT ON COLUMN heartline.match_minutes.minute IS 'The minute, by its start.';
COMMENT ON COLUMN heartline.match_minutes.matches IS 'Pairs whose second wave came in it.';

-- Roles are of the whole cluster, and not every owner of a database may make them: then an administrator
-- makes it (docs/queries.md) and calls grant_reader.
DO $$
BEGIN
    CREATE ROLE heartline_reader NOLOGIN;
EXCEPTION
    -- Another database of the cluster has it already, or is making it now.
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'role heartline_reader was not made: this user may not make roles';
END $$;

CREATE FUNCTION heartline.grant_reader(reader name DEFAULT 'heartline_reader') RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA heartline TO %I', reader);
    EXECUTE format(
        'GRANT SELECT ON heartline.fleet, heartline.alert_history, heartline.telemetry_hours,
            heartline.match_minutes, heartline.device_status, heartline.device_state_history,
            heartline.device_state_ended, heartline.device_uptime_days, heartline.fleet_minutes,
            heartline.config_versions, heartline.config_delivery, heartline.config_rollout,
            heartline.installations, heartline.update_attempts, heartline.rollout,
            heartline.telemetry_minutes, heartline.agent_logs, heartline.encounters TO %I', reader);
END $$;
COMMENT ON FUNCTION heartline.grant_reader IS 'Lets a role read what analysts may see: no keys, no tokens, no sessions, and nothing that names a person.';

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'heartline_reader') THEN
        PERFORM heartline.grant_reader();
    END IF;
END $$;
