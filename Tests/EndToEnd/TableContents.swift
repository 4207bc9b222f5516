import Bytes
import Postgres
import Schemas
import Simulation
import TestSupport

/// Rows of the tunnel-health tables as lines of text: what two ways to the same tables are compared
/// by.
struct TableContents: Equatable {
    /// By table; a table without a key may hold a line twice.
    private(set) var lines: [String: [String: Int]] = [:]

    /// What is compared.
    enum Extent {
        /// Every column: for pipelines with `refresh: 0s`.
        case all
        /// Without the columns that are exact only to within `refresh`.
        case states
    }

    private struct Table {
        var name: String
        var columns: [TableSchema.Column]

        /// Front-ends' and the fleet's own alerts are judged by other clocks than the log.
        var condition: String {
            name == "alerts" ? " WHERE kind NOT IN ('ingest-silent', 'front-end-lost')" : ""
        }
    }

    private static let refreshed: Set<String> = [
        "last_seen", "last_handshake", "tunnel_up", "agent_status", "agent_state",
    ]

    private static func tables(_ extent: Extent) -> [Table] {
        [TableSchema.deviceStatus, .deviceStateEnded, .fleetMinutes, .alertsOpened].map { table in
            var columns = table.columns
            if table.name == "alerts" { columns.append(.init("resolved_at", .timestamptz)) }
            if extent == .states, table.name == "device_status" {
                columns.removeAll { refreshed.contains($0.name) }
            }
            return Table(name: table.name, columns: columns)
        }
    }

    /// What the database holds.
    init(_ connection: PostgresConnection, _ extent: Extent) throws {
        try self.init(connection, Self.tables(extent))
    }

    /// What the database holds in every column of these tables.
    init(_ connection: PostgresConnection, _ tables: [TableSchema]) throws {
        try self.init(connection, tables.map { Table(name: $0.name, columns: $0.columns) })
    }

    private init(_ connection: PostgresConnection, _ tables: [Table]) throws {
        for table in tables {
            let names = table.columns.map { "\"\($0.name)\"" }.joined(separator: ", ")
            let rows = try connection.execute(
                "SELECT \(names) FROM heartline.\(table.name)\(table.condition)")
            for row in rows {
                let fields = try table.columns.indices.map { column in
                    try row.withBytes(column) { $0?.array }
                }
                add(fields, table)
            }
        }
    }

    /// What a database would hold after these writes.
    init(_ written: SimulatedTables, _ extent: Extent) {
        self.init(written, Self.tables(extent))
    }

    /// What a database would hold in every column of these tables after these writes.
    init(_ written: SimulatedTables, _ tables: [TableSchema]) {
        self.init(written, tables.map { Table(name: $0.name, columns: $0.columns) })
    }

    private init(_ written: SimulatedTables, _ tables: [Table]) {
        for table in tables {
            for row in written.keyed[table.name]?.values ?? [:].values {
                let kind = row["kind"].map { String(decoding: $0, as: UTF8.self) }
                if kind == "front-end-lost" { continue }
                add(table.columns.map { row[$0.name] }, table)
            }
            for (row, count) in written.appended[table.name] ?? [:] {
                for _ in 0..<count { add(table.columns.map { row[$0.name] }, table) }
            }
        }
    }

    private mutating func add(_ fields: [[UInt8]?], _ table: Table) {
        let line = zip(table.columns, fields).map { "\($0.name)=\(Self.text($1, $0.type))" }
        lines[table.name, default: [:]][line.joined(separator: " "), default: 0] += 1
    }

    private static func text(_ bytes: [UInt8]?, _ type: TableSchema.ColumnType) -> String {
        guard let bytes else { return "null" }
        switch type {
        case .text: return String(decoding: bytes, as: UTF8.self)
        // Behind the format's version; the database writes spaces of its own.
        case .jsonb:
            return String(decoding: bytes.dropFirst().filter { $0 != 0x20 }, as: UTF8.self)
        case .float8:
            let bits = bytes.reduce(UInt64(0)) { $0 << 8 | UInt64($1) }
            return "\(Double(bitPattern: bits))"
        case .bool: return bytes == [1] ? "true" : "false"
        case .int8, .int4, .timestamptz:
            return "\(bytes.reduce(Int64(bytes[0] > 127 ? -1 : 0)) { $0 << 8 | Int64($1) })"
        case .uuid, .bytea: return ByteBuffer(bytes).span.hex
        }
    }

    func count(_ table: String) -> Int { lines[table]?.values.reduce(0, +) ?? 0 }

    /// The first lines that only one of the two has; empty if they are equal.
    func difference(from other: TableContents) -> String {
        var found: [String] = []
        for table in Set(lines.keys).union(other.lines.keys).sorted() {
            let (mine, others) = (lines[table] ?? [:], other.lines[table] ?? [:])
            for line in Set(mine.keys).union(others.keys).sorted()
            where mine[line] != others[line] {
                found.append(
                    "\(table): \(mine[line] ?? 0) × instead of \(others[line] ?? 0) ×: \(line)")
            }
        }
        return found.isEmpty
            ? "" : "\(found.count) lines differ:\n" + found.prefix(6).joined(separator: "\n")
    }
}

extension Span<UInt8> {
    fileprivate var hex: String {
        var buffer = ByteBuffer()
        for index in indices { buffer.append(hexadecimal: UInt64(self[index]), digits: 2) }
        return buffer.span.text
    }
}
