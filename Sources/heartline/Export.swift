import Bytes
import Pipeline
import Postgres
import System

/// `heartline export`.
enum Export {
    /// What of a table's rows goes to the file at once. Unit: bytes.
    private static let pieceBytes = 1 << 18
    private static let role = "heartline_reader"

    static let command = Command(
        name: "export", summary: "a table, a view or a query as CSV",
        details: """
            Writes what analysts may see (docs/queries.md) as CSV with a line of names, row by row, so that tables of
            any size take little memory. TABLE is a table or view of schema heartline; --query takes one SELECT. Both run as
            role heartline_reader, in a transaction that changes nothing and sees one moment. A file is there under
            its name only once it is whole.
            """,
        operands: Operands(
            placeholder: "[TABLE]", count: 0...1, help: "a table or view, without its schema"),
        options: [
            .text("query", "SQL", "one SELECT, instead of a table"),
            .path("to", "FILE", default: "-", "where to; - is the standard output"),
            Option(
                name: "format", kind: .choice(["csv"]), defaultValue: "csv",
                help: "csv: RFC 4180, UTF-8, times in UTC, nothing for null"),
        ] + DatabaseAccess.options
    ) { arguments in
        let table = arguments.operands.first
        let query = arguments.optionalText("query")
        guard (table == nil) != (query == nil) else {
            throw UsageError("an export is of one TABLE, or of one --query")
        }
        let connection = try DatabaseAccess.connect(arguments, as: "export")
        defer { connection.close() }
        try connection.run(
            "SET TimeZone = 'UTC'; SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'iso_8601';"
                + " SET client_encoding = 'UTF8'")
        try connection.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        defer { connection.rollBack() }
        try takeRole(connection)
        let select = try query.map(single) ?? "SELECT * FROM \(relation(table ?? "", connection))"
        let rows = try write(
            "COPY (\(select)\n) TO STDOUT (FORMAT csv, HEADER)", connection,
            to: arguments.text("to"))
        if arguments.text("to") != "-" {
            Terminal.write("\(rows) rows are in \(arguments.text("to"))\n", to: .errors)
        }
        return .done
    }

    /// What analysts may not see is not exported by chance.
    private static func takeRole(_ connection: PostgresConnection) throws {
        let isUsable = try connection.execute(
            """
            SELECT EXISTS (SELECT FROM pg_roles
                            WHERE rolname = $1 AND pg_has_role(current_user, oid, 'MEMBER'))
            """, .text(role)
        ).only().bool(0)
        if isUsable {
            try connection.run("SET LOCAL ROLE \(role)")
        } else {
            Terminal.write(
                "heartline: role \(role) is not there, or not this user's: exporting with all that the user may see\n",
                to: .errors)
        }
    }

    /// Without the semicolon that people write; it stands within a COPY.
    private static func single(_ query: String) throws(UsageError) -> String {
        var text = query[...]
        while let last = text.last, last == ";" || last.isWhitespace { text.removeLast() }
        guard !text.isEmpty else { throw UsageError("--query is empty") }
        return String(text)
    }

    /// The quoted name of a relation that the role may read.
    private static func relation(_ name: String, _ connection: PostgresConnection) throws -> String
    {
        let plain = name.hasPrefix("heartline.") ? String(name.dropFirst("heartline.".count)) : name
        var readable: [String] = []
        for row in try connection.execute(
            """
            SELECT c.relname, has_table_privilege(c.oid, 'SELECT') FROM pg_class c
              JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE n.nspname = 'heartline' AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
             ORDER BY c.relname
            """)
        {
            let found = try row.text(0)
            if try row.bool(1) {
                readable.append(found)
            } else if found == plain {
                throw Failure(
                    "exporting \(plain): analysts may not read it; what they may is \(try list(connection))"
                )
            }
        }
        guard readable.contains(plain) else {
            let near = NearestName.of(plain, among: readable).map { ": did you mean \($0)?" } ?? ""
            throw UsageError("there is no table or view \"\(plain)\"\(near)")
        }
        return "heartline.\"\(plain)\""
    }

    private static func list(_ connection: PostgresConnection) throws -> String {
        try connection.execute(
            """
            SELECT coalesce(string_agg(c.relname, ', ' ORDER BY c.relname), 'nothing') FROM pg_class c
              JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE n.nspname = 'heartline' AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
               AND has_table_privilege(c.oid, 'SELECT')
            """
        ).only().text(0)
    }

    /// - Returns: the number of rows, without the line of names.
    private static func write(
        _ copy: String, _ connection: PostgresConnection, to path: String
    ) throws -> Int {
        guard path != "-" else {
            var buffer = ByteBuffer()
            var lines = 0
            var failure: SystemError?
            func flush() {
                do throws(SystemError) {
                    if failure == nil { try Terminal.writeAll(buffer.span.text) }
                } catch { failure = error }
                buffer.removeAll()
            }
            try connection.copyOut(copy) { row in
                buffer.append(row)
                lines += 1
                if buffer.count >= pieceBytes { flush() }
            }
            flush()
            if let failure { throw failure }
            return max(0, lines - 1)
        }
        let partial = path + ".partial"
        FileSystem.remove(partial)
        let file = try GrowingFile(partial)
        var buffer = ByteBuffer()
        var lines = 0
        var failure: SystemError?
        do {
            try connection.copyOut(copy) { row in
                guard failure == nil else { return }
                buffer.append(row)
                lines += 1
                guard buffer.count >= pieceBytes else { return }
                do throws(SystemError) { try file.append(buffer.span) } catch { failure = error }
                buffer.removeAll()
            }
            if let failure { throw failure }
            try file.append(buffer.span)
            try file.sync()
        } catch {
            FileSystem.remove(partial)
            throw error
        }
        try FileSystem.rename(partial, to: path)
        return max(0, lines - 1)
    }
}
