-- Heartline's first tables: the runtime's own, the device registry, and tunnel health.
-- Applied once, under an advisory lock, in one transaction; never edited after a release.

CREATE SCHEMA IF NOT EXISTS heartline;
COMMENT ON SCHEMA heartline IS 'Heartline: what a fleet of devices says about itself, and what follows from it.';

-- The runtime ------------------------------------------------------------------------------------

CREATE TABLE heartline.topics (
    topic text PRIMARY KEY,
    partitions int4 NOT NULL CHECK (partitions BETWEEN 1 AND 10000),
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE heartline.topics IS 'Topics of the log with their fixed number of partitions. State is kept by partition, so a log that differs is an error.';
COMMENT ON COLUMN heartline.topics.topic IS 'Name of the topic.';
COMMENT ON COLUMN heartline.topics.partitions IS 'Number of partitions, fixed when the topic was created.';
COMMENT ON COLUMN heartline.topics.created_at IS 'When the topic was first used.';

CREATE TABLE heartline.stream_partitions (
    pipeline text NOT NULL,
    partition int4 NOT NULL,
    epoch int8 NOT NULL,
    next_offset int8 NOT NULL,
    start_offset int8 NOT NULL,
    outbox_sequence int8 NOT NULL DEFAULT 0,
    settings_revision text NOT NULL DEFAULT '',
    settings_offset int8 NOT NULL DEFAULT 0,
    owner text NOT NULL DEFAULT '',
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, partition)
);
COMMENT ON TABLE heartline.stream_partitions IS 'How far each pipeline has come in each partition. Committed together with the rows that follow from it.';
COMMENT ON COLUMN heartline.stream_partitions.pipeline IS 'Name of the pipeline.';
COMMENT ON COLUMN heartline.stream_partitions.partition IS 'Partition of the pipeline''s source topic.';
COMMENT ON COLUMN heartline.stream_partitions.epoch IS 'Grows with each worker that takes the partition over; a commit with an older epoch changes nothing.';
COMMENT ON COLUMN heartline.stream_partitions.next_offset IS 'The first offset whose effects are not in the tables yet.';
COMMENT ON COLUMN heartline.stream_partitions.start_offset IS 'The offset at which the pipeline began.';
COMMENT ON COLUMN heartline.stream_partitions.outbox_sequence IS 'The sequence that the next outbox event of this partition gets.';
COMMENT ON COLUMN heartline.stream_partitions.settings_revision IS 'Digest of the pipeline settings in force.';
COMMENT ON COLUMN heartline.stream_partitions.settings_offset IS 'The first offset that was judged with these settings.';
COMMENT ON COLUMN heartline.stream_partitions.owner IS 'Host and process of the worker that holds the partition, for people.';
COMMENT ON COLUMN heartline.stream_partitions.updated_at IS 'When the last commit was made.';

CREATE TABLE heartline.snapshots (
    pipeline text NOT NULL,
    partition int4 NOT NULL,
    chunk int4 NOT NULL,
    snapshot_offset int8 NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (pipeline, partition, chunk)
);
ALTER TABLE heartline.snapshots ALTER COLUMN bytes SET STORAGE EXTERNAL;
COMMENT ON TABLE heartline.snapshots IS 'The complete state of each partition at some offset, in chunks; the log after it makes the rest.';
COMMENT ON COLUMN heartline.snapshots.pipeline IS 'Name of the pipeline.';
COMMENT ON COLUMN heartline.snapshots.partition IS 'Partition of the pipeline''s source topic.';
COMMENT ON COLUMN heartline.snapshots.chunk IS 'Number of the chunk, from 0.';
COMMENT ON COLUMN heartline.snapshots.snapshot_offset IS 'The first offset that the state does not include.';
COMMENT ON COLUMN heartline.snapshots.bytes IS 'The chunk: a version, the state, and a checksum over all chunks.';

CREATE TABLE heartline.outbox (
    source text NOT NULL,
    partition int4 NOT NULL,
    sequence int8 NOT NULL,
    topic text NOT NULL,
    key bytea NOT NULL,
    value bytea,
    record_time timestamptz NOT NULL,
    PRIMARY KEY (source, partition, sequence)
);
COMMENT ON TABLE heartline.outbox IS 'Events that follow from a commit and are not acknowledged by the log yet. Published in order, at least once, then deleted.';
COMMENT ON COLUMN heartline.outbox.source IS 'The pipeline that made the event, or registry for what an operator or a provisioning did.';
COMMENT ON COLUMN heartline.outbox.partition IS 'Partition of the pipeline; 0 for the registry.';
COMMENT ON COLUMN heartline.outbox.sequence IS 'Order within source and partition; readers ignore a sequence they have seen.';
COMMENT ON COLUMN heartline.outbox.topic IS 'Topic that the event goes to.';
COMMENT ON COLUMN heartline.outbox.key IS 'The record''s key.';
COMMENT ON COLUMN heartline.outbox.value IS 'The record''s value; null is a tombstone.';
COMMENT ON COLUMN heartline.outbox.record_time IS 'The record''s timestamp.';

CREATE SEQUENCE heartline.registry_outbox_sequence;
COMMENT ON SEQUENCE heartline.registry_outbox_sequence IS 'Numbers the registry''s outbox events.';

-- Call it after the change that it tells of, in the same transaction, while that still holds the row lock
-- on the device: so the events of one device are numbered in the order in which they are committed.
CREATE FUNCTION heartline.add_registry_event(topic text, key bytea, value bytea, record_time timestamptz)
RETURNS int8 LANGUAGE sql AS $$
    INSERT INTO heartline.outbox (source, partition, sequence, topic, key, value, record_time)
    VALUES ('registry', 0, nextval('heartline.registry_outbox_sequence'), $1, $2, $3, $4);
    SELECT pg_notify('heartline_outbox', '');
    SELECT currval('heartline.registry_outbox_sequence');
$$;
COMMENT ON FUNCTION heartline.add_registry_event IS 'Adds an event of the registry to the outbox and wakes its publisher; returns its sequence.';

-- The registry -----------------------------------------------------------------------------------

CREATE TABLE heartline.network (
    "only" boolean PRIMARY KEY DEFAULT true CHECK ("only"),
    prefix cidr NOT NULL,
    server_address inet NOT NULL,
    server_public_key text NOT NULL,
    endpoint text NOT NULL,
    dns text NOT NULL,
    allowed_ips text NOT NULL,
    secret_check bytea NOT NULL
);
COMMENT ON TABLE heartline.network IS 'The WireGuard network that devices join: one row.';
COMMENT ON COLUMN heartline.network.only IS 'Always true: there is one row.';
COMMENT ON COLUMN heartline.network.prefix IS 'IPv4 prefix that device addresses come from.';
COMMENT ON COLUMN heartline.network.server_address IS 'The server''s own address in the prefix (server_wg_ip).';
COMMENT ON COLUMN heartline.network.server_public_key IS 'The server''s WireGuard public key, 64 hexadecimal digits (server_pub).';
COMMENT ON COLUMN heartline.network.endpoint IS 'Host and port that devices connect to.';
COMMENT ON COLUMN heartline.network.dns IS 'DNS server that devices are given.';
COMMENT ON COLUMN heartline.network.allowed_ips IS 'Allowed IPs that devices are given.';
COMMENT ON COLUMN heartline.network.secret_check IS 'A known text sealed under HEARTLINE_SECRET_KEY: tells a wrong key before anything is answered.';

CREATE TABLE heartline.devices (
    device_id uuid PRIMARY KEY,
    hardware_id bytea UNIQUE,
    internal_address inet NOT NULL UNIQUE,
    public_key text NOT NULL,
    sealed_secrets bytea NOT NULL,
    version int8 NOT NULL DEFAULT 1,
    suspended boolean NOT NULL DEFAULT false,
    expected_interval interval CHECK (expected_interval BETWEEN interval '1 second' AND interval '7 days'),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE heartline.devices IS 'The registry: every device that was provisioned or added.';
COMMENT ON COLUMN heartline.devices.device_id IS 'The device''s id; what its heartbeats carry.';
COMMENT ON COLUMN heartline.devices.hardware_id IS 'The hardware id of its provisioning, byte by byte; null where it was added by hand or never known.';
COMMENT ON COLUMN heartline.devices.internal_address IS 'Its address in the tunnel (internal_ip).';
COMMENT ON COLUMN heartline.devices.public_key IS 'Its WireGuard public key, 64 hexadecimal digits.';
COMMENT ON COLUMN heartline.devices.sealed_secrets IS 'Private and preshared key, sealed with AES-256-GCM under HEARTLINE_SECRET_KEY.';
COMMENT ON COLUMN heartline.devices.version IS 'Grows with each change of the device''s configuration or suspension.';
COMMENT ON COLUMN heartline.devices.suspended IS 'Suspended by an operator: heartbeats are answered 403.';
COMMENT ON COLUMN heartline.devices.expected_interval IS 'The device''s own heartbeat interval; null: the fleet''s.';
COMMENT ON COLUMN heartline.devices.created_at IS 'When it was added.';
COMMENT ON COLUMN heartline.devices.updated_at IS 'When it was last changed.';

CREATE TABLE heartline.forwards (
    device_id uuid NOT NULL REFERENCES heartline.devices ON DELETE CASCADE,
    protocol text NOT NULL CHECK (protocol IN ('tcp', 'udp')),
    listen_port int4 NOT NULL CHECK (listen_port BETWEEN 1 AND 65535),
    target_host text NOT NULL,
    target_port int4 NOT NULL CHECK (target_port BETWEEN 1 AND 65535),
    PRIMARY KEY (device_id, protocol, listen_port)
);
COMMENT ON TABLE heartline.forwards IS 'Port forwards of devices.';
COMMENT ON COLUMN heartline.forwards.device_id IS 'The device.';
COMMENT ON COLUMN heartline.forwards.protocol IS 'tcp or udp.';
COMMENT ON COLUMN heartline.forwards.listen_port IS 'Port that is listened on.';
COMMENT ON COLUMN heartline.forwards.target_host IS 'Address or host that it leads to.';
COMMENT ON COLUMN heartline.forwards.target_port IS 'Port that it leads to.';

-- Tunnel health ----------------------------------------------------------------------------------

CREATE TABLE heartline.device_status (
    device_id uuid PRIMARY KEY,
    partition int4 NOT NULL,
    state text NOT NULL,
    reason text NOT NULL,
    since timestamptz NOT NULL,
    last_seen timestamptz,
    last_handshake timestamptz,
    tunnel_up boolean,
    agent_status text,
    agent_state text,
    flags jsonb NOT NULL,
    flapping boolean NOT NULL,
    transitions int8 NOT NULL
) WITH (fillfactor = 80);
CREATE INDEX device_status_by_state ON heartline.device_status (state, since);
COMMENT ON TABLE heartline.device_status IS 'Every device now. State, reason and since are exact; last_seen and last_handshake are exact to within the pipeline''s refresh (120 s).';
COMMENT ON COLUMN heartline.device_status.device_id IS 'The device.';
COMMENT ON COLUMN heartline.device_status.partition IS 'Partition of topic heartbeats that the device''s records stand in.';
COMMENT ON COLUMN heartline.device_status.state IS 'suspended, offline, stopped, recovering, down, stale, healthy or unknown.';
COMMENT ON COLUMN heartline.device_status.reason IS 'Why the state holds, for example silent, tunnel-down, handshake-old, never-handshaken.';
COMMENT ON COLUMN heartline.device_status.since IS 'When the state began.';
COMMENT ON COLUMN heartline.device_status.last_seen IS 'Receipt time of the last heartbeat; null if none came yet.';
COMMENT ON COLUMN heartline.device_status.last_handshake IS 'The newest WireGuard handshake that the device reported, by its own clock.';
COMMENT ON COLUMN heartline.device_status.tunnel_up IS 'What the device last said of its tunnel; null if it never did.';
COMMENT ON COLUMN heartline.device_status.agent_status IS 'The agent''s status: connected, recovering, stopped or other.';
COMMENT ON COLUMN heartline.device_status.agent_state IS 'The agent''s free-form state, up to 120 bytes; U+0000 is replaced by U+FFFD.';
COMMENT ON COLUMN heartline.device_status.flags IS 'What was wrong with the last heartbeat that was taken all the same, for example ["clock-skew"].';
COMMENT ON COLUMN heartline.device_status.flapping IS 'The state changed six times or more in ten minutes.';
COMMENT ON COLUMN heartline.device_status.transitions IS 'Number of the current interval of device_state_history, from 0.';

CREATE TABLE heartline.device_state_ended (
    device_id uuid NOT NULL,
    partition int4 NOT NULL,
    transition int8 NOT NULL,
    state text NOT NULL,
    reason text NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL
) PARTITION BY RANGE (ended_at);
CREATE INDEX device_state_ended_by_device ON heartline.device_state_ended (device_id, transition);
CREATE TABLE heartline.device_state_ended_default PARTITION OF heartline.device_state_ended DEFAULT;
COMMENT ON TABLE heartline.device_state_ended IS 'Intervals of device states that are over; device_state_history adds the ones that hold. Partitioned by day of ended_at.';
COMMENT ON COLUMN heartline.device_state_ended.device_id IS 'The device.';
COMMENT ON COLUMN heartline.device_state_ended.partition IS 'Partition of topic heartbeats.';
COMMENT ON COLUMN heartline.device_state_ended.transition IS 'Number of the interval, from 0, without gaps.';
COMMENT ON COLUMN heartline.device_state_ended.state IS 'The state that held.';
COMMENT ON COLUMN heartline.device_state_ended.reason IS 'Why it held.';
COMMENT ON COLUMN heartline.device_state_ended.started_at IS 'When it began; the end of the interval before it.';
COMMENT ON COLUMN heartline.device_state_ended.ended_at IS 'When it ended.';

CREATE VIEW heartline.device_state_history AS
    SELECT device_id, transition, state, reason, started_at, ended_at
      FROM heartline.device_state_ended
    UNION ALL
    SELECT device_id, transitions, state, reason, since, NULL
      FROM heartline.device_status;
COMMENT ON VIEW heartline.device_state_history IS 'The states of every device as intervals, without gaps or overlaps; ended_at is null for the one that holds.';
COMMENT ON COLUMN heartline.device_state_history.device_id IS 'The device.';
COMMENT ON COLUMN heartline.device_state_history.transition IS 'Number of the interval, from 0, without gaps.';
COMMENT ON COLUMN heartline.device_state_history.state IS 'The state.';
COMMENT ON COLUMN heartline.device_state_history.reason IS 'Why it holds or held.';
COMMENT ON COLUMN heartline.device_state_history.started_at IS 'When it began.';
COMMENT ON COLUMN heartline.device_state_history.ended_at IS 'When it ended; null while it holds.';

CREATE TABLE heartline.fleet_minutes_by_partition (
    partition int4 NOT NULL,
    minute timestamptz NOT NULL,
    state text NOT NULL,
    devices int8 NOT NULL,
    PRIMARY KEY (minute, partition, state)
);
COMMENT ON TABLE heartline.fleet_minutes_by_partition IS 'Devices by state at the end of each minute, by partition; fleet_minutes adds them up.';
COMMENT ON COLUMN heartline.fleet_minutes_by_partition.partition IS 'Partition of topic heartbeats.';
COMMENT ON COLUMN heartline.fleet_minutes_by_partition.minute IS 'The minute, by its start.';
COMMENT ON COLUMN heartline.fleet_minutes_by_partition.state IS 'The state.';
COMMENT ON COLUMN heartline.fleet_minutes_by_partition.devices IS 'Devices in that state at the end of the minute.';

CREATE VIEW heartline.fleet_minutes AS
    SELECT minute, state, sum(devices)::int8 AS devices
      FROM heartline.fleet_minutes_by_partition GROUP BY minute, state;
COMMENT ON VIEW heartline.fleet_minutes IS 'The fleet by state and minute.';
COMMENT ON COLUMN heartline.fleet_minutes.minute IS 'The minute, by its start.';
COMMENT ON COLUMN heartline.fleet_minutes.state IS 'The state.';
COMMENT ON COLUMN heartline.fleet_minutes.devices IS 'Devices in that state at the end of the minute.';

CREATE TABLE heartline.alerts (
    alert_id uuid PRIMARY KEY,
    kind text NOT NULL,
    entity text NOT NULL,
    device_id uuid,
    episode int8 NOT NULL,
    partition int4 NOT NULL,
    reason text NOT NULL,
    opened_at timestamptz NOT NULL,
    resolved_at timestamptz
);
CREATE INDEX alerts_open ON heartline.alerts (kind, opened_at) WHERE resolved_at IS NULL;
CREATE INDEX alerts_by_device ON heartline.alerts (device_id, opened_at);
COMMENT ON TABLE heartline.alerts IS 'Alerts: each opens once and resolves once.';
COMMENT ON COLUMN heartline.alerts.alert_id IS 'Derived from kind, entity and episode, so a replay makes the same one.';
COMMENT ON COLUMN heartline.alerts.kind IS 'offline, stale, down or flapping; for operators front-end-lost and ingest-silent.';
COMMENT ON COLUMN heartline.alerts.entity IS 'The device''s id, a front-end''s name, or fleet.';
COMMENT ON COLUMN heartline.alerts.device_id IS 'The device, where the alert is about one.';
COMMENT ON COLUMN heartline.alerts.episode IS 'How many alerts of this kind the entity had before.';
COMMENT ON COLUMN heartline.alerts.partition IS 'Partition of topic heartbeats that raised it.';
COMMENT ON COLUMN heartline.alerts.reason IS 'Why it was raised.';
COMMENT ON COLUMN heartline.alerts.opened_at IS 'When its cause began.';
COMMENT ON COLUMN heartline.alerts.resolved_at IS 'When its cause ended; null while it is open.';

-- Makes the day partitions of the history tables from `first` to `last`; the default partition holds
-- what no day was made for.
CREATE FUNCTION heartline.ensure_day_partitions(first date, last date) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    day date := first;
    name text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('heartline.ensure_day_partitions'));
    WHILE day <= last LOOP
        name := 'device_state_ended_' || to_char(day, 'YYYYMMDD');
        IF to_regclass('heartline.' || name) IS NULL
           AND NOT EXISTS (SELECT FROM heartline.device_state_ended_default
                            WHERE ended_at >= day::timestamp AT TIME ZONE 'UTC'
                              AND ended_at < (day + 1)::timestamp AT TIME ZONE 'UTC') THEN
            EXECUTE format(
                'CREATE TABLE heartline.%I PARTITION OF heartline.device_state_ended FOR VALUES FROM (%L) TO (%L)',
                name, day::timestamp AT TIME ZONE 'UTC', (day + 1)::timestamp AT TIME ZONE 'UTC');
        END IF;
        day := day + 1;
    END LOOP;
END
$$;
COMMENT ON FUNCTION heartline.ensure_day_partitions IS 'Makes the day partitions of the history tables.';
