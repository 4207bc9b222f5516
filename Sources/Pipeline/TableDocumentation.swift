public import Postgres

/// `docs/tables.md`, made from the comments in the database.
public enum TableDocumentation {
    /// A table, view or column of schema `heartline` that nobody has described.
    public struct MissingComments: Error, Hashable, Sendable, CustomStringConvertible {
        public var names: [String]

        public var description: String {
            """
            documenting the tables: \(names.joined(separator: ", ")) has no comment. Add COMMENT ON \
            to the migration that makes it
            """
        }
    }

    /// The whole document. Partitions of a table are left out.
    /// - Throws: `MissingComments` or `PostgresError`.
    public static func markdown(_ connection: PostgresConnection) throws -> String {
        let relations = try connection.execute(
            """
            SELECT c.oid::int8, c.relname, c.relkind IN ('v', 'm'), obj_description(c.oid, 'pg_class')
              FROM pg_class c
             WHERE c.relnamespace = 'heartline'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')
               AND NOT c.relispartition
             ORDER BY c.relname
            """)
        var missing: [String] = []
        var text = """
            # Tables

            What stands in PostgreSQL, in schema `heartline`. Made from the comments in the database by
            `TableDocumentation`, and compared with them by a test; change the comments, not this file.

            """
        for relation in relations {
            let name = "heartline.\(try relation.text(1))"
            let kind = try relation.bool(2) ? "view" : "table"
            let comment = try relation.optionalText(3) ?? ""
            if comment.isEmpty { missing.append(name) }
            text += "\n## `\(name)`\n\n\(comment)\n"
            text += "\n| \(kind == "view" ? "column of the view" : "column") | type | meaning |\n"
            text += "|---|---|---|\n"
            for column in try columns(of: relation.int8(0), connection) {
                let columnName = try column.text(0)
                let meaning = try column.optionalText(2) ?? ""
                if meaning.isEmpty { missing.append("\(name).\(columnName)") }
                var type = try column.text(1)
                if try column.bool(4) { type += ", key" }
                if kind == "table", try !column.bool(3) { type += ", or null" }
                text += "| `\(columnName)` | \(escaped(type)) | \(escaped(meaning)) |\n"
            }
        }
        guard missing.isEmpty else { throw MissingComments(names: missing) }
        return text
    }

    private static func columns(
        of relation: Int64, _ connection: PostgresConnection
    ) throws -> PostgresResult {
        try connection.execute(
            """
            SELECT a.attname, format_type(a.atttypid, a.atttypmod), col_description(a.attrelid, a.attnum),
                   a.attnotnull,
                   EXISTS (SELECT FROM pg_index i
                            WHERE i.indrelid = a.attrelid AND i.indisprimary AND a.attnum = ANY (i.indkey))
              FROM pg_attribute a
             WHERE a.attrelid = $1::int8::oid AND a.attnum > 0 AND NOT a.attisdropped
             ORDER BY a.attnum
            """, .int8(relation))
    }

    private static func escaped(_ text: String) -> String {
        text.split(separator: "|", omittingEmptySubsequences: false).joined(separator: "\\|")
    }
}
