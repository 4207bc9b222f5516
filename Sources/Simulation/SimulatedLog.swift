public import Bytes
public import EventLog
public import Schemas
internal import Synchronization

/// A record of the simulated source topic.
public struct SimulatedRecord: Sendable {
    public var key: ByteBuffer
    public var value: ByteBuffer
    public var timestamp: EventTime

    public init(key: ByteBuffer, value: ByteBuffer, timestamp: EventTime) {
        self.key = key
        self.value = value
        self.timestamp = timestamp
    }
}

/// A source topic, a consumer group over it, and whatever was produced; all in memory, driven by the
/// simulation's clock and seed. Used by one thread.
public final class SimulatedLog: Sendable {
    struct State {
        var random: SplitMix64
        var now: Int64 = 0
        var records: [[SimulatedRecord]]
        /// Records that consumers can see; the rest has not arrived yet.
        var ends: [Int]
        var earliest: [Int64]
        /// No record arrives, reads fail, and batches are refused.
        var isDown = false
        /// Where each partition is, or is on its way to.
        var owners: [Int?]
        /// Member that gets the partition once its owner has released it.
        var heirs: [Int?]
        var changes: [Int: [(due: Int64, AssignmentChange)]] = [:]
        var members: [Int] = []
        var lastMember = 0
        var batches: [(due: Int64, batch: RecordBatch, receipt: DeliveryReceipt?)] = []
        var published: [PublishedEvent] = []
        var isCalm = false
        /// Records are there as soon as they are appended, unless their partition is stalled.
        var isLive = false
        /// Most records that one poll gives while it is not calm.
        var pollRecords = 40
        var stalled: [Bool]
    }

    /// An event that a worker published.
    public struct PublishedEvent: Hashable, Sendable {
        public var topic: Topic
        public var partition: Int32
        public var key: ByteBuffer
        public var value: ByteBuffer
        /// Header `outbox`: source, partition and sequence.
        public var origin: String
        public var isTombstone = false
    }

    let state: Mutex<State>

    public init(records: [[SimulatedRecord]], seed: UInt64) {
        let count = records.count
        state = Mutex(
            State(
                random: SplitMix64(seed: seed), records: records,
                ends: Array(repeating: 0, count: count),
                earliest: Array(repeating: 0, count: count),
                owners: Array(repeating: nil, count: count),
                heirs: Array(repeating: nil, count: count),
                stalled: Array(repeating: false, count: count)))
    }

    /// A log that is empty and grows by `append`; what is appended is there at once, unless its
    /// partition is stalled.
    ///
    /// - Parameter pollRecords: most records that one poll gives before `calm`; from 1.
    public static func live(partitions: Int, seed: UInt64, pollRecords: Int = 40) -> SimulatedLog {
        let log = SimulatedLog(records: Array(repeating: [], count: partitions), seed: seed)
        log.state.withLock {
            $0.isLive = true
            $0.pollRecords = pollRecords
        }
        return log
    }

    /// What a stalled partition takes in cannot be read until it goes on.
    public func setStalled(_ partition: Int, _ isStalled: Bool) {
        state.withLock { state in
            state.stalled[partition] = isStalled
            if !isStalled { state.ends[partition] = state.records[partition].count }
        }
    }

    /// When something happens by itself that concerns `member`: a batch is answered, or a change of
    /// its assignment can be heard of. `nil`: nothing is on its way.
    public func nextDue(_ member: Int) -> Int64? {
        state.withLock { state in
            let change = state.changes[member]?.first?.due
            guard let batch = state.isDown ? nil : state.batches.first?.due else { return change }
            return min(batch, change ?? batch)
        }
    }

    public var partitions: Int { state.withLock { $0.records.count } }

    public var published: [PublishedEvent] { state.withLock { $0.published } }

    /// Everything has arrived and nothing is on its way.
    public var isDrained: Bool {
        state.withLock { state in
            state.batches.isEmpty
                && (0..<state.records.count).allSatisfy {
                    state.ends[$0] == state.records[$0].count
                }
        }
    }

    public func end(of partition: Int) -> Int64 { state.withLock { Int64($0.ends[partition]) } }

    /// Retention: records before `offset` are gone.
    public func truncate(_ partition: Int, before offset: Int64) {
        state.withLock { $0.earliest[partition] = offset }
    }

    /// Appends a record that is there at once, unless the partition is stalled.
    public func append(_ record: SimulatedRecord, to partition: Int) {
        state.withLock {
            $0.records[partition].append(record)
            if !$0.stalled[partition] { $0.ends[partition] = $0.records[partition].count }
        }
    }

    public func setDown(_ isDown: Bool) { state.withLock { $0.isDown = isDown } }

    /// From here on nothing goes wrong any more, and everything arrives.
    public func calm() {
        state.withLock {
            $0.isCalm = true
            $0.isDown = false
            for partition in $0.stalled.indices {
                $0.stalled[partition] = false
                if $0.isLive { $0.ends[partition] = $0.records[partition].count }
            }
        }
    }

    /// Lets records arrive and answers batches.
    public func advance(to now: Int64) {
        let receipts = state.withLock { state -> [(DeliveryReceipt, DeliveryOutcome)] in
            state.now = now
            guard !state.isDown else { return [] }
            for partition in 0..<state.records.count {
                let left = state.records[partition].count - state.ends[partition]
                // Arrival is uneven, and a partition stalls now and then.
                if state.isLive {
                    if !state.stalled[partition] { state.ends[partition] += left }
                } else if state.isCalm {
                    state.ends[partition] += left
                } else if left > 0, state.random.chance(600) {
                    state.ends[partition] += min(left, state.random.below(12))
                }
            }
            var answers: [(DeliveryReceipt, DeliveryOutcome)] = []
            while let first = state.batches.first, first.due <= now || state.isCalm {
                state.batches.removeFirst()
                let fails = !state.isCalm && state.random.chance(100)
                // A batch that "failed" may be in the log all the same.
                if !fails || state.random.chance(500) { state.store(first.batch) }
                guard let receipt = first.receipt else { continue }
                answers.append(
                    (
                        receipt,
                        fails
                            ? .failed(EventLogError(.producing, .unavailable, "simulated"))
                            : .stored
                    ))
            }
            return answers
        }
        for (receipt, outcome) in receipts { receipt.receiver.delivered(receipt.token, outcome) }
    }

    // MARK: - The group

    public func join() -> SimulatedConsumer {
        let member = state.withLock { state in
            state.lastMember += 1
            state.members.append(state.lastMember)
            return state.lastMember
        }
        return SimulatedConsumer(log: self, member: member)
    }

    /// The member has crashed; its partitions are free.
    public func leave(_ member: Int) {
        state.withLock { state in
            state.members.removeAll { $0 == member }
            state.changes[member] = nil
            for partition in 0..<state.owners.count {
                if state.heirs[partition] == member { state.heirs[partition] = nil }
                if state.owners[partition] == member { state.handOver(partition) }
            }
        }
    }

    /// Gives partitions to members anew. Some owners are asked to give them up, some only hear later
    /// that they have lost them.
    public func rebalance() {
        state.withLock { state in
            guard !state.members.isEmpty else { return }
            for partition in 0..<state.owners.count where state.heirs[partition] == nil {
                let heir = state.members[state.random.below(state.members.count)]
                guard let owner = state.owners[partition] else {
                    state.heirs[partition] = heir
                    state.handOver(partition)
                    continue
                }
                guard owner != heir else { continue }
                state.heirs[partition] = heir
                if state.isCalm || state.random.chance(500) {
                    state.tell(owner, .revoked([Int32(partition)]), after: 0)
                } else {
                    // A zombie: it goes on for a while in the belief that the partition is its own.
                    let delay = Int64(state.random.below(3_000))
                    state.tell(owner, .lost([Int32(partition)]), after: delay)
                    state.handOver(partition)
                }
            }
        }
    }
}

extension SimulatedLog.State {
    mutating func tell(_ member: Int, _ change: AssignmentChange, after delay: Int64) {
        changes[member, default: []].append((now + delay, change))
    }

    /// Gives a free partition to its heir.
    mutating func handOver(_ partition: Int) {
        owners[partition] = heirs[partition]
        heirs[partition] = nil
        guard let owner = owners[partition] else { return }
        tell(owner, .assigned([Int32(partition)]), after: 0)
    }

    mutating func store(_ batch: RecordBatch) {
        var reader = ByteReader(batch.bytes.span)
        for _ in 0..<batch.count {
            guard let partition = reader.littleEndian(Int32.self),
                reader.littleEndian(Int64.self) != nil,
                let keySize = reader.littleEndian(Int32.self),
                let valueSize = reader.littleEndian(Int32.self),
                let headerSize = reader.littleEndian(Int32.self),
                let key = reader.take(Int(max(0, keySize))),
                let value = reader.take(Int(max(0, valueSize))),
                let headers = reader.take(Int(headerSize))
            else { preconditionFailure("a batch that cannot be read") }
            let bytes = batch.bytes.span
            // Name size (2), name ("outbox"), value size (4), value.
            let origin = headers.count > 12 ? (headers.lowerBound + 12)..<headers.upperBound : 0..<0
            published.append(
                SimulatedLog.PublishedEvent(
                    topic: batch.topic, partition: partition,
                    key: ByteBuffer(copying: bytes.extracting(key)),
                    value: ByteBuffer(copying: bytes.extracting(value)),
                    origin: bytes.extracting(origin).text, isTombstone: valueSize < 0))
        }
    }
}

/// A member of the simulated group.
public final class SimulatedConsumer: EventConsumer {
    private let log: SimulatedLog
    public let member: Int
    private var positions: [Int32: Int64] = [:]
    private var paused: Set<Int32> = []
    /// What the worker said it has committed.
    public private(set) var committed: [Int32: Int64] = [:]

    init(log: SimulatedLog, member: Int) {
        self.log = log
        self.member = member
    }

    /// Whether a poll would find something.
    public var hasUnread: Bool {
        log.state.withLock { state in
            positions.contains { partition, position in
                !paused.contains(partition) && Int(position) < state.ends[Int(partition)]
            }
        }
    }

    private func unavailable(
        _ operation: EventLogError.Operation, perMille: Int
    ) throws(EventLogError) {
        let fails = log.state.withLock { state in
            state.isDown || (!state.isCalm && state.random.chance(perMille))
        }
        if fails { throw EventLogError(operation, .unavailable, "simulated") }
    }

    public func nextAssignmentChange() throws(EventLogError) -> AssignmentChange? {
        let change = log.state.withLock { state -> AssignmentChange? in
            guard let first = state.changes[member]?.first,
                first.due <= state.now || state.isCalm
            else { return nil }
            state.changes[member]?.removeFirst()
            return first.1
        }
        switch change {
        case .assigned(let list), .lost(let list):
            for partition in list { positions[partition] = nil }
        case .revoked(let list): paused.formUnion(list)
        case nil: break
        }
        return change
    }

    public func start(_ partition: Int32, at offset: Int64) throws(EventLogError) {
        try unavailable(.consuming, perMille: 20)
        let range = try offsets(of: partition)
        guard offset >= range.earliest, offset <= range.next else {
            throw EventLogError(
                .consuming, .offsetOutOfRange(requested: offset, range),
                place: TopicPartition(.heartbeats, partition), "simulated")
        }
        positions[partition] = offset
        paused.remove(partition)
    }

    public func release(_ partitions: [Int32]) throws(EventLogError) {
        log.state.withLock { state in
            for partition in partitions where state.owners[Int(partition)] == member {
                state.handOver(Int(partition))
            }
        }
        for partition in partitions {
            positions[partition] = nil
            paused.remove(partition)
        }
    }

    public func pause(_ partition: Int32) { paused.insert(partition) }

    public func resume(_ partition: Int32) { paused.remove(partition) }

    public func poll(
        limit: Int, _ body: (RecordPlace, Span<UInt8>, borrowing RecordValue) -> Void
    ) throws(EventLogError) -> Int {
        try unavailable(.consuming, perMille: 10)
        var left = log.state.withLock { state in
            state.isCalm ? limit : min(limit, 1 + state.random.below(state.pollRecords))
        }
        let all = left
        for (partition, position) in positions.sorted(by: { $0.key < $1.key }) {
            guard !paused.contains(partition), left > 0 else { continue }
            let slot = Int(partition)
            let records = log.state.withLock { state -> ArraySlice<SimulatedRecord> in
                let end = min(state.ends[slot], Int(position) + left)
                return state.records[slot][Int(position)..<max(end, Int(position))]
            }
            for (index, record) in zip(records.indices, records) {
                let place = RecordPlace(
                    partition: partition, offset: Int64(index), timestamp: record.timestamp)
                body(place, record.key.span, RecordValue(record.value.span))
            }
            positions[partition] = position + Int64(records.count)
            left -= records.count
        }
        return all - left
    }

    public func offsets(of partition: Int32) throws(EventLogError) -> OffsetRange {
        log.state.withLock {
            OffsetRange(
                earliest: $0.earliest[Int(partition)], next: Int64($0.ends[Int(partition)]))
        }
    }

    public func noteCommitted(_ partition: Int32, next offset: Int64) {
        committed[partition] = offset
    }
}

/// Produces to a simulated log; batches arrive later, fail, or fail after they arrived.
public final class SimulatedProducer: EventProducer {
    private let log: SimulatedLog

    public init(log: SimulatedLog) { self.log = log }

    public func send(_ batch: RecordBatch, receipt: DeliveryReceipt?) -> SendOutcome {
        log.state.withLock { state in
            if !state.isCalm, state.isDown || state.random.chance(30) { return .queueFull }
            let delay = Int64(state.random.below(60))
            // Batches of one sender keep their order.
            let due = max(state.now + delay, state.batches.last?.due ?? 0)
            state.batches.append((due, batch, receipt))
            return .accepted
        }
    }

    public var queuedBytes: Int {
        log.state.withLock { $0.batches.reduce(0) { $0 + $1.batch.sizeBytes } }
    }

    public func flush(milliseconds: Int64) -> Bool { true }

    public func close() {}
}
