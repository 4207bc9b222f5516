import Bytes
import EventLog
import Kafka
import Pipeline
import Postgres
import Processors
import Schemas
import Sinks
import System
import Simulation
import TestSupport
import Testing

/// Workers on Kafka and PostgreSQL that come, go, are paused past their time in the group, and go on
/// while another has taken over.
@Suite("Workers that take over from each other") struct KafkaTakeoverTests {
    private static let partitions: Int32 = 4

    /// A worker that the test steps: one that it does not step is as one that is stopped.
    private final class Member {
        private var worker: Worker<KafkaLogConsumer, KafkaLogProducer, PostgresSink, Tally>
        private let sink: PostgresSink
        private let producer: KafkaLogProducer
        let board: WorkerStatusBoard
        var isPaused = false

        init(_ log: KafkaLog, _ database: TestDatabase, number: Int) throws {
            let waker = Waker()
            producer = try log.makeProducer(ProducerSettings())
            sink = PostgresSink(
                PostgresSink.Settings(
                    address: database.url, pipeline: "tally", source: .heartbeats,
                    tables: Tally.tables, owner: "member \(number)"), waker: waker)
            var settings = WorkerSettings(
                pipeline: "tally", outputPartitions: [.alerts: 2, .deadLetters: 2])
            settings.commitInterval = 50
            settings.idleCommitInterval = 50
            settings.snapshotInterval = 500
            settings.pollLimit = 37
            board = WorkerStatusBoard(pipeline: "tally")
            worker = Worker(
                consumer: try log.makeConsumer(of: .heartbeats, group: "tally", waker: waker),
                producer: producer, store: sink, settings: settings,
                processor: ProcessorSettings(
                    Tally.Settings(publishEvery: 7), text: "7",
                    read: { Tally.Settings(text: $0) }), waker: waker, board: board,
                now: SystemClock.monotonicMilliseconds())
        }

        deinit {
            sink.close()
            producer.close()
        }

        func step() { _ = worker.step(now: SystemClock.monotonicMilliseconds()) }

        var owned: Int { board.current.partitions.count }
    }

    /// The rows of all tables, as text.
    private func rows(_ database: TestDatabase) throws -> [String] {
        let connection = try database.connect()
        var rows: [String] = []
        for table in ["tally_now", "tally_steps", "tally_episodes"] {
            let found = try connection.execute(
                "SELECT t::text FROM heartline.\(table) t ORDER BY 1")
            for row in found { rows.append("\(table) \(try row.text(0))") }
        }
        return rows
    }

    private func stored(_ connection: PostgresConnection) throws -> Int64 {
        try connection.execute(
            "SELECT COALESCE(sum(next_offset), 0)::int8 FROM heartline.stream_partitions"
        ).only().int8(0)
    }

    private func makeDatabase() throws -> TestDatabase {
        let database = try TestDatabase.make()
        try database.connect().run(Tally.createTables)
        return database
    }

    private func append(_ range: Range<Int>, _ producer: KafkaLogProducer) throws {
        var batch = RecordBatch(.heartbeats)
        for number in range {
            let key = ByteBuffer("\(number % 53)".utf8)
            batch.append(
                partition: Partitioner.partition(of: key.span, count: Self.partitions),
                timestamp: EventTime(milliseconds: SystemClock.wallMilliseconds()), key: key.span,
                value: ByteBuffer("\(number % 53) \(number % 97)".utf8).span)
        }
        guard case .accepted = producer.send(batch, receipt: nil) else {
            throw BrokenPromise("the producer refused a batch")
        }
    }

    @Test("leave the tables of one clean run", arguments: UInt64(0)..<3)
    func tablesAreThoseOfACleanRun(seed: UInt64) throws {
        let mock = try MockKafka()
        // A worker that is not stepped for three seconds has lost its place in the group.
        let log = try mock.makeLog([
            "fetch.wait.max.ms=20", "session.timeout.ms=3000", "max.poll.interval.ms=3000",
            "heartbeat.interval.ms=100",
        ])
        defer { log.close() }
        try log.createTopics([
            TopicSettings(.heartbeats, partitions: Self.partitions),
            TopicSettings(.alerts, partitions: 2), TopicSettings(.deadLetters, partitions: 2),
        ])
        var random = SplitMix64(seed: seed)
        let producer = try log.makeProducer(ProducerSettings())
        defer { producer.close() }
        let stormy = try makeDatabase()
        let connection = try stormy.connect()
        var members = [try Member(log, stormy, number: 0)]
        var next = 0
        var takeovers = 0
        let pause = Waker()

        func stepAll() {
            for member in members where !member.isPaused { member.step() }
            pause.wait(milliseconds: 1)
        }

        for round in 1...4 {
            let count = 200 + random.below(400)
            try append(next..<next + count, producer)
            next += count
            for _ in 0..<random.below(200) { stepAll() }
            switch round == 4 ? 2 : random.below(3) {
            case 0 where members.count < 3:
                // In the middle of a batch, another joins.
                members.append(try Member(log, stormy, number: round))
            case 1 where members.count > 1:
                // One ends without a word to anybody but the group.
                members.remove(at: random.below(members.count))
            default:
                // One is stopped with what it holds; another takes over and goes on; then the
                // first goes on too, as if nothing had been.
                let zombie = members[random.below(members.count)]
                if members.count < 2 { members.append(try Member(log, stormy, number: round)) }
                // Its time in the group counts from its first assignment on.
                try eventually("it owns something", seconds: 180) {
                    stepAll()
                    return zombie.owned > 0
                }
                zombie.isPaused = true
                let before = try stored(connection)
                try append(next..<next + 100, producer)
                next += 100
                try eventually("the others own everything and go on", seconds: 180) {
                    stepAll()
                    let owned = members.filter { !$0.isPaused }.reduce(0) { $0 + $1.owned }
                    guard owned == Int(Self.partitions) else { return false }
                    return try stored(connection) > before
                }
                zombie.isPaused = false
                takeovers += 1
            }
        }
        try eventually("everything is stored and published", seconds: 180) {
            stepAll()
            let outbox = try connection.execute("SELECT count(*) FROM heartline.outbox").only()
            guard try outbox.int8(0) == 0 else { return false }
            return try stored(connection) == Int64(next)
        }
        members = []

        let calm = try makeDatabase()
        let calmConnection = try calm.connect()
        let alone = try Member(log, calm, number: 99)
        try eventually("the clean run is through") {
            alone.step()
            pause.wait(milliseconds: 1)
            return try stored(calmConnection) == Int64(next)
        }
        let (found, expected) = (try rows(stormy), try rows(calm))
        #expect(!expected.isEmpty)
        #expect(found == expected, "seed \(seed), \(takeovers) takeovers")
    }
}
