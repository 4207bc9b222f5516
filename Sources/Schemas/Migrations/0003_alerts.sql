-- Alerts on their way to people: what the dispatcher decided, deliveries, silences.
-- Applied once, under an advisory lock, in one transaction; never edited after a release.

ALTER TABLE heartline.alerts
    ADD COLUMN acknowledged_at timestamptz,
    ADD COLUMN acknowledged_by text,
    ADD COLUMN device_count int8;
COMMENT ON COLUMN heartline.alerts.acknowledged_at IS 'When an operator said that they look after it; null: nobody did.';
COMMENT ON COLUMN heartline.alerts.acknowledged_by IS 'The operator who did.';
COMMENT ON COLUMN heartline.alerts.device_count IS 'How many devices a mass-offline alert is about, as of its opening; null for other kinds.';

COMMENT ON COLUMN heartline.alerts.kind IS 'offline, stale, down or flapping; for operators front-end-lost, ingest-silent, mass-offline and pool-exhausted.';

-- What the dispatcher has yet to look at: written by the transaction that changes the alert, so nothing is
-- overlooked, however late it commits.
CREATE TABLE heartline.alert_news (
    alert_id uuid NOT NULL
);
COMMENT ON TABLE heartline.alert_news IS 'Alerts that were opened or resolved and that the dispatcher has yet to look at.';
COMMENT ON COLUMN heartline.alert_news.alert_id IS 'The alert.';

CREATE FUNCTION heartline.note_alerts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO heartline.alert_news SELECT alert_id FROM changed;
    IF FOUND THEN
        PERFORM pg_notify('heartline_alerts', '');
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER alerts_inserted AFTER INSERT ON heartline.alerts
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION heartline.note_alerts();
CREATE TRIGGER alerts_updated AFTER UPDATE ON heartline.alerts
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION heartline.note_alerts();

-- What receivers are sent of an alert.
CREATE FUNCTION heartline.alert_payload(a heartline.alerts, event text) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
               'v', 1, 'id', a.alert_id || ':' || event, 'alert_id', a.alert_id, 'event', event,
               'kind', a.kind, 'entity', a.entity, 'device_id', a.device_id, 'reason', a.reason,
               'opened_at', to_char(a.opened_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
               'resolved_at', CASE WHEN event = 'resolved' THEN
                   to_char(a.resolved_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') END)
           || CASE WHEN a.device_count IS NULL THEN '{}'
                   ELSE jsonb_build_object('count', a.device_count) END
$$;

CREATE TABLE heartline.alert_dispatch (
    alert_id uuid PRIMARY KEY,
    state text NOT NULL CHECK (state IN ('held', 'silenced', 'grouped', 'sent', 'ended')),
    group_id uuid,
    seen_at timestamptz NOT NULL,
    decided_at timestamptz NOT NULL
);
CREATE INDEX alert_dispatch_open ON heartline.alert_dispatch (state) WHERE state <> 'ended';
CREATE INDEX alert_dispatch_by_group ON heartline.alert_dispatch (group_id) WHERE group_id IS NOT NULL;
COMMENT ON TABLE heartline.alert_dispatch IS 'What the dispatcher decided of each alert. By the database''s clock.';
COMMENT ON COLUMN heartline.alert_dispatch.alert_id IS 'The alert.';
COMMENT ON COLUMN heartline.alert_dispatch.state IS 'held (waits for others of its kind), silenced, grouped (told of by a mass-offline alert), sent, or ended.';
COMMENT ON COLUMN heartline.alert_dispatch.group_id IS 'The mass-offline alert that tells of it.';
COMMENT ON COLUMN heartline.alert_dispatch.seen_at IS 'When the dispatcher saw it first.';
COMMENT ON COLUMN heartline.alert_dispatch.decided_at IS 'Since when the state holds.';

CREATE TABLE heartline.alert_deliveries (
    delivery_id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    receiver text NOT NULL,
    alert_id uuid NOT NULL,
    entity text NOT NULL,
    event text NOT NULL CHECK (event IN ('firing', 'resolved')),
    payload jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    attempts int4 NOT NULL DEFAULT 0,
    next_attempt_at timestamptz NOT NULL,
    delivered_at timestamptz,
    last_error text,
    UNIQUE (alert_id, receiver, event)
);
CREATE INDEX alert_deliveries_waiting ON heartline.alert_deliveries (receiver, delivery_id) WHERE delivered_at IS NULL;
CREATE INDEX alert_deliveries_by_entity ON heartline.alert_deliveries (receiver, entity, delivery_id) WHERE delivered_at IS NULL;
COMMENT ON TABLE heartline.alert_deliveries IS 'Messages to receivers, in order for each receiver and entity, until the receiver acknowledged them.';
COMMENT ON COLUMN heartline.alert_deliveries.delivery_id IS 'Order.';
COMMENT ON COLUMN heartline.alert_deliveries.receiver IS 'The receiver''s name.';
COMMENT ON COLUMN heartline.alert_deliveries.alert_id IS 'The alert; with the event the key by which a receiver can tell a repeat.';
COMMENT ON COLUMN heartline.alert_deliveries.entity IS 'The device, front-end or fleet that it is about.';
COMMENT ON COLUMN heartline.alert_deliveries.event IS 'firing or resolved.';
COMMENT ON COLUMN heartline.alert_deliveries.payload IS 'What is sent.';
COMMENT ON COLUMN heartline.alert_deliveries.created_at IS 'When it was decided to send it.';
COMMENT ON COLUMN heartline.alert_deliveries.attempts IS 'Times that sending failed.';
COMMENT ON COLUMN heartline.alert_deliveries.next_attempt_at IS 'Not tried before.';
COMMENT ON COLUMN heartline.alert_deliveries.delivered_at IS 'When the receiver acknowledged it; null: not yet.';
COMMENT ON COLUMN heartline.alert_deliveries.last_error IS 'Why the last try failed.';

CREATE TABLE heartline.silences (
    silence_id uuid PRIMARY KEY,
    device_id uuid,
    kind text,
    starts_at timestamptz NOT NULL,
    ends_at timestamptz NOT NULL CHECK (ends_at > starts_at),
    reason text NOT NULL,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX silences_by_end ON heartline.silences (ends_at);
COMMENT ON TABLE heartline.silences IS 'Silences and maintenance windows: alerts that match are not sent while one holds, and are sent when it ends and their cause persists.';
COMMENT ON COLUMN heartline.silences.silence_id IS 'Names it to operators.';
COMMENT ON COLUMN heartline.silences.device_id IS 'Alerts of this device; null: of any.';
COMMENT ON COLUMN heartline.silences.kind IS 'Alerts of this kind; null: of any.';
COMMENT ON COLUMN heartline.silences.starts_at IS 'From here on.';
COMMENT ON COLUMN heartline.silences.ends_at IS 'Up to here; ending it early sets it to that time.';
COMMENT ON COLUMN heartline.silences.reason IS 'Why.';
COMMENT ON COLUMN heartline.silences.created_by IS 'The operator.';
COMMENT ON COLUMN heartline.silences.created_at IS 'When it was made.';

-- History ----------------------------------------------------------------------------------------

CREATE VIEW heartline.device_uptime_days AS
    SELECT device_id, day,
           sum(seconds) FILTER (WHERE state NOT IN ('unknown', 'stopped', 'suspended', 'removed'))::float8
               AS seconds_known,
           COALESCE(sum(seconds) FILTER (WHERE state = 'healthy'), 0)::float8 AS seconds_up,
           (COALESCE(sum(seconds) FILTER (WHERE state = 'healthy'), 0)
               / sum(seconds) FILTER (WHERE state NOT IN ('unknown', 'stopped', 'suspended', 'removed')))::float8
               AS share
      FROM (SELECT h.device_id, h.state, d.day::date AS day,
                   EXTRACT(epoch FROM LEAST(COALESCE(h.ended_at, now()), (d.day + interval '1 day') AT TIME ZONE 'UTC')
                                    - GREATEST(h.started_at, d.day AT TIME ZONE 'UTC')) AS seconds
              FROM heartline.device_state_history h
             CROSS JOIN LATERAL generate_series(
                       date_trunc('day', h.started_at AT TIME ZONE 'UTC'),
                       COALESCE(h.ended_at, now()) AT TIME ZONE 'UTC', interval '1 day') AS d(day)) pieces
     WHERE seconds > 0
     GROUP BY device_id, day;
COMMENT ON VIEW heartline.device_uptime_days IS 'For each device and day (UTC) how long its tunnel was up. Known: healthy, stale, down, recovering or offline; what was unknown, stopped by the agent or suspended counts neither way.';
COMMENT ON COLUMN heartline.device_uptime_days.device_id IS 'The device.';
COMMENT ON COLUMN heartline.device_uptime_days.day IS 'The day, in UTC.';
COMMENT ON COLUMN heartline.device_uptime_days.seconds_known IS 'Seconds of the day that are judged, up to now; null if none were.';
COMMENT ON COLUMN heartline.device_uptime_days.seconds_up IS 'Seconds in which it was healthy. A stale tunnel is not up: its keys are no longer valid.';
COMMENT ON COLUMN heartline.device_uptime_days.share IS 'seconds_up / seconds_known, from 0 to 1; null if nothing is known.';
