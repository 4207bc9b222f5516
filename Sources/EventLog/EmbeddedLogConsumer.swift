internal import KeyValue
internal import Bytes
public import Schemas
internal import System

/// A reader of one topic of an embedded log. The assignment is static: all partitions it was made
/// with, from the beginning, for good.
///
/// - Thread safety: belongs to the thread that polls it.
public final class EmbeddedConsumer: EventConsumer {
    private struct Reading {
        let partition: Int32
        /// The next offset to be lent; `nil` until `start`.
        var position: Int64?
        var isPaused = false
        /// The end of the partition in this poll's transaction; not above `position` if there is
        /// nothing to read.
        var end: Int64 = 0

        var hasMore: Bool {
            guard let position, !isPaused else { return false }
            return position < end
        }
    }

    private let log: EmbeddedLog
    private let environment: EmbeddedEnvironment
    private let topic: EmbeddedTopic
    private let waker: Waker
    private let listener: UInt64
    private var reader: KeyValueReader
    private var readings: [Reading]
    private var isAssigned = false
    /// The reading with which the next poll begins.
    private var first = 0

    init(
        _ log: EmbeddedLog, _ environment: EmbeddedEnvironment, _ topic: EmbeddedTopic,
        partitions: [Int32], _ waker: Waker
    ) {
        self.log = log
        self.environment = environment
        self.topic = topic
        self.waker = waker
        reader = KeyValueReader(environment.store)
        readings = partitions.map { Reading(partition: $0) }
        listener = log.watch.add(waker, for: topic.topic)
        // The assignment is there at once.
        waker.signal()
    }

    deinit { log.watch.remove(listener) }

    public func nextAssignmentChange() throws(EventLogError) -> AssignmentChange? {
        guard !isAssigned else { return nil }
        isAssigned = true
        return .assigned(readings.map(\.partition))
    }

    public func start(_ partition: Int32, at offset: Int64) throws(EventLogError) {
        let range = try offsets(of: partition)
        guard let index = index(of: partition) else {
            throw EventLogError(
                .assigning, .configuration, place: TopicPartition(topic.topic, partition),
                "the partition is not assigned to this consumer")
        }
        guard offset >= range.earliest, offset <= range.next else {
            throw outOfRange(.assigning, partition, offset, range)
        }
        readings[index].position = offset
        waker.signal()
    }

    public func release(_ partitions: [Int32]) throws(EventLogError) {
        readings.removeAll { partitions.contains($0.partition) }
        first = 0
    }

    public func pause(_ partition: Int32) {
        if let index = index(of: partition) { readings[index].isPaused = true }
    }

    public func resume(_ partition: Int32) {
        guard let index = index(of: partition) else { return }
        readings[index].isPaused = false
        waker.signal()
    }

    public func offsets(of partition: Int32) throws(EventLogError) -> OffsetRange {
        try log.check(partition, topic)
        try begin()
        defer { reader.end() }
        return try reader.head(of: topic, Int(partition), in: environment).range
    }

    /// Nothing to note: where reading starts is the database's word, and no one else looks here.
    public func noteCommitted(_ partition: Int32, next offset: Int64) {}

    /// Lends what is there, for as long as a read transaction may last. The partition after the one
    /// that was lent last comes first in the next poll. When more is left, the waker is signalled.
    ///
    /// `body` runs inside the read transaction and must not call this consumer.
    /// - Throws: `.offsetOutOfRange` as long as retention has overtaken a partition that is read: it
    ///   must be started anew or paused. Nothing is lent by a poll that says so.
    public func poll(
        limit: Int, _ body: (RecordPlace, Span<UInt8>, borrowing RecordValue) -> Void
    ) throws(EventLogError) -> Int {
        guard limit > 0 else { return 0 }
        try begin()
        defer { reader.end() }
        try findEnds()
        var window = Window(
            limit: limit, end: SystemClock.monotonicMilliseconds() + log.readMilliseconds)
        var next = first
        for step in readings.indices where !window.isOver {
            let index = (first + step) % readings.count
            guard readings[index].hasMore, let position = readings[index].position else { continue }
            try read(index, from: position, &window, body)
            next = (index + 1) % readings.count
        }
        first = next
        if window.isOver, readings.contains(where: \.hasMore) { waker.signal() }
        return window.count
    }

    /// How much one poll may still lend.
    private struct Window {
        let limit: Int
        let end: Int64
        var count = 0
        var isOutOfTime = false

        init(limit: Int, end: Int64) {
            self.limit = limit
            self.end = end
        }

        var isOver: Bool { count >= limit || isOutOfTime }

        mutating func countOne() {
            count += 1
            if count & 31 == 0 { isOutOfTime = SystemClock.monotonicMilliseconds() >= end }
        }
    }

    private func findEnds() throws(EventLogError) {
        for index in readings.indices {
            guard let position = readings[index].position, !readings[index].isPaused else {
                continue
            }
            let partition = readings[index].partition
            let head = try reader.head(of: topic, Int(partition), in: environment)
            guard position >= head.earliest, position <= head.next else {
                throw outOfRange(.consuming, partition, position, head.range)
            }
            readings[index].end = head.next
        }
    }

    private func read(
        _ index: Int, from start: Int64, _ window: inout Window,
        _ body: (RecordPlace, Span<UInt8>, borrowing RecordValue) -> Void
    ) throws(EventLogError) {
        let partition = readings[index].partition
        let place = TopicPartition(topic.topic, partition)
        let isCompacted = topic.isCompacted
        var position = start
        var damage: Int64?
        do throws(KeyValueError) {
            try reader.scan(topic.places[Int(partition)].records, from: UInt64(start)) {
                key, bytes in
                let offset = Int64(key)
                // Only compaction takes records out of the middle.
                guard isCompacted || offset == position, let record = RecordHead(bytes, at: 0)
                else {
                    damage = position
                    return false
                }
                body(
                    RecordPlace(
                        partition: partition, offset: offset, timestamp: record.timestamp),
                    record.key(in: bytes),
                    RecordValue(
                        record.value(in: bytes), isTombstone: record.isTombstone,
                        headers: record.headers(in: bytes)))
                position = offset + 1
                window.countOne()
                return !window.isOver
            }
        } catch {
            readings[index].position = position
            throw EventLogError(.consuming, error, place: place)
        }
        let end = readings[index].end
        if !window.isOver, damage == nil, position < end {
            // The last records of a compacted partition may have gone; no others can.
            if isCompacted { position = end } else { damage = position }
        }
        readings[index].position = position
        if let damage {
            throw EventLogError.damaged(.consuming, place, "the record at offset \(damage)")
        }
    }

    private func begin() throws(EventLogError) {
        do throws(KeyValueError) { try reader.begin() } catch {
            throw EventLogError(.consuming, error)
        }
    }

    private func index(of partition: Int32) -> Int? {
        readings.firstIndex { $0.partition == partition }
    }

    private func outOfRange(
        _ operation: EventLogError.Operation, _ partition: Int32, _ offset: Int64,
        _ range: OffsetRange
    ) -> EventLogError {
        EventLogError(
            operation, .offsetOutOfRange(requested: offset, range),
            place: TopicPartition(topic.topic, partition),
            "offset \(offset) is not among \(range.earliest)..<\(range.next), which the log holds; "
                + "choose where to go on")
    }
}
