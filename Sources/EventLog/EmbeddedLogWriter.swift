internal import Bytes
internal import KeyValue
internal import Schemas
internal import Synchronization
internal import System

/// What one producer has under way in one environment's queue or the other's.
final class EmbeddedProducerQueue: Sendable {
    private struct State {
        var bytes = 0
        /// By environment: each finishes batches in the order in which they came.
        var accepted = InlineArray<2, Int>(repeating: 0)
        var finished = InlineArray<2, Int>(repeating: 0)
        var isClosed = false
        var waiting: [Waker] = []
    }

    private let state = Mutex(State())
    let settings: ProducerSettings

    init(_ settings: ProducerSettings) { self.settings = settings }

    var queuedBytes: Int { state.withLock { $0.bytes } }

    func close() { state.withLock { $0.isClosed = true } }

    /// Hands the batch to `writer`, unless that would be too much.
    func send(
        _ batch: RecordBatch, _ receipt: DeliveryReceipt?, to writer: EmbeddedWriter
    ) -> SendOutcome {
        // The queue is entered under the lock: otherwise batches of one thread could pass those of
        // another between counting and entering, and `finished` would count the wrong ones.
        state.withLock { state in
            if state.isClosed { return .closed }
            guard state.bytes + batch.sizeBytes <= settings.queueBytes else { return .queueFull }
            guard writer.enter(batch, receipt, self) else { return .closed }
            state.bytes += batch.sizeBytes
            state.accepted[writer.number] += 1
            return .accepted
        }
    }

    /// Called by a writer once a batch's receipt was told.
    func finish(bytes: Int, writer: Int) {
        let waiting = state.withLock { state in
            state.bytes -= bytes
            state.finished[writer] += 1
            return state.waiting
        }
        for waker in waiting { waker.signal() }
    }

    /// Waits until what was accepted before the call is finished.
    func flush(milliseconds: Int64) -> Bool {
        let waker = Waker()
        let goal = state.withLock { state in
            state.waiting.append(waker)
            return state.accepted
        }
        defer { state.withLock { $0.waiting.removeAll { $0 === waker } } }
        let start = SystemClock.monotonicMilliseconds()
        while true {
            let isDone = state.withLock { state in
                goal.indices.allSatisfy { state.finished[$0] >= goal[$0] }
            }
            if isDone { return true }
            let left = milliseconds - (SystemClock.monotonicMilliseconds() - start)
            guard left > 0 else { return false }
            waker.wait(milliseconds: left)
        }
    }
}

/// The thread that writes one environment: batches of all producers of this process, as many as
/// have come, with one sync (group commit).
final class EmbeddedWriter: Sendable {
    private struct Entry {
        let batch: RecordBatch
        let receipt: DeliveryReceipt?
        let producer: EmbeddedProducerQueue
    }

    private struct Queue {
        var entries = ContiguousArray<Entry>()
        var bytes = 0
        /// When the first of them has waited long enough, on the monotonic clock.
        var due = Int64.max
        var isStopping = false
        /// Whether the thread sleeps, and what must not wait for the end of its sleep.
        var isAsleep = false
        var wakeBytes = 0
        var wakeDue = Int64.max
    }

    private enum Step {
        case commit(ContiguousArray<Entry>)
        case wait(until: Int64)
        case stop
    }

    private let queue = Mutex(Queue())
    private let waker = Waker()
    private let environment: EmbeddedEnvironment
    private let settings: EmbeddedLogSettings
    private let doorbell: Doorbell
    /// Which of the log's writers this is, 0 or 1.
    let number: Int

    init(
        _ environment: EmbeddedEnvironment, number: Int, _ settings: EmbeddedLogSettings,
        _ doorbell: Doorbell
    ) {
        self.environment = environment
        self.number = number
        self.settings = settings
        self.doorbell = doorbell
    }

    /// Queues a batch; false if the writer is stopping.
    func enter(
        _ batch: RecordBatch, _ receipt: DeliveryReceipt?, _ producer: EmbeddedProducerQueue
    ) -> Bool {
        let due = SystemClock.monotonicMilliseconds() + producer.settings.lingerMilliseconds
        let entry = Entry(batch: batch, receipt: receipt, producer: producer)
        let (isTaken, isToWake) = queue.withLock { queue in
            guard !queue.isStopping else { return (false, false) }
            queue.entries.append(entry)
            queue.bytes += batch.sizeBytes
            queue.due = min(queue.due, due)
            let isToWake =
                queue.isAsleep && (queue.bytes >= queue.wakeBytes || queue.due < queue.wakeDue)
            if isToWake { queue.isAsleep = false }
            return (true, isToWake)
        }
        if isToWake { waker.signal() }
        return isTaken
    }

    /// Lets the thread end once the queue is empty.
    func stop() {
        queue.withLock { $0.isStopping = true }
        waker.signal()
    }

    /// The thread's body.
    func run() {
        var isFailing = false
        var nextExpiry = SystemClock.monotonicMilliseconds() + settings.expiryMilliseconds
        while true {
            let now = SystemClock.monotonicMilliseconds()
            if now >= nextExpiry {
                // Spent: there is more to delete, but let others write in between.
                let isSpent = expireAll()
                nextExpiry =
                    SystemClock.monotonicMilliseconds()
                    + (isSpent ? min(20, settings.expiryMilliseconds) : settings.expiryMilliseconds)
            }
            switch nextStep(now, nextExpiry) {
            case .stop: return
            case .wait(let end):
                waker.wait(milliseconds: end - SystemClock.monotonicMilliseconds())
            case .commit(let entries):
                // Without room, only old records' pages can make some.
                if !commit(entries, &isFailing) { nextExpiry = 0 }
            }
        }
    }

    private func nextStep(_ now: Int64, _ nextExpiry: Int64) -> Step {
        queue.withLock { queue in
            queue.isAsleep = false
            if queue.entries.isEmpty {
                if queue.isStopping { return .stop }
                queue.isAsleep = true
                queue.wakeBytes = 0
                queue.wakeDue = .max
                return .wait(until: nextExpiry)
            }
            if queue.bytes < settings.lingerBytes, now < queue.due, !queue.isStopping {
                queue.isAsleep = true
                queue.wakeBytes = settings.lingerBytes
                queue.wakeDue = queue.due
                return .wait(until: min(queue.due, nextExpiry))
            }
            var count = 0
            var bytes = 0
            while count < queue.entries.count {
                let size = queue.entries[count].batch.sizeBytes
                guard count == 0 || bytes + size <= settings.commitBytes else { break }
                bytes += size
                count += 1
            }
            queue.bytes -= bytes
            if count == queue.entries.count {
                let entries = queue.entries
                queue.entries = []
                queue.due = .max
                return .commit(entries)
            }
            let entries = ContiguousArray(queue.entries[..<count])
            queue.entries.removeFirst(count)
            // What is left has waited for a whole commit already.
            queue.due = now
            return .commit(entries)
        }
    }

    // MARK: - Commits

    /// - Returns: whether all that could be stored was.
    private func commit(_ entries: ContiguousArray<Entry>, _ isFailing: inout Bool) -> Bool {
        var outcomes: [DeliveryOutcome] = []
        var topics: [EmbeddedTopic?] = []
        for entry in entries {
            switch validate(entry.batch) {
            case .success(let topic):
                outcomes.append(.stored)
                topics.append(topic)
            case .failure(let error):
                outcomes.append(.failed(error))
                topics.append(nil)
            }
        }
        var isStored = true
        do throws(KeyValueError) {
            try store(entries, topics, entries.indices)
        } catch {
            // One of them may be to blame, or the sum of them: each for itself.
            for index in entries.indices where topics[index] != nil {
                do throws(KeyValueError) {
                    if entries.count == 1 { throw error }
                    try store(entries, topics, index..<index + 1)
                } catch {
                    isStored = false
                    outcomes[index] = .failed(EventLogError(.producing, error))
                }
            }
        }
        report(outcomes, &isFailing)
        ring(topics)
        for (index, entry) in entries.enumerated() {
            if let receipt = entry.receipt {
                receipt.receiver.delivered(receipt.token, outcomes[index])
            }
            entry.producer.finish(bytes: entry.batch.sizeBytes, writer: number)
        }
        return isStored
    }

    private func store(
        _ entries: ContiguousArray<Entry>, _ topics: [EmbeddedTopic?], _ range: Range<Int>
    ) throws(KeyValueError) {
        var records = 0
        var bytes = 0
        for index in range where topics[index] != nil {
            records += entries[index].batch.count
            bytes += entries[index].batch.sizeBytes
        }
        guard records > 0 else { return }
        var budget = ExpiryBudget(appendedRecords: records, appendedBytes: bytes)
        let now = EventTime(milliseconds: SystemClock.wallMilliseconds())
        var commit = try EmbeddedCommit(environment)
        for index in range {
            guard let topic = topics[index] else { continue }
            let isRepeated = topics[range.lowerBound..<index].contains {
                $0?.topic == topic.topic
            }
            if isRepeated || budget.isSpent { continue }
            try commit.expire(
                topic, now: now, tombstoneMilliseconds: settings.tombstoneMilliseconds, &budget)
        }
        for index in range {
            guard let topic = topics[index] else { continue }
            let bytes = entries[index].batch.bytes
            try commit.append(bytes.span, to: topic)
        }
        try commit.commit()
    }

    /// Deletes old records of all topics, as much as one commit may.
    /// - Returns: whether there may be more.
    private func expireAll() -> Bool {
        do throws(KeyValueError) {
            var budget = ExpiryBudget()
            let now = EventTime(milliseconds: SystemClock.wallMilliseconds())
            let topics = try environment.allTopics()
            var commit = try EmbeddedCommit(environment)
            for topic in topics where !budget.isSpent {
                try commit.expire(
                    topic, now: now, tombstoneMilliseconds: settings.tombstoneMilliseconds,
                    &budget)
            }
            try commit.commit()
            return budget.isSpent
        } catch {
            Log.warning("expiring old records failed; it is tried again", ["error": "\(error)"])
            return false
        }
    }

    private func ring(_ topics: [EmbeddedTopic?]) {
        var rung: UInt64 = 0
        for case .some(let topic) in topics {
            let bell = EmbeddedWatch.bell(of: topic.topic)
            if rung & (1 << UInt64(bell)) == 0 { doorbell.ring(bell) }
            rung |= 1 << UInt64(bell)
        }
    }

    /// Says once that batches fail, and once that they are stored again.
    private func report(_ outcomes: [DeliveryOutcome], _ isFailing: inout Bool) {
        var first: EventLogError?
        for case .failed(let error) in outcomes where first == nil { first = error }
        if let first, !isFailing {
            Log.error("the log cannot store batches", ["error": "\(first)"])
        } else if first == nil, isFailing {
            Log.notice("the log stores batches again")
        }
        isFailing = first != nil
    }

    /// The topic of a batch, if all its records fit there.
    private func validate(_ batch: RecordBatch) -> Result<EmbeddedTopic, EventLogError> {
        let found: EmbeddedTopic?
        do throws(KeyValueError) { found = try environment.topic(batch.topic) } catch {
            return .failure(EventLogError(.producing, error))
        }
        guard let topic = found else {
            return .failure(
                EventLogError(
                    .producing, .configuration,
                    "topic \(batch.topic.rawValue) does not exist; create it first"))
        }
        let bytes = batch.bytes.span
        var offset = 0
        while offset < bytes.count {
            guard bytes.count - offset >= 4, let record = RecordHead(bytes, at: offset + 4) else {
                return .failure(
                    EventLogError(
                        .producing, .configuration, "a batch of \(batch.topic.rawValue) is cut off")
                )
            }
            let partition = bytes.littleEndian(at: offset, as: Int32.self)
            let place = TopicPartition(batch.topic, partition)
            guard partition >= 0, Int(partition) < topic.places.count else {
                return .failure(
                    EventLogError(
                        .producing, .configuration, place: place,
                        "the topic has \(topic.places.count) partitions"))
            }
            if topic.isCompacted, record.keySize < 1 || record.keySize > EmbeddedFormat.longestKey {
                return .failure(
                    EventLogError(
                        .producing, .configuration, place: place,
                        "a compacted topic needs keys of 1 to \(EmbeddedFormat.longestKey) bytes, "
                            + "and one has \(record.keySize)"))
            }
            offset += 4 + RecordHead.sizeBytes + record.contentBytes
        }
        return .success(topic)
    }
}
