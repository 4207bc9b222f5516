internal import Schemas

/// Hands batches to the log's writer threads.
///
/// - Thread safety: any thread. Batches that were accepted are stored even if it is dropped.
public final class EmbeddedProducer: EventProducer {
    /// Keeps the writers alive.
    private let log: EmbeddedLog
    private let queue: EmbeddedProducerQueue
    private let acked: EmbeddedWriter
    private let queued: EmbeddedWriter

    init(
        _ log: EmbeddedLog, _ queue: EmbeddedProducerQueue, acked: EmbeddedWriter,
        queued: EmbeddedWriter
    ) {
        self.log = log
        self.queue = queue
        self.acked = acked
        self.queued = queued
    }

    /// A batch larger than the producer's `queueBytes` is always refused.
    public func send(_ batch: RecordBatch, receipt: DeliveryReceipt?) -> SendOutcome {
        switch batch.topic.durability {
        case .acked: queue.send(batch, receipt, to: acked)
        case .queued: queue.send(batch, receipt, to: queued)
        }
    }

    public var queuedBytes: Int { queue.queuedBytes }

    public func flush(milliseconds: Int64) -> Bool { queue.flush(milliseconds: milliseconds) }

    public func close() {
        queue.close()
        // The writers store or fail whatever they took, so this ends.
        _ = queue.flush(milliseconds: .max)
    }
}
