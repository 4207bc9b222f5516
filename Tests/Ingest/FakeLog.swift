import Bytes
import EventLog
import Schemas
import Synchronization
import System

/// A log in memory whose queue and receipts the test controls.
final class FakeLog: EventLog {
    struct Record: Sendable {
        var topic: Topic
        var partition: Int32
        var timestamp: EventTime
        var key: ByteBuffer
        /// `nil`: a tombstone.
        var value: ByteBuffer?
    }

    enum Receipts: Sendable {
        /// Told at once.
        case stored, failed
        /// Kept until `release`.
        case held
    }

    struct State {
        var records: [Record] = []
        var isFull = false
        /// What the producer says that waits.
        var queuedBytes = 0
        var receipts = Receipts.stored
        var held: [(DeliveryReceipt, Int)] = []
        var refusedBatches = 0
        var wakers: [Topic: Waker] = [:]
        var isClosed = false
    }

    let partitions: [Topic: Int32]
    let state = Mutex(State())

    init(hasTopics: Bool = true) {
        partitions =
            hasTopics
            ? [
                .heartbeats: 3, .deviceConfigs: 2, .waves: 4, .encounters: 4, .messages: 4,
                .pushes: 2, .updates: 2, .telemetry: 3,
            ] : [:]
    }

    func createTopics(_ topics: [TopicSettings]) throws(EventLogError) {}

    func partitionCount(of topic: Topic) throws(EventLogError) -> Int32? { partitions[topic] }

    func offsets(of place: TopicPartition) throws(EventLogError) -> OffsetRange {
        OffsetRange(earliest: 0, next: Int64(records(of: place.topic, place.partition).count))
    }

    func makeProducer(_ settings: ProducerSettings) throws(EventLogError) -> FakeProducer {
        FakeProducer(self)
    }

    func makeConsumer(
        of topic: Topic, group: String, waker: Waker
    ) throws(EventLogError) -> FakeConsumer {
        state.withLock { $0.wakers[topic] = waker }
        return FakeConsumer(self, topic)
    }

    func records(of topic: Topic, _ partition: Int32? = nil) -> [Record] {
        state.withLock { state in
            state.records.filter {
                $0.topic == topic && (partition == nil || $0.partition == partition)
            }
        }
    }

    /// The events of topic `heartbeats`, in the order of the queue.
    func heartbeatsEvents(_ partition: Int32? = nil) -> [HeartbeatsEvent] {
        let decoder = HeartbeatsDecoder()
        return records(of: .heartbeats, partition).compactMap { record in
            guard let value = record.value, case .event(let event) = decoder.decode(value.span)
            else { return nil }
            return event
        }
    }

    var heartbeats: [Heartbeat] {
        heartbeatsEvents().compactMap { if case .heartbeat(let event) = $0 { event } else { nil } }
    }

    func beacons(_ partition: Int32? = nil) -> [Beacon] {
        heartbeatsEvents(partition).compactMap {
            if case .beacon(let event) = $0 { event } else { nil }
        }
    }

    func setQueued(_ bytes: Int) { state.withLock { $0.queuedBytes = bytes } }
    func setFull(_ isFull: Bool) { state.withLock { $0.isFull = isFull } }
    func setReceipts(_ receipts: Receipts) { state.withLock { $0.receipts = receipts } }

    /// Batches with heartbeats whose receipts are held.
    var heldCount: Int { state.withLock { $0.held.count } }

    /// Tells the receipts that are held.
    func release(isStored: Bool) {
        let held = state.withLock { state in
            defer { state.held = [] }
            return state.held
        }
        for (receipt, _) in held {
            receipt.receiver.delivered(receipt.token, isStored ? .stored : .failed(Self.failure))
        }
    }

    static let failure = EventLogError(.producing, .storage, "the test says so")

    /// Rings the bell of a device.
    func ring(_ device: DeviceID, version: Int64, isSuspended: Bool) {
        var value = ByteBuffer()
        value.append(
            text: """
                {"v":1,"device_id":"\(device)","version":\(version),"suspended":\(isSuspended)}
                """)
        append(device, value)
    }

    func ring(removed device: DeviceID) { append(device, nil) }

    /// Rings the doorbell of an account.
    func ring(_ account: AccountID) {
        var key = ByteBuffer()
        key.append(account)
        var value = ByteBuffer()
        value.append(PushesEvent(account: account))
        append(.pushes, key, value)
    }

    private func append(_ device: DeviceID, _ value: ByteBuffer?) {
        var key = ByteBuffer()
        key.append(device)
        append(.deviceConfigs, key, value)
    }

    private func append(_ topic: Topic, _ key: ByteBuffer, _ value: ByteBuffer?) {
        let record = Record(
            topic: topic,
            partition: Partitioner.partition(of: key.span, count: partitions[topic]!),
            timestamp: EventTime(milliseconds: 0), key: key, value: value)
        let waker = state.withLock { state in
            state.records.append(record)
            return state.wakers[topic]
        }
        waker?.signal()
    }

    fileprivate func send(_ batch: RecordBatch, _ receipt: DeliveryReceipt?) -> SendOutcome {
        let records = Self.decode(batch)
        let (told, outcome) = state.withLock { state -> (DeliveryOutcome?, SendOutcome) in
            if state.isClosed { return (nil, .closed) }
            if state.isFull {
                state.refusedBatches += 1
                return (nil, .queueFull)
            }
            switch state.receipts {
            case .failed: return (.failed(Self.failure), .accepted)
            case .stored:
                state.records += records
                return (.stored, .accepted)
            case .held:
                state.records += records
                if let receipt { state.held.append((receipt, records.count)) }
                return (nil, .accepted)
            }
        }
        if let told, let receipt { receipt.receiver.delivered(receipt.token, told) }
        return outcome
    }

    private static func decode(_ batch: RecordBatch) -> [Record] {
        var result: [Record] = []
        let bytes = batch.bytes.span
        var reader = ByteReader(bytes)
        while let partition = reader.littleEndian(Int32.self) {
            let timestamp = reader.littleEndian(Int64.self)!
            let keySize = Int(reader.littleEndian(Int32.self)!)
            let valueSize = Int(reader.littleEndian(Int32.self)!)
            let headersSize = Int(reader.littleEndian(Int32.self)!)
            let key = reader.take(max(0, keySize))!
            let value = reader.take(max(0, valueSize))!
            _ = reader.take(headersSize)
            result.append(
                Record(
                    topic: batch.topic, partition: partition,
                    timestamp: EventTime(milliseconds: timestamp),
                    key: ByteBuffer(copying: bytes.extracting(key)),
                    value: valueSize < 0
                        ? nil : ByteBuffer(copying: bytes.extracting(value))))
        }
        return result
    }

    struct FakeProducer: EventProducer {
        let log: FakeLog

        init(_ log: FakeLog) { self.log = log }

        func send(_ batch: RecordBatch, receipt: DeliveryReceipt?) -> SendOutcome {
            log.send(batch, receipt)
        }

        var queuedBytes: Int { log.state.withLock { $0.queuedBytes } }

        func flush(milliseconds: Int64) -> Bool { true }

        func close() { log.state.withLock { $0.isClosed = true } }
    }

    final class FakeConsumer: EventConsumer {
        private let log: FakeLog
        private let topic: Topic
        private var isAssigned = false
        private var next: [Int32: Int64] = [:]

        init(_ log: FakeLog, _ topic: Topic) {
            self.log = log
            self.topic = topic
        }

        func nextAssignmentChange() throws(EventLogError) -> AssignmentChange? {
            if isAssigned { return nil }
            isAssigned = true
            return .assigned(Array(0..<log.partitions[topic]!))
        }

        func start(_ partition: Int32, at offset: Int64) throws(EventLogError) {
            next[partition] = offset
        }

        func release(_ partitions: [Int32]) throws(EventLogError) {}
        func pause(_ partition: Int32) {}
        func resume(_ partition: Int32) {}

        func poll(
            limit: Int, _ body: (RecordPlace, Span<UInt8>, borrowing RecordValue) -> Void
        ) throws(EventLogError) -> Int {
            var count = 0
            for (partition, offset) in next.sorted(by: { $0.key < $1.key }) {
                let records = log.records(of: topic, partition)
                for index in Int(offset)..<max(Int(offset), records.count) {
                    let record = records[index]
                    let value = record.value ?? ByteBuffer()
                    body(
                        RecordPlace(
                            partition: partition, offset: Int64(index),
                            timestamp: record.timestamp), record.key.span,
                        RecordValue(value.span, isTombstone: record.value == nil))
                    count += 1
                }
                next[partition] = Int64(max(Int(offset), records.count))
            }
            return count
        }

        func offsets(of partition: Int32) throws(EventLogError) -> OffsetRange {
            try log.offsets(of: TopicPartition(topic, partition))
        }

        func noteCommitted(_ partition: Int32, next offset: Int64) {}
    }
}
