-- A fleet that is always the same, for docs/queries.md: 24 devices over two days of June 2026.
-- Device n has the id 00000000-0000-4000-8000-0000000000nn.

CREATE FUNCTION pg_temp.device(n int) RETURNS uuid LANGUAGE sql IMMUTABLE AS
    $$ SELECT ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid $$;

INSERT INTO heartline.devices
    (device_id, internal_address, public_key, sealed_secrets, version, suspended, created_at)
SELECT pg_temp.device(n), ('10.64.0.' || n + 1)::inet, repeat('0', 64), '\x00', 1 + n % 3, n = 24,
       '2026-06-01T00:00:00Z'
  FROM generate_series(1, 24) n;

-- Devices 1 to 6 are offline for 10 n minutes each morning; 7 to 9 are stale for an hour in the evening.
INSERT INTO heartline.device_state_ended
    (device_id, partition, transition, state, reason, started_at, ended_at)
SELECT pg_temp.device(n), n % 4, i, state, reason, starts, ends
  FROM generate_series(1, 6) n,
       LATERAL (VALUES
           (0, 'healthy', 'handshake-fresh', '2026-06-01T00:00Z'::timestamptz, '2026-06-01T06:00Z'::timestamptz),
           (1, 'offline', 'silent', '2026-06-01T06:00Z', '2026-06-01T06:00Z'::timestamptz + n * interval '10 min'),
           (2, 'healthy', 'handshake-fresh', '2026-06-01T06:00Z'::timestamptz + n * interval '10 min', '2026-06-02T06:00Z'),
           (3, 'offline', 'silent', '2026-06-02T06:00Z', '2026-06-02T06:00Z'::timestamptz + n * interval '10 min')
       ) s (i, state, reason, starts, ends);
INSERT INTO heartline.device_state_ended
    (device_id, partition, transition, state, reason, started_at, ended_at)
SELECT pg_temp.device(n), n % 4, i, state, reason, starts, ends
  FROM generate_series(7, 9) n,
       LATERAL (VALUES
           (0, 'healthy', 'handshake-fresh', '2026-06-01T00:00Z'::timestamptz, '2026-06-01T18:00Z'::timestamptz),
           (1, 'stale', 'handshake-old', '2026-06-01T18:00Z', '2026-06-01T19:00Z')
       ) s (i, state, reason, starts, ends);
INSERT INTO heartline.device_status
    (device_id, partition, state, reason, since, last_seen, last_handshake, tunnel_up, agent_status,
     flags, flapping, transitions)
SELECT pg_temp.device(n), n % 4,
       CASE WHEN n <= 20 THEN 'healthy' WHEN n = 21 THEN 'stale' WHEN n = 22 THEN 'down' ELSE 'offline' END,
       CASE WHEN n <= 20 THEN 'handshake-fresh' WHEN n = 21 THEN 'never-handshaken'
            WHEN n = 22 THEN 'tunnel-down' ELSE 'silent' END,
       CASE WHEN n <= 6 THEN '2026-06-02T06:00Z'::timestamptz + n * interval '10 min'
            WHEN n <= 9 THEN '2026-06-01T19:00Z' WHEN n <= 20 THEN '2026-06-01T00:00Z'
            ELSE '2026-06-02T20:00Z'::timestamptz + n * interval '1 min' END,
       CASE WHEN n = 23 THEN '2026-06-02T20:21:30Z'::timestamptz ELSE '2026-06-02T23:59:30Z' END,
       '2026-06-02T23:58:00Z', n <= 21, 'connected',
       CASE WHEN n = 21 THEN '["clock-skew"]' ELSE '[]' END::jsonb, n = 22,
       CASE WHEN n <= 6 THEN 4 WHEN n <= 9 THEN 2 ELSE 0 END
  FROM generate_series(1, 23) n;

-- Every five minutes of the second evening.
INSERT INTO heartline.fleet_minutes_by_partition (partition, minute, state, devices)
SELECT p, '2026-06-02T20:00Z'::timestamptz + m * interval '5 min', state,
       CASE state WHEN 'healthy' THEN 6 - (m >= 4)::int ELSE (m >= 4)::int END
  FROM generate_series(0, 3) p, generate_series(0, 7) m, (VALUES ('healthy'), ('offline')) s (state)
 WHERE state = 'healthy' OR p < 2;

INSERT INTO heartline.alerts
    (alert_id, kind, entity, device_id, episode, partition, reason, opened_at, resolved_at)
SELECT ('00000000-0000-8000-8000-' || lpad((day * 100 + n)::text, 12, '0'))::uuid, 'offline',
       pg_temp.device(n)::text, pg_temp.device(n), day, n % 4, 'silent',
       '2026-06-01T06:00Z'::timestamptz + (day - 1) * interval '1 day',
       '2026-06-01T06:00Z'::timestamptz + (day - 1) * interval '1 day' + n * interval '10 min'
  FROM generate_series(1, 2) day, generate_series(1, 6) n;
INSERT INTO heartline.alerts
    (alert_id, kind, entity, device_id, episode, partition, reason, opened_at)
SELECT ('00000000-0000-8000-8000-' || lpad((900 + n)::text, 12, '0'))::uuid, kind,
       pg_temp.device(n)::text, pg_temp.device(n), 1, n % 4, reason,
       '2026-06-02T20:00Z'::timestamptz + n * interval '1 min'
  FROM (VALUES (21, 'stale', 'never-handshaken'), (22, 'flapping', 'six-transitions'),
               (23, 'offline', 'silent')) a (n, kind, reason);

-- A forward was added to all at noon; 22 have been answered with it, the later the higher their number.
INSERT INTO heartline.config_versions
    (device_id, partition, version, kind, changed, config_hash, forwards_hash, reload_hash, suspended,
     changed_at, changed_by)
SELECT pg_temp.device(n), n % 4, 2, 'forwards', '["forwards"]', repeat('a', 64), repeat('b', 64),
       repeat('c', 64), n = 24, '2026-06-02T12:00Z', 'ann'
  FROM generate_series(1, 24) n;
INSERT INTO heartline.config_delivery (device_id, partition, version, delivered_at)
SELECT pg_temp.device(n), n % 4, CASE WHEN n = 23 THEN 1 ELSE 2 END,
       '2026-06-02T12:00Z'::timestamptz + n * interval '1250 ms'
  FROM generate_series(1, 23) n;

INSERT INTO heartline.update_attempts
    (attempt_id, partition, installation_id, action, source, from_release, to_release, state, step, reason,
     late, warnings, started_at, ended_at, download_ms, sign_ms, install_ms)
SELECT ('00000000-0000-8000-8000-' || lpad((2000 + n)::text, 12, '0'))::uuid, n % 4,
       ('00000000-0000-4000-9000-' || lpad(n::text, 12, '0'))::uuid, 'install', 'gh:example/app', 'v1.4', 'v1.5',
       CASE WHEN n <= 14 THEN 'succeeded' WHEN n <= 16 THEN 'failed' ELSE 'unconfirmed' END, 'install',
       CASE WHEN n BETWEEN 15 AND 16 THEN 'No available device matches this installation.' END, false, 0,
       '2026-06-02T10:00Z'::timestamptz + n * interval '1 min',
       '2026-06-02T10:00Z'::timestamptz + n * interval '1 min' + interval '40 s',
       10000 + n * 500, 4000, 12000 + n * 100
  FROM generate_series(1, 18) n;
INSERT INTO heartline.rollout_by_partition
    (source, release, partition, offered, downloading, installed, failed, unconfirmed)
SELECT 'gh:example/app', release, p, offered, 0, installed, failed, unconfirmed
  FROM generate_series(0, 3) p,
       (VALUES ('v1.4', 0, 2, 0, 0), ('v1.5', 1, 3, 1, 1)) r (release, offered, installed, failed, unconfirmed);

-- Two measurements of three devices, an hour and a half of minutes.
INSERT INTO heartline.telemetry_minutes
    (device_id, partition, name, minute, samples, sum, min, max, last, last_ts, late)
SELECT pg_temp.device(n), n % 4, name, '2026-06-02T20:00Z'::timestamptz + m * interval '1 min', 4,
       4.0 * (n * 10 + m % 7), n * 10 + m % 7 - 1, n * 10 + m % 7 + 1, n * 10 + m % 7,
       '2026-06-02T20:00Z'::timestamptz + m * interval '1 min' + interval '50 s', (m % 30 = 0)::int
  FROM generate_series(1, 3) n, (VALUES ('cpu'), ('rtt_ms')) s (name), generate_series(0, 89) m;
INSERT INTO heartline.agent_logs (device_id, partition, received_at, ts, level, tag, message)
SELECT pg_temp.device(n), n % 4, '2026-06-02T20:00Z'::timestamptz + i * interval '7 min',
       '2026-06-02T20:00Z'::timestamptz + i * interval '7 min',
       CASE WHEN i % 3 = 0 THEN 'error' ELSE 'info' END, 'wireguard',
       CASE WHEN i % 3 = 0 THEN 'handshake timeout after ' || 5 * n || ' s' ELSE 'handshake completed' END
  FROM generate_series(1, 3) n, generate_series(0, 5) i;

INSERT INTO heartline.encounters (encounter_id, token_a, token_b, tier, engine, geohash, met_at)
SELECT ('00000000-0000-8000-a000-' || lpad(n::text, 12, '0'))::uuid, 'a' || n, 'b' || n, 1 + n % 3, 'ble',
       CASE WHEN n % 4 = 0 THEN 'u33db' ELSE 'u33dc' END, '2026-06-02T18:00Z'::timestamptz + n * interval '4 min'
  FROM generate_series(1, 40) n;
