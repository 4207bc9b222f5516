internal import Bytes
internal import Crypto
public import Schemas

/// How a worker runs; the same for all of its partitions. Times in milliseconds.
public struct WorkerSettings: Sendable {
    /// Name of the pipeline: the key of its offsets, snapshots and outbox.
    public var pipeline: String
    /// Records read at once. 1 to 100,000.
    public var pollLimit = 10_000
    /// Longest wait from a change to its commit; 0 commits after every poll.
    public var commitInterval: Int64 = 200
    /// The same for a partition in which only the offset moved.
    public var idleCommitInterval: Int64 = 1_000
    /// Changed rows at which a commit does not wait for its interval.
    public var commitRows = 20_000
    /// Age of a snapshot at which the next commit brings a new one.
    public var snapshotInterval: Int64 = 30_000
    /// Rows and events that wait for the database at which reading pauses; it resumes at half of it.
    public var bufferedRows = 400_000
    /// Bytes of the same.
    public var bufferedBytes = 128 << 20
    /// Age of a request to the database at which the partition is not ready. Requests of a worker stand
    /// in line, and the commits of a storm take seconds each.
    public var slowDatabase: Int64 = 30_000
    /// Events of one partition that wait for the log's acknowledgement at which it stops committing.
    public var outboxEntries = 50_000
    /// Silence of the beacons after which the alert `ingest-silent` is raised; `nil`: never. Only for
    /// pipelines whose source has beacons.
    public var ingestSilentAfter: Int64?
    /// How many partitions the topics have that the processor writes to, `dead-letters` included.
    public var outputPartitions: [Topic: Int32]
    /// Tables whose rows are not written, though the processor has them.
    public var omittedTables: Set<String> = []
    /// Topics whose events are not published, though the processor has them.
    public var omittedTopics: Set<Topic> = []
    /// Of a rebuild: by partition, offsets of records from which nothing is to follow; `nil` otherwise.
    /// A rebuild also judges by the newest settings alone, whatever those of the state that it begins from.
    var passedOver: [Int32: Set<Int64>]?

    public init(pipeline: String, outputPartitions: [Topic: Int32]) {
        self.pipeline = pipeline
        self.outputPartitions = outputPartitions
    }
}

/// A processor's settings with the text that they were read from.
///
/// The text is stored in snapshots: after a restart with other settings, what came before the last
/// commit is applied again under the settings that it was judged by, so a restart stays exact.
public struct ProcessorSettings<Values: Sendable>: Sendable {
    public var values: Values
    /// What `read` makes `values` of; the same text for the same values.
    public let text: String
    /// Reads a text that an earlier run stored; `nil` if this release cannot.
    public let read: @Sendable (String) -> Values?
    /// A digest of the text.
    public let revision: String

    public init(_ values: Values, text: String, read: @escaping @Sendable (String) -> Values?) {
        self.values = values
        self.text = text
        self.read = read
        revision = String(SHA256.hash(ByteBuffer(text.utf8).span).hex.prefix(16))
    }
}
