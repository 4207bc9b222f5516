public import Schemas
public import System
internal import Synchronization

/// The production store: one thread with one connection to PostgreSQL, behind a bounded queue that
/// is crossed once a commit.
///
/// It carries requests out in order and reports what happened; it repeats and decides nothing.
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
        /// Requests that may wait.
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

    private struct Queue {
        var requests: [StoreRequest] = []
        var replies: [StoreReply] = []
        var taken = 0
        var isClosing = false
        var thread: SystemThread?
    }

    private let settings: Settings
    private let queue = Mutex(Queue())
    /// Wakes the sink's thread.
    private let inbox = Waker()
    /// Wakes the worker.
    private let waker: Waker

    /// Starts the thread; it connects with the first request.
    /// - Parameter waker: signalled with each reply.
    public init(_ settings: Settings, waker: Waker) {
        self.settings = settings
        self.waker = waker
        let thread = SystemThread.start("sink \(settings.pipeline)") { self.run() }
        queue.withLock { $0.thread = thread }
    }

    public func submit(_ request: StoreRequest) -> Bool {
        let isTaken = queue.withLock { queue in
            guard !queue.isClosing, queue.requests.count < settings.queueLimit else { return false }
            queue.requests.append(request)
            return true
        }
        if isTaken { inbox.signal() }
        return isTaken
    }

    public func nextReply() -> StoreReply? {
        queue.withLock { queue in
            guard queue.taken < queue.replies.count else { return nil }
            defer {
                queue.taken += 1
                if queue.taken == queue.replies.count {
                    queue.replies.removeAll(keepingCapacity: true)
                    queue.taken = 0
                }
            }
            return queue.replies[queue.taken]
        }
    }

    /// Carries out what was submitted, closes the connection and ends the thread. Blocks until then;
    /// call it once the worker has stopped.
    public func close() {
        let thread = queue.withLock { queue in
            queue.isClosing = true
            defer { queue.thread = nil }
            return queue.thread
        }
        inbox.signal()
        thread?.join()
    }

    private func run() {
        let session = PostgresSession(settings)
        while true {
            let (request, isClosing) = queue.withLock { queue in
                (queue.requests.isEmpty ? nil : queue.requests.removeFirst(), queue.isClosing)
            }
            guard let request else {
                if isClosing { return session.close() }
                inbox.wait(milliseconds: 60_000)
                continue
            }
            let reply = StoreReply(
                ticket: request.ticket, partition: request.partition,
                outcome: session.carryOut(request))
            queue.withLock { $0.replies.append(reply) }
            waker.signal()
        }
    }
}
