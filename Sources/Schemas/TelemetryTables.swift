/// Tables of telemetry, as `TelemetryRollup` fills them.
extension TableSchema {
    public static let telemetryMinutes = TableSchema(
        "telemetry_minutes",
        [
            Column("device_id", .uuid), Column("partition", .int4), Column("name", .text),
            Column("minute", .timestamptz), Column("samples", .int8), Column("sum", .float8),
            Column("min", .float8), Column("max", .float8), Column("last", .float8),
            Column("last_ts", .timestamptz), Column("late", .int8),
        ], key: [], mode: .append)

    public static let agentLogs = TableSchema(
        "agent_logs",
        [
            Column("device_id", .uuid), Column("partition", .int4),
            Column("received_at", .timestamptz), Column("ts", .timestamptz),
            Column("level", .text), Column("tag", .text), Column("message", .text),
        ], key: [], mode: .append)
}
