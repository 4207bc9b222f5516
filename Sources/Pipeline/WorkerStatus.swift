public import Metrics
public import Processors
public import Schemas
internal import Synchronization

/// What a worker is doing, as of its last commit or second.
public struct WorkerStatus: Sendable {
    public struct Partition: Sendable {
        public var partition: Int32
        /// The first offset that is not stored yet.
        public var committedOffset: Int64
        /// The next offset to be applied.
        public var position: Int64
        /// The offset that the next record of the log will get; `nil` if the log could not tell.
        public var end: Int64?
        /// Why the partition makes no progress, and what to do about it; `nil` if it does.
        public var fault: String?
        public var isRestoring: Bool
        /// Whether this worker has the partition from the database; before that it does not know what
        /// is stored.
        public var isClaimed = true
        /// When the oldest record that was read and is not stored was received; `nil` if all are.
        public var oldestPending: EventTime?

        /// Records that are in the log and not stored.
        public var lag: Int64 { max(0, (end ?? position) - committedOffset) }
    }

    public var pipeline: String
    public var partitions: [Partition] = []
    /// Totals since the worker started.
    public var records: Int64 = 0
    public var rows: Int64 = 0
    public var commits: Int64 = 0
    public var snapshots: Int64 = 0
    public var deadLetters: Int64 = 0
    public var events: Int64 = 0
    /// From a commit's being handed to the database to its answer, also after tries that failed.
    public var commitDurations = DurationCounts()
    /// Over the partitions of this worker; empty where the processor keeps no states.
    public var devicesByState: [(state: DeviceState, count: Int64)] = []
    /// Why reading from the log does not work; `nil` if it does.
    public var logFault: String?
    /// Reading waits for the database.
    public var isPaused = false
    public var isIngestSilent = false
    /// The group has given this member its place; with more members than partitions it may have none.
    public var hasJoined = false

    public init(pipeline: String) { self.pipeline = pipeline }

    /// Why the worker is not ready; empty if it is.
    public var faults: [String] {
        (logFault.map { [$0] } ?? (hasJoined ? [] : ["pipeline \(pipeline): joining its group"]))
            + partitions.compactMap(\.fault)
            + partitions.filter { $0.isRestoring && $0.fault == nil }
            .map { "pipeline \(pipeline), partition \($0.partition): restoring" }
    }

    public var isReady: Bool { faults.isEmpty }
}

/// Where a worker publishes its status: once a commit, never once a record. Read from any thread.
public final class WorkerStatusBoard: Sendable {
    private let status: Mutex<WorkerStatus>

    public init(pipeline: String) { status = Mutex(WorkerStatus(pipeline: pipeline)) }

    public var current: WorkerStatus { status.withLock { $0 } }

    func publish(_ newest: WorkerStatus) { status.withLock { $0 = newest } }
}
