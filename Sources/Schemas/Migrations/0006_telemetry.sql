-- Telemetry: what devices measure, by the minute, and what they write into their logs.
-- Applied once, under an advisory lock, in one transaction; never edited after a release.

CREATE TABLE heartline.telemetry_minutes (
    device_id uuid NOT NULL,
    partition int4 NOT NULL,
    name text NOT NULL,
    minute timestamptz NOT NULL,
    samples int8 NOT NULL,
    sum float8 NOT NULL,
    min float8,
    max float8,
    last float8,
    last_ts timestamptz,
    late int8 NOT NULL
) PARTITION BY RANGE (minute);
CREATE INDEX telemetry_minutes_by_device ON heartline.telemetry_minutes (device_id, name, minute);
CREATE INDEX telemetry_minutes_by_name ON heartline.telemetry_minutes (name, minute);
CREATE TABLE heartline.telemetry_minutes_default PARTITION OF heartline.telemetry_minutes DEFAULT;
COMMENT ON TABLE heartline.telemetry_minutes IS 'What devices measured, by name and minute of receipt; a row is written once, when its minute has closed. Partitioned by day of minute.';
COMMENT ON COLUMN heartline.telemetry_minutes.device_id IS 'The device.';
COMMENT ON COLUMN heartline.telemetry_minutes.partition IS 'Partition of topic telemetry.';
COMMENT ON COLUMN heartline.telemetry_minutes.name IS 'The measurement, as the device names it; other: all names of the device beyond those that are kept apart.';
COMMENT ON COLUMN heartline.telemetry_minutes.minute IS 'The minute of receipt, by its start.';
COMMENT ON COLUMN heartline.telemetry_minutes.samples IS 'Samples received in the minute.';
COMMENT ON COLUMN heartline.telemetry_minutes.sum IS 'Sum of their values; divided by samples: the mean.';
COMMENT ON COLUMN heartline.telemetry_minutes.min IS 'The smallest; null without samples.';
COMMENT ON COLUMN heartline.telemetry_minutes.max IS 'The largest; null without samples.';
COMMENT ON COLUMN heartline.telemetry_minutes.last IS 'The one with the newest ts; of several the one received last. Null without samples.';
COMMENT ON COLUMN heartline.telemetry_minutes.last_ts IS 'The time of last by the device''s own clock.';
COMMENT ON COLUMN heartline.telemetry_minutes.late IS 'Samples of older minutes that had closed, read during this one. They are in no other column.';

CREATE TABLE heartline.agent_logs (
    device_id uuid NOT NULL,
    partition int4 NOT NULL,
    received_at timestamptz NOT NULL,
    ts timestamptz NOT NULL,
    level text NOT NULL,
    tag text NOT NULL,
    message text NOT NULL,
    search tsvector NOT NULL GENERATED ALWAYS AS (to_tsvector('simple', tag || ' ' || message)) STORED
) PARTITION BY RANGE (received_at);
CREATE INDEX agent_logs_by_device ON heartline.agent_logs (device_id, received_at);
CREATE INDEX agent_logs_search ON heartline.agent_logs USING gin (search);
CREATE TABLE heartline.agent_logs_default PARTITION OF heartline.agent_logs DEFAULT;
COMMENT ON TABLE heartline.agent_logs IS 'Lines of the agents'' logs. Partitioned by day of received_at. To search: WHERE search @@ websearch_to_tsquery(''simple'', ''handshake timeout'').';
COMMENT ON COLUMN heartline.agent_logs.device_id IS 'The device.';
COMMENT ON COLUMN heartline.agent_logs.partition IS 'Partition of topic telemetry.';
COMMENT ON COLUMN heartline.agent_logs.received_at IS 'Receipt.';
COMMENT ON COLUMN heartline.agent_logs.ts IS 'When it was written, by the device''s own clock.';
COMMENT ON COLUMN heartline.agent_logs.level IS 'As the agent names it, in lower case.';
COMMENT ON COLUMN heartline.agent_logs.tag IS 'What part of the agent wrote it; empty: not told.';
COMMENT ON COLUMN heartline.agent_logs.message IS 'The line, up to 8 KiB of it.';
COMMENT ON COLUMN heartline.agent_logs.search IS 'The words of tag and message, for full text search.';

-- Makes the day partitions of every table of ours that has a default partition.
CREATE OR REPLACE FUNCTION heartline.ensure_day_partitions(first date, last date) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    history record;
    day date;
    name text;
    begins timestamptz;
    ends timestamptz;
    is_taken boolean;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('heartline.ensure_day_partitions'));
    FOR history IN
        SELECT c.relname, a.attname
          FROM pg_partitioned_table p
          JOIN pg_class c ON c.oid = p.partrelid
          JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = p.partattrs[0]
         WHERE c.relnamespace = 'heartline'::regnamespace AND p.partdefid <> 0
           AND a.atttypid = 'timestamptz'::regtype
         ORDER BY c.relname
    LOOP
        day := first;
        WHILE day <= last LOOP
            name := history.relname || '_' || to_char(day, 'YYYYMMDD');
            begins := day::timestamp AT TIME ZONE 'UTC';
            ends := (day + 1)::timestamp AT TIME ZONE 'UTC';
            IF to_regclass('heartline.' || name) IS NULL THEN
                EXECUTE format(
                    'SELECT EXISTS (SELECT FROM heartline.%I WHERE %I >= $1 AND %I < $2)',
                    history.relname || '_default', history.attname, history.attname)
                    INTO is_taken USING begins, ends;
                IF NOT is_taken THEN
                    EXECUTE format(
                        'CREATE TABLE heartline.%I PARTITION OF heartline.%I FOR VALUES FROM (%L) TO (%L)',
                        name, history.relname, begins, ends);
                END IF;
            END IF;
            day := day + 1;
        END LOOP;
    END LOOP;
END
$$;
