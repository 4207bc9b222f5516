import EventLog
import Schemas
import Synchronization
import System

/// An embedded log that can be taken away from its producers.
final class SwitchableLog: EventLog {
    enum Manner: Sendable {
        case up
        /// Batches fail at once.
        case failing
        /// Nothing is ever told.
        case silent
        /// Nothing is taken.
        case full
    }

    let base: EmbeddedLog
    let manner: SharedManner

    final class SharedManner: Sendable {
        private let value = Mutex(Manner.up)
        var current: Manner {
            get { value.withLock { $0 } }
            set { value.withLock { $0 = newValue } }
        }
    }

    init(_ base: EmbeddedLog, _ manner: Manner = .up) {
        self.base = base
        self.manner = SharedManner()
        self.manner.current = manner
    }

    func createTopics(_ topics: [TopicSettings]) throws(EventLogError) {
        try base.createTopics(topics)
    }
    func partitionCount(of topic: Topic) throws(EventLogError) -> Int32? {
        try base.partitionCount(of: topic)
    }
    func offsets(of place: TopicPartition) throws(EventLogError) -> OffsetRange {
        try base.offsets(of: place)
    }
    func makeProducer(_ settings: ProducerSettings) throws(EventLogError) -> SwitchableProducer {
        SwitchableProducer(try base.makeProducer(settings), manner)
    }
    func makeConsumer(
        of topic: Topic, group: String, waker: Waker
    ) throws(EventLogError) -> EmbeddedConsumer {
        try base.makeConsumer(of: topic, group: group, waker: waker)
    }
}

final class SwitchableProducer: EventProducer {
    private let base: EmbeddedProducer
    private let manner: SwitchableLog.SharedManner

    init(_ base: EmbeddedProducer, _ manner: SwitchableLog.SharedManner) {
        self.base = base
        self.manner = manner
    }

    func send(_ batch: RecordBatch, receipt: DeliveryReceipt?) -> SendOutcome {
        switch manner.current {
        case .up: return base.send(batch, receipt: receipt)
        case .full: return .queueFull
        case .silent: return .accepted
        case .failing:
            receipt?.receiver.delivered(
                receipt?.token ?? 0, .failed(EventLogError(.producing, .unavailable, "it is away")))
            return .accepted
        }
    }

    var queuedBytes: Int { base.queuedBytes }
    func flush(milliseconds: Int64) -> Bool { base.flush(milliseconds: milliseconds) }
    func close() { base.close() }
}
