public import EventLog
internal import Bytes
public import Schemas
internal import Synchronization
public import System

/// What every implementation of `EventLog` promises, in sentences.
public enum EventLogRule: String, CaseIterable, Sendable, CustomStringConvertible {
    case topicsAreMadeOnce = "making a topic twice makes it once"
    case partitionsAreFixed = "a topic that exists with another number of partitions is an error"
    case missingTopicsAreNil = "a topic that was not made has no partitions"
    case offsetsBeginAtZero = "offsets begin at 0 and count up by one in each partition"
    case orderIsKept = "records of a partition are read in the order in which they were sent"
    case receiptsMeanDurable = "a record whose receipt was told is there for everyone"
    case batchesWithoutReceipts = "an empty batch and a batch without receipt are taken"
    case recordsComeBackWhole =
        "key, value, headers, place and timestamp come back as they were sent"
    case tombstonesAreNotEmptyValues = "a tombstone is told from an empty value"
    case largeRecords = "a value of a mebibyte comes back whole"
    case everyPartitionIsAssigned = "the only member of a group is assigned every partition"
    case nothingIsReadBeforeStart = "nothing is read of a partition before it is started"
    case readingStartsInTheMiddle =
        "reading starts at the offset that was asked for, again and again"
    case offsetsOutOfRangeAreErrors =
        "starting before the first or behind the next offset is an error"
    case limitsHold = "a poll lends no more than its limit, and the next goes on from there"
    case pausedPartitionsRest = "a paused partition is not read, and goes on where it stood"
    case releasedPartitionsRest = "a released partition is not read any more"
    case partitionsShareThePolls = "no partition waits while others are full"
    case membersOfTwoGroupsSeeTheSame = "members of two groups see the same records"
    case appendsWakeConsumers = "an append wakes a consumer that waits"
    case fullQueuesTakeNothing = "a full queue takes nothing of a batch and tells no receipt"
    case unknownTopicsFail = "a batch for a topic that does not exist fails its receipt"
    case flushWaits = "after a flush nothing is queued and everything is there"
    case closedProducersRefuse = "a closed producer has stored all it took and refuses the rest"

    public var description: String { rawValue }
}

/// One implementation of `EventLog`, to be held to the rules.
public struct EventLogImplementation: Sendable, CustomStringConvertible {
    public let description: String
    /// Checks one rule on a fresh, empty log.
    public let check: @Sendable (EventLogRule) throws -> Void

    /// - Parameter withLog: makes an empty log, lends it and takes it away.
    public init<Log: EventLog>(
        _ description: String,
        withLog: @escaping @Sendable (_ body: (Log) throws -> Void) throws -> Void
    ) {
        self.description = description
        check = { rule in
            try withLog { log in try EventLogContract(log: log).check(rule) }
        }
    }
}

/// A promise that was not kept.
public struct BrokenPromise: Error, CustomStringConvertible {
    public let description: String

    public init(_ description: String) { self.description = description }
}

/// Throws unless the condition holds.
func promise(
    _ condition: Bool, _ what: @autoclosure () -> String, line: UInt = #line
) throws(BrokenPromise) {
    guard condition else { throw BrokenPromise("\(what()) (contract, line \(line))") }
}

/// Throws unless the two are equal.
func promise<Value: Equatable>(
    _ found: Value, is expected: Value, _ what: @autoclosure () -> String, line: UInt = #line
) throws(BrokenPromise) {
    guard found == expected else {
        throw BrokenPromise(
            "\(what()): expected \(expected), found \(found) (contract, line \(line))")
    }
}

/// A record that was lent, copied.
public struct ReadRecord: Hashable, Sendable {
    public var place: RecordPlace
    public var key: [UInt8]
    /// `nil` for a tombstone.
    public var value: [UInt8]?
    /// As `RecordHeaders` encodes them.
    public var headers: [UInt8]

    public init(place: RecordPlace, key: [UInt8], value: [UInt8]?, headers: [UInt8] = []) {
        self.place = place
        self.key = key
        self.value = value
        self.headers = headers
    }
}

/// Collects receipts and lets a test wait for them.
public final class ReceiptCollector: DeliveryReceiver {
    private let outcomes = Mutex<[UInt64: [DeliveryOutcome]]>([:])
    private let waker = Waker()

    public init() {}

    public func delivered(_ token: UInt64, _ outcome: DeliveryOutcome) {
        outcomes.withLock { $0[token, default: []].append(outcome) }
        waker.signal()
    }

    /// How many outcomes a token was told.
    public func count(_ token: UInt64) -> Int { outcomes.withLock { $0[token]?.count ?? 0 } }

    /// Waits for a token's outcome. Only one thread may wait.
    public func outcome(of token: UInt64, seconds: Int64 = 60) throws -> DeliveryOutcome {
        let end = SystemClock.monotonicMilliseconds() + seconds * 1_000
        while true {
            if let outcome = outcomes.withLock({ $0[token]?.first }) { return outcome }
            let left = end - SystemClock.monotonicMilliseconds()
            guard left > 0 else { throw BrokenPromise("receipt \(token) was not told in time") }
            waker.wait(milliseconds: left)
        }
    }

    /// Waits until a token's batch is stored.
    public func requireStored(_ token: UInt64) throws {
        if case .failed(let error) = try outcome(of: token) { throw error }
    }
}

extension EventConsumer {
    /// Waits for an assignment and starts all of its partitions at their first offset.
    /// - Returns: the partitions.
    @discardableResult
    public func startAll(_ waker: Waker, seconds: Int64 = 60) throws -> [Int32] {
        let end = SystemClock.monotonicMilliseconds() + seconds * 1_000
        while true {
            while let change = try nextAssignmentChange() {
                guard case .assigned(let partitions) = change else { continue }
                for partition in partitions {
                    try start(partition, at: try offsets(of: partition).earliest)
                }
                return partitions
            }
            let left = end - SystemClock.monotonicMilliseconds()
            guard left > 0 else { throw BrokenPromise("no partitions were assigned in time") }
            waker.wait(milliseconds: left)
        }
    }

    /// Copies what one poll lends.
    public func pollCopies(limit: Int = 10_000) throws -> [ReadRecord] {
        var records: [ReadRecord] = []
        let count = try poll(limit: limit) { place, key, value in
            records.append(
                ReadRecord(
                    place: place, key: key.array,
                    value: value.isTombstone ? nil : value.bytes.array,
                    headers: value.headers.array))
        }
        try promise(count, is: records.count, "the number of records that a poll returns")
        return records
    }

    /// Polls whenever the waker says so until `count` records have come.
    public func collect(
        _ count: Int, _ waker: Waker, limit: Int = 10_000, seconds: Int64 = 60
    ) throws -> [ReadRecord] {
        let end = SystemClock.monotonicMilliseconds() + seconds * 1_000
        var records: [ReadRecord] = []
        while records.count < count {
            let found = try pollCopies(limit: limit)
            records += found
            guard found.isEmpty, records.count < count else { continue }
            // The waker must say so: records that are there but were not announced do not count.
            guard waker.wait(milliseconds: end - SystemClock.monotonicMilliseconds()) else {
                throw BrokenPromise("only \(records.count) of \(count) records came in time")
            }
        }
        return records
    }
}

extension EventLog {
    /// Sends a batch and waits until it is stored.
    public func store(_ batch: RecordBatch) throws {
        let producer = try makeProducer(ProducerSettings())
        let receipts = ReceiptCollector()
        let outcome = producer.send(batch, receipt: DeliveryReceipt(receipts, token: 0))
        try promise(outcome, is: .accepted, "sending a batch of \(batch.topic.rawValue)")
        try receipts.requireStored(0)
        producer.close()
    }
}

extension RecordBatch {
    /// Appends a record of text.
    public mutating func append(
        _ partition: Int32, _ key: String, _ value: String,
        at milliseconds: Int64 = SystemClock.wallMilliseconds(),
        headers: RecordHeaders = RecordHeaders()
    ) {
        let key = ByteBuffer(key.utf8)
        let value = ByteBuffer(value.utf8)
        append(
            partition: partition, timestamp: EventTime(milliseconds: milliseconds), key: key.span,
            value: value.span, headers: headers)
    }

    /// Appends a tombstone.
    public mutating func append(
        tombstone key: String, _ partition: Int32,
        at milliseconds: Int64 = SystemClock.wallMilliseconds()
    ) {
        let key = ByteBuffer(key.utf8)
        append(
            tombstone: key.span, partition: partition,
            timestamp: EventTime(milliseconds: milliseconds))
    }
}
