/// Tables of the proximity service, as `MutualWaves`, `Encounters` and `Messages` fill them.
///
/// What comes for an account that was erased, or about somebody who is blocked, is not written: so a
/// replay of the log brings nothing back.
extension TableSchema {
    private static func blocked(_ a: Int, _ b: Int) -> [Guard.Exclusion] {
        [
            Guard.Exclusion("blocks", [.init("blocker", a), .init("blocked", b)]),
            Guard.Exclusion("blocks", [.init("blocker", b), .init("blocked", a)]),
        ]
    }

    /// Both accounts are there, and neither has blocked the other.
    private static func betweenPeople(_ a: Int, _ b: Int) -> Guard {
        Guard(
            [Guard.Requirement("accounts", "account_id", columns: [a, b])], unless: blocked(a, b))
    }

    public static let waves = TableSchema(
        "waves",
        [
            Column("from_account", .uuid), Column("to_account", .uuid), Column("token", .text),
            Column("waved_at", .timestamptz),
        ], key: [0, 1, 2], mode: .upsert, onlyIf: betweenPeople(0, 1))

    /// Whatever one waved at the other.
    public static let wavesTakenBack = TableSchema(
        "waves", [Column("from_account", .uuid), Column("to_account", .uuid)], key: [0, 1],
        mode: .delete)

    public static let connections = TableSchema(
        "connections",
        [
            Column("connection_id", .uuid), Column("first_account", .uuid),
            Column("second_account", .uuid), Column("connected_at", .timestamptz),
        ], key: [0], mode: .insertNew, onlyIf: betweenPeople(1, 2))

    public static let pushes = TableSchema(
        "pushes",
        [
            Column("account_id", .uuid), Column("push_id", .uuid), Column("peer", .uuid),
            Column("kind", .text), Column("body", .text), Column("created_at", .timestamptz),
        ], key: [0, 1], mode: .insertNew, onlyIf: betweenPeople(0, 2))

    public static let encounterReports = TableSchema(
        "encounter_reports",
        [
            Column("reporter", .uuid), Column("encounter_id", .uuid), Column("other", .uuid),
            Column("tier", .int4), Column("engine", .text), Column("geohash", .text),
            Column("reported_at", .timestamptz),
        ], key: [0, 1], mode: .insertNew, onlyIf: betweenPeople(0, 2))

    /// Who met is known while the row is written, and stored nowhere.
    public static let encounters = TableSchema(
        "encounters",
        [
            Column("encounter_id", .uuid), Column("token_a", .text), Column("token_b", .text),
            Column("tier", .int4), Column("engine", .text), Column("geohash", .text),
            Column("met_at", .timestamptz), Column("first_account", .uuid, isStored: false),
            Column("second_account", .uuid, isStored: false),
        ], key: [0], mode: .insertNew, onlyIf: betweenPeople(7, 8))

    public static let messages = TableSchema(
        "messages",
        [
            Column("message_id", .uuid), Column("connection_id", .uuid), Column("sender", .uuid),
            Column("body", .text), Column("received_at", .timestamptz),
            Column("recipient", .uuid, isStored: false),
        ], key: [1, 0], mode: .insertNew,
        onlyIf: Guard(
            [
                Guard.Requirement("accounts", "account_id", columns: [2, 5]),
                Guard.Requirement("connections", "connection_id", columns: [1]),
            ], unless: blocked(2, 5)))
}
