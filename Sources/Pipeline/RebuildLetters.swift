internal import Bytes
internal import EventLog
internal import Postgres
internal import Schemas

/// What a rebuild keeps of one partition beside its state.
struct RebuiltPartition: Sendable {
    /// Records from which nothing is to follow.
    var passedOver: Set<Int64>
    /// Records that cannot be decoded now either.
    var unread: Set<Int64> = []
}

/// The dead letters about a pipeline's records. Both a rebuild and `DeadLetterReplay` can process such a
/// record again, and only one of them may.
struct RebuildLetters {
    typealias Origin = ReplayedRecords.Origin

    /// Those that were published again: the copy in the log is what counts.
    private(set) var published: Set<Origin> = []
    /// Those that nobody has processed, with the time of their receipt.
    private(set) var waiting: [Origin: EventTime] = [:]

    private let pipeline: String
    private let topic: Topic
    /// All that there are, with the time of receipt.
    private var letters: [Origin: EventTime] = [:]
    /// Where the topic of dead letters ended before it was read.
    private let ends: [Int32: Int64]

    init(
        _ pipeline: String, _ topic: Topic, in log: some EventLog, _ connection: PostgresConnection
    ) throws {
        self.pipeline = pipeline
        self.topic = topic
        ends = try Self.ends(of: log)
        if !ends.isEmpty {
            var filter = StoredDeadLetter.Filter()
            filter.pipeline = pipeline
            filter.topic = topic
            var reader = DeadLetterReader()
            var letters = letters
            try reader.letters(in: log, filter) { letter in
                guard !letter.isRow else { return }
                let record = letter.content.letter
                letters[Origin(partition: record.partition, offset: record.offset)] = letter.time
            }
            self.letters = letters
        }
        try refresh(connection)
    }

    private static func ends(of log: some EventLog) throws -> [Int32: Int64] {
        var ends: [Int32: Int64] = [:]
        for partition in 0..<(try log.partitionCount(of: .deadLetters) ?? 0) {
            ends[partition] = try log.offsets(of: TopicPartition(.deadLetters, partition)).next
        }
        return ends
    }

    /// Whether there are no others by now.
    func isComplete(in log: some EventLog) throws -> Bool { try ends == Self.ends(of: log) }

    /// Adds those that wait to be published, and asks again which were replayed.
    mutating func refresh(_ connection: PostgresConnection) throws(PostgresError) {
        let decoder = DeadLetterDecoder()
        for row in try connection.execute(
            """
            SELECT value, record_time FROM heartline.outbox WHERE source = $1 AND topic = $2
            """, .text(pipeline), .text(Topic.deadLetters.rawValue))
        {
            let value = try row.bytea(0)
            guard case .event(let content) = decoder.decode(value.span),
                case .record = content.subject, content.letter.topic == topic
            else { continue }
            letters[Origin(partition: content.letter.partition, offset: content.letter.offset)] =
                EventTime(postgresMicroseconds: try row.timestamptz(1))
        }
        published = []
        waiting = letters
        // The table knows those too whose letters the log has forgotten.
        for (identity, outcome) in try DeadLetterReplay.replayed(connection)
        where identity.pipeline == pipeline && identity.topic == topic && identity.rowSequence < 0 {
            let origin = Origin(partition: identity.partition, offset: identity.offset)
            waiting[origin] = nil
            // An earlier rebuild has processed the others at their places.
            if outcome == "published" { published.insert(origin) }
        }
    }

    /// What a rebuild has read, and what of it it has left out.
    struct Reading {
        var starts: [RebuildStart]
        /// By partition, the first offset that was not read.
        var goal: [Int32: Int64]
        /// Rows of this time and later take their place; `nil`: all do.
        var cut: EventTime?
        /// Records from which it was told that nothing is to follow.
        var passedOver: [Int32: Set<Int64>]
        /// Records that it could not decode.
        var unread: Set<Origin>

        /// Where its partition was begun, if it has applied the record at its first place.
        func start(of origin: Origin) -> RebuildStart? {
            guard passedOver[origin.partition]?.contains(origin.offset) != true,
                !unread.contains(origin), origin.offset < goal[origin.partition] ?? 0
            else { return nil }
            return starts.first {
                $0.partition == origin.partition && $0.snapshotOffset <= origin.offset
            }
        }
    }

    /// Whether the rows of a record that waits take their place, after a rebuild from `start`.
    private static func counts(
        _ origin: Origin, _ time: EventTime, from start: RebuildStart, _ cut: EventTime?
    ) -> Bool {
        origin.offset >= start.nextOffset && cut.map { time >= $0 } ?? true
    }

    /// By partition, the records from which nothing is to follow: those that are in the log a second time,
    /// and those whose rows would not take their place, which go on waiting.
    func passedOver(_ starts: [RebuildStart], cut: EventTime?) -> [Int32: Set<Int64>] {
        var offsets: [Int32: Set<Int64>] = [:]
        for origin in published { offsets[origin.partition, default: []].insert(origin.offset) }
        for start in starts {
            for (origin, time) in waiting
            where origin.partition == start.partition
                && !Self.counts(origin, time, from: start, cut)
            {
                offsets[origin.partition, default: []].insert(origin.offset)
            }
        }
        return offsets
    }

    /// The records that the rebuild has processed and nobody else may any more.
    ///
    /// - Returns: `nil` if it has processed one that others process as well, or may: since `passedOver` was
    ///   made it was published again, or became a letter.
    func taken(by reading: Reading) -> [Origin]? {
        guard !published.contains(where: { reading.start(of: $0) != nil }) else { return nil }
        var taken: [Origin] = []
        for (origin, time) in waiting {
            guard let start = reading.start(of: origin) else { continue }
            guard Self.counts(origin, time, from: start, reading.cut) else { return nil }
            taken.append(origin)
        }
        return taken
    }
}
