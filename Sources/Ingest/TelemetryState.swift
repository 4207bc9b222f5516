internal import EventLog
internal import Synchronization

/// What the event loops of a front-end share about telemetry.
final class TelemetryState: Sendable {
    let partitions: Int32
    /// Bytes that may wait for the log before telemetry is turned away. Less than the queue takes:
    /// heartbeats find room behind it.
    let queueBytes: Int
    let counters: TelemetryCounters
    let losses: TelemetryLosses

    init(partitions: Int32, queueBytes: Int) {
        self.partitions = partitions
        self.queueBytes = queueBytes
        counters = TelemetryCounters()
        losses = TelemetryLosses(counters)
    }
}

/// What a front-end counts of telemetry. Readable from any thread.
public final class TelemetryCounters: Sendable {
    private let acceptedCount = Atomic<UInt64>(0)
    private let rejectedCount = Atomic<UInt64>(0)
    private let unavailableCount = Atomic<UInt64>(0)
    private let lostCount = Atomic<UInt64>(0)

    init() {}

    /// Samples, log lines and data points that were taken.
    public var accepted: UInt64 { acceptedCount.load(ordering: .relaxed) }
    /// Those that were refused for a fault of theirs.
    public var rejected: UInt64 { rejectedCount.load(ordering: .relaxed) }
    /// Requests answered 503.
    public var unavailable: UInt64 { unavailableCount.load(ordering: .relaxed) }
    /// Records that were taken and then could not be stored.
    public var lost: UInt64 { lostCount.load(ordering: .relaxed) }

    func add(accepted: Int, rejected: Int) {
        acceptedCount.wrappingAdd(UInt64(accepted), ordering: .relaxed)
        rejectedCount.wrappingAdd(UInt64(rejected), ordering: .relaxed)
    }

    func addUnavailable() { unavailableCount.wrappingAdd(1, ordering: .relaxed) }

    func addLost(_ records: UInt64) { lostCount.wrappingAdd(records, ordering: .relaxed) }
}

/// Counts records that were taken and then could not be stored. The token is their number.
final class TelemetryLosses: DeliveryReceiver {
    private let counters: TelemetryCounters

    init(_ counters: TelemetryCounters) { self.counters = counters }

    func delivered(_ token: UInt64, _ outcome: DeliveryOutcome) {
        if case .failed = outcome { counters.addLost(token) }
    }
}
