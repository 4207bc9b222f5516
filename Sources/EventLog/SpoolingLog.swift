public import Schemas
internal import Synchronization
public import System

/// A log whose acknowledged topics keep their promise while it is away: what it does not take is
/// synced to a spool before the receipt says so, and forwarded in order when it returns, also after
/// the process was killed.
public final class SpoolingLog<Base: EventLog>: EventLog {
    public typealias Producer = SpoolingProducer<Base.Producer>
    public typealias Consumer = Base.Consumer

    public let base: Base
    private let spool: Spool<Base.Producer>

    /// Begins to forward what the spool holds from before.
    public init(_ base: Base, _ settings: SpoolSettings) throws(EventLogError) {
        self.base = base
        spool = try Spool(settings, forwarding: try base.makeProducer(ProducerSettings()))
        spool.start()
    }

    /// Ends the spool's threads; `base` is closed by itself. Close the producers before.
    public func close() { spool.stop() }

    /// Bytes that wait on the disk.
    public var spooledBytes: Int { spool.storedBytes }
    /// Whether the log counts as away, or has not yet taken all that waited.
    public var isSpooling: Bool { spool.isSpooling }

    public func createTopics(_ topics: [TopicSettings]) throws(EventLogError) {
        try base.createTopics(topics)
    }

    public func partitionCount(of topic: Topic) throws(EventLogError) -> Int32? {
        try base.partitionCount(of: topic)
    }

    public func offsets(of place: TopicPartition) throws(EventLogError) -> OffsetRange {
        try base.offsets(of: place)
    }

    public func makeProducer(_ settings: ProducerSettings) throws(EventLogError) -> Producer {
        SpoolingProducer(try base.makeProducer(settings), spool)
    }

    public func makeConsumer(
        of topic: Topic, group: String, waker: Waker
    ) throws(EventLogError) -> Base.Consumer {
        try base.makeConsumer(of: topic, group: group, waker: waker)
    }
}

/// A producer whose batches of acknowledged topics are in the log or in the spool when their receipt
/// says that they are stored. Those of other topics have the log's own queue only.
///
/// - Thread safety: any thread.
public final class SpoolingProducer<Base: EventProducer>: EventProducer {
    private let base: Base
    private let spool: Spool<Base>
    private let account = SpoolAccount()

    init(_ base: Base, _ spool: Spool<Base>) {
        self.base = base
        self.spool = spool
    }

    /// `.queueFull`: the spool has reached its limit, or its disk does not keep up.
    public func send(_ batch: RecordBatch, receipt: DeliveryReceipt?) -> SendOutcome {
        guard spool.takes(batch.topic), !batch.isEmpty else {
            return base.send(batch, receipt: receipt)
        }
        return spool.send(batch, receipt, account, through: base)
    }

    public var queuedBytes: Int { base.queuedBytes + spool.pendingBytes }

    public func flush(milliseconds: Int64) -> Bool {
        let isSettled = settle(milliseconds: milliseconds)
        // What went over to the spool may still be in the log's queue: that is no loss.
        return base.flush(milliseconds: isSettled && spool.isSpooling ? 0 : milliseconds)
            || isSettled && spool.isSpooling
    }

    /// Waits until all of ours is in the log or in the spool.
    private func settle(milliseconds: Int64) -> Bool {
        let start = SystemClock.monotonicMilliseconds()
        let pause = Waker()
        while account.unsettled.load(ordering: .sequentiallyConsistent) > 0 {
            let left = milliseconds - (SystemClock.monotonicMilliseconds() - start)
            guard left > 0 else { return false }
            _ = base.flush(milliseconds: min(left, 20))
            pause.wait(milliseconds: 1)
        }
        return true
    }

    /// What the log does not take at the end is spooled.
    public func close() {
        account.isClosed.store(true, ordering: .sequentiallyConsistent)
        base.close()
        _ = settle(milliseconds: 5_000)
    }
}
