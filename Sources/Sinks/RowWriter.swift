public import Postgres
public import Schemas

/// Writes rows outside of a stream's commits, by the statements that a sink writes them with.
public enum RowWriter {
    /// Writes rows that come late: where a table has a row of the key, that one is newer and stays.
    ///
    /// Call it in a transaction.
    /// - Parameter onceMore: where a table without a key has the very row, that may be these, written before,
    ///   and is enough.
    /// - Returns: how many rows were written.
    public static func write(
        _ rows: RowBuffer, onceMore: Bool, _ connection: PostgresConnection
    ) throws(PostgresError) -> Int {
        var table = rows.table
        if table.mode == .upsert { table.mode = .insertNew }
        let statements = TableStatements(table, index: 0, onceMore: onceMore)
        var columns = RowColumns()
        // Not prepared: a table may be written in two ways by one connection.
        return try connection.execute(
            statements.fromArrays.sql,
            parameters: columns.parameters(rows, 0..<rows.count, types: statements.types)
        ).affectedRows
    }
}
