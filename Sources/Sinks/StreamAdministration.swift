public import Postgres
internal import Schemas

/// What an operator may decide about a pipeline's partitions while no worker holds them, or does:
/// each decision raises the epoch, so a worker that still runs is fenced and begins anew.
public enum StreamAdministration {
    /// One partition of one pipeline, as the database knows it.
    public struct PartitionState: Sendable, Hashable {
        public var pipeline: String
        public var partition: Int32
        public var nextOffset: Int64
        public var epoch: Int64
        /// Host and process of the worker that claimed it last.
        public var owner: String
    }

    /// All partitions, by pipeline and number.
    public static func partitions(
        _ connection: PostgresConnection
    ) throws(PostgresError) -> [PartitionState] {
        let rows = try connection.execute(
            """
            SELECT pipeline, partition, next_offset, epoch, owner
              FROM heartline.stream_partitions ORDER BY pipeline, partition
            """)
        var states: [PartitionState] = []
        for row in rows {
            let (pipeline, partition) = (try row.text(0), try row.int4(1))
            let (nextOffset, epoch) = (try row.int8(2), try row.int8(3))
            states.append(
                PartitionState(
                    pipeline: pipeline, partition: partition, nextOffset: nextOffset, epoch: epoch,
                    owner: try row.text(4)))
        }
        return states
    }

    /// Accepts that the log holds nothing before `earliest` any more: the partition goes on there,
    /// with the state of its last snapshot, as if the records in between had never been.
    ///
    /// - Returns: `false` if the pipeline never had the partition.
    public static func resume(
        _ pipeline: String, partition: Int32, from earliest: Int64,
        _ connection: PostgresConnection
    ) throws(PostgresError) -> Bool {
        let result = try connection.execute(
            """
            UPDATE heartline.stream_partitions
               SET epoch = epoch + 1, start_offset = $3, next_offset = GREATEST(next_offset, $3),
                   resumed = true
             WHERE pipeline = $1 AND partition = $2
            """, .text(pipeline), .int4(partition), .int8(earliest))
        return result.affectedRows == 1
    }
}
