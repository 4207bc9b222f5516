internal import Postgres
internal import Bytes
internal import EventLog
internal import Schemas
internal import Sinks
internal import Synchronization
internal import System

/// Events of one source in one partition on their way to the log: published in order, one round at
/// a time, and deleted from the database when the log has acknowledged the whole round.
struct OutboxQueue: Sendable {
    let source: OutboxSource
    let partition: Int32
    private var waiting = OutboxBuffer()
    private var sent = OutboxBuffer()
    /// Batches of the round that were not acknowledged yet.
    private var outstanding = 0
    private var hasFailed = false
    private var failures = 0
    /// The worker's number of the round, so that a late answer to an earlier one is told apart.
    private var round: UInt32 = 0
    private var notBefore: Int64 = 0
    /// Acknowledged by the log and still in the database.
    private(set) var deletableThrough: Int64?
    private var deletionTicket: UInt64?
    private var deletionNotBefore: Int64 = 0

    init(_ source: OutboxSource, partition: Int32) {
        self.source = source
        self.partition = partition
    }

    var count: Int { waiting.count + sent.count }

    /// Nothing waits for the log or the database.
    var isSettled: Bool { count == 0 && deletableThrough == nil }

    mutating func append(_ events: OutboxBuffer) { waiting.append(events) }

    /// Begins a round if none is under way: one batch a topic, in order.
    mutating func publish(
        by publisher: inout OutboxPublisher<some EventProducer>, now: Int64
    ) {
        guard outstanding == 0, now >= notBefore else { return }
        if sent.isEmpty {
            guard !waiting.isEmpty else { return }
            swap(&waiting, &sent)
        }
        round = publisher.nextRound()
        let token = OutboxToken(partition, source, round)
        (outstanding, hasFailed) = publisher.send(sent, source: source, token: token)
        if outstanding == 0 { endRound(now: now) }
    }

    /// The log's answer to one batch.
    mutating func take(_ receipt: OutboxToken, isStored: Bool, now: Int64) {
        guard receipt.round == round, outstanding > 0 else { return }
        outstanding -= 1
        if !isStored { hasFailed = true }
        if outstanding == 0 { endRound(now: now) }
    }

    private mutating func endRound(now: Int64) {
        if hasFailed {
            // The whole round again: at least once, and readers know a sequence they have seen.
            failures += 1
            notBefore = now + Backoff().delay(afterFailures: failures)
            return
        }
        failures = 0
        if let last = sent.entries.last { deletableThrough = last.sequence }
        sent.removeAll()
    }

    /// Asks the database to delete what was acknowledged, if anything was and no such request is
    /// under way.
    /// - Parameter ticket: the last one that was given out.
    mutating func requestDeletion(_ store: some StreamStore, ticket: inout UInt64, now: Int64) {
        guard let through = deletableThrough, deletionTicket == nil, now >= deletionNotBefore
        else { return }
        let request = StoreRequest(
            ticket: ticket + 1, partition: partition,
            action: .deleteOutbox(source, through: through))
        guard store.submit(request) else {
            deletionNotBefore = now + 10
            return
        }
        ticket += 1
        deletionTicket = ticket
        deleting = through
    }

    /// What the request under way deletes.
    private var deleting: Int64 = 0

    /// The database's answer to `requestDeletion`; `false` if `ticket` is not of this queue.
    mutating func take(deletion ticket: UInt64, isDone: Bool, now: Int64) -> Bool {
        guard deletionTicket == ticket else { return false }
        deletionTicket = nil
        if !isDone {
            deletionNotBefore = now + Backoff().delay(afterFailures: 3)
        } else if deletableThrough == deleting {
            deletableThrough = nil
        }
        return true
    }

    /// When something is to be done without a signal from outside.
    var wakeTime: Int64? {
        var time: Int64?
        if outstanding == 0, count > 0 { time = notBefore }
        if deletableThrough != nil, deletionTicket == nil {
            time = min(time ?? .max, deletionNotBefore)
        }
        return time
    }
}

/// How a worker publishes: its producer, and what every round needs.
struct OutboxPublisher<Producer: EventProducer> {
    let producer: Producer
    let receipts: OutboxReceipts
    let pipeline: String
    /// How many partitions each topic has.
    let partitions: [Topic: Int32]
    private var lastRound: UInt32 = 0
    /// Events handed to the producer since the start.
    private(set) var events: Int64 = 0

    init(_ producer: Producer, receipts: OutboxReceipts, settings: WorkerSettings) {
        self.producer = producer
        self.receipts = receipts
        pipeline = settings.pipeline
        partitions = settings.outputPartitions
    }

    mutating func nextRound() -> UInt32 {
        lastRound = (lastRound + 1) & OutboxToken.roundMask
        return lastRound
    }

    /// Hands one batch a topic to the producer.
    /// - Returns: how many batches will be answered, and whether one was refused.
    mutating func send(
        _ outbox: OutboxBuffer, source: OutboxSource, token: OutboxToken
    ) -> (outstanding: Int, hasFailed: Bool) {
        var batches: [RecordBatch] = []
        let bytes = outbox.bytes.span
        let name = "\(source.name(pipeline: pipeline))/\(token.partition)/"
        for entry in outbox.entries {
            let index =
                batches.firstIndex { $0.topic == entry.topic }
                ?? {
                    batches.append(RecordBatch(entry.topic))
                    return batches.count - 1
                }()
            let key = bytes.extracting(entry.key)
            // A topic that an earlier release wrote to may be unknown; partition 0 it has.
            let partition = Partitioner.partition(of: key, count: partitions[entry.topic] ?? 1)
            let headers = header(name, entry.sequence)
            if entry.isTombstone {
                batches[index].append(
                    tombstone: key, partition: partition, timestamp: entry.time, headers: headers)
            } else {
                batches[index].append(
                    partition: partition, timestamp: entry.time, key: key,
                    value: bytes.extracting(entry.value), headers: headers)
            }
        }
        var outstanding = 0
        var hasFailed = false
        for batch in batches {
            let receipt = DeliveryReceipt(receipts, token: token.rawValue)
            switch producer.send(batch, receipt: receipt) {
            case .accepted: outstanding += 1
            case .queueFull, .closed: hasFailed = true
            }
        }
        events += Int64(outbox.count)
        return (outstanding, hasFailed)
    }

    /// `outbox`: source, partition and sequence, so that a reader can tell a repetition.
    private func header(_ name: String, _ sequence: Int64) -> RecordHeaders {
        var text = ByteBuffer(name.utf8)
        text.append(decimal: sequence)
        var headers = RecordHeaders()
        headers.append("outbox", text.span)
        return headers
    }
}

/// What a batch of outbox events is called in the log's receipts: partition (32 bits), source (2),
/// round (30).
struct OutboxToken: Sendable {
    let rawValue: UInt64

    init(rawValue: UInt64) { self.rawValue = rawValue }

    init(_ partition: Int32, _ source: OutboxSource, _ round: UInt32) {
        let index = UInt64(OutboxSource.allCases.firstIndex(of: source) ?? 0)
        rawValue =
            UInt64(UInt32(bitPattern: partition)) << 32 | index << 30
            | UInt64(round & Self.roundMask)
    }

    static let roundMask: UInt32 = 0x3FFF_FFFF

    var partition: Int32 { Int32(bitPattern: UInt32(truncatingIfNeeded: rawValue >> 32)) }
    var source: OutboxSource { OutboxSource.allCases[Int(rawValue >> 30 & 3)] }
    var round: UInt32 { UInt32(truncatingIfNeeded: rawValue) & Self.roundMask }
}

/// Takes the log's receipts on its threads and keeps them for the worker's.
final class OutboxReceipts: DeliveryReceiver {
    private let pending = Mutex<[(OutboxToken, isStored: Bool)]>([])
    private let waker: Waker

    init(waker: Waker) { self.waker = waker }

    func delivered(_ token: UInt64, _ outcome: DeliveryOutcome) {
        let isStored = if case .stored = outcome { true } else { false }
        pending.withLock { $0.append((OutboxToken(rawValue: token), isStored)) }
        waker.signal()
    }

    func take() -> [(OutboxToken, isStored: Bool)] {
        pending.withLock { list in
            if list.isEmpty { return [] }
            defer { list.removeAll(keepingCapacity: true) }
            return list
        }
    }
}
