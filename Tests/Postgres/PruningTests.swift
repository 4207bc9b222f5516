import Pipeline
import Postgres
import TestSupport
import Testing

@Suite struct PruningTests {
    /// Old and new of everything.
    private static let contents = """
        SELECT heartline.ensure_day_partitions(
            (now() AT TIME ZONE 'UTC')::date - 101, (now() AT TIME ZONE 'UTC')::date + 2);
        -- Two days that no partition was made for.
        INSERT INTO heartline.device_state_ended
        SELECT gen_random_uuid(), 0, 0, 'healthy', '', now() - age, now() - age
          FROM unnest(ARRAY['100 days', '91 days', '89 days', '1 day', '400 days']::interval[]) age;
        INSERT INTO heartline.fleet_minutes_by_partition
        SELECT 0, date_trunc('minute', now()) - age, 'healthy', 1
          FROM unnest(ARRAY['100 days', '1 day']::interval[]) age;
        INSERT INTO heartline.alerts
            (alert_id, kind, entity, episode, partition, reason, opened_at, resolved_at)
        VALUES
            ('00000000-0000-8000-8000-000000000001', 'offline', 'a', 0, 0, '', now() - interval '101 days', now() - interval '100 days'),
            ('00000000-0000-8000-8000-000000000002', 'offline', 'b', 0, 0, '', now() - interval '101 days', NULL),
            ('00000000-0000-8000-8000-000000000003', 'offline', 'c', 0, 0, '', now() - interval '101 days', now() - interval '1 day'),
            ('00000000-0000-8000-8000-000000000004', 'offline', 'd', 0, 0, '', now() - interval '101 days', now() - interval '100 days'),
            ('00000000-0000-8000-8000-000000000005', 'ingest-silent', 'fleet', 0, 0, '', now() - interval '101 days', now() - interval '100 days'),
            ('00000000-0000-8000-8000-000000000006', 'ingest-silent', 'fleet', 1, 0, '', now() - interval '101 days', now() - interval '100 days');
        INSERT INTO heartline.alert_dispatch (alert_id, state, seen_at, decided_at)
        SELECT alert_id, CASE WHEN resolved_at IS NULL THEN 'sent' ELSE 'ended' END, opened_at, opened_at
          FROM heartline.alerts;
        INSERT INTO heartline.alert_deliveries
            (receiver, alert_id, entity, event, payload, created_at, next_attempt_at, delivered_at)
        SELECT 'hook', alert_id, entity, 'firing', '{}', opened_at, opened_at,
               CASE WHEN entity = 'd' THEN NULL ELSE opened_at END
          FROM heartline.alerts;
        INSERT INTO heartline.config_delivery
        SELECT '00000000-0000-4000-8000-000000000001', 0, v, now() - interval '100 days'
          FROM generate_series(1, 3) v;
        INSERT INTO heartline.config_versions
        SELECT '00000000-0000-4000-8000-000000000001', 0, v, 'forwards', '[]', '', '', '', false,
               now() - interval '100 days', 'me'
          FROM generate_series(1, 3) v;
        INSERT INTO heartline.registration_tokens (token_id, token_digest, created_by, expires_at)
        SELECT gen_random_uuid(), decode(lpad(n::text, 64, '0'), 'hex'), 'me', now() - n * interval '60 days'
          FROM generate_series(0, 2) n;
        INSERT INTO heartline.accounts (account_id, provider, provider_subject)
        SELECT ('00000000-0000-4000-8000-00000000000' || n)::uuid, 'apple', n::text FROM generate_series(1, 3) n;
        INSERT INTO heartline.connections
        VALUES (gen_random_uuid(), '00000000-0000-4000-8000-000000000001',
                '00000000-0000-4000-8000-000000000002', now() - interval '200 days');
        -- Between the connected, and between others.
        INSERT INTO heartline.waves
        SELECT '00000000-0000-4000-8000-000000000002', other::uuid, age::text, now() - age
          FROM unnest(ARRAY['00000000-0000-4000-8000-000000000001', '00000000-0000-4000-8000-000000000003']) other,
               unnest(ARRAY['100 days', '1 day']::interval[]) age;
        INSERT INTO heartline.pushes
        SELECT '00000000-0000-4000-8000-000000000001', gen_random_uuid(),
               '00000000-0000-4000-8000-000000000002', 'mutual', '{}', now() - age
          FROM unnest(ARRAY['100 days', '40 days', '1 day']::interval[]) age;
        INSERT INTO heartline.messages
        SELECT gen_random_uuid(), c.connection_id, c.first_account, '{}', now() - age
          FROM heartline.connections c, unnest(ARRAY['100 days', '40 days']::interval[]) age;
        INSERT INTO heartline.encounters
        SELECT gen_random_uuid(), 'a', 'b', 1, 'uwb', NULL, now() - age
          FROM unnest(ARRAY['100 days', '40 days']::interval[]) age;
        INSERT INTO heartline.agent_logs (device_id, partition, received_at, ts, level, tag, message)
        SELECT gen_random_uuid(), 0, now() - age, now(), 'info', '', ''
          FROM unnest(ARRAY['100 days', '400 days', '1 day']::interval[]) age;
        INSERT INTO heartline.audit_log (at, actor, action, entity, details, answer)
        VALUES (now() - interval '100 days', 'me', 'x', '', '{}', '{}');
        """

    private static let counted = [
        "device_state_ended", "fleet_minutes_by_partition", "alerts", "alert_dispatch",
        "alert_deliveries", "config_delivery", "config_versions", "registration_tokens",
        "waves", "pushes", "messages", "encounters", "agent_logs", "audit_log",
    ]

    private func counts(_ connection: PostgresConnection) throws -> [Int64] {
        try Self.counted.map {
            try connection.execute("SELECT count(*) FROM heartline.\($0)").only().int8(0)
        }
    }

    @Test func whatIsOldGoesAndWhatHoldsStays() throws {
        let database = try TestDatabase.make()
        let connection = try database.connect()
        try connection.run(Self.contents)
        let before = try counts(connection)
        let pruning = Pruning(olderThanDays: 90)
        let announced = try pruning.run(connection, isDry: true)
        #expect(try counts(connection) == before)
        let removed = try pruning.run(connection, isDry: false)
        // The partitions of 11 days, with two rows, and a row that lay in none.
        #expect(removed.first { $0.what == "days of device_state_ended" }?.count == 11)
        #expect(removed.first { $0.what == "days of agent_logs" }?.count == 11)
        #expect(
            try counts(connection)
                // Alerts: open, lately resolved, not delivered yet, and the last about the fleet.
                == [2, 1, 4, 4, 4, 1, 1, 2, 3, 2, 1, 1, 1, 1])
        // A dry run does not see what follows from the removal of alerts.
        for item in announced where !item.what.contains("of alerts") {
            #expect(removed.contains(item))
        }
        #expect(try pruning.run(connection, isDry: false).allSatisfy { $0.count == 0 })
        _ = try Pruning(olderThanDays: 90, includesAudit: true).run(connection, isDry: false)
        #expect(try counts(connection).last == 0)
        // Whatever is asked: who was away for 30 days is told.
        _ = try Pruning(olderThanDays: 1).run(connection, isDry: false)
        #expect(try connection.execute("SELECT count(*) FROM heartline.pushes").only().int8(0) == 1)
    }

    @Test func uptimeIsTheHealthyShareOfWhatIsKnown() throws {
        let database = try TestDatabase.make()
        let connection = try database.connect()
        try connection.run(
            """
            INSERT INTO heartline.device_state_ended VALUES
                ('00000000-0000-4000-8000-000000000001', 0, 0, 'unknown', '', '2026-06-25 00:00Z', '2026-06-25 06:00Z'),
                ('00000000-0000-4000-8000-000000000001', 0, 1, 'healthy', '', '2026-06-25 06:00Z', '2026-06-26 06:00Z'),
                ('00000000-0000-4000-8000-000000000001', 0, 2, 'offline', '', '2026-06-26 06:00Z', '2026-06-26 12:00Z'),
                ('00000000-0000-4000-8000-000000000001', 0, 3, 'stale', '', '2026-06-26 12:00Z', '2026-06-26 18:00Z'),
                ('00000000-0000-4000-8000-000000000001', 0, 4, 'stopped', '', '2026-06-26 18:00Z', '2026-06-27 00:00Z'),
                ('00000000-0000-4000-8000-000000000001', 0, 5, 'suspended', '', '2026-06-27 00:00Z', '2026-06-28 00:00Z');
            INSERT INTO heartline.device_status
                (device_id, partition, state, reason, since, flags, flapping, transitions)
            VALUES ('00000000-0000-4000-8000-000000000002', 0, 'healthy', '', now() - interval '36 hours', '[]', false, 0);
            """)
        let rows = try connection.execute(
            """
            SELECT day::text, seconds_known, seconds_up, share FROM heartline.device_uptime_days
             WHERE device_id = '00000000-0000-4000-8000-000000000001' ORDER BY day
            """)
        #expect(try rows.map { try $0.text(0) } == ["2026-06-25", "2026-06-26", "2026-06-27"])
        #expect(try rows.map { try $0.optionalFloat8(1) } == [64_800, 64_800, nil])
        #expect(try rows.map { try $0.optionalFloat8(2) } == [64_800, 21_600, 0])
        #expect(try rows.map { try $0.optionalFloat8(3) } == [1, 1.0 / 3, nil])
        // What still holds counts up to now.
        let open = try connection.execute(
            """
            SELECT sum(seconds_up) BETWEEN 129600 AND 129660, min(share) FROM heartline.device_uptime_days
             WHERE device_id = '00000000-0000-4000-8000-000000000002'
            """
        ).only()
        #expect(try open.bool(0))
        #expect(try open.optionalFloat8(1) == 1)
    }
}
