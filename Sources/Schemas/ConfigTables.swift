/// Tables of configurations, as `ConfigHash` and `ConfigDelivery` fill them.
extension TableSchema {
    public static let configVersions = TableSchema(
        "config_versions",
        [
            Column("device_id", .uuid), Column("partition", .int4), Column("version", .int8),
            Column("kind", .text), Column("changed", .jsonb), Column("config_hash", .text),
            Column("forwards_hash", .text), Column("reload_hash", .text),
            Column("suspended", .bool), Column("changed_at", .timestamptz),
            Column("changed_by", .text), Column("request_id", .text),
        ], key: [0, 2], mode: .insertNew)

    public static let configDelivery = TableSchema(
        "config_delivery",
        [
            Column("device_id", .uuid), Column("partition", .int4), Column("version", .int8),
            Column("delivered_at", .timestamptz),
        ], key: [0, 2], mode: .insertNew)
}
