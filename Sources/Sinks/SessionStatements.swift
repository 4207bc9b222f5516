internal import Postgres

/// The SQL of a session that concerns the stream itself, for tables in one schema.
struct SessionStatements: Sendable {
    let claim: PreparedStatement
    let load: PreparedStatement
    let loadSnapshot: PreparedStatement
    let loadOutbox: PreparedStatement
    let deletion: PreparedStatement
    /// Fails with `division_by_zero` where no row is at the expected epoch and offset: in a pipeline
    /// an error is what keeps the statements after it from being run.
    let fence: PreparedStatement
    let insertOutbox: PreparedStatement
    let deleteSnapshot: PreparedStatement
    let insertSnapshot: PreparedStatement
    let keepBase: PreparedStatement

    /// - Parameter schema: quoted.
    init(schema: String) {
        claim = PreparedStatement(
            "claim",
            """
            INSERT INTO \(schema).stream_partitions AS p
                (pipeline, partition, epoch, next_offset, start_offset, owner, topic)
            VALUES ($1, $2, 1, $3, $3, $4, $5)
            ON CONFLICT (pipeline, partition)
                DO UPDATE SET epoch = p.epoch + 1, owner = excluded.owner
            RETURNING epoch, topic
            """)
        load = PreparedStatement(
            "load",
            """
            SELECT epoch, next_offset, start_offset, outbox_sequence, settings_revision
              FROM \(schema).stream_partitions WHERE pipeline = $1 AND partition = $2
            """)
        loadSnapshot = PreparedStatement(
            "load snapshot",
            """
            SELECT bytes FROM \(schema).snapshots WHERE pipeline = $1 AND partition = $2 ORDER BY chunk
            """)
        loadOutbox = PreparedStatement(
            "load outbox",
            """
            SELECT sequence, topic, key, value, record_time
              FROM \(schema).outbox WHERE source = $1 AND partition = $2 ORDER BY sequence
            """)
        deletion = PreparedStatement(
            "delete outbox",
            "DELETE FROM \(schema).outbox WHERE source = $1 AND partition = $2 AND sequence <= $3")
        fence = PreparedStatement(
            "fence",
            """
            WITH mine AS (
                UPDATE \(schema).stream_partitions
                   SET next_offset = $5, outbox_sequence = $6, updated_at = now(),
                       settings_revision = COALESCE($7, settings_revision),
                       settings_offset = COALESCE($8, settings_offset)
                 WHERE pipeline = $1 AND partition = $2 AND epoch = $3 AND next_offset = $4
                RETURNING 1)
            SELECT 1 / count(*) FROM mine
            """)
        insertOutbox = PreparedStatement(
            "insert outbox",
            """
            INSERT INTO \(schema).outbox (source, partition, sequence, topic, key, value, record_time)
            SELECT $1, $2, s.* FROM unnest(
                $3::int8[], $4::text[], $5::bytea[], $6::bytea[], $7::timestamptz[]) AS s
            ON CONFLICT (source, partition, sequence) DO NOTHING
            """)
        deleteSnapshot = PreparedStatement(
            "delete snapshot",
            "DELETE FROM \(schema).snapshots WHERE pipeline = $1 AND partition = $2")
        insertSnapshot = PreparedStatement(
            "insert snapshot",
            """
            INSERT INTO \(schema).snapshots (pipeline, partition, chunk, snapshot_offset, bytes)
            VALUES ($1, $2, $3, $4, $5)
            """)
        keepBase = PreparedStatement(
            "keep base snapshot", "SELECT heartline.keep_base_snapshot($1, $2, $3, $4, $5)")
    }
}
