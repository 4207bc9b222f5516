import Foundation
import Page
import Postgres
import Schemas
import System
import TestSupport
import Testing

/// What the page asks, on a fleet that SQL makes up. `HEARTLINE_PAGE_DEVICES=1000000` makes it a large one and
/// prints how long each question takes; the numbers in docs/page.md are made so.
@Suite("Queries of the page", .serialized) struct PageQueriesTests {
    static let devices =
        Int(ProcessInfo.processInfo.environment["HEARTLINE_PAGE_DEVICES"] ?? "") ?? 20_000

    /// A large fleet takes its time to make up.
    private static var patient: PostgresOptions {
        var options = PostgresOptions(applicationName: "test")
        options.responseTimeout = .seconds(7_200)
        return options
    }

    private static func fill(_ connection: PostgresConnection) throws {
        let id = "md5('device ' || i)::uuid"
        try connection.run(
            """
            INSERT INTO heartline.devices (device_id, hardware_id, internal_address, public_key, sealed_secrets)
            SELECT \(id), ('phone-' || i)::bytea, '10.0.0.0'::inet + i, 'k', '' FROM generate_series(1, \(devices)) i;
            INSERT INTO heartline.device_status (device_id, partition, state, reason, since, last_seen, flags,
                flapping, transitions)
            SELECT \(id), i % 12, CASE WHEN i % 50 = 0 THEN 'stale' WHEN i % 51 = 0 THEN 'offline'
                WHEN i % 97 = 0 THEN 'down' ELSE 'healthy' END, 'made up', now() - i * interval '0.1 s', now(),
                '[]', false, 3 FROM generate_series(1, \(devices)) i;
            INSERT INTO heartline.device_state_ended (device_id, partition, transition, state, reason, started_at, ended_at)
            SELECT \(id), i % 12, t, 'stale', 'made up', now() - (4 - t) * interval '1 h', now() - (3 - t) * interval '1 h'
            FROM generate_series(1, \(devices)) i, generate_series(0, 2) t;
            INSERT INTO heartline.fleet_minutes_by_partition
            SELECT p, date_trunc('minute', now()) - m * interval '1 minute', s, 1000
            FROM generate_series(0, 11) p, generate_series(1, 1440) m,
                unnest(ARRAY['healthy', 'stale', 'down', 'offline', 'stopped', 'recovering']) s;
            INSERT INTO heartline.alerts (alert_id, kind, entity, device_id, episode, partition, reason, opened_at, resolved_at)
            SELECT md5('alert ' || i)::uuid, (ARRAY['offline', 'stale', 'down'])[i % 3 + 1], \(id)::text, \(id), 0, 0,
                'made up', now() - i * interval '0.1 s', CASE WHEN i % 10 > 0 THEN now() END
            FROM generate_series(1, \(devices / 2)) i;
            INSERT INTO heartline.config_versions (device_id, partition, version, kind, changed, config_hash,
                forwards_hash, reload_hash, suspended, changed_at, changed_by)
            SELECT \(id), 0, v, 'rotated', '[]', 'c', 'f', 'r', false,
                now() - i * interval '0.05 s' - (2 - v) * interval '10 d', 'ada'
            FROM generate_series(1, \(devices)) i, generate_series(1, 2) v;
            INSERT INTO heartline.config_delivery (device_id, partition, version, delivered_at)
            SELECT \(id), 0, v, now() - i * interval '0.05 s' - (2 - v) * interval '10 d' + interval '3 s'
            FROM generate_series(1, \(devices)) i, generate_series(1, 2) v WHERE v = 1 OR i % 4 > 0;
            INSERT INTO heartline.accounts (account_id, provider, provider_subject)
            SELECT md5('account ' || i)::uuid, 'apple', i::text FROM generate_series(1, \(devices / 10)) i;
            INSERT INTO heartline.connections (connection_id, first_account, second_account, connected_at)
            SELECT md5('connection ' || i || ' ' || j)::uuid, least(a, b), greatest(a, b), now() - (i * 10 + j) * interval '1 s'
            FROM generate_series(1, \(devices / 10) - 10) i, generate_series(1, 10) j,
                LATERAL (SELECT md5('account ' || i)::uuid AS a, md5('account ' || (i + j))::uuid AS b) p;
            INSERT INTO heartline.stream_partitions (pipeline, partition, epoch, next_offset, start_offset)
            SELECT n, p, 1, 1, 0 FROM unnest(ARRAY['config-delivery', 'tunnel-health']) n, generate_series(0, 11) p;
            INSERT INTO heartline.rollout_by_partition
            SELECT 'gh:owner/repo', 'v' || r, p, 10, 2, 1000, 1, 0 FROM generate_series(1, 200) r, generate_series(0, 11) p;
            """)
        for table in [
            "devices", "device_status", "device_state_ended", "fleet_minutes_by_partition",
            "alerts",
            "config_versions", "config_delivery", "connections",
        ] { try connection.run("VACUUM ANALYZE heartline.\(table)") }
    }

    private static let someone = "md5('device 77')::uuid"
    /// Each with example values, and whether it counts by reading an index from end to end.
    private static let questions: [(PreparedStatement, [String], counts: Bool)] = [
        (PageQueries.states, [], true), (PageQueries.alertCounts, [], true),
        (PageQueries.history, ["now() - interval '6 h'"], false),
        (PageQueries.troubles, ["ARRAY['stale', 'down', 'offline']"], false),
        (PageQueries.newestAlerts, ["ARRAY['stale', 'down', 'offline', 'flapping']"], false),
        (PageQueries.configurations, ["now() - interval '1 d'", "10000"], false),
        (PageQueries.matches, ["now() - interval '1 h'"], false),
        (PageQueries.registration, [someone], false), (PageQueries.status, [someone], false),
        (PageQueries.intervals, [someone, "now() - interval '7 d'"], false),
        (PageQueries.versions, [someone], false), (PageQueries.deviceAlerts, [someone], false),
        (PageQueries.inState, ["'stale'", "50"], false),
        (
            PageQueries.byID,
            [
                "'0a1b0000-0000-0000-0000-000000000000'", "'0a1bffff-ffff-ffff-ffff-ffffffffffff'",
                "50",
            ], false
        ),
        (PageQueries.byAddress, ["'10.0.1.0'", "'10.0.1.255'", "50"], false),
        (PageQueries.byHardware, ["'phone-12'::bytea", "'phone-13'::bytea", "50"], false),
    ]

    @Test("every question is answered by an index, however large the fleet is")
    func plans() throws {
        let database = try TestDatabase.make()
        let connection = try database.connect(Self.patient)
        try Self.fill(connection)
        try connection.run(PageQueries.session)
        // Of a small fleet reading all is quicker; what matters is whether it need not.
        if Self.devices < 1_000_000 { try connection.run("SET enable_seqscan = off") }
        for (statement, values, counts) in Self.questions {
            let arguments = values.isEmpty ? "" : "(\(values.joined(separator: ", ")))"
            try connection.run("PREPARE asked AS \(statement.sql)")
            let plan =
                try connection.run("EXPLAIN (ANALYZE, BUFFERS OFF) EXECUTE asked\(arguments)")
                .last?.map { try $0.text(0) } ?? []
            try connection.run("DEALLOCATE asked")
            let scans = plan.filter { $0.contains("Seq Scan on") }.filter { line in
                // What stays small whatever the fleet.
                !["stream_partitions", "rollout_by_partition"].contains { line.contains($0) }
            }
            #expect(scans.isEmpty, "\(statement.name): \(plan.joined(separator: "\n"))")
            if counts {
                #expect(
                    plan.contains { $0.contains("Index") },
                    "\(statement.name): \(plan.joined(separator: "\n"))")
            }
            if Self.devices >= 1_000_000 {
                let time = plan.last { $0.contains("Execution Time") } ?? ""
                print("\(statement.name): \(time.split(separator: ":").last ?? "")")
            }
        }
    }

    @Test("the made-up fleet is shown as it is")
    func shown() throws {
        let rig = try PageRig()
        let filling = try rig.database.connect(Self.patient)
        try Self.fill(filling)
        let cookie = try rig.signIn()
        let start = SystemClock.monotonicMilliseconds()
        let text = try rig.ask("GET", "/", [cookie]).text
        let cold = SystemClock.monotonicMilliseconds() - start
        let again = SystemClock.monotonicMilliseconds()
        _ = try rig.ask("GET", "/", [cookie])
        let warm = SystemClock.monotonicMilliseconds() - again
        if Self.devices >= 1_000_000 {
            print("the fleet's page: \(cold) ms, again \(warm) ms, \(text.utf8.count) bytes")
        }
        func count(_ condition: String) throws -> Int64 {
            try rig.connection.execute(
                "SELECT count(*) FROM heartline.device_status WHERE \(condition)"
            ).only().int8(0)
        }
        let (healthy, stale) = (try count("state = 'healthy'"), try count("state = 'stale'"))
        #expect(
            text.contains(
                "\(PageText.number(healthy)) of \(PageText.number(Int64(Self.devices))) devices are healthy; \(PageText.number(stale)) stale"
            ))
        let open = try rig.connection.execute(
            "SELECT count(*) FROM heartline.alerts WHERE resolved_at IS NULL AND kind = 'stale'"
        ).only().int8(0)
        #expect(text.contains("<b>\(PageText.number(open))</b> <bdi>stale</bdi>"))
        // Of the newest 10,000 changes three of four have arrived, each after 3 s.
        #expect(
            text.contains("<b>7,500 of 10,000</b> changed devices have their newest configuration"))
        #expect(text.contains("; 2,500 wait for their next heartbeat"))
        #expect(text.contains("<dd>3.0 s</dd>"))
        #expect(text.contains("<bdi>v1</bdi>") || text.contains("<bdi>v10</bdi>"))
        #expect(text.contains(" pairs in the last hour"))
        #expect(text.contains("<bdi>tunnel-health</bdi>"))
        // The picture covers six hours by minutes.
        #expect(text.contains("<figcaption>Without the healthy ones</figcaption>"))
        let trouble = text.split(separator: "<tr data-key=\"").dropFirst().prefix(10)
        #expect(trouble.count == 10)
    }
}
