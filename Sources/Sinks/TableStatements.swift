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

    /// - Parameter index: the table's place among the processor's: two schemas may write one table.
    init(_ table: TableSchema, index: Int) {
        self.table = table
        types = table.columns.map { Self.type(of: $0.type) }
        let target = "heartline.\(Self.quoted(table.name))"
        let names = table.columns.map { Self.quoted($0.name) }.joined(separator: ", ")
        let arrays = table.columns.enumerated().map { "$\($0 + 1)::\($1.type.rawValue)[]" }
        let unnested = "unnest(\(arrays.joined(separator: ", "))) AS s (\(names))"
        fromArrays = PreparedStatement(
            "write \(index) \(table.name)", Self.write(table, target, names, from: unnested))
        if table.mode == .append {
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
                Self.write(table, target, names, from: "pg_temp.\(staging) AS s"))
        }
    }

    private static func write(
        _ table: TableSchema, _ target: String, _ names: String, from source: String
    ) -> String {
        let key = table.key.map { quoted(table.columns[$0].name) }
        let others = table.columns.indices.filter { !table.key.contains($0) }
            .map { table.columns[$0] }
        func assignments(_ new: String) -> String {
            others.map { column in
                let name = quoted(column.name)
                return column.keepsOldWhenNull
                    ? "\(name) = COALESCE(\(new).\(name), t.\(name))" : "\(name) = \(new).\(name)"
            }.joined(separator: ", ")
        }
        let insert = "INSERT INTO \(target) AS t (\(names)) SELECT \(names) FROM \(source)"
        let conflict = "ON CONFLICT (\(key.joined(separator: ", ")))"
        switch table.mode {
        case .append: return insert
        case .insertNew: return "\(insert) \(conflict) DO NOTHING"
        case .upsert:
            return others.isEmpty
                ? "\(insert) \(conflict) DO NOTHING"
                : "\(insert) \(conflict) DO UPDATE SET \(assignments("excluded"))"
        case .update:
            let match = key.map { "t.\($0) = s.\($0)" }.joined(separator: " AND ")
            return "UPDATE \(target) AS t SET \(assignments("s")) FROM \(source) WHERE \(match)"
        }
    }

    /// Names come from schemas of ours; quoted all the same, because some are words of SQL.
    private static func quoted(_ name: String) -> String {
        "\"\(name.split(separator: "\"", omittingEmptySubsequences: false).joined(separator: "\"\""))\""
    }

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
