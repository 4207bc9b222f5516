internal import Bytes
public import EventLog
internal import Postgres
internal import Schemas
internal import Synchronization
internal import System

/// Publishes what the registry's changes left in `heartline.outbox`: in order for each key, at least
/// once, by one process at a time.
///
/// It runs on a thread of its own. The lease is an advisory lock of its database session, so it ends
/// with the session. A row is deleted by its exact sequence once the log has acknowledged it:
/// transactions can commit in another order than their sequences, so a smaller sequence may still
/// come.
/// - Thread safety: any thread.
public final class RegistryOutbox<Destination: EventLog>: Sendable {
    private let worker: OutboxWorker<Destination>
    private let thread = Mutex<SystemThread?>(nil)

    /// - Parameter database: its address.
    public init(
        database: String, log: Destination, settings: RegistryOutboxSettings = .init()
    ) {
        worker = OutboxWorker(database: database, log: log, settings: settings)
    }

    deinit { stop() }

    public func start() {
        thread.withLock { thread in
            if thread == nil {
                thread = SystemThread.start("registry-outbox") { [worker] in worker.run() }
            }
        }
    }

    /// Waits for what is on its way to the log, for 5 s at most, and ends the thread.
    public func stop() {
        worker.stop()
        if let thread = thread.withLock({ $0.take() }) { thread.join() }
    }

    /// Events that the log has acknowledged.
    public var publishedCount: Int { worker.published.load(ordering: .relaxed) }

    /// Whether this process is the one that publishes.
    public var hasLease: Bool { worker.lease.load(ordering: .relaxed) }
}

public struct RegistryOutboxSettings: Sendable {
    /// Longest wait for a notification before the table is read all the same. Default: 1 s.
    public var pollMilliseconds: Int64 = 1_000
    /// Rows that are read at once. Default: 4,000.
    public var rowLimit: Int64 = 4_000
    /// Bytes of keys and values, after which a batch takes no further row. Default: 4 MiB.
    public var batchBytes = 4 << 20
    /// Told on the outbox's thread what is in the way, and `nil` when nothing is any more: for
    /// readiness. Told of changes only.
    public var obstacleChanged: (@Sendable (String?) -> Void)?

    public init() {}
}

/// What the thread of a `RegistryOutbox` does. Only that thread calls `run`.
private final class OutboxWorker<Destination: EventLog>: Sendable {
    let published = Atomic<Int>(0)
    let lease = Atomic<Bool>(false)
    private let isStopping = Atomic<Bool>(false)
    private let waker = Waker()
    private let database: String
    private let log: Destination
    private let settings: RegistryOutboxSettings
    private let backoff = Backoff()

    init(database: String, log: Destination, settings: RegistryOutboxSettings) {
        self.database = database
        self.log = log
        self.settings = settings
    }

    func stop() {
        isStopping.store(true, ordering: .relaxed)
        waker.signal()
    }

    private var goesOn: Bool { !isStopping.load(ordering: .relaxed) }

    func run() {
        var session = Session(waker: waker)
        var failures = 0
        while goesOn {
            do {
                try connect(&session)
                lease.store(try takeLease(session), ordering: .relaxed)
                guard lease.load(ordering: .relaxed) else {
                    tell(nil, &session)
                    try waitForNews(session)
                    continue
                }
                let outcome = try publish(&session)
                if outcome != .logUnavailable { tell(nil, &session) }
                failures = outcome == .logUnavailable ? failures + 1 : 0
                switch outcome {
                case .more: break
                case .empty: try waitForNews(session)
                case .logUnavailable:
                    tell("the log does not take the registry's events", &session)
                    pause(backoff.delay(afterFailures: failures))
                }
            } catch {
                if failures == 0 {
                    Log.warning("publishing the registry's events", ["error": "\(error)"])
                }
                failures += 1
                tell("\(error)", &session)
                lease.store(false, ordering: .relaxed)
                session.connection = nil
                pause(backoff.delay(afterFailures: failures))
            }
        }
        lease.store(false, ordering: .relaxed)
        session.producer?.close()
    }

    /// What the thread holds on to between rounds.
    private struct Session {
        var connection: PostgresConnection?
        var producer: Destination.Producer?
        var partitions: [Topic: Int32] = [:]
        let receipts: OutboxReceipts
        /// Acknowledged by the log, and yet to be deleted.
        var acknowledged: [Int64] = []
        /// What was last told of.
        var obstacle: String?

        init(waker: Waker) { receipts = OutboxReceipts(waker) }
    }

    private func tell(_ obstacle: String?, _ session: inout Session) {
        if obstacle == session.obstacle { return }
        session.obstacle = obstacle
        settings.obstacleChanged?(obstacle)
    }

    private enum Outcome { case more, empty, logUnavailable }

    private func connect(_ session: inout Session) throws {
        if session.producer == nil { session.producer = try log.makeProducer(ProducerSettings()) }
        if session.connection?.isUsable == true { return }
        // The lease ended with the session that had it.
        lease.store(false, ordering: .relaxed)
        var options = PostgresOptions(applicationName: "heartline registry outbox")
        options.responseTimeout = .seconds(30)
        let connection = try PostgresConnection(database, options: options)
        // Before the first look at the table, so that nothing falls in between.
        try connection.listen("heartline_outbox")
        // By the primary key, always. The statistics are those of an empty table when operators add a
        // fleet; by them each read would sort all that waits, and each deletion look at all of it.
        for path in ["seqscan", "bitmapscan", "sort", "nestloop", "mergejoin"] {
            try connection.execute("SET enable_\(path) = off")
        }
        session.connection = connection
    }

    /// Free of charge when the session has it already.
    private func takeLease(_ session: Session) throws -> Bool {
        guard let connection = session.connection else { return false }
        if lease.load(ordering: .relaxed) { return true }
        return try connection.execute(OutboxStatements.lease).only().bool(0)
    }

    private func waitForNews(_ session: Session) throws {
        guard let connection = session.connection else { return }
        _ = connection.waitReadable(
            orReadable: waker.descriptor, timeout: .milliseconds(settings.pollMilliseconds))
        waker.drain()
        _ = try connection.notifications()
    }

    private func pause(_ milliseconds: Int64) {
        waker.wait(milliseconds: milliseconds) { goesOn }
    }

    /// Reads, publishes and deletes one batch a topic.
    private func publish(_ session: inout Session) throws -> Outcome {
        guard let connection = session.connection, let producer = session.producer else {
            return .empty
        }
        try delete(&session, connection)
        let rows = try connection.execute(
            OutboxStatements.read, .textArray(Topic.allCases.map(\.rawValue)),
            .int8(settings.rowLimit))
        if rows.isEmpty { return .empty }
        var batches: [OutboxBatch] = []
        var bytes = 0
        for row in rows where bytes < settings.batchBytes {
            guard let topic = Topic(rawValue: try row.text(1)) else { continue }
            let count = try partitionCount(of: topic, &session)
            let place =
                batches.firstIndex { $0.records.topic == topic }
                ?? {
                    batches.append(OutboxBatch(topic))
                    return batches.count - 1
                }()
            try batches[place].append(row, partitions: count)
            bytes += batches[place].lastBytes
        }
        // One batch a topic at a time: a second one could be stored after the first has failed.
        for (token, batch) in batches.enumerated() {
            let receipt = DeliveryReceipt(session.receipts, token: UInt64(token))
            switch producer.send(batch.records, receipt: receipt) {
            case .accepted: session.receipts.expect(UInt64(token))
            case .queueFull: break
            case .closed: session.producer = nil
            }
        }
        let stored = awaitReceipts(session)
        for (token, batch) in batches.enumerated() where stored.contains(UInt64(token)) {
            session.acknowledged.append(contentsOf: batch.sequences)
            published.add(batch.sequences.count, ordering: .relaxed)
        }
        try delete(&session, connection)
        return stored.count == batches.count ? .more : .logUnavailable
    }

    private func partitionCount(of topic: Topic, _ session: inout Session) throws -> Int32 {
        if let known = session.partitions[topic] { return known }
        guard let count = try log.partitionCount(of: topic) else {
            throw EventLogError(
                .producing, .configuration, place: nil,
                "topic \(topic.rawValue) does not exist. Run heartline topics create")
        }
        session.partitions[topic] = count
        return count
    }

    /// Waits for every receipt, because what was not told of may still be stored. When stopping, for
    /// 5 s.
    /// - Returns: the batches that were stored.
    private func awaitReceipts(_ session: Session) -> Set<UInt64> {
        var stopDeadline: Int64?
        while !session.receipts.isComplete {
            waker.wait(milliseconds: 100)
            guard !goesOn else { continue }
            let now = SystemClock.monotonicMilliseconds()
            if let stopDeadline, now >= stopDeadline { break }
            stopDeadline = stopDeadline ?? now + 5_000
        }
        return session.receipts.takeStored()
    }

    private func delete(_ session: inout Session, _ connection: PostgresConnection) throws {
        if session.acknowledged.isEmpty { return }
        // The limits are for the index: what lies between them is hardly more than what is deleted.
        try connection.execute(
            OutboxStatements.delete, .int8Array(session.acknowledged),
            .int8(session.acknowledged.min() ?? 0), .int8(session.acknowledged.max() ?? 0))
        session.acknowledged = []
    }
}

private enum OutboxStatements {
    /// "outboxes" in ASCII.
    static let lease = PreparedStatement(
        "outbox-lease", "SELECT pg_try_advisory_lock(x'6f7574626f786573'::int8)")
    static let read = PreparedStatement(
        "outbox-read",
        """
        SELECT sequence, topic, key, value, record_time, headers, record_partition
          FROM heartline.outbox
         WHERE source = 'registry' AND partition = 0 AND topic = ANY($1)
         ORDER BY sequence LIMIT $2
        """)
    static let delete = PreparedStatement(
        "outbox-delete",
        """
        DELETE FROM heartline.outbox USING unnest($1) AS stored
         WHERE source = 'registry' AND partition = 0 AND sequence = stored
           AND sequence BETWEEN $2 AND $3
        """)
}

/// Rows of one topic on their way to the log.
private struct OutboxBatch {
    var records: RecordBatch
    var sequences: [Int64] = []
    var lastBytes = 0

    init(_ topic: Topic) { records = RecordBatch(topic) }

    mutating func append(_ row: PostgresRow, partitions: Int32) throws(PostgresError) {
        let key = try row.bytea(2)
        let value = try row.optionalBytea(3)
        let time = EventTime(postgresMicroseconds: try row.timestamptz(4))
        let headers = try row.optionalBytea(5).map { RecordHeaders(encoded: $0) }
        let partition =
            try row.optionalInt4(6) ?? Partitioner.partition(of: key.span, count: partitions)
        if let value {
            records.append(
                partition: partition, timestamp: time, key: key.span, value: value.span,
                headers: headers ?? RecordHeaders())
        } else {
            records.append(
                tombstone: key.span, partition: partition, timestamp: time,
                headers: headers ?? RecordHeaders())
        }
        sequences.append(try row.int8(0))
        lastBytes = key.count + (value?.count ?? 0)
    }
}

/// Collects what the log says of each batch. Told on threads of the log.
private final class OutboxReceipts: DeliveryReceiver {
    private struct State {
        var expected: Set<UInt64> = []
        var told: [UInt64: Bool] = [:]
    }

    private let state = Mutex(State())
    private let waker: Waker

    init(_ waker: Waker) { self.waker = waker }

    /// A receipt can come before it is expected.
    func expect(_ token: UInt64) { state.withLock { _ = $0.expected.insert(token) } }

    func delivered(_ token: UInt64, _ outcome: DeliveryOutcome) {
        if case .failed(let error) = outcome {
            Log.warning("publishing the registry's events", ["error": "\(error)"])
        }
        state.withLock { state in
            if case .stored = outcome {
                state.told[token] = true
            } else {
                state.told[token] = false
            }
        }
        waker.signal()
    }

    var isComplete: Bool {
        state.withLock { state in state.expected.allSatisfy { state.told[$0] != nil } }
    }

    /// The batches that were stored; then forgets all.
    func takeStored() -> Set<UInt64> {
        state.withLock { state in
            defer { state = State() }
            return Set(state.told.filter(\.value).keys)
        }
    }
}
