internal import Bytes
internal import EventLog
internal import Schemas
internal import Synchronization
internal import System

/// What is told to the pipelines of the proximity service.
enum ProximityEvent: Sendable {
    case wave(AccountPair, by: AccountID, InlineText)
    case block(AccountPair, by: AccountID)
    case encounter(AccountPair, by: AccountID, EncounterReport, ownToken: InlineText)
    case message(AccountPair, by: AccountID, MessageID, ByteBuffer)

    var topic: Topic {
        switch self {
        case .wave, .block: .waves
        case .encounter: .encounters
        case .message: .messages
        }
    }

    /// Appends key and value of its record.
    func encode(_ origin: EventOrigin, key: inout ByteBuffer, value: inout ByteBuffer) {
        switch self {
        case .wave(let pair, let sender, let token):
            key.append(pair)
            value.append(
                WavesEvent.wave(Wave(origin: origin, pair: pair, sender: sender, token: token)))
        case .block(let pair, let sender):
            key.append(pair)
            value.append(WavesEvent.block(Block(origin: origin, pair: pair, sender: sender)))
        case .encounter(let pair, let reporter, let report, let ownToken):
            key.append(pair)
            value.append(
                Encounter(
                    origin: origin, id: report.id, pair: pair, reporter: reporter,
                    ownToken: ownToken, remoteToken: report.remoteToken, tier: report.tier,
                    engine: report.engine, cell: report.cell))
        case .message(let pair, let sender, let id, let body):
            key.append(pair.connection)
            value.append(
                MessageEvent(origin: origin, id: id, pair: pair, sender: sender, body: body))
        }
    }
}

/// Puts events into the log, and tells when they are safe there.
/// - Thread safety: any thread.
final class ProximityEvents: DeliveryReceiver {
    /// Told once, on any thread: whether the events are in the log.
    typealias Completion = @Sendable (Bool) -> Void

    private struct State {
        var lastToken: UInt64 = 0
        var undelivered: [UInt64: [Completion]] = [:]
    }

    private let ingest: IngestState
    private let partitions: [Topic: Int32]
    private let state = Mutex(State())

    static let topics: [Topic] = [.waves, .encounters, .messages]

    /// - Parameter partitions: of each of `topics`.
    init(_ ingest: IngestState, partitions: [Topic: Int32]) {
        self.ingest = ingest
        self.partitions = partitions
    }

    /// Events on their way, those of one request with what is to be told of it.
    struct Batch {
        fileprivate var records: [Topic: RecordBatch] = [:]
        fileprivate var completions: [Topic: [Completion]] = [:]
        private var key = ByteBuffer()
        private var value = ByteBuffer()
        private let events: ProximityEvents
        private let time: EventTime

        fileprivate init(_ events: ProximityEvents) {
            self.events = events
            time = EventTime(milliseconds: SystemClock.wallMilliseconds())
        }

        /// - Parameter list: at least one, all of one topic.
        mutating func append(_ list: [ProximityEvent], _ completion: @escaping Completion) {
            guard let topic = list.first?.topic, let count = events.partitions[topic] else {
                preconditionFailure("events without a topic")
            }
            for event in list {
                key.removeAll()
                value.removeAll()
                event.encode(events.ingest.nextOrigin(), key: &key, value: &value)
                Self.add(key, value, count, time, to: &records[topic, default: RecordBatch(topic)])
            }
            completions[topic, default: []].append(completion)
        }

        private static func add(
            _ key: borrowing ByteBuffer, _ value: borrowing ByteBuffer, _ count: Int32,
            _ time: EventTime, to records: inout RecordBatch
        ) {
            records.append(
                partition: Partitioner.partition(of: key.span, count: count), timestamp: time,
                key: key.span, value: value.span)
        }
    }

    func makeBatch() -> Batch { Batch(self) }

    func send(_ batch: Batch) {
        for (topic, records) in batch.records {
            let completions = batch.completions[topic] ?? []
            // Noted before it is sent: its delivery may be told before `send` returns.
            let token = state.withLock { state in
                state.lastToken += 1
                state.undelivered[state.lastToken] = completions
                return state.lastToken
            }
            let outcome = ingest.producer.send(
                records, receipt: DeliveryReceipt(self, token: token))
            if case .accepted = outcome { continue }
            settle(token, isStored: false)
        }
    }

    /// Called on a thread of the log.
    func delivered(_ token: UInt64, _ outcome: DeliveryOutcome) {
        let isStored = if case .stored = outcome { true } else { false }
        settle(token, isStored: isStored)
    }

    private func settle(_ token: UInt64, isStored: Bool) {
        let completions = state.withLock { $0.undelivered.removeValue(forKey: token) }
        for completion in completions ?? [] { completion(isStored) }
    }
}
