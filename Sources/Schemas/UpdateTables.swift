/// Tables of app updates, as `UpdateRollout` fills them.
extension TableSchema {
    public static let installations = TableSchema(
        "installations",
        [
            Column("installation_id", .uuid), Column("partition", .int4), Column("source", .text),
            Column("channel", .text), Column("current_release", .text),
            Column("offered_release", .text), Column("offer_state", .text),
            Column("checked_at", .timestamptz), Column("installed_at", .timestamptz),
            Column("last_attempt_id", .uuid), Column("cloned_at", .timestamptz),
        ], key: [0], mode: .upsert)

    public static let updateAttempts = TableSchema(
        "update_attempts",
        [
            Column("attempt_id", .uuid), Column("partition", .int4),
            Column("installation_id", .uuid), Column("action", .text), Column("source", .text),
            Column("from_release", .text), Column("to_release", .text), Column("state", .text),
            Column("step", .text), Column("reason", .text), Column("late", .bool),
            Column("warnings", .int8), Column("started_at", .timestamptz),
            Column("ended_at", .timestamptz), Column("disconnected_at", .timestamptz),
            Column("check_ms", .int8), Column("download_ms", .int8), Column("sign_ms", .int8),
            Column("install_ms", .int8),
        ], key: [0], mode: .upsert)

    public static let rollout = TableSchema(
        "rollout_by_partition",
        [
            Column("source", .text), Column("release", .text), Column("partition", .int4),
            Column("offered", .int8), Column("downloading", .int8), Column("installed", .int8),
            Column("failed", .int8), Column("unconfirmed", .int8),
        ], key: [0, 1, 2], mode: .upsert)
}
