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

    init(
        _ pipeline: String, _ topic: Topic, in log: some EventLog, _ connection: PostgresConnection
    ) throws {
        guard try log.partitionCount(of: .deadLetters) != nil else { return }
        let replayed = try DeadLetterReplay.replayed(connection)
        var filter = StoredDeadLetter.Filter()
        filter.pipeline = pipeline
        filter.topic = topic
        var reader = DeadLetterReader()
        var (published, waiting) = (self.published, self.waiting)
        try reader.letters(in: log, filter) { letter in
            guard !letter.isRow else { return }
            let record = letter.content.letter
            let origin = Origin(partition: record.partition, offset: record.offset)
            switch replayed[letter.identity] {
            case "published": published.insert(origin)
            // An earlier rebuild has processed the record at its place.
            case .some: break
            case nil: waiting[origin] = letter.time
            }
        }
        (self.published, self.waiting) = (published, waiting)
    }

    /// Whether a rebuild from `start` processes a record that waits, whose rows take their place.
    private func isTaken(
        _ origin: Origin, _ time: EventTime, _ start: RebuildStart, _ cut: EventTime?
    )
        -> Bool
    {
        origin.offset >= start.nextOffset && cut.map { time >= $0 } ?? true
    }

    /// By partition, the records from which nothing is to follow: those that are in the log a second time,
    /// and those whose rows would not take their place, which go on waiting.
    func passedOver(_ starts: [RebuildStart], cut: EventTime?) -> [Int32: Set<Int64>] {
        var offsets: [Int32: Set<Int64>] = [:]
        for origin in published { offsets[origin.partition, default: []].insert(origin.offset) }
        for start in starts {
            for (origin, time) in waiting
            where origin.partition == start.partition && !isTaken(origin, time, start, cut) {
                offsets[origin.partition, default: []].insert(origin.offset)
            }
        }
        return offsets
    }

    /// The records that a rebuild has processed and nobody else may any more.
    /// - Parameters:
    ///   - goal: by partition, the first offset that was not read.
    ///   - passedOver: what the rebuild was told to pass over.
    ///   - unread: what it could not decode.
    func taken(
        _ starts: [RebuildStart], goal: [Int32: Int64], cut: EventTime?,
        passedOver: [Int32: Set<Int64>], unread: Set<Origin>
    ) -> [Origin] {
        starts.flatMap { start in
            waiting.compactMap { origin, time in
                origin.partition == start.partition && isTaken(origin, time, start, cut)
                    && origin.offset < goal[start.partition] ?? 0
                    && passedOver[start.partition]?.contains(origin.offset) != true
                    && !unread.contains(origin) ? origin : nil
            }
        }
    }

    /// Whether a record was published again though the rebuild has processed it at its first place.
    func isTwice(
        _ starts: [RebuildStart], goal: [Int32: Int64], passedOver: [Int32: Set<Int64>]
    ) -> Bool {
        starts.contains { start in
            published.contains { origin in
                origin.partition == start.partition && origin.offset >= start.snapshotOffset
                    && origin.offset < goal[start.partition] ?? 0
                    && passedOver[start.partition]?.contains(origin.offset) != true
            }
        }
    }
}
