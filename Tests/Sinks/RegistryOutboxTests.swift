import Bytes
import EventLog
import Postgres
import Schemas
import Sinks
import Synchronization
import System
import TestSupport
import Testing

@Suite struct RegistryOutboxTests {
    private let database: TestDatabase
    private let connection: PostgresConnection
    private let log = RecordingLog()

    init() throws {
        database = try TestDatabase.make()
        connection = try database.connect()
    }

    private func eventually(_ what: String, _ condition: () throws -> Bool) rethrows {
        let pause = Waker()
        let start = ContinuousClock.now
        while try !condition() {
            if ContinuousClock.now - start > .seconds(120) {
                Issue.record("never came: \(what)")
                return
            }
            pause.wait(milliseconds: 10)
        }
    }

    private func add(
        _ key: String, _ value: String?, topic: Topic = .configChanges,
        to other: PostgresConnection? = nil
    ) throws {
        try (other ?? connection).execute(
            "SELECT heartline.add_registry_event($1, $2, $3, $4)", .text(topic.rawValue),
            .bytea(ByteBuffer(key.utf8)), value.map { .bytea(ByteBuffer($0.utf8)) } ?? .null,
            .timestamptz(836_000_000_123_456))
    }

    private func isEmpty() throws -> Bool {
        try connection.execute("SELECT FROM heartline.outbox WHERE source = 'registry'").isEmpty
    }

    private func outbox(rows: Int64 = 1_000) -> RegistryOutbox<RecordingLog> {
        var settings = RegistryOutboxSettings()
        settings.rowLimit = rows
        settings.pollMilliseconds = 100
        return RegistryOutbox(database: database.url, log: log, settings: settings)
    }

    @Test func eventsArriveInOrderAndAreDeleted() throws {
        for number in 0..<250 {
            try add("device \(number % 7)", "\(number)")
            if number % 10 == 0 { try add("device \(number % 7)", nil, topic: .deviceConfigs) }
        }
        let outbox = outbox(rows: 40)
        outbox.start()
        try eventually("an empty outbox") { try isEmpty() }
        #expect(log.values(of: .configChanges) == (0..<250).map { "\($0)" })
        #expect(log.values(of: .deviceConfigs) == [String](repeating: "tombstone", count: 25))
        #expect(outbox.publishedCount == 275)
        let record = try #require(log.records.first)
        #expect(record.key == "device 0")
        #expect(record.timestamp == EventTime(milliseconds: 836_000_000_123 + 946_684_800_000))
        #expect(
            record.partition
                == Partitioner.partition(of: ByteBuffer("device 0".utf8).span, count: 4))
        // News come by notification.
        try add("device 1", "news")
        eventually("the news") { log.values(of: .configChanges).last == "news" }
        outbox.stop()
        #expect(!outbox.hasLease)
    }

    @Test func aSmallerSequenceThatCommitsLaterIsPublishedToo() throws {
        let slow = try database.connect()
        try slow.run("BEGIN")
        try add("a", "early sequence, late commit", to: slow)
        try add("b", "late sequence, early commit")
        let outbox = outbox()
        outbox.start()
        eventually("the one that is committed") { log.records.count == 1 }
        try slow.run("COMMIT")
        try eventually("an empty outbox") { try isEmpty() }
        #expect(
            log.values(of: .configChanges) == [
                "late sequence, early commit", "early sequence, late commit",
            ])
        outbox.stop()
    }

    @Test func whatCommitsBetweenReadingAndDeletingIsNotDeletedUnpublished() throws {
        let (began, publishing, committed) = (Waker(), Waker(), Waker())
        let url = database.url
        let slow = SystemThread.start("slow-operator") {
            guard let connection = try? PostgresConnection(url) else { return began.signal() }
            _ = try? connection.run(
                "BEGIN; SELECT heartline.add_registry_event('config-changes', 'a', 'early', now())")
            began.signal()
            publishing.wait(milliseconds: 120_000)
            _ = try? connection.run("COMMIT")
            committed.signal()
        }
        began.wait(milliseconds: 120_000)
        try add("b", "late")
        log.beforeStoring {
            publishing.signal()
            committed.wait(milliseconds: 120_000)
            committed.signal()
        }
        let outbox = outbox()
        outbox.start()
        try eventually("an empty outbox") { try log.records.count > 0 && isEmpty() }
        #expect(log.values(of: .configChanges) == ["late", "early"])
        outbox.stop()
        slow.join()
    }

    @Test func othersRowsAreLeftAlone() throws {
        try connection.run(
            "INSERT INTO heartline.outbox VALUES ('tunnel-health', 0, 1, 'alerts', 'k', 'v', now())"
        )
        try add("a", "1")
        let outbox = outbox()
        outbox.start()
        try eventually("an empty outbox") { try isEmpty() }
        outbox.stop()
        #expect(log.values(of: .alerts).isEmpty)
        #expect(try connection.execute("SELECT FROM heartline.outbox").count == 1)
    }

    @Test func aLogThatRefusesKeepsTheRowsAndTheirOrder() throws {
        log.fail(batches: 5)
        for number in 0..<20 { try add("device", "\(number)") }
        let outbox = outbox(rows: 3)
        outbox.start()
        try eventually("an empty outbox") { try isEmpty() }
        #expect(log.values(of: .configChanges) == (0..<20).map { "\($0)" })
        outbox.stop()
    }

    @Test func onlyOneOfTwoPublishes() throws {
        let first = outbox()
        first.start()
        eventually("the lease of the first") { first.hasLease }
        let second = outbox()
        second.start()
        for number in 0..<50 { try add("device", "\(number)") }
        try eventually("an empty outbox") { try isEmpty() }
        #expect(second.publishedCount == 0)
        #expect(!second.hasLease)
        first.stop()
        eventually("the lease of the second") { second.hasLease }
        try add("device", "50")
        try eventually("an empty outbox") { try isEmpty() }
        #expect(log.values(of: .configChanges) == (0...50).map { "\($0)" })
        second.stop()
    }

    @Test func aLostSessionIsReplacedAndNothingIsLost() throws {
        let outbox = outbox()
        outbox.start()
        for number in 0..<100 {
            try add("device", "\(number)")
            if number % 25 == 10 {
                try connection.run(
                    """
                    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                     WHERE datname = current_database() AND pid <> pg_backend_pid()
                    """)
            }
        }
        try eventually("an empty outbox") { try isEmpty() }
        outbox.stop()
        // At least once, and in order: leaving repeats out gives the order.
        var seen = Set<String>()
        let firsts = log.values(of: .configChanges).filter { seen.insert($0).inserted }
        #expect(firsts == (0..<100).map { "\($0)" })
    }

    @Test func aDatabaseOutageIsWaitedOut() throws {
        let server = try TestServer()
        let database = try server.makeDatabase()
        let obstacles = Mutex<[String?]>([])
        var settings = RegistryOutboxSettings()
        settings.obstacleChanged = { obstacle in obstacles.withLock { $0.append(obstacle) } }
        let outbox = RegistryOutbox(database: database.url, log: log, settings: settings)
        outbox.start()
        eventually("the lease") { outbox.hasLease }
        server.stop()
        eventually("the loss of the lease") { !outbox.hasLease }
        #expect(obstacles.withLock { $0.first??.isEmpty == false })
        try server.start()
        let connection = try database.connect()
        try add("device", "after the outage", to: connection)
        eventually("the event") { log.values(of: .configChanges) == ["after the outage"] }
        outbox.stop()
        #expect(obstacles.withLock { $0.last == .some(nil) })
    }
}

/// A log that keeps what it is given, in memory.
private final class RecordingLog: EventLog {
    struct Record: Hashable {
        var topic: Topic
        var partition: Int32
        var timestamp: EventTime
        var key: String
        var value: String
    }

    private struct State {
        var records: [Record] = []
        var failures = 0
        var beforeStoring: (@Sendable () -> Void)?
    }

    private let state = Mutex(State())

    var records: [Record] { state.withLock { $0.records } }

    func values(of topic: Topic) -> [String] {
        records.filter { $0.topic == topic }.map(\.value)
    }

    func beforeStoring(_ body: @escaping @Sendable () -> Void) {
        state.withLock { $0.beforeStoring = body }
    }

    func fail(batches: Int) { state.withLock { $0.failures = batches } }

    func createTopics(_ topics: [TopicSettings]) throws(EventLogError) {}

    func partitionCount(of topic: Topic) throws(EventLogError) -> Int32? { 4 }

    func offsets(of place: TopicPartition) throws(EventLogError) -> OffsetRange {
        OffsetRange(earliest: 0, next: 0)
    }

    func makeProducer(_ settings: ProducerSettings) throws(EventLogError) -> Producer {
        Producer(log: self)
    }

    func makeConsumer(
        of topic: Topic, group: String, waker: Waker
    ) throws(EventLogError) -> NoConsumer { NoConsumer() }

    private func store(_ batch: RecordBatch) -> DeliveryOutcome {
        let records = RecordingLog.decode(batch)
        state.withLock { $0.beforeStoring }?()
        return state.withLock { state in
            if state.failures > 0 {
                state.failures -= 1
                return .failed(EventLogError(.producing, .unavailable, "the log is down"))
            }
            state.records.append(contentsOf: records)
            return .stored
        }
    }

    private static func decode(_ batch: RecordBatch) -> [Record] {
        let bytes = batch.bytes
        var records: [Record] = []
        var reader = ByteReader(bytes.span)
        for _ in 0..<batch.count {
            let partition = reader.littleEndian(Int32.self) ?? -1
            let time = reader.littleEndian(Int64.self) ?? -1
            let keySize = reader.littleEndian(Int32.self) ?? -1
            let valueSize = reader.littleEndian(Int32.self) ?? -1
            _ = reader.littleEndian(Int32.self)
            let key = reader.take(Int(keySize)) ?? 0..<0
            let value = valueSize < 0 ? nil : reader.take(Int(valueSize))
            records.append(
                Record(
                    topic: batch.topic, partition: partition,
                    timestamp: EventTime(milliseconds: time),
                    key: bytes.span.extracting(key).text,
                    value: value.map { String(decoding: bytes.bytes[$0], as: UTF8.self) }
                        ?? "tombstone"))
        }
        return records
    }

    struct Producer: EventProducer {
        let log: RecordingLog

        func send(_ batch: RecordBatch, receipt: DeliveryReceipt?) -> SendOutcome {
            let outcome = log.store(batch)
            receipt?.receiver.delivered(receipt?.token ?? 0, outcome)
            return .accepted
        }

        var queuedBytes: Int { 0 }
        func flush(milliseconds: Int64) -> Bool { true }
        func close() {}
    }

    final class NoConsumer: EventConsumer {
        func nextAssignmentChange() throws(EventLogError) -> AssignmentChange? { nil }
        func start(_ partition: Int32, at offset: Int64) throws(EventLogError) {}
        func release(_ partitions: [Int32]) throws(EventLogError) {}
        func pause(_ partition: Int32) {}
        func resume(_ partition: Int32) {}
        func poll(
            limit: Int, _ body: (RecordPlace, Span<UInt8>, borrowing RecordValue) -> Void
        ) throws(EventLogError) -> Int { 0 }
        func offsets(of partition: Int32) throws(EventLogError) -> OffsetRange {
            OffsetRange(earliest: 0, next: 0)
        }
        func noteCommitted(_ partition: Int32, next offset: Int64) {}
    }
}
