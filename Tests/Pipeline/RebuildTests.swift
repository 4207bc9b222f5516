import Bytes
import EventLog
import Pipeline
import Postgres
import Processors
import Schemas
import Simulation
import Sinks
import System
import TestSupport
import Testing

/// `heartline replay` on a real log and PostgreSQL: what is built anew is what was there.
@Suite struct RebuildTests {
    private static let records = 600

    /// The first and the second half of every partition's records.
    private static func halves(
        _ records: [[SimulatedRecord]]
    ) -> (first: [[SimulatedRecord]], rest: [[SimulatedRecord]]) {
        (
            records.map { Array($0.prefix($0.count / 2)) },
            records.map { Array($0.suffix($0.count - $0.count / 2)) }
        )
    }

    /// The tables are damaged in a way that only a rebuild mends, rebuilt, and the pipeline goes on; at
    /// every step they equal those of a pipeline that was never disturbed.
    ///
    /// - Parameter damage: SQL.
    private func check<P: Processor>(
        _ type: P.Type, _ kind: PipelineFile.Kind, _ settings: ProcessorSettings<P.Settings>,
        _ records: [[SimulatedRecord]], damage: [String],
        prepare: (PostgresConnection) throws -> Void = { _ in }
    ) throws {
        let file = PipelineFile(builtIn: kind)
        let rig = try RebuildRig<P>(file, settings)
        try prepare(rig.connection)
        let (first, rest) = Self.halves(records)
        try rig.append(first)
        try rig.run()
        let before = try rig.contents()
        let snapshots =
            "SELECT string_agg(md5(bytes), ' ' ORDER BY partition) FROM heartline.snapshots"
        let states = try rig.connection.execute(snapshots).only().text(0)

        // Nothing differs, so nothing is written.
        let calm = try rig.rebuild()
        #expect(calm.tables.allSatisfy { $0.removed == 0 && $0.written == 0 }, "\(calm.tables)")
        try expectSame(before, rig.contents())
        #expect(try rig.connection.execute(snapshots).only().text(0) == states)

        for statement in damage {
            let changed = try rig.connection.execute(statement).affectedRows
            #expect(changed > 0, "nothing was damaged by \(statement)")
        }
        #expect(try !differences(before, rig.contents()).isEmpty)
        let report = try rig.rebuild()
        #expect(report.from == nil)
        #expect(report.records == Int64(first.reduce(0) { $0 + $1.count }))
        try expectSame(before, rig.contents())
        #expect(try rig.leftovers() == 0)

        try rig.append(rest)
        try rig.run()
        let clean = try RebuildRig<P>(file, settings)
        try prepare(clean.connection)
        try clean.append(records)
        try clean.run()
        try expectSame(clean.contents(), rig.contents())
        let events = "SELECT outbox_sequence FROM heartline.stream_partitions ORDER BY partition"
        #expect(
            try rig.connection.execute(events).map { try $0.int8(0) }
                == clean.connection.execute(events).map { try $0.int8(0) })
    }

    @Test(arguments: 0..<UInt64(3)) func tunnelHealth(seed: UInt64) throws {
        var records = TunnelHealthRecords(seed: seed)
        var settings = TunnelHealthSettings()
        // Every row is exact then.
        settings.refresh = 0
        try check(
            TunnelHealth.self, .tunnelHealth(settings), ProcessorSettings(settings),
            records.make(partitions: 2, seconds: 3_000),
            damage: [
                "UPDATE heartline.device_status SET state = 'healthy', reason = 'wrong'",
                "INSERT INTO heartline.device_status SELECT gen_random_uuid(), partition, state, reason, since, last_seen, last_handshake, tunnel_up, agent_status, agent_state, flags, flapping, transitions FROM heartline.device_status",
                "DELETE FROM heartline.device_state_ended WHERE transition % 2 = 0",
                "INSERT INTO heartline.device_state_ended SELECT * FROM heartline.device_state_ended WHERE transition % 3 = 1",
                "UPDATE heartline.fleet_minutes_by_partition SET devices = devices + 1 WHERE state = 'healthy'",
            ])
    }

    @Test(arguments: 0..<UInt64(2)) func configHash(seed: UInt64) throws {
        var records = ConfigRecords(seed: seed)
        let settings = ConfigHashSettings()
        try check(
            ConfigHash.self, .configHash(settings), ProcessorSettings(settings),
            records.changes(partitions: 2, count: Self.records),
            damage: [
                "DELETE FROM heartline.config_versions WHERE version % 3 = 0",
                "UPDATE heartline.config_versions SET config_hash = 'wrong' WHERE version % 3 = 1",
            ])
    }

    @Test(arguments: 0..<UInt64(2)) func configDelivery(seed: UInt64) throws {
        var records = ConfigRecords(seed: seed)
        let settings = ConfigDeliverySettings()
        try check(
            ConfigDelivery.self, .configDelivery(settings), ProcessorSettings(settings),
            records.deliveries(partitions: 2, count: Self.records),
            damage: [
                "DELETE FROM heartline.config_delivery WHERE version % 2 = 0",
                "UPDATE heartline.config_delivery SET delivered_at = delivered_at + interval '1 hour'",
            ])
    }

    @Test(arguments: 0..<UInt64(2)) func updateRollout(seed: UInt64) throws {
        var records = UpdateRecords(seed: seed)
        let settings = UpdateRolloutSettings()
        try check(
            UpdateRollout.self, .updateRollout(settings), ProcessorSettings(settings),
            records.records(partitions: 2, count: Self.records),
            damage: [
                "UPDATE heartline.installations SET offer_state = 'wrong'",
                "DELETE FROM heartline.update_attempts WHERE state = 'succeeded'",
                "UPDATE heartline.rollout_by_partition SET installed = installed + 7",
            ])
    }

    @Test(arguments: 0..<UInt64(2)) func telemetryRollup(seed: UInt64) throws {
        var records = TelemetryRecords(seed: seed)
        let settings = TelemetryRollupSettings()
        try check(
            TelemetryRollup.self, .telemetryRollup(settings), ProcessorSettings(settings),
            records.make(partitions: 2, count: Self.records),
            damage: [
                "DELETE FROM heartline.telemetry_minutes WHERE samples % 2 = 0",
                "INSERT INTO heartline.telemetry_minutes SELECT * FROM heartline.telemetry_minutes",
                "UPDATE heartline.agent_logs SET message = 'wrong' WHERE message LIKE '%1'",
            ])
    }

    // MARK: - People

    private static func addAccounts(
        _ records: [[SimulatedRecord]], _ connection: PostgresConnection
    ) throws {
        let waves = WavesDecoder()
        let encounters = EncountersDecoder()
        let messages = MessagesDecoder()
        var pairs: Set<AccountPair> = []
        var blocks: [Block] = []
        for record in records.joined() {
            if case .event(let event) = messages.decode(record.value.span) {
                pairs.insert(event.pair)
            } else if case .event(let event) = encounters.decode(record.value.span) {
                pairs.insert(event.pair)
            } else if case .event(let event) = waves.decode(record.value.span) {
                switch event {
                case .wave(let wave): pairs.insert(wave.pair)
                case .block(let block):
                    pairs.insert(block.pair)
                    blocks.append(block)
                }
            }
        }
        for person in Set(pairs.flatMap { [$0.first, $0.second] }) {
            try connection.run(
                """
                INSERT INTO heartline.accounts (account_id, provider, provider_subject)
                VALUES ('\(person)', 'apple', '\(person)')
                """)
        }
        // A block stands in its table before it stands in the topic.
        for block in blocks {
            guard let other = block.pair.other(than: block.sender) else { continue }
            try connection.run(
                """
                INSERT INTO heartline.blocks (blocker, blocked) VALUES ('\(block.sender)', '\(other)')
                ON CONFLICT DO NOTHING
                """)
        }
        for pair in pairs
        where records.joined().contains(where: {
            if case .event = messages.decode($0.value.span) { true } else { false }
        }) {
            try connection.run(
                """
                INSERT INTO heartline.connections VALUES
                    ('\(pair.connection)', '\(pair.first)', '\(pair.second)', now())
                """)
        }
    }

    @Test(arguments: 0..<UInt64(2)) func mutualWaves(seed: UInt64) throws {
        var records = ProximityRecords(seed: seed)
        records.blocks = seed == 0 ? 0 : 3
        let settings = MutualWavesSettings()
        let made = records.waves(partitions: 2, count: Self.records, life: settings.waveLife)
        try check(
            MutualWaves.self, .mutualWaves(settings), ProcessorSettings(settings), made,
            damage: [
                "DELETE FROM heartline.waves WHERE token LIKE 'token%'",
                "UPDATE heartline.waves SET waved_at = waved_at + interval '1 hour'",
            ]
        ) { try Self.addAccounts(made, $0) }
    }

    @Test(arguments: 0..<UInt64(2)) func encounters(seed: UInt64) throws {
        var records = ProximityRecords(seed: seed)
        let settings = EncountersSettings()
        let made = records.encounters(partitions: 2, count: Self.records, life: settings.window)
        try check(
            Encounters.self, .encounters(settings), ProcessorSettings(settings), made,
            damage: [
                "DELETE FROM heartline.encounters WHERE engine = 'uwb'",
                "DELETE FROM heartline.encounter_reports WHERE engine = ''",
            ]
        ) { try Self.addAccounts(made, $0) }
    }

    @Test(arguments: 0..<UInt64(2)) func messages(seed: UInt64) throws {
        var records = ProximityRecords(seed: seed)
        let settings = MessagesSettings()
        let made = records.messages(partitions: 2, count: Self.records)
        try check(
            Messages.self, .messages(settings), ProcessorSettings(settings), made,
            damage: [
                "DELETE FROM heartline.messages WHERE get_byte(uuid_send(message_id), 15) % 2 = 0"
            ]
        ) { try Self.addAccounts(made, $0) }
    }

    @Test func whatIsNeverRebuiltStaysAsItIs() throws {
        var records = ProximityRecords(seed: 5)
        let settings = MutualWavesSettings()
        let made = records.waves(partitions: 2, count: Self.records, life: settings.waveLife)
        let rig = try RebuildRig<MutualWaves>(
            PipelineFile(builtIn: .mutualWaves(settings)), ProcessorSettings(settings))
        try Self.addAccounts(made, rig.connection)
        try rig.append(made)
        try rig.run()
        // Two people left each other's sight, one was erased, and a push was delivered.
        let gone = try rig.connection.execute(
            "DELETE FROM heartline.connections WHERE connection_id = (SELECT min(connection_id::text)::uuid FROM heartline.connections)"
        )
        #expect(gone.affectedRows == 1)
        try rig.connection.run(
            """
            DELETE FROM heartline.accounts WHERE account_id = (SELECT first_account FROM heartline.connections LIMIT 1);
            DELETE FROM heartline.pushes WHERE body LIKE '%a%' AND peer::text < '00000000-0000-0003';
            UPDATE heartline.pushes SET delivered_at = now()
            """)
        let before = try rig.contents()
        let report = try rig.rebuild()
        #expect(report.kept.map(\.name) == ["connections", "pushes"])
        try expectSame(before, rig.contents())
        #expect(
            try rig.count("SELECT count(*) FROM heartline.pushes WHERE delivered_at IS NULL") == 0)
    }
}
