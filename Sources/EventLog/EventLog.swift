public import Bytes
public import Schemas
public import System

/// A log of topics and partitions. `EmbeddedLog` and `KafkaLog` are the implementations; nothing
/// above this protocol knows which one it runs on.
///
/// - Thread safety: a log and its producer may be used from any thread; a consumer belongs to the
///   thread that polls it.
public protocol EventLog: Sendable {
    associatedtype Producer: EventProducer
    associatedtype Consumer: EventConsumer

    /// Makes the topics that do not exist. One that exists with another number of partitions is an
    /// error, because state is kept by partition.
    func createTopics(_ topics: [TopicSettings]) throws(EventLogError)

    /// How many partitions a topic has; `nil` if it does not exist.
    func partitionCount(of topic: Topic) throws(EventLogError) -> Int32?

    /// The offsets a partition holds now.
    func offsets(of place: TopicPartition) throws(EventLogError) -> OffsetRange

    func makeProducer(_ settings: ProducerSettings) throws(EventLogError) -> Producer

    /// A member of consumer group `group` on one topic. `waker` is signalled when records may be
    /// ready, or the assignment changed.
    func makeConsumer(
        of topic: Topic, group: String, waker: Waker
    ) throws(EventLogError) -> Consumer
}

public struct TopicSettings: Sendable {
    public var topic: Topic
    public var partitions: Int32
    /// Age at which records may be deleted; `nil` keeps them by key (compacted).
    public var retentionMilliseconds: Int64?
    /// Bytes of keys and values above which the oldest records are deleted.
    public var retentionBytes: Int64

    public init(_ topic: Topic, partitions: Int32, retentionBytes: Int64 = 8 << 30) {
        self.topic = topic
        self.partitions = partitions
        self.retentionMilliseconds = topic.retentionMilliseconds
        self.retentionBytes = retentionBytes
    }
}

/// `earliest` is the first offset still there, `next` the one the next record will get.
public struct OffsetRange: Hashable, Sendable {
    public var earliest: Int64
    public var next: Int64

    public init(earliest: Int64, next: Int64) {
        self.earliest = earliest
        self.next = next
    }
}

public struct ProducerSettings: Sendable {
    /// Bytes of batches that may wait; above it `send` refuses. Default: 64 MiB.
    public var queueBytes = 64 << 20
    /// Longest wait for more records before a sync (group commit). Default: 2 ms.
    public var lingerMilliseconds: Int64 = 2

    public init() {}
}

/// Records on their way to one topic, encoded one after another in one buffer. Threads are crossed
/// once a batch, never once a record.
public struct RecordBatch: Sendable {
    public let topic: Topic
    public private(set) var count = 0
    /// Each record: partition (4 bytes), timestamp (8), key size (4; -1 none), value size (4; -1 a
    /// tombstone), headers size (4), key, value, headers; little endian.
    public private(set) var bytes = ByteBuffer()

    public init(_ topic: Topic) { self.topic = topic }

    /// What was taken apart before.
    init(_ topic: Topic, count: Int, encoded bytes: ByteBuffer) {
        self.topic = topic
        self.count = count
        self.bytes = bytes
    }

    public var isEmpty: Bool { count == 0 }
    public var sizeBytes: Int { bytes.count }

    /// - Parameters:
    ///   - partition: by `Partitioner.partition(of:count:)`, unless every partition gets the record.
    ///   - timestamp: receipt time.
    ///   - headers: as `RecordHeaders` encodes them.
    public mutating func append(
        partition: Int32, timestamp: EventTime, key: Span<UInt8>, value: Span<UInt8>,
        headers: RecordHeaders = RecordHeaders()
    ) {
        appendHead(partition, timestamp, key.count, value.count, headers.bytes.count)
        bytes.append(key)
        bytes.append(value)
        if !headers.bytes.isEmpty { bytes.append(headers.bytes) }
        count += 1
    }

    /// Appends a tombstone: the key has no value any more.
    public mutating func append(
        tombstone key: Span<UInt8>, partition: Int32, timestamp: EventTime,
        headers: RecordHeaders = RecordHeaders()
    ) {
        appendHead(partition, timestamp, key.count, -1, headers.bytes.count)
        bytes.append(key)
        if !headers.bytes.isEmpty { bytes.append(headers.bytes) }
        count += 1
    }

    private mutating func appendHead(
        _ partition: Int32, _ timestamp: EventTime, _ key: Int, _ value: Int, _ headers: Int
    ) {
        // Six numbers, 24 bytes, written in three words.
        let time = UInt64(bitPattern: timestamp.milliseconds)
        func word(_ low: UInt64, _ high: UInt64) -> UInt64 { low & 0xFFFF_FFFF | high << 32 }
        func bits(_ number: Int) -> UInt64 { UInt64(truncatingIfNeeded: number) }
        bytes.appendLittleEndian(word(bits(Int(partition)), time))
        bytes.appendLittleEndian(word(time >> 32, bits(key)))
        bytes.appendLittleEndian(word(bits(value), bits(headers)))
    }

    public mutating func removeAll() {
        bytes.removeAll()
        count = 0
    }
}

/// Names and values beside a record, rarely used. Encoded as count-free (name size 2 bytes, name,
/// value size 4 bytes, value) little endian.
public struct RecordHeaders: Sendable {
    public private(set) var bytes = ByteBuffer()

    public init() {}

    public mutating func append(_ name: String, _ value: Span<UInt8>) {
        bytes.appendLittleEndian(UInt16(name.utf8.count))
        bytes.append(text: name)
        bytes.appendLittleEndian(UInt32(value.count))
        bytes.append(value)
    }

    /// What was encoded before.
    public init(encoded bytes: ByteBuffer) { self.bytes = bytes }

    /// Where the value of the first header `name` stands in encoded headers; `nil` if there is none, or
    /// they are not what `append` writes.
    public static func find(_ name: StaticString, in headers: Span<UInt8>) -> Range<Int>? {
        var reader = ByteReader(headers)
        while let nameSize = reader.littleEndian(UInt16.self),
            let found = reader.take(Int(nameSize)),
            let valueSize = reader.littleEndian(UInt32.self),
            let value = reader.take(Int(valueSize))
        {
            if headers.extracting(found).equals(name) { return value }
        }
        return nil
    }
}

public enum DeliveryOutcome: Sendable {
    /// Every record of the batch is durable.
    case stored
    case failed(EventLogError)
}

/// Told once for each batch that asked for it, on a thread of the log: count or enqueue, and return.
public protocol DeliveryReceiver: AnyObject, Sendable {
    func delivered(_ token: UInt64, _ outcome: DeliveryOutcome)
}

public struct DeliveryReceipt: Sendable {
    public var receiver: any DeliveryReceiver
    /// The sender's own number for the batch.
    public var token: UInt64

    public init(_ receiver: any DeliveryReceiver, token: UInt64) {
        self.receiver = receiver
        self.token = token
    }
}

public enum SendOutcome: Sendable { case accepted, queueFull, closed }

/// Takes batches from any thread and never blocks.
public protocol EventProducer: Sendable {
    /// Hands a batch over. With `.queueFull` and `.closed` nothing of it was taken and `receipt` is
    /// not told. Batches of one sender keep their order.
    func send(_ batch: RecordBatch, receipt: DeliveryReceipt?) -> SendOutcome

    /// Bytes that wait.
    var queuedBytes: Int { get }

    /// Waits until all that was accepted is stored or has failed; `false` if time ran out.
    func flush(milliseconds: Int64) -> Bool

    /// Flushes and stops; later batches are refused.
    func close()
}

/// What changed in a member's assignment.
public enum AssignmentChange: Sendable, Equatable {
    /// Nothing is read of these partitions until `start(_:at:)`. Without any: the member has its place
    /// in the group, and others have all partitions.
    case assigned([Int32])
    /// To be given up: commit what is buffered, then `release`. Nothing more is read of them.
    case revoked([Int32])
    /// Already another's: discard.
    case lost([Int32])
}

/// One member of a consumer group. Not copyable and not shared between threads.
public protocol EventConsumer: AnyObject {
    /// The oldest change that was not handed out yet.
    func nextAssignmentChange() throws(EventLogError) -> AssignmentChange?

    /// Reads `partition` from `offset` on; also seeks.
    /// - Throws: `.offsetOutOfRange` if the log begins later or ends before it.
    func start(_ partition: Int32, at offset: Int64) throws(EventLogError)

    /// Gives revoked partitions up.
    func release(_ partitions: [Int32]) throws(EventLogError)

    func pause(_ partition: Int32)
    func resume(_ partition: Int32)

    /// Lends up to `limit` records that are there now, without waiting: in order within a partition.
    /// A tombstone has `value` nil. Nothing lent outlives `body`.
    /// - Returns: how many records were lent.
    func poll(
        limit: Int, _ body: (RecordPlace, Span<UInt8>, borrowing RecordValue) -> Void
    ) throws(EventLogError) -> Int

    /// The offsets a partition of the topic holds now.
    func offsets(of partition: Int32) throws(EventLogError) -> OffsetRange

    /// A hint for lag monitors; where reading starts is the database's word.
    func noteCommitted(_ partition: Int32, next offset: Int64)
}

/// A record's value, bytes or nothing (a tombstone), and what stands beside it.
public struct RecordValue: ~Escapable {
    public let isTombstone: Bool
    /// Empty for a tombstone.
    public let bytes: Span<UInt8>
    /// As `RecordHeaders` encodes them; nearly always empty.
    public let headers: Span<UInt8>

    @_lifetime(copy bytes)
    public init(_ bytes: Span<UInt8>, isTombstone: Bool = false) {
        self.bytes = bytes
        self.isTombstone = isTombstone
        headers = Span()
    }

    @_lifetime(copy bytes, copy headers)
    public init(_ bytes: Span<UInt8>, isTombstone: Bool, headers: Span<UInt8>) {
        self.bytes = bytes
        self.isTombstone = isTombstone
        self.headers = headers
    }
}

/// An operation of the log that failed: what was being done, what was wrong, what to do next.
public struct EventLogError: Error, Hashable, Sendable, CustomStringConvertible {
    public enum Operation: String, Sendable {
        case opening, creatingTopics = "creating topics", producing, consuming, assigning, closing
        case reading
    }

    public enum Kind: Sendable, Hashable {
        /// The same call may succeed later.
        case unavailable
        /// A stored offset that the log does not hold.
        case offsetOutOfRange(requested: Int64, OffsetRange)
        /// A topic with another number of partitions, a directory that cannot be used, a bad setting.
        case configuration
        /// The log's own data is damaged, or its disk is full.
        case storage
    }

    public var operation: Operation
    public var kind: Kind
    public var place: TopicPartition?
    /// What was wrong and what to do about it; no secrets, no payloads.
    public var reason: String

    public init(
        _ operation: Operation, _ kind: Kind, place: TopicPartition? = nil, _ reason: String
    ) {
        self.operation = operation
        self.kind = kind
        self.place = place
        self.reason = reason
    }

    public var description: String {
        "\(operation.rawValue)\(place.map { " \($0)" } ?? ""): \(reason)"
    }
}
