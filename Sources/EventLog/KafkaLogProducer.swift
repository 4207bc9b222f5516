internal import Bytes
internal import Kafka
internal import Schemas
internal import Synchronization
internal import System

/// Hands batches to librdkafka, each record to the partition that it carries.
///
/// Acknowledged topics and queued topics have a client each: those that somebody waits for go at once,
/// the others wait for company.
/// - Thread safety: any thread.
public final class KafkaLogProducer: EventProducer {
    private let account: KafkaAccount
    private let ackedTopics: Set<Topic>
    private let closeMilliseconds: Int64
    private let acked: KafkaLane
    private let queued: KafkaLane

    init(
        _ settings: ProducerSettings, _ log: KafkaLogSettings, _ health: KafkaHealth,
        _ watch: KafkaWatch
    ) throws(EventLogError) {
        account = KafkaAccount(limit: settings.queueBytes)
        ackedTopics = log.ackedTopics
        closeMilliseconds = log.closeMilliseconds
        acked = KafkaLane(
            log, health, watch, linger: settings.lingerMilliseconds, timeout: log.ackedMilliseconds)
        queued = KafkaLane(
            log, health, watch,
            linger: max(settings.lingerMilliseconds, log.queuedLingerMilliseconds),
            timeout: log.queuedMilliseconds)
        // What librdkafka does not take is told now, and not by the first batch.
        try acked.open()
    }

    deinit {
        acked.stop()
        queued.stop()
    }

    public func send(_ batch: RecordBatch, receipt: DeliveryReceipt?) -> SendOutcome {
        let outcome = account.enter(batch.sizeBytes)
        guard case .accepted = outcome else { return outcome }
        guard !batch.isEmpty else {
            account.leave(batch.sizeBytes, receipt, .stored)
            return .accepted
        }
        let lane = ackedTopics.contains(batch.topic) ? acked : queued
        lane.send(batch, receipt, account)
        return .accepted
    }

    public var queuedBytes: Int { account.bytes }

    public func flush(milliseconds: Int64) -> Bool {
        let end =
            SystemClock.monotonicMilliseconds()
            &+ min(milliseconds, Int64(Int32.max))
        let pause = Waker()
        while account.batches > 0 {
            let left = end - SystemClock.monotonicMilliseconds()
            guard left > 0 else { return false }
            // Only so long that a batch of another lane is not overlooked.
            acked.flush(milliseconds: min(left, 100))
            queued.flush(milliseconds: min(left, 100))
            // The last reports may be in the hands of the lanes' threads.
            if account.batches > 0 { pause.wait(milliseconds: 1) }
        }
        return true
    }

    /// Clients of librdkafka that have not ended; for tests.
    package var clientCount: Int { acked.clients.count + queued.clients.count }

    /// Makes its clients useless, as a fatal error does; for tests.
    public func failFatally() {
        acked.failFatally()
        queued.failFatally()
    }

    /// What the cluster has not taken within the settings' time has failed.
    public func close() {
        account.close()
        if !flush(milliseconds: closeMilliseconds) {
            acked.purge()
            queued.purge()
            _ = flush(milliseconds: 2_000)
        }
        acked.close()
        queued.close()
    }
}

/// What one producer has under way.
final class KafkaAccount: Sendable {
    private let limit: Int
    private let byteCount = Atomic<Int>(0)
    private let batchCount = Atomic<Int>(0)
    private let isClosed = Atomic(false)

    init(limit: Int) { self.limit = limit }

    var bytes: Int { byteCount.load(ordering: .acquiring) }
    var batches: Int { batchCount.load(ordering: .sequentiallyConsistent) }

    func close() { isClosed.store(true, ordering: .sequentiallyConsistent) }

    func enter(_ size: Int) -> SendOutcome {
        // Counted before it is looked whether we are closed: who closes waits for the count.
        batchCount.add(1, ordering: .sequentiallyConsistent)
        guard !isClosed.load(ordering: .sequentiallyConsistent) else {
            batchCount.subtract(1, ordering: .sequentiallyConsistent)
            return .closed
        }
        let total = byteCount.add(size, ordering: .acquiringAndReleasing).newValue
        guard total <= limit else {
            byteCount.subtract(size, ordering: .acquiringAndReleasing)
            batchCount.subtract(1, ordering: .sequentiallyConsistent)
            return .queueFull
        }
        return .accepted
    }

    func leave(_ size: Int, _ receipt: DeliveryReceipt?, _ outcome: DeliveryOutcome) {
        byteCount.subtract(size, ordering: .acquiringAndReleasing)
        if let receipt { receipt.receiver.delivered(receipt.token, outcome) }
        batchCount.subtract(1, ordering: .sequentiallyConsistent)
    }
}

/// One client of librdkafka, replaced when a fatal error made it useless.
final class KafkaLane: Sendable {
    private struct State {
        var client: KafkaLaneClient?
        /// When it was made, on the monotonic clock.
        var madeAt = Int64.min / 2
        /// What made the last one useless.
        var fatal: KafkaError?
        /// Useless ones that still tell the end of what they had.
        var retired: [KafkaLaneClient] = []
        var topics: [Topic: KafkaTopic] = [:]
    }

    /// An error that comes back at once is not met with clients without end.
    private static let shortestLife: Int64 = 1_000

    private let state = Mutex(State())
    private let settings: KafkaLogSettings
    private let health: KafkaHealth
    private let watch: KafkaWatch
    private let linger: Int64
    private let timeout: Int64

    init(
        _ settings: KafkaLogSettings, _ health: KafkaHealth, _ watch: KafkaWatch, linger: Int64,
        timeout: Int64
    ) {
        self.watch = watch
        self.settings = settings
        self.health = health
        self.linger = linger
        self.timeout = timeout
    }

    func open() throws(EventLogError) {
        try state.withLock { (state) throws(EventLogError) in _ = try current(&state) }
    }

    private func current(_ state: inout State) throws(EventLogError) -> KafkaLaneClient {
        if let client = state.client {
            guard client.isUseless else { return client }
            state.fatal = client.producer.fatalFailure
            state.topics = [:]
            state.retired.append(client)
            state.client = nil
        }
        if let fatal = state.fatal,
            SystemClock.monotonicMilliseconds() - state.madeAt < Self.shortestLife
        {
            throw EventLogError(.producing, fatal)
        }
        let configuration = try settings.makeProducer(linger: linger, timeout: timeout)
        let producer: KafkaProducer
        do throws(KafkaError) {
            producer = try KafkaProducer(configuration, observer: health)
        } catch {
            throw EventLogError(.producing, .configuration, "\(error.reason); see --kafka-config")
        }
        let client = KafkaLaneClient(producer)
        client.start { [weak self] in self?.forget($0) }
        state.client = client
        state.madeAt = SystemClock.monotonicMilliseconds()
        return client
    }

    /// Lets a useless client go that has told all, on its own thread: its end can take a while.
    private func forget(_ client: KafkaLaneClient) {
        state.withLock { state in
            state.retired.removeAll { $0 === client }
            guard state.client === client else { return }
            state.fatal = client.producer.fatalFailure
            state.topics = [:]
            state.client = nil
        }
    }

    /// Once a batch: what is sent then is sent without a lock of ours.
    private func place(
        of topic: Topic
    ) throws(EventLogError) -> (client: KafkaLaneClient, topic: KafkaTopic) {
        // Brokers may be set to make what they are asked for, with partitions of their own number.
        if watch.isMissing(topic.rawValue) {
            throw EventLogError(
                .producing, .configuration,
                "topic \(topic.rawValue) does not exist, or this user may not see it; make the topics "
                    + "with `heartline topics create`")
        }
        return try state.withLock { (state) throws(EventLogError) in
            let client = try current(&state)
            if let known = state.topics[topic] { return (client, known) }
            do throws(KafkaError) {
                let made = try client.producer.topic(topic.rawValue)
                state.topics[topic] = made
                return (client, made)
            } catch { throw EventLogError(.producing, error) }
        }
    }

    func send(_ batch: RecordBatch, _ receipt: DeliveryReceipt?, _ account: KafkaAccount) {
        let size = batch.sizeBytes
        let (client, topic): (KafkaLaneClient, KafkaTopic)
        do throws(EventLogError) { (client, topic) = try place(of: batch.topic) } catch {
            return account.leave(size, receipt, .failed(error))
        }
        let (name, watch) = (batch.topic.rawValue, watch)
        let whole = KafkaBatch(count: batch.count) { error in
            account.leave(
                size, receipt,
                error.map { error in
                    var failure = EventLogError(.producing, error)
                    // A broker that has just started may not know its topics yet, and a client that
                    // has heard so believes it for minutes.
                    if error.kind == .unknownTopic, !watch.isMissing(name) {
                        failure.kind = .unavailable
                        client.retire()
                    }
                    failure.reason = "topic \(name): \(failure.reason)"
                    return .failed(failure)
                } ?? .stored)
        }
        let bytes = batch.bytes
        let span = bytes.span
        var offset = 0
        while offset < span.count {
            let partition = span.littleEndian(at: offset, as: Int32.self)
            guard let record = RecordHead(span, at: offset + 4) else {
                preconditionFailure("a batch of records is cut off")
            }
            let end = offset + 4 + RecordHead.sizeBytes + record.contentBytes
            let encoded = span.extracting(offset + 4..<end)
            client.producer.produce(
                to: topic, partition: partition, timestamp: record.timestamp.milliseconds,
                hasKey: span.littleEndian(at: offset + 12, as: Int32.self) >= 0,
                key: record.key(in: encoded), isTombstone: record.isTombstone,
                value: record.value(in: encoded), headers: record.headers(in: encoded),
                batch: whole)
            offset = end
        }
    }

    var clients: [KafkaLaneClient] {
        state.withLock { state in state.retired + (state.client.map { [$0] } ?? []) }
    }

    func flush(milliseconds: Int64) {
        for client in clients {
            client.producer.flush(milliseconds: Int32(clamping: milliseconds))
        }
    }

    func purge() { for client in clients { client.producer.purge() } }

    func stop() { for client in clients { client.stop() } }

    func close() {
        let closing = clients
        state.withLock { $0 = State() }
        for client in closing { client.close() }
    }

    func failFatally() { for client in clients { client.producer.failFatally() } }
}

/// A client and the thread that serves its reports.
final class KafkaLaneClient: Sendable {
    let producer: KafkaProducer
    private let useless = Atomic(false)
    private let isStopping = Atomic(false)
    private let thread = Mutex<SystemThread?>(nil)

    init(_ producer: KafkaProducer) { self.producer = producer }

    /// After a fatal error.
    var isUseless: Bool { useless.load(ordering: .acquiring) }

    /// - Parameter ended: called on the client's thread when it is useless and has told all it had.
    func start(_ ended: @escaping @Sendable (KafkaLaneClient) -> Void) {
        thread.withLock {
            $0 = SystemThread.start("kafka-out") {
                self.run()
                guard self.isUseless else { return }
                ended(self)
                // Unless somebody waits for it already.
                self.thread.withLock { $0.take() }?.detach()
            }
        }
    }

    private func run() {
        while true {
            producer.poll(milliseconds: 50)
            if !isUseless, let error = producer.fatalFailure {
                let advice = error.isDenied ? "; \(EventLogError.idempotentWrite)" : ""
                Log.error(
                    "a Kafka producer cannot go on and is replaced",
                    ["error": "\(error)\(advice)"])
                useless.store(true, ordering: .releasing)
                // What it had has failed; who waits for a receipt sends it again.
                producer.purge()
            }
            let isEnding = isStopping.load(ordering: .acquiring) || isUseless
            if isEnding, producer.waiting == 0 { return }
        }
    }

    /// Another takes its place; what it has comes to its end here.
    func retire() { useless.store(true, ordering: .releasing) }

    /// The thread ends when nothing waits any more.
    func stop() { isStopping.store(true, ordering: .releasing) }

    func close() {
        stop()
        let running = thread.withLock { thread in
            defer { thread = nil }
            return thread
        }
        running?.join()
    }
}
