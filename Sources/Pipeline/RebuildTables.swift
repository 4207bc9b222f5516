internal import Bytes
internal import Crypto
internal import Postgres
internal import Processors
internal import Schemas

/// The tables of a rebuild beside the live ones, and how they take their place.
///
/// Rows are exchanged where they differ, by DELETE and INSERT in one transaction. The tables themselves
/// stay: their views, rights, comments, indexes, partitions and foreign keys with them, and readers wait
/// for nobody: each statement sees all rows from before or all from after.
struct RebuildTables {
    let pipeline: String
    let tables: [RebuiltTable]
    private let connection: PostgresConnection

    /// What was done with one table.
    struct Change: Sendable {
        var table: String
        var removed: Int
        var written: Int
    }

    init(_ pipeline: String, _ tables: [RebuiltTable], _ connection: PostgresConnection) {
        self.pipeline = pipeline
        self.tables = tables
        self.connection = connection
    }

    /// PostgreSQL takes 63 characters; of a longer name a digest tells what was cut off.
    static func schema(of pipeline: String) -> String {
        let name = "heartline_replay_\(pipeline)"
        if name.utf8.count <= 63 { return name }
        let digest = SHA256.hash(ByteBuffer(pipeline.utf8).span).hex
        return "\(name.prefix(46))_\(digest.prefix(16))"
    }

    var schema: String { Self.schema(of: pipeline) }
    private var shadow: String { Self.quoted(schema) }

    private static func quoted(_ name: String) -> String { PreparedStatement.quoted(name) }

    private static func list(_ names: [String], of alias: String? = nil) -> String {
        names.map { name in (alias.map { "\($0)." } ?? "") + quoted(name) }.joined(separator: ", ")
    }

    /// Removes what an earlier rebuild left when it was killed.
    func drop() throws(PostgresError) {
        try connection.run("DROP SCHEMA IF EXISTS \(shadow) CASCADE")
    }

    /// Makes the empty tables: columns, keys and checks as the live ones have them.
    func create() throws(PostgresError) {
        var sql = "BEGIN; CREATE SCHEMA \(shadow);"
        for name in ["stream_partitions", "snapshots", "outbox"] {
            sql += "CREATE TABLE \(shadow).\(name) (LIKE heartline.\(name) INCLUDING ALL);"
        }
        for table in tables {
            let name = Self.quoted(table.schema.name)
            sql += """
                CREATE TABLE \(shadow).\(name)
                    (LIKE heartline.\(name) INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
                """
            if !table.schema.key.isEmpty {
                let key = Self.list(table.schema.key.map { table.schema.columns[$0].name })
                sql += "ALTER TABLE \(shadow).\(name) ADD PRIMARY KEY (\(key));"
            }
        }
        try connection.run(sql)
        for table in tables {
            let others = try connection.execute(
                """
                SELECT quote_ident(attname) FROM pg_attribute
                 WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped
                   AND attname <> ALL ($2::text[])
                """, .text("\(shadow).\(Self.quoted(table.schema.name))"),
                .textArray(Self.columns(table)))
            for row in others {
                try connection.run(
                    """
                    ALTER TABLE \(shadow).\(Self.quoted(table.schema.name))
                        DROP COLUMN \(try row.text(0))
                    """)
            }
        }
        try connection.run("COMMIT")
    }

    private static func columns(_ table: RebuiltTable) -> [String] {
        table.schema.columns.filter(\.isStored).map(\.name)
    }

    /// Puts the rows that were built in the place of the live ones, in the caller's transaction.
    ///
    /// - Parameters:
    ///   - cut: rows of this time and later are exchanged; `nil`: all are.
    ///   - isWhole: everything was built, from the beginning of the pipeline on.
    ///   - first: receipt of the first record that was applied; `nil`: there was none. What tables hold from
    ///     before it is of another log than this one, and stays.
    func exchange(
        cut: EventTime?, isWhole: Bool, first: EventTime?
    ) throws(PostgresError) -> [Change] {
        var changes: [Change] = []
        let historyCut = cut ?? first
        if tables.contains(where: { $0.schema.onlyIf != nil }) {
            // Who leaves now leaves after us, and takes their rows along.
            try connection.run("LOCK TABLE heartline.accounts IN SHARE MODE")
        }
        for table in tables {
            switch table.way {
            case .history(let time, let identity):
                guard let historyCut else { continue }
                changes.append(
                    try exchangeHistory(
                        table, time, identity, historyCut, isWhole: cut == nil))
            case .state: changes.append(try exchangeState(table, isWhole: isWhole))
            case .people(let time): changes.append(try addRows(table, time, cut))
            }
        }
        return changes
    }

    /// What the table of alerts holds of the pipeline's own.
    func knownAlerts() throws(PostgresError) -> KnownAlerts {
        var known = KnownAlerts()
        for row in try connection.execute(
            """
            SELECT kind, entity, device_id, max(episode),
                   max(episode) FILTER (WHERE resolved_at IS NULL)
              FROM heartline.alerts WHERE kind = ANY ($1::text[]) GROUP BY kind, entity, device_id
            """,
            .textArray(
                [AlertKind.offline, .stale, .down, .flapping, .frontEndLost].map(\.rawValue)))
        {
            guard let kind = AlertKind(rawValue: try row.text(0)) else { continue }
            let device = try row.optionalUUID(2).map { DeviceID(high: $0.high, low: $0.low) }
            known.add(
                kind, entity: try row.text(1), device: device, episodes: try row.int8(3),
                open: try row.optionalInt8(4))
        }
        return known
    }

    /// Notes, in the caller's transaction, that dead letters are none any more.
    /// - Returns: `false` if one of them was replayed meanwhile.
    func note(
        rebuilt origins: [RebuildLetters.Origin], of topic: Topic
    ) throws(PostgresError) -> Bool {
        if origins.isEmpty { return true }
        return try connection.execute(
            """
            INSERT INTO heartline.dead_letter_replays
                (pipeline, topic, partition, record_offset, outcome, replayed_by)
            SELECT $1, $2, split_part(o, '/', 1)::int4, split_part(o, '/', 2)::int8, 'rebuilt',
                   'heartline replay'
              FROM unnest($3::text[]) o
            ON CONFLICT DO NOTHING
            """, .text(pipeline), .text(topic.rawValue),
            .textArray(origins.map { "\($0.partition)/\($0.offset)" })
        ).affectedRows == origins.count
    }

    private func condition(_ time: String, _ cut: EventTime?, of alias: String) -> String {
        cut.map { "\(alias).\(Self.quoted(time)) >= '\($0)'::timestamptz" } ?? "true"
    }

    /// - Parameter isWhole: a live row from before `cut` is exchanged where one of its identity was built.
    private func exchangeHistory(
        _ table: RebuiltTable, _ time: String, _ identity: [String], _ cut: EventTime, isWhole: Bool
    ) throws(PostgresError) -> Change {
        let name = Self.quoted(table.schema.name)
        let columns = Self.list(Self.columns(table))
        let (live, built) = ("heartline.\(name)", "\(shadow).\(name)")
        let isLater = condition(time, cut, of: "t")
        var liveRows = "SELECT \(columns) FROM \(live) t WHERE \(isLater)"
        var builtRows = "SELECT \(columns) FROM \(built) t"
        let early = "SELECT \(Self.list(identity, of: "t")) FROM \(built) t WHERE NOT \(isLater)"
        if isWhole {
            liveRows += """
                 UNION ALL SELECT \(columns) FROM \(live) t WHERE NOT \(isLater)
                   AND (\(Self.list(identity, of: "t"))) IN (\(early))
                """
        } else {
            builtRows += " WHERE \(isLater)"
        }
        let touched = "\(shadow).touched"
        // Where the two differ, a row that stands twice included.
        try connection.run(
            """
            CREATE TABLE \(touched) AS
            SELECT DISTINCT \(Self.list(identity)) FROM (
                ((\(liveRows)) EXCEPT ALL (\(builtRows))) UNION ALL
                ((\(builtRows)) EXCEPT ALL (\(liveRows)))) d;
            ANALYZE \(touched)
            """)
        let match = identity.map { "t.\(Self.quoted($0)) = x.\(Self.quoted($0))" }
            .joined(separator: " AND ")
        var removed = try connection.execute(
            "DELETE FROM \(live) t USING \(touched) x WHERE \(match) AND \(isLater)"
        ).affectedRows
        if isWhole {
            removed += try connection.execute(
                """
                DELETE FROM \(live) t USING \(touched) x WHERE \(match) AND NOT \(isLater)
                   AND (\(Self.list(identity, of: "x"))) IN (\(early))
                """
            ).affectedRows
        }
        let written = try connection.execute(
            """
            INSERT INTO \(live) (\(columns))
            SELECT \(Self.list(Self.columns(table), of: "t")) FROM \(built) t JOIN \(touched) x
                ON \(match) WHERE \(isWhole ? "true" : isLater)
            \(table.schema.key.isEmpty ? "" : "ON CONFLICT DO NOTHING")
            """
        ).affectedRows
        try connection.run("DROP TABLE \(touched)")
        return Change(table: table.schema.name, removed: removed, written: written)
    }

    private func exchangeState(
        _ table: RebuiltTable, isWhole: Bool
    ) throws(PostgresError) -> Change {
        let name = Self.quoted(table.schema.name)
        let key = table.schema.key.map { table.schema.columns[$0].name }
        var removed = 0
        if isWhole {
            let match = key.map { "s.\(Self.quoted($0)) = t.\(Self.quoted($0))" }
            removed = try connection.execute(
                """
                DELETE FROM heartline.\(name) t WHERE NOT EXISTS (
                    SELECT FROM \(shadow).\(name) s WHERE \(match.joined(separator: " AND ")))
                """
            ).affectedRows
        }
        let written = try upsert(table, from: "\(shadow).\(name) s", keepsOld: !isWhole)
        return Change(table: table.schema.name, removed: removed, written: written)
    }

    private func addRows(
        _ table: RebuiltTable, _ time: String, _ cut: EventTime?
    ) throws(PostgresError) -> Change {
        var conditions = [condition(time, cut, of: "s")]
        for requirement in table.schema.onlyIf?.requirements ?? [] {
            for column in requirement.columns.map({ table.schema.columns[$0] })
            where column.isStored {
                conditions.append(
                    """
                    EXISTS (SELECT FROM heartline.\(Self.quoted(requirement.table)) r
                             WHERE r.\(Self.quoted(requirement.key)) = s.\(Self.quoted(column.name)))
                    """)
            }
        }
        let written = try upsert(
            table,
            from: """
                \(shadow).\(Self.quoted(table.schema.name)) s
                 WHERE \(conditions.joined(separator: " AND "))
                """, keepsOld: false)
        return Change(table: table.schema.name, removed: 0, written: written)
    }

    /// Writes rows whose key is not there, and those of an upserted table that differ.
    private func upsert(
        _ table: RebuiltTable, from source: String, keepsOld: Bool
    ) throws(PostgresError) -> Int {
        let names = Self.columns(table)
        let key = Set(table.schema.key.map { table.schema.columns[$0].name })
        let others = table.schema.columns.filter { $0.isStored && !key.contains($0.name) }
        var action = "DO NOTHING"
        if table.schema.mode == .upsert, !others.isEmpty {
            let values = others.map { column in
                let name = Self.quoted(column.name)
                return keepsOld && column.keepsOldWhenNull
                    ? "COALESCE(excluded.\(name), t.\(name))" : "excluded.\(name)"
            }
            let sets = zip(others, values).map { "\(Self.quoted($0.name)) = \($1)" }
            action = """
                DO UPDATE SET \(sets.joined(separator: ", "))
                 WHERE (\(Self.list(others.map(\.name), of: "t")))
                       IS DISTINCT FROM (\(values.joined(separator: ", ")))
                """
        }
        return try connection.execute(
            """
            INSERT INTO heartline.\(Self.quoted(table.schema.name)) AS t (\(Self.list(names)))
            SELECT \(Self.list(names, of: "s")) FROM \(source)
            ON CONFLICT (\(Self.list(key.sorted()))) \(action)
            """
        ).affectedRows
    }

    /// The rebuilt state takes the place of the live one: the pipeline's worker, which is fenced, goes on
    /// from it. Offsets are the same in both; events keep the numbers of the live pipeline.
    func exchangeStates() throws(PostgresError) {
        let name = PostgresValue.text(pipeline)
        try connection.execute(
            """
            DELETE FROM heartline.snapshots t USING \(shadow).stream_partitions s
             WHERE t.pipeline = $1 AND s.pipeline = $1 AND s.partition = t.partition
            """, name)
        try connection.execute(
            """
            INSERT INTO heartline.snapshots (pipeline, partition, chunk, snapshot_offset, bytes)
            SELECT s.pipeline, s.partition, s.chunk, s.snapshot_offset, s.bytes
              FROM \(shadow).snapshots s
              JOIN heartline.stream_partitions p USING (pipeline, partition)
             WHERE s.pipeline = $1
            """, name)
        try connection.execute(
            """
            UPDATE heartline.stream_partitions t
               SET epoch = t.epoch + 1, owner = 'heartline replay', updated_at = now(), rebuilt_at = now(),
                   settings_revision = CASE WHEN s.settings_revision = '' THEN t.settings_revision
                                            ELSE s.settings_revision END
              FROM \(shadow).stream_partitions s
             WHERE t.pipeline = $1 AND s.pipeline = $1 AND s.partition = t.partition
            """, name)
    }

    /// The next offset of each partition, of the rebuild or live.
    func nextOffsets(ofRebuild: Bool, lock: Bool) throws(PostgresError) -> [Int32: Int64] {
        let rows = try connection.execute(
            """
            SELECT partition, next_offset
              FROM \(ofRebuild ? shadow : "heartline").stream_partitions
             WHERE pipeline = $1 ORDER BY partition\(lock ? " FOR UPDATE" : "")
            """, .text(pipeline))
        var offsets: [Int32: Int64] = [:]
        for row in rows { offsets[try row.int4(0)] = try row.int8(1) }
        return offsets
    }

    /// Stores where the rebuild of a partition begins, with the state that it begins from.
    /// - Returns: `false` if that state is not kept any more.
    func begin(_ start: RebuildStart, topic: Topic) throws(PostgresError) -> Bool {
        try connection.execute(
            """
            INSERT INTO \(shadow).stream_partitions
                (pipeline, partition, epoch, next_offset, start_offset, topic)
            VALUES ($1, $2, 0, $3, $4, $5)
            """, .text(pipeline), .int4(start.partition), .int8(start.nextOffset),
            .int8(start.snapshotOffset), .text(topic.rawValue))
        guard let base = start.base else { return true }
        return try connection.execute(
            """
            INSERT INTO \(shadow).snapshots (pipeline, partition, chunk, snapshot_offset, bytes)
            SELECT pipeline, partition, chunk, snapshot_offset, bytes
              FROM heartline.base_snapshots
             WHERE pipeline = $1 AND partition = $2 AND next_offset = $3
            """, .text(pipeline), .int4(start.partition), .int8(base.nextOffset)
        ).affectedRows > 0
    }
}
