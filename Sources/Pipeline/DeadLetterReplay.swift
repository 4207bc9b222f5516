internal import Bytes
internal import EventLog
public import Postgres
internal import Processors
public import Schemas
internal import Sinks

/// Processes dead letters again: records by the log and their pipeline, as if they had just come; rows
/// by the statements that would have written them.
///
/// Once each, whatever is killed when: that a letter is replayed stands in `dead_letter_replays`, by
/// pipeline and origin, and is of the transaction that puts the record into the registry's outbox, or
/// the row into its table. The outbox publishes at least once, with a `ReplayMark`; the pipeline knows a
/// copy by it.
/// - Thread safety: belongs to its connection's thread.
public struct DeadLetterReplay {
    /// What became of one letter.
    public enum Outcome: Hashable, Sendable {
        /// The record waits to be published again.
        case published
        /// The row is in its table.
        case written
        /// The row's table had one of its key, or what the row is about is gone: nothing was written.
        case kept
        /// It was replayed before.
        case known
        case refused(String)
    }

    /// Letters of one transaction.
    public static let batch = 200

    private let connection: PostgresConnection
    private let actor: String
    private let now: EventTime
    private let isAsNew: Bool
    private let pipelines: [String: PipelineFile]

    /// - Parameters:
    ///   - actor: who does it, for the table.
    ///   - pipelines: those that run.
    ///   - isAsNew: records count as received now, instead of when they were.
    public init(
        _ connection: PostgresConnection, actor: String, now: EventTime, isAsNew: Bool,
        pipelines: [PipelineFile]
    ) {
        self.connection = connection
        self.actor = actor
        self.now = now
        self.isAsNew = isAsNew
        self.pipelines = Dictionary(pipelines.map { ($0.name, $0) }) { first, _ in first }
    }

    /// Why the letter cannot be replayed; `nil` if it can.
    public func obstacle(_ letter: StoredDeadLetter) -> String? {
        guard !letter.pipeline.isEmpty else {
            return "it does not say which pipeline it is of"
        }
        guard let file = pipelines[letter.pipeline] else {
            return "pipeline \(letter.pipeline) is not known; name its files with --pipelines"
        }
        switch letter.content.subject {
        case .row(let table, let tuple):
            return row(letter, table, tuple) == nil
                ? "its row is not one that pipeline \(letter.pipeline) writes now" : nil
        case .record(_, nil): return "it has no value, and never will"
        case .record where letter.content.letter.topic != file.source:
            return "pipeline \(letter.pipeline) reads topic \(file.source.rawValue) now"
        case .record:
            guard !isAsNew, let life = letter.content.letter.topic.retentionMilliseconds else {
                return nil
            }
            // It could be deleted before it is read.
            return now.milliseconds - letter.time.milliseconds > life / 4 * 3
                ? """
                it was received longer ago than topic \(letter.content.letter.topic.rawValue) keeps \
                records; --as-new takes it as received now
                """ : nil
        }
    }

    /// Replays letters: records in one transaction, then each row in one.
    ///
    /// - Returns: what became of each, in order.
    /// - Throws: `PostgresError`; what of the letters was replayed before the failure stays, and the same
    ///   call again does the rest.
    public func replay(
        _ letters: [StoredDeadLetter]
    ) throws(PostgresError) -> [Outcome] {
        var outcomes = [Outcome](repeating: .known, count: letters.count)
        var records: [Int] = []
        let rebuilt = letters.contains(where: \.isRow) ? try rebuiltTimes() : [:]
        for (index, letter) in letters.enumerated() {
            if let obstacle = obstacle(letter) {
                outcomes[index] = .refused(obstacle)
            } else if letter.isRow {
                // A rebuild since then may have written it.
                let onceMore = rebuilt[letter.pipeline].map { letter.time <= $0 } ?? false
                outcomes[index] = try write(letter, onceMore: onceMore)
            } else {
                records.append(index)
            }
        }
        guard !records.isEmpty else { return outcomes }
        var pipeline = PostgresPipeline()
        for index in records { pipeline.append(Self.publish, parameters(letters[index])) }
        pipeline.append("SELECT pg_notify('heartline_outbox', '')")
        let results = try connection.run(pipeline)
        for (place, index) in records.enumerated() {
            outcomes[index] = try results[place].only().int8(0) == 1 ? .published : .known
        }
        return outcomes
    }

    /// Letters that were replayed, with what became of them.
    public static func replayed(
        _ connection: PostgresConnection
    ) throws(PostgresError) -> [StoredDeadLetter.Identity: String] {
        let rows = try connection.execute(
            """
            SELECT pipeline, topic, partition, record_offset, row_sequence, outcome
              FROM heartline.dead_letter_replays
            """)
        var replayed: [StoredDeadLetter.Identity: String] = [:]
        for row in rows {
            let name = try row.text(1)
            guard let topic = Topic(rawValue: name) else { continue }
            let (pipeline, partition) = (try row.text(0), try row.int4(2))
            let (offset, sequence) = (try row.int8(3), try row.int8(4))
            let identity = StoredDeadLetter.Identity(
                pipeline: pipeline, topic: topic, partition: partition, offset: offset,
                rowSequence: sequence)
            replayed[identity] = try row.text(5)
        }
        return replayed
    }

    /// Replayed records that no instance has published yet.
    public static func unpublished(_ connection: PostgresConnection) throws(PostgresError) -> Int64
    {
        try connection.execute(
            """
            SELECT count(*) FROM heartline.outbox
             WHERE source = 'registry' AND partition = 0 AND record_partition IS NOT NULL
            """
        ).only().int8(0)
    }

    // MARK: - Records

    /// One statement: the mark, and the event if the mark is new.
    private static let publish = PreparedStatement(
        "publish dead letter",
        """
        WITH mark AS (
            INSERT INTO heartline.dead_letter_replays
                (pipeline, topic, partition, record_offset, outcome, replayed_by)
            VALUES ($1, $2, $3, $4, 'published', $5) ON CONFLICT DO NOTHING RETURNING 1),
        event AS (
            INSERT INTO heartline.outbox
                (source, partition, sequence, topic, key, value, record_time, headers, record_partition)
            SELECT 'registry', 0, nextval('heartline.registry_outbox_sequence'), $2, $6, $7, $8, $9, $3
              FROM mark RETURNING 1)
        SELECT count(*) FROM event
        """)

    private func parameters(_ letter: StoredDeadLetter) -> PostgresParameters {
        let origin = letter.content.letter
        var parameters = PostgresParameters(
            .text(letter.pipeline), .text(origin.topic.rawValue), .int4(origin.partition),
            .int8(origin.offset), .text(actor))
        if case .record(let key, let value) = letter.content.subject {
            parameters.append(bytea: key.span)
            if let value { parameters.append(bytea: value.span) } else { parameters.appendNull() }
        }
        parameters.append(timestamptz: (isAsNew ? now : letter.time).postgresMicroseconds)
        let mark = ReplayMark(
            pipeline: letter.pipeline, partition: origin.partition, offset: origin.offset)
        parameters.append(bytea: mark.headers.bytes.span)
        return parameters
    }

    // MARK: - Rows

    private static let mark = PreparedStatement(
        "mark dead row",
        """
        INSERT INTO heartline.dead_letter_replays
            (pipeline, topic, partition, record_offset, row_sequence, outcome, replayed_by)
        VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING
        """)

    private func row(
        _ letter: StoredDeadLetter, _ table: String, _ tuple: ByteBuffer
    ) -> RowBuffer? {
        for schema in pipelines[letter.pipeline]?.processor.type.tables ?? []
        where schema.name == table {
            var rows = RowBuffer(schema)
            if rows.append(tuple: tuple.span, origin: letter.content.letter.offset) { return rows }
        }
        return nil
    }

    /// When the tables of a pipeline were last built anew.
    private func rebuiltTimes() throws(PostgresError) -> [String: EventTime] {
        var times: [String: EventTime] = [:]
        for row in try connection.execute(
            """
            SELECT pipeline, max(rebuilt_at) FROM heartline.stream_partitions
             WHERE rebuilt_at IS NOT NULL GROUP BY pipeline
            """)
        { times[try row.text(0)] = EventTime(postgresMicroseconds: try row.timestamptz(1)) }
        return times
    }

    private func write(
        _ letter: StoredDeadLetter, onceMore: Bool
    ) throws(PostgresError) -> Outcome {
        guard case .row(let table, let tuple) = letter.content.subject,
            let rows = row(letter, table, tuple)
        else { return .refused("it has no row") }
        let origin = letter.content.letter
        do throws(PostgresError) {
            try connection.run("BEGIN")
            let count = try RowWriter.write(rows, onceMore: onceMore, connection)
            let outcome = count == 0 ? "kept" : "written"
            // Of two replays at once the second waits here for the first, and takes its row back.
            let marked = try connection.execute(
                Self.mark, .text(letter.pipeline), .text(origin.topic.rawValue),
                .int4(origin.partition), .int8(origin.offset), .int8(letter.sequence),
                .text(outcome), .text(actor))
            guard marked.affectedRows == 1 else {
                connection.rollBack()
                return .known
            }
            try connection.run("COMMIT")
            return count == 0 ? .kept : .written
        } catch {
            connection.rollBack()
            guard error.isDataError else { throw error }
            return .refused("the database rejects its row again: \(error.message)")
        }
    }
}
