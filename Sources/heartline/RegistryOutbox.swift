import Bytes
import EventLog
import Ingest
import Postgres
import Schemas
import Synchronization
import System

/// Publishes what operators and provisionings did to the registry: reads the registry's rows of the
/// outbox in order, hands them to the log, and deletes them when the log has acknowledged them.
///
/// At least once: readers ignore versions they know. Of several processes one publishes, the one that
/// holds an advisory lock; when it ends another takes over.
final class RegistryOutbox: Sendable {
    private static let part = "registry-outbox"
    private static let batchRows: Int64 = 2_000
    /// "regoutbx" in ASCII.
    private static let lockKey: Int64 = 0x7265_676F_7574_6278
    /// How often rows are looked for without a notification, in milliseconds.
    private static let lookMilliseconds: Int64 = 1_000

    private let log: any EventLog
    private let databaseURL: String
    private let readiness: Readiness
    private let receipts = Receipts()
    private let isStopping = Atomic(false)
    private let thread = Mutex<SystemThread?>(nil)

    /// Counts the log's answers to the batches of one round.
    private final class Receipts: DeliveryReceiver {
        struct Count {
            var stored = 0
            var failed = 0
        }

        let count = Mutex(Count())
        let waker = Waker()

        func delivered(_ token: UInt64, _ outcome: DeliveryOutcome) {
            count.withLock { count in
                if case .stored = outcome { count.stored += 1 } else { count.failed += 1 }
            }
            waker.signal()
        }
    }

    init(log: any EventLog, databaseURL: String, readiness: Readiness) {
        self.log = log
        self.databaseURL = databaseURL
        self.readiness = readiness
        thread.withLock { $0 = SystemThread.start("registry-out") { self.run() } }
    }

    /// Ends the thread; what was not published is in the outbox for the next start.
    func stop() {
        isStopping.store(true, ordering: .releasing)
        receipts.waker.signal()
        let running = thread.withLock { thread in
            defer { thread = nil }
            return thread
        }
        running?.join()
    }

    private var mustStop: Bool { isStopping.load(ordering: .acquiring) }

    private func run() {
        while !mustStop {
            do {
                try publish()
            } catch {
                readiness.set(Self.part, "\(error)")
                Log.warning("publishing what changed in the registry", ["error": "\(error)"])
                receipts.waker.wait(milliseconds: 1_000)
            }
        }
    }

    /// One connection's life.
    private func publish() throws {
        let connection = try PostgresConnection(
            databaseURL, options: PostgresOptions(applicationName: "heartline registry outbox"))
        defer { connection.close() }
        let producer: any EventProducer = try log.makeProducer(ProducerSettings())
        defer { producer.close() }
        try connection.listen("heartline_outbox")
        var isOwner = false
        while !mustStop {
            if !isOwner {
                isOwner = try connection.execute(
                    "SELECT pg_try_advisory_lock($1)", .int8(Self.lockKey)
                ).only().bool(0)
            }
            if isOwner {
                while try publishRound(connection, producer), !mustStop {}
            }
            readiness.set(Self.part, nil)
            _ = connection.waitReadable(
                orReadable: receipts.waker.descriptor,
                timeout: .milliseconds(Self.lookMilliseconds))
            _ = try connection.notifications()
        }
    }

    /// - Returns: whether there may be more.
    private func publishRound(
        _ connection: PostgresConnection, _ producer: any EventProducer
    ) throws -> Bool {
        let rows = try connection.execute(
            """
            SELECT sequence, topic, key, value, record_time FROM heartline.outbox
             WHERE source = 'registry' AND partition = 0 ORDER BY sequence LIMIT $1
            """, .int8(Self.batchRows))
        guard let last = rows.last else { return false }
        var batches: [RecordBatch] = []
        for row in rows {
            let name = try row.text(1)
            guard let topic = Topic(rawValue: name),
                let partitions = try log.partitionCount(of: topic)
            else { throw Failure("publishing what changed in the registry: no topic \(name)") }
            let key = try row.bytea(2)
            let value = try row.bytea(3)
            let time = EventTime(milliseconds: milliseconds(postgres: try row.timestamptz(4)))
            let index: Int
            if let known = batches.firstIndex(where: { $0.topic == topic }) {
                index = known
            } else {
                batches.append(RecordBatch(topic))
                index = batches.count - 1
            }
            batches[index].append(
                partition: Partitioner.partition(of: key.span, count: partitions),
                timestamp: time, key: key.span, value: value.span)
        }
        try deliver(batches, producer)
        try connection.execute(
            """
            DELETE FROM heartline.outbox
             WHERE source = 'registry' AND partition = 0 AND sequence <= $1
            """, .int8(try last.int8(0)))
        return Int64(rows.count) == Self.batchRows
    }

    /// Waits until the log has stored all of the batches.
    private func deliver(_ batches: [RecordBatch], _ producer: any EventProducer) throws {
        receipts.count.withLock { $0 = Receipts.Count() }
        let receipt = DeliveryReceipt(receipts, token: 0)
        for batch in batches {
            var outcome = producer.send(batch, receipt: receipt)
            while case .queueFull = outcome, !mustStop {
                receipts.waker.wait(milliseconds: 50)
                outcome = producer.send(batch, receipt: receipt)
            }
            guard case .accepted = outcome else {
                throw Failure("publishing what changed in the registry: the log is closed")
            }
        }
        while true {
            let count = receipts.count.withLock { $0 }
            if count.failed > 0 {
                throw Failure("publishing what changed in the registry: the log did not store it")
            }
            if count.stored == batches.count { return }
            receipts.waker.wait(milliseconds: 1_000)
        }
    }
}
