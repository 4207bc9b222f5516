public import Schemas
public import System
internal import Synchronization

/// The production store: some threads, each with one connection to PostgreSQL, behind bounded queues that
/// are crossed once a commit.
///
/// A partition's requests are carried out by one of them, in order; it reports what happened, and repeats
/// and decides nothing.
/// - Thread safety: one worker submits and takes replies; `close` may come from any thread.
public final class PostgresSink: StreamStore, Sendable {
    /// How a sink is made.
    public struct Settings: Sendable {
        /// A `postgresql://` URL or `key=value` pairs.
        public var address: String
        public var pipeline: String
        /// The pipeline's source topic: the origin in dead letters.
        public var source: Topic
        /// The processor's tables, in its order.
        public var tables: [TableSchema]
        /// Host and process, for people.
        public var owner: String
        /// Where the pipeline's tables, offsets, snapshots and outbox stand. Another than the default
        /// has tables of the same columns and keys, for a rebuild.
        public var schema = "heartline"
        /// When older snapshots are kept for a rebuild; `nil`: never.
        public var baseSnapshots: BaseSnapshots?
        /// Connections among which the partitions are shared; at least 1. One is made with the first
        /// request for it.
        public var connections = 1
        /// Requests that may wait for one connection.
        public var queueLimit = 1_024
        /// Rows of one table above which they go through COPY and a staging table.
        public var copyRows = 8_192
        /// Bytes of the same.
        public var copyBytes = 16 << 20

        public init(
            address: String, pipeline: String, source: Topic, tables: [TableSchema], owner: String
        ) {
            self.address = address
            self.pipeline = pipeline
            self.source = source
            self.tables = tables
            self.owner = owner
            baseSnapshots = BaseSnapshots(topic: source)
        }
    }

    /// Snapshots that are kept beside the newest one, so that some are as old as what the log holds.
    public struct BaseSnapshots: Sendable, Hashable {
        /// Milliseconds from one to the next.
        public var every: Int64
        /// Age in milliseconds at which one is forgotten.
        public var life: Int64

        public init(every: Int64, life: Int64) {
            self.every = every
            self.life = life
        }

        /// Four over the time that the topic keeps its records, and one that is older.
        public init?(topic: Topic) {
            guard let retention = topic.retentionMilliseconds else { return nil }
            self.init(every: retention / 4, life: retention + retention / 4)
        }
    }

    /// One thread and its connection.
    private final class Lane: Sendable {
        struct Queue {
            var requests: [StoreRequest] = []
            var isClosing = false
            var thread: SystemThread?
        }

        let queue = Mutex(Queue())
        /// Wakes the thread.
        let inbox = Waker()
    }

    private struct Replies {
        var all: [StoreReply] = []
        var taken = 0
    }

    private let settings: Settings
    private let lanes: [Lane]
    private let replies = Mutex(Replies())
    /// Wakes the worker.
    private let waker: Waker

    /// Starts the threads; each connects with its first request.
    /// - Parameter waker: signalled with each reply.
    public init(_ settings: Settings, waker: Waker) {
        precondition(settings.connections >= 1)
        self.settings = settings
        self.waker = waker
        lanes = (0..<settings.connections).map { _ in Lane() }
        for lane in lanes {
            let thread = SystemThread.start("sink \(settings.pipeline)") { self.run(lane) }
            lane.queue.withLock { $0.thread = thread }
        }
    }

    public func submit(_ request: StoreRequest) -> Bool {
        let lane = lanes[Int(request.partition) % lanes.count]
        let isTaken = lane.queue.withLock { queue in
            guard !queue.isClosing, queue.requests.count < settings.queueLimit else { return false }
            queue.requests.append(request)
            return true
        }
        if isTaken { lane.inbox.signal() }
        return isTaken
    }

    public func nextReply() -> StoreReply? {
        replies.withLock { replies in
            guard replies.taken < replies.all.count else { return nil }
            defer {
                replies.taken += 1
                if replies.taken == replies.all.count {
                    replies.all.removeAll(keepingCapacity: true)
                    replies.taken = 0
                }
            }
            return replies.all[replies.taken]
        }
    }

    /// Carries out what was submitted, closes the connections and ends the threads. Blocks until then;
    /// call it once the worker has stopped.
    public func close() {
        let threads = lanes.map { lane in
            lane.queue.withLock { queue in
                queue.isClosing = true
                defer { queue.thread = nil }
                return queue.thread
            }
        }
        for lane in lanes { lane.inbox.signal() }
        for thread in threads { thread?.join() }
    }

    private func run(_ lane: Lane) {
        let session = PostgresSession(settings)
        while true {
            let (request, isClosing) = lane.queue.withLock { queue in
                (queue.requests.isEmpty ? nil : queue.requests.removeFirst(), queue.isClosing)
            }
            guard let request else {
                if isClosing { return session.close() }
                lane.inbox.wait(milliseconds: 60_000)
                continue
            }
            let reply = StoreReply(
                ticket: request.ticket, partition: request.partition,
                outcome: session.carryOut(request))
            replies.withLock { $0.all.append(reply) }
            waker.signal()
        }
    }
}
