internal import Bytes
public import EventLog
public import Schemas

/// One record of topic `dead-letters`, with what its headers say.
public struct StoredDeadLetter: Sendable {
    /// Where a dead letter stands in its topic.
    public struct ID: Hashable, Sendable, Comparable, CustomStringConvertible {
        public var partition: Int32
        public var offset: Int64

        public init(partition: Int32, offset: Int64) {
            self.partition = partition
            self.offset = offset
        }

        /// `nil` unless it is two numbers with a colon between them.
        public init?(_ text: some StringProtocol) {
            let parts = text.split(separator: ":", omittingEmptySubsequences: false)
            guard parts.count == 2, let partition = Int32(parts[0]), let offset = Int64(parts[1]),
                partition >= 0, offset >= 0
            else { return nil }
            self.init(partition: partition, offset: offset)
        }

        public var description: String { "\(partition):\(offset)" }

        public static func < (a: ID, b: ID) -> Bool {
            (a.partition, a.offset) < (b.partition, b.offset)
        }
    }

    /// What is replayed at most once, however many copies of the letter there are.
    public struct Identity: Hashable, Sendable {
        public var pipeline: String
        public var topic: Topic
        public var partition: Int32
        public var offset: Int64
        /// Of a rejected row: its number among the pipeline's; -1 for a record.
        public var rowSequence: Int64
    }

    public var id: ID
    /// The record's: of a letter about a record when that was received, of one about a row when the
    /// database rejected it.
    public var time: EventTime
    /// Empty if the letter does not say it.
    public var pipeline: String
    /// The letter's number among the pipeline's of its kind; -1 if it does not say it.
    public var sequence: Int64
    public var content: DeadLetterContent

    public init(
        id: ID, time: EventTime, pipeline: String, sequence: Int64, content: DeadLetterContent
    ) {
        self.id = id
        self.time = time
        self.pipeline = pipeline
        self.sequence = sequence
        self.content = content
    }

    public var isRow: Bool { if case .row = content.subject { true } else { false } }

    public var identity: Identity {
        Identity(
            pipeline: pipeline, topic: content.letter.topic, partition: content.letter.partition,
            offset: content.letter.offset, rowSequence: isRow ? sequence : -1)
    }

    /// Which letters are meant. What is `nil` or empty says nothing.
    public struct Filter: Sendable {
        public var ids: Set<ID> = []
        public var pipeline: String?
        public var topic: Topic?
        /// A part of the reason, as it is written.
        public var reason: String?
        /// Letters of this moment and later.
        public var since: EventTime?
        /// Letters before this moment.
        public var until: EventTime?

        public init() {}

        public func matches(_ letter: StoredDeadLetter) -> Bool {
            if !ids.isEmpty, !ids.contains(letter.id) { return false }
            if let pipeline, letter.pipeline != pipeline { return false }
            if let topic, letter.content.letter.topic != topic { return false }
            if let reason, !letter.content.letter.reason.contains(reason) { return false }
            if let since, letter.time < since { return false }
            if let until, letter.time >= until { return false }
            return true
        }
    }
}

/// Reads topic `dead-letters`.
public struct DeadLetterReader {
    private let decoder = DeadLetterDecoder()
    /// Letters that came: the outbox publishes at least once.
    private var seen: Set<Origin> = []
    /// Records of the topic that are no dead letters.
    public private(set) var unreadable = 0

    private struct Origin: Hashable {
        var name: String
        var partition: Int32
        var sequence: Int64
    }

    public init() {}

    /// The letter of a record; `nil` for a copy of one that came before, and for what is none.
    public mutating func read(
        _ place: RecordPlace, _ value: borrowing RecordValue
    ) -> StoredDeadLetter? {
        guard !value.isTombstone, case .event(let content) = decoder.decode(value.bytes) else {
            unreadable += 1
            return nil
        }
        var letter = StoredDeadLetter(
            id: StoredDeadLetter.ID(partition: place.partition, offset: place.offset),
            time: place.timestamp, pipeline: "", sequence: -1, content: content)
        if let range = RecordHeaders.find("outbox", in: value.headers) {
            // Source, partition and sequence; the source is the pipeline, or that and `/rejected`.
            let parts = value.headers.extracting(range).text.split(separator: "/")
            guard parts.count >= 3, let sequence = Int64(parts[parts.count - 1]),
                let partition = Int32(parts[parts.count - 2])
            else { return letter }
            letter.pipeline = String(parts[0])
            letter.sequence = sequence
            let name = parts.dropLast(2).joined(separator: "/")
            let origin = Origin(name: name, partition: partition, sequence: sequence)
            guard seen.insert(origin).inserted else { return nil }
        }
        return letter
    }

    /// All letters that the log holds and `filter` means, in the order of the topic's partitions as they
    /// are read.
    public mutating func letters(
        in log: some EventLog, _ filter: StoredDeadLetter.Filter,
        _ body: (StoredDeadLetter) throws -> Void
    ) throws {
        var failure: (any Error)?
        try LogScan.scan(log, .deadLetters) { place, _, value in
            guard failure == nil, let letter = read(place, value), filter.matches(letter) else {
                return
            }
            do { try body(letter) } catch { failure = error }
        }
        if let failure { throw failure }
    }
}
