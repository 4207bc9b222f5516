internal import Postgres
internal import Schemas

/// The SQL that writes one table in its mode, made once from its schema.
struct TableStatements: Sendable {
    let table: TableSchema
    /// Rows that are parameters: one array a column.
    let fromArrays: PreparedStatement
    /// COPY into the table itself (`append`) or into the staging table.
    let copy: String
    /// From the staging table into the table; `nil` where COPY does it.
    let fromStaging: PreparedStatement?
    /// Makes the staging table, once a connection.
    let createStaging: String?
    let types: [PostgresType]

    /// - Parameters:
    ///   - index: the table's place among the processor's: two schemas may write one table.
    ///   - schema: where the table stands; what its guard asks of others is always asked of
    ///     `heartline`.
    ///   - onceMore: rows that stand there already are not written again, though no key forbids it.
    init(_ table: TableSchema, index: Int, schema: String = "heartline", onceMore: Bool = false) {
        self.table = table
        types = table.columns.map { Self.type(of: $0.type) }
        let target = "\(Self.quoted(schema)).\(Self.quoted(table.name))"
        let names = table.columns.map { Self.quoted($0.name) }.joined(separator: ", ")
        let arrays = table.columns.enumerated().map { "$\($0 + 1)::\($1.type.rawValue)[]" }
        let unnested = "unnest(\(arrays.joined(separator: ", "))) AS s (\(names))"
        fromArrays = PreparedStatement(
            "write \(index) \(table.name)",
            Self.write(table, target, from: unnested, onceMore: onceMore))
        if table.mode == .append, table.onlyIf == nil {
            copy = "COPY \(target) (\(names)) FROM STDIN (FORMAT binary)"
            fromStaging = nil
            createStaging = nil
        } else {
            let staging = Self.quoted("heartline_staging_\(index)_\(table.name)")
            let columns = table.columns.map { "\(Self.quoted($0.name)) \($0.type.rawValue)" }
            createStaging = """
                CREATE TEMPORARY TABLE IF NOT EXISTS \(staging) \
                (\(columns.joined(separator: ", "))) ON COMMIT DELETE ROWS
                """
            copy = "COPY pg_temp.\(staging) (\(names)) FROM STDIN (FORMAT binary)"
            fromStaging = PreparedStatement(
                "write staged \(index) \(table.name)",
                Self.write(table, target, from: "pg_temp.\(staging) AS s"))
        }
    }

    private static func write(
        _ table: TableSchema, _ target: String, from source: String, onceMore: Bool = false
    ) -> String {
        let key = table.key.map { quoted(table.columns[$0].name) }
        let stored = table.columns.filter(\.isStored)
        let others = table.columns.indices.filter {
            !table.key.contains($0) && table.columns[$0].isStored
        }.map { table.columns[$0] }
        func assignments(_ new: String) -> String {
            others.map { column in
                let name = quoted(column.name)
                return column.keepsOldWhenNull
                    ? "\(name) = COALESCE(\(new).\(name), t.\(name))" : "\(name) = \(new).\(name)"
            }.joined(separator: ", ")
        }
        let rows = guarded(table, source)
        let names = stored.map { quoted($0.name) }.joined(separator: ", ")
        let condition = rows.condition.map { " WHERE \($0)" } ?? ""
        let insert = """
            \(rows.with)INSERT INTO \(target) AS t (\(names)) \
            SELECT \(names) FROM \(rows.source)\(condition)
            """
        let conflict = "ON CONFLICT (\(key.joined(separator: ", ")))"
        let match = key.map { "t.\($0) = s.\($0)" }.joined(separator: " AND ")
        let also = rows.condition.map { " AND \($0)" } ?? ""
        switch table.mode {
        case .append where onceMore:
            // By its first column, which an index has.
            let same = stored.enumerated().map { place, column in
                let name = quoted(column.name)
                return "x.\(name) \(place == 0 ? "=" : "IS NOT DISTINCT FROM") s.\(name)"
            }.joined(separator: " AND ")
            return """
                \(insert)\(rows.condition == nil ? " WHERE" : " AND") \
                NOT EXISTS (SELECT FROM \(target) AS x WHERE \(same))
                """
        case .append: return insert
        case .insertNew: return "\(insert) \(conflict) DO NOTHING"
        case .upsert:
            return others.isEmpty
                ? "\(insert) \(conflict) DO NOTHING"
                : "\(insert) \(conflict) DO UPDATE SET \(assignments("excluded"))"
        case .update:
            return """
                \(rows.with)UPDATE \(target) AS t SET \(assignments("s")) FROM \(rows.source) \
                WHERE \(match)\(also)
                """
        case .delete:
            return
                "\(rows.with)DELETE FROM \(target) AS t USING \(rows.source) WHERE \(match)\(also)"
        }
    }

    /// The rows of `source` under the name `s`, with what the table's guard asks of them.
    ///
    /// The rows that it requires are locked by a part of the same statement, which PostgreSQL carries
    /// out as a whole before the first row is written. One that is being deleted is waited for, and
    /// found missing: with the lock, a foreign key to it cannot fail any more.
    private static func guarded(
        _ table: TableSchema, _ source: String
    ) -> (with: String, source: String, condition: String?) {
        guard let onlyIf = table.onlyIf else { return ("", source, nil) }
        func column(_ index: Int) -> String { "s.\(quoted(table.columns[index].name))" }
        var parts = ["s AS MATERIALIZED (SELECT * FROM \(source))"]
        var conditions: [String] = []
        for (index, requirement) in onlyIf.requirements.enumerated() {
            let key = quoted(requirement.key)
            let wanted = requirement.columns.map { "SELECT \(column($0)) FROM s" }
            parts.append(
                """
                r\(index) AS MATERIALIZED (SELECT r.\(key) FROM heartline.\(quoted(requirement.table)) \
                AS r WHERE r.\(key) IN (\(wanted.joined(separator: " UNION "))) FOR KEY SHARE OF r)
                """)
            for place in requirement.columns {
                conditions.append("\(column(place)) IN (SELECT \(key) FROM r\(index))")
            }
        }
        for exclusion in onlyIf.exclusions {
            let matches = exclusion.matches.map { "x.\(quoted($0.name)) = \(column($0.column))" }
            conditions.append(
                """
                NOT EXISTS (SELECT FROM heartline.\(quoted(exclusion.table)) AS x \
                WHERE \(matches.joined(separator: " AND ")))
                """)
        }
        return (
            "WITH \(parts.joined(separator: ", ")) ", "s",
            conditions.isEmpty ? nil : conditions.joined(separator: " AND ")
        )
    }

    /// Names come from schemas of ours; quoted all the same, because some are words of SQL.
    private static func quoted(_ name: String) -> String { PreparedStatement.quoted(name) }

    private static func type(of column: TableSchema.ColumnType) -> PostgresType {
        switch column {
        case .uuid: .uuid
        case .timestamptz: .timestamptz
        case .int8: .int8
        case .int4: .int4
        case .float8: .float8
        case .bool: .bool
        case .text: .text
        case .jsonb: .jsonb
        case .bytea: .bytea
        }
    }
}
