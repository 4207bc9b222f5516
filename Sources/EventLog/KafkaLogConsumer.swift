internal import Kafka
public import Schemas
internal import System

/// A member of a consumer group on one topic of a Kafka cluster.
///
/// The end of its life leaves the group, which can take seconds.
/// - Thread safety: belongs to the thread that polls it.
public final class KafkaLogConsumer: EventConsumer {
    private struct Reading {
        /// The next offset to be lent; `nil` while it is not read.
        var position: Int64?
        var isAssigned = false
        var isPaused = false
        /// What the broker said last, and when.
        var range: OffsetRange?
        var rangeTime: Int64 = .min / 2
        /// A hint for monitors that was not given yet.
        var committed: Int64?

        var isRead: Bool { isAssigned && !isPaused && position != nil }
    }

    private let topic: Topic
    private let settings: KafkaLogSettings
    private let health: KafkaHealth
    private let waker: Waker
    private let consumer: KafkaConsumer
    /// By partition.
    private var readings: ContiguousArray<Reading>
    private var changes: [AssignmentChange] = []
    /// Where partitions begin that librdkafka was not told yet.
    private var starting: [Int32: Int64] = [:]
    /// Partitions that were started and of which nothing was heard yet, and how long that counts.
    private var arriving: [Int32] = []
    private var arrivingEnd: Int64 = 0
    private let pause = Waker()
    /// Found in a poll that had lent records already.
    private var failure: EventLogError?
    /// The partition with which the next poll begins.
    private var first = 0
    private var nextCommit: Int64 = 0

    /// How long an answer about offsets is good enough to claim and start a partition by. They only
    /// grow, and what the log has lost meanwhile shows when it is read.
    private static let rangeMilliseconds: Int64 = 1_000
    private static let commitMilliseconds: Int64 = 1_000
    private static let arrivalMilliseconds: Int64 = 2_000

    init(
        _ topic: Topic, partitions: Int32, group: String, _ waker: Waker,
        _ settings: KafkaLogSettings, _ health: KafkaHealth
    ) throws(EventLogError) {
        self.topic = topic
        self.settings = settings
        self.health = health
        self.waker = waker
        readings = ContiguousArray(repeating: Reading(), count: Int(partitions))
        let configuration = try settings.makeConsumer(group: group, partitions: partitions)
        do throws(KafkaError) {
            consumer = try KafkaConsumer(
                of: topic.rawValue, configuration, wakeDescriptor: waker.descriptor,
                observer: health)
        } catch {
            throw EventLogError(.consuming, .configuration, "\(error.reason); see --kafka-config")
        }
    }

    // MARK: - The group

    public func nextAssignmentChange() throws(EventLogError) -> AssignmentChange? {
        if changes.isEmpty { try serve() }
        return changes.isEmpty ? nil : changes.removeFirst()
    }

    /// Lets librdkafka say what it has to say besides records.
    private func serve() throws(EventLogError) {
        let error = consumer.serve()
        while let change = consumer.nextChange() {
            switch change {
            case .assigned(let partitions):
                for partition in partitions {
                    // A topic that got more partitions is an error that others tell.
                    while readings.count <= Int(partition) { readings.append(Reading()) }
                    readings[Int(partition)] = Reading(isAssigned: true)
                }
                changes.append(.assigned(partitions))
            case .revoked(let partitions):
                for partition in partitions { forget(partition) }
                changes.append(.revoked(partitions))
            case .lost(let partitions):
                for partition in partitions {
                    forget(partition)
                    // Its next owner's hints are ahead of ours.
                    if Int(partition) < readings.count { readings[Int(partition)].committed = nil }
                }
                changes.append(.lost(partitions))
            }
        }
        if let error {
            // There may be more behind it.
            waker.signal()
            try report(error)
        }
    }

    private func forget(_ partition: Int32) {
        starting[partition] = nil
        guard Int(partition) < readings.count else { return }
        readings[Int(partition)].isAssigned = false
        readings[Int(partition)].position = nil
    }

    /// Errors that pass by themselves are for the log's health only.
    private func report(_ error: KafkaError) throws(EventLogError) {
        switch error.kind {
        case .unauthorized, .unknownTopic, .unsupported, .authentication, .tls:
            throw health.error(.consuming, error)
        case .fatal:
            let cause = consumer.fatalFailure ?? error
            throw EventLogError(
                .consuming, cause,
                "this member of the group cannot go on; restart the process, and give each one a "
                    + "group.instance.id of its own, or none")
        case .unavailable, .unresolved, .topicExists, .messageTooLarge, .offsetOutOfRange, .other:
            health.kafkaReported(error)
        }
    }

    public func start(_ partition: Int32, at offset: Int64) throws(EventLogError) {
        guard partition >= 0, Int(partition) < readings.count,
            readings[Int(partition)].isAssigned
        else {
            throw EventLogError(
                .assigning, .configuration, place: TopicPartition(topic, partition),
                "the partition is not assigned to this consumer")
        }
        var range = try askedRange(of: partition)
        if offset < range.earliest || offset > range.next {
            range = try ask(partition)
            guard offset >= range.earliest, offset <= range.next else {
                throw outOfRange(.assigning, partition, offset, range)
            }
        }
        readings[Int(partition)].position = offset
        starting[partition] = offset
        waker.signal()
    }

    /// Partitions that were started since the last poll are assigned together: then they are fetched
    /// together, and none is ahead of the others.
    private func assignStarted() throws(EventLogError) {
        // One that is read already is taken from librdkafka first, and while the group waits for a
        // release that would be the answer.
        guard !starting.isEmpty, !consumer.isReleasing else { return }
        let starts = starting.sorted { $0.key < $1.key }.map {
            (partition: $0.key, offset: $0.value)
        }
        do throws(KafkaError) { try consumer.read(starts) } catch {
            throw EventLogError(.assigning, error)
        }
        starting = [:]
        arriving = starts.map(\.partition)
        arrivingEnd = SystemClock.monotonicMilliseconds() + Self.arrivalMilliseconds
    }

    /// Whether all partitions that were started together have answered, so that none runs ahead of the
    /// others. One that does not answer holds them up for a moment only.
    private func haveArrived() -> Bool {
        guard !arriving.isEmpty else { return true }
        arriving.removeAll { partition in
            guard let position = readings[Int(partition)].position else { return true }
            if consumer.hasWaiting(partition) { return true }
            return consumer.knownOffsets(of: partition).map { $0.next <= position } ?? false
        }
        if SystemClock.monotonicMilliseconds() >= arrivingEnd { arriving = [] }
        return arriving.isEmpty
    }

    public func release(_ partitions: [Int32]) throws(EventLogError) {
        commitHints(isLast: true)
        for partition in partitions { forget(partition) }
        do throws(KafkaError) { try consumer.release(partitions) } catch {
            throw EventLogError(.assigning, error)
        }
    }

    /// A paused partition's records stay in its own queue, which has a limit.
    public func pause(_ partition: Int32) {
        guard partition >= 0, Int(partition) < readings.count else { return }
        readings[Int(partition)].isPaused = true
    }

    public func resume(_ partition: Int32) {
        guard partition >= 0, Int(partition) < readings.count else { return }
        readings[Int(partition)].isPaused = false
        // What came meanwhile was announced then.
        waker.signal()
    }

    // MARK: - Records

    /// Lends what is there, as much of each partition as of the others. When more is left, the waker is
    /// signalled.
    /// - Throws: `.offsetOutOfRange` once, if the log no longer holds what is to be read: the partition
    ///   must be started anew.
    public func poll(
        limit: Int, _ body: (RecordPlace, Span<UInt8>, borrowing RecordValue) -> Void
    ) throws(EventLogError) -> Int {
        if let failure {
            self.failure = nil
            throw failure
        }
        try serve()
        try assignStarted()
        commitHints(isLast: false)
        // Those that wait to be started still have records of where they stood before.
        guard limit > 0, starting.isEmpty else { return 0 }
        // Waited for here: not every answer rings, and a queue that has rung does not ring again before
        // something is taken from it.
        while !haveArrived() { pause.wait(milliseconds: 1) }
        var count = 0
        var isDrained = false
        while count < limit, !isDrained {
            let active = readings.count { $0.isRead }
            guard active > 0 else { return count }
            let share = max(1, (limit - count) / active)
            isDrained = true
            var next = first
            for step in readings.indices where count < limit {
                let index = (first + step) % readings.count
                guard readings[index].isRead else { continue }
                do throws(EventLogError) {
                    let taken = try take(index, min(share, limit - count), body)
                    count += taken
                    if taken == min(share, limit - count + taken) { isDrained = false }
                } catch {
                    guard count > 0 else { throw error }
                    failure = error
                    waker.signal()
                    return count
                }
                next = (index + 1) % readings.count
            }
            first = next
        }
        if !isDrained { waker.signal() }
        return count
    }

    /// Lends up to `limit` records of one partition.
    private func take(
        _ index: Int, _ limit: Int,
        _ body: (RecordPlace, Span<UInt8>, borrowing RecordValue) -> Void
    ) throws(EventLogError) -> Int {
        let partition = Int32(index)
        guard limit > 0, let start = readings[index].position else { return 0 }
        var position = start
        var count = 0
        var headers: [UInt8] = []
        while true {
            var told: KafkaError?
            consumer.take(from: partition) { message in
                if message.isError {
                    told = message.error
                    return false
                }
                let offset = message.offset
                // Compaction leaves gaps; only a reading that was started anew goes back.
                guard offset >= position else { return true }
                let place = RecordPlace(
                    partition: partition, offset: offset,
                    timestamp: EventTime(milliseconds: message.timestamp))
                message.withBytes { key, value, isTombstone in
                    guard message.takeHeaders(into: &headers) else {
                        body(place, key, RecordValue(value, isTombstone: isTombstone))
                        return
                    }
                    body(
                        place, key,
                        RecordValue(value, isTombstone: isTombstone, headers: headers.span))
                }
                position = offset + 1
                count += 1
                return count < limit
            }
            readings[index].position = position
            guard let told else { return count }
            guard told.kind == .offsetOutOfRange else {
                try report(told)
                continue
            }
            readings[index].position = nil
            throw outOfRange(.consuming, partition, position, try ask(partition))
        }
    }

    // MARK: - Offsets

    /// While a partition is read this is what the last answer with records told; otherwise the broker
    /// is asked, and the poll waits for that.
    public func offsets(of partition: Int32) throws(EventLogError) -> OffsetRange {
        guard partition >= 0, Int(partition) < readings.count else {
            throw EventLogError(
                .reading, .configuration, place: TopicPartition(topic, partition),
                "the topic has \(readings.count) partitions")
        }
        let reading = readings[Int(partition)]
        if let position = reading.position, let known = consumer.knownOffsets(of: partition),
            let range = reading.range
        {
            return OffsetRange(
                earliest: max(range.earliest, known.earliest ?? 0), next: max(known.next, position))
        }
        return try askedRange(of: partition)
    }

    private func askedRange(of partition: Int32) throws(EventLogError) -> OffsetRange {
        let reading = readings[Int(partition)]
        if let range = reading.range,
            SystemClock.monotonicMilliseconds() - reading.rangeTime < Self.rangeMilliseconds
        {
            return range
        }
        return try ask(partition)
    }

    @discardableResult
    private func ask(_ partition: Int32) throws(EventLogError) -> OffsetRange {
        do throws(KafkaError) {
            let (earliest, next) = try consumer.offsets(
                of: partition, milliseconds: Int32(clamping: settings.offsetsMilliseconds))
            let range = OffsetRange(earliest: earliest, next: next)
            readings[Int(partition)].range = range
            readings[Int(partition)].rangeTime = SystemClock.monotonicMilliseconds()
            return range
        } catch {
            throw EventLogError(.reading, error, place: TopicPartition(topic, partition))
        }
    }

    private func outOfRange(
        _ operation: EventLogError.Operation, _ partition: Int32, _ offset: Int64,
        _ range: OffsetRange
    ) -> EventLogError {
        EventLogError(
            operation, .offsetOutOfRange(requested: offset, range),
            place: TopicPartition(topic, partition),
            "offset \(offset) is not among \(range.earliest)..<\(range.next), which the log holds; "
                + "choose where to go on")
    }

    public func noteCommitted(_ partition: Int32, next offset: Int64) {
        guard partition >= 0, Int(partition) < readings.count else { return }
        readings[Int(partition)].committed = offset
    }

    private func commitHints(isLast: Bool) {
        let now = SystemClock.monotonicMilliseconds()
        guard isLast || now >= nextCommit else { return }
        nextCommit = now + Self.commitMilliseconds
        var hints: [(partition: Int32, next: Int64)] = []
        for index in readings.indices {
            if let offset = readings[index].committed {
                hints.append((Int32(index), offset))
                readings[index].committed = nil
            }
        }
        consumer.commit(hints)
    }
}
