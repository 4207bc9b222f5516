-- Agents: registration tokens, versions of configurations and their delivery, and what operators did.
-- Applied once, under an advisory lock, in one transaction; never edited after a release.

-- Registration tokens ----------------------------------------------------------------------------

CREATE TABLE heartline.registration_tokens (
    token_id uuid PRIMARY KEY,
    token_digest bytea NOT NULL UNIQUE CHECK (length(token_digest) = 32),
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    expires_at timestamptz NOT NULL,
    used_at timestamptz,
    revoked_at timestamptz,
    device_id uuid,
    note text NOT NULL DEFAULT ''
);
CREATE INDEX registration_tokens_by_expiry ON heartline.registration_tokens (expires_at);
COMMENT ON TABLE heartline.registration_tokens IS 'Registration tokens, each for one provisioning. The tokens themselves are not stored.';
COMMENT ON COLUMN heartline.registration_tokens.token_id IS 'Names the token to operators; it is not the token.';
COMMENT ON COLUMN heartline.registration_tokens.token_digest IS 'SHA-256 of the token''s 16 bytes.';
COMMENT ON COLUMN heartline.registration_tokens.created_at IS 'When it was made.';
COMMENT ON COLUMN heartline.registration_tokens.created_by IS 'The operator who made it.';
COMMENT ON COLUMN heartline.registration_tokens.expires_at IS 'From here on it is refused, used or not.';
COMMENT ON COLUMN heartline.registration_tokens.used_at IS 'When a device was provisioned with it; null: not yet.';
COMMENT ON COLUMN heartline.registration_tokens.revoked_at IS 'When an operator revoked it; from then on it has expired.';
COMMENT ON COLUMN heartline.registration_tokens.device_id IS 'The device that was provisioned with it.';
COMMENT ON COLUMN heartline.registration_tokens.note IS 'What the operator wrote beside it.';

-- Configurations ---------------------------------------------------------------------------------

CREATE TABLE heartline.config_versions (
    device_id uuid NOT NULL,
    partition int4 NOT NULL,
    version int8 NOT NULL,
    kind text NOT NULL,
    changed jsonb NOT NULL,
    config_hash text NOT NULL,
    forwards_hash text NOT NULL,
    reload_hash text NOT NULL,
    suspended boolean NOT NULL,
    changed_at timestamptz NOT NULL,
    changed_by text NOT NULL,
    request_id text,
    PRIMARY KEY (device_id, version)
);
CREATE INDEX config_versions_by_time ON heartline.config_versions (changed_at);
COMMENT ON TABLE heartline.config_versions IS 'Every version of every device''s configuration: what changed, when, and by whom.';
COMMENT ON COLUMN heartline.config_versions.device_id IS 'The device.';
COMMENT ON COLUMN heartline.config_versions.partition IS 'Partition of topic config-changes that the device''s records stand in.';
COMMENT ON COLUMN heartline.config_versions.version IS 'The registry''s version of the device; it only grows.';
COMMENT ON COLUMN heartline.config_versions.kind IS 'What was done: provisioned, reprovisioned, rotated, suspended, resumed, forwards, interval or removed.';
COMMENT ON COLUMN heartline.config_versions.changed IS 'What differs from the version before: any of "config", "forwards" and "suspended".';
COMMENT ON COLUMN heartline.config_versions.config_hash IS 'SHA-256 over the canonical tunnel settings (docs/config-hash.md).';
COMMENT ON COLUMN heartline.config_versions.forwards_hash IS 'SHA-256 over the canonical port forwards.';
COMMENT ON COLUMN heartline.config_versions.reload_hash IS 'SHA-256 over both: what the agent is answered as forwards_hash, and reloads upon.';
COMMENT ON COLUMN heartline.config_versions.suspended IS 'Whether the device is suspended in this version.';
COMMENT ON COLUMN heartline.config_versions.changed_at IS 'When the change was made.';
COMMENT ON COLUMN heartline.config_versions.changed_by IS 'The operator who made it, or provision.';
COMMENT ON COLUMN heartline.config_versions.request_id IS 'Id of the operator''s request.';

CREATE TABLE heartline.config_delivery (
    device_id uuid NOT NULL,
    partition int4 NOT NULL,
    version int8 NOT NULL,
    delivered_at timestamptz NOT NULL,
    PRIMARY KEY (device_id, version)
);
CREATE INDEX config_delivery_by_time ON heartline.config_delivery (delivered_at);
COMMENT ON TABLE heartline.config_delivery IS 'Which version of its configuration each device was answered, and since when: from its own heartbeats.';
COMMENT ON COLUMN heartline.config_delivery.device_id IS 'The device.';
COMMENT ON COLUMN heartline.config_delivery.partition IS 'Partition of topic heartbeats that the device''s records stand in.';
COMMENT ON COLUMN heartline.config_delivery.version IS 'The version that it was answered. One that was replaced before the device asked is not here.';
COMMENT ON COLUMN heartline.config_delivery.delivered_at IS 'Receipt time of the first heartbeat that was answered with it.';

CREATE VIEW heartline.config_rollout AS
    SELECT v.device_id, v.version, v.kind, v.reload_hash, v.suspended, v.changed_at, v.changed_by,
           d.version AS delivered_version, d.delivered_at,
           CASE WHEN v.suspended THEN 'suspended' WHEN d.version >= v.version THEN 'delivered'
                ELSE 'waiting' END AS state,
           CASE WHEN d.version >= v.version THEN d.delivered_at - v.changed_at END AS delay
      FROM (SELECT DISTINCT ON (device_id) * FROM heartline.config_versions
             ORDER BY device_id, version DESC) v
      LEFT JOIN LATERAL (SELECT version, delivered_at FROM heartline.config_delivery c
                          WHERE c.device_id = v.device_id ORDER BY version DESC LIMIT 1) d ON true
     WHERE v.kind <> 'removed';
COMMENT ON VIEW heartline.config_rollout IS 'The newest version of each device''s configuration beside the one that it was last answered.';
COMMENT ON COLUMN heartline.config_rollout.device_id IS 'The device.';
COMMENT ON COLUMN heartline.config_rollout.version IS 'The newest version.';
COMMENT ON COLUMN heartline.config_rollout.kind IS 'What made it.';
COMMENT ON COLUMN heartline.config_rollout.reload_hash IS 'What the agent is answered as forwards_hash.';
COMMENT ON COLUMN heartline.config_rollout.suspended IS 'Whether the device is suspended.';
COMMENT ON COLUMN heartline.config_rollout.changed_at IS 'When it was made.';
COMMENT ON COLUMN heartline.config_rollout.changed_by IS 'By whom.';
COMMENT ON COLUMN heartline.config_rollout.delivered_version IS 'The version that the device was last answered; null: none yet.';
COMMENT ON COLUMN heartline.config_rollout.delivered_at IS 'Since when it is answered that one.';
COMMENT ON COLUMN heartline.config_rollout.state IS 'delivered; waiting for the device''s next heartbeat; or suspended: the device is answered no configuration at all.';
COMMENT ON COLUMN heartline.config_rollout.delay IS 'From the change to the heartbeat that was answered with it; null while it is on its way.';

-- Pipelines --------------------------------------------------------------------------------------

-- Every pipeline of the releases before read heartbeats.
ALTER TABLE heartline.stream_partitions ADD COLUMN topic text NOT NULL DEFAULT 'heartbeats';
COMMENT ON COLUMN heartline.stream_partitions.topic IS 'The pipeline''s source topic, which the offsets are of.';

-- Operators --------------------------------------------------------------------------------------

CREATE TABLE heartline.audit_log (
    audit_id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL,
    action text NOT NULL,
    entity text NOT NULL,
    request_id text UNIQUE,
    request_digest bytea,
    details jsonb NOT NULL,
    answer jsonb NOT NULL
);
CREATE INDEX audit_log_by_entity ON heartline.audit_log (entity, audit_id);
COMMENT ON TABLE heartline.audit_log IS 'Everything that operators did, in order; no secrets. A request id stands here once, so a request that is repeated does nothing again.';
COMMENT ON COLUMN heartline.audit_log.audit_id IS 'Order of what was done.';
COMMENT ON COLUMN heartline.audit_log.at IS 'When.';
COMMENT ON COLUMN heartline.audit_log.actor IS 'The operator: who ran the command, or whom the request named.';
COMMENT ON COLUMN heartline.audit_log.action IS 'What, for example device.suspend or token.create.';
COMMENT ON COLUMN heartline.audit_log.entity IS 'The id of what it was done to; empty where it was done to many.';
COMMENT ON COLUMN heartline.audit_log.request_id IS 'The id of the request, where it had one.';
COMMENT ON COLUMN heartline.audit_log.request_digest IS 'SHA-256 of what was asked for: the same id for something else is an error.';
COMMENT ON COLUMN heartline.audit_log.details IS 'What was asked for.';
COMMENT ON COLUMN heartline.audit_log.answer IS 'What it was answered.';

-- Alerts of the whole fleet ----------------------------------------------------------------------

CREATE INDEX alerts_of_fleet ON heartline.alerts (kind, episode) WHERE entity = 'fleet';
COMMENT ON COLUMN heartline.alerts.kind IS 'offline, stale, down or flapping; for operators front-end-lost, ingest-silent and pool-exhausted.';
