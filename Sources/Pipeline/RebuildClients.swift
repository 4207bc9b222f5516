internal import EventLog
internal import Schemas

/// A consumer that lends nothing of a partition from some offset on, until it is told a later one.
///
/// - Thread safety: as the consumer's.
final class BoundedConsumer<Base: EventConsumer>: EventConsumer {
    private let base: Base
    /// The first offset of each partition that is not lent; none is lent of others.
    private var limits: [Int32: Int64] = [:]
    /// Where reading stands of each partition that was started.
    private var positions: [Int32: Int64] = [:]
    /// Receipt of the first record that was lent of each partition.
    private(set) var firstStamps: [Int32: EventTime] = [:]

    init(_ base: Base) { self.base = base }

    /// Lends up to these from here on; a limit never goes back.
    func raise(to newest: [Int32: Int64]) throws(EventLogError) {
        for (partition, limit) in newest where limit > limits[partition] ?? 0 {
            limits[partition] = limit
            // What lay behind the old limit was let pass.
            guard let position = positions[partition] else { continue }
            try base.start(partition, at: position)
            base.resume(partition)
        }
    }

    func nextAssignmentChange() throws(EventLogError) -> AssignmentChange? {
        try base.nextAssignmentChange()
    }

    func start(_ partition: Int32, at offset: Int64) throws(EventLogError) {
        try base.start(partition, at: offset)
        positions[partition] = offset
    }

    func release(_ partitions: [Int32]) throws(EventLogError) {
        for partition in partitions { positions[partition] = nil }
        try base.release(partitions)
    }

    func pause(_ partition: Int32) { base.pause(partition) }
    func resume(_ partition: Int32) { base.resume(partition) }

    func poll(
        limit: Int, _ body: (RecordPlace, Span<UInt8>, borrowing RecordValue) -> Void
    ) throws(EventLogError) -> Int {
        var full: Set<Int32> = []
        // Records come partition by partition.
        var current: Int32 = -1
        var (end, position) = (Int64(0), Int64(0))
        let count = try base.poll(limit: limit) { place, key, value in
            if place.partition != current {
                if current >= 0 { positions[current] = position }
                current = place.partition
                end = limits[current] ?? 0
                position = positions[current] ?? 0
                if place.offset < end, firstStamps[current] == nil {
                    firstStamps[current] = place.timestamp
                }
            }
            guard place.offset < end else {
                full.insert(current)
                return
            }
            position = place.offset + 1
            body(place, key, value)
        }
        if current >= 0 { positions[current] = position }
        for partition in full { base.pause(partition) }
        return full.isEmpty ? count : 0
    }

    func offsets(of partition: Int32) throws(EventLogError) -> OffsetRange {
        try base.offsets(of: partition)
    }

    /// A rebuild's progress is nobody's lag.
    func noteCommitted(_ partition: Int32, next offset: Int64) {}
}

/// Takes events that were published when their records were first processed, and drops them.
///
/// - Thread safety: any thread.
final class DiscardingProducer: EventProducer {
    func send(_ batch: RecordBatch, receipt: DeliveryReceipt?) -> SendOutcome {
        receipt?.receiver.delivered(receipt?.token ?? 0, .stored)
        return .accepted
    }

    var queuedBytes: Int { 0 }
    func flush(milliseconds: Int64) -> Bool { true }
    func close() {}
}
