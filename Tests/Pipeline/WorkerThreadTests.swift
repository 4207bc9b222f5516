import Bytes
import EventLog
import Foundation
import Pipeline
import Postgres
import Schemas
import Sinks
import System
import TestSupport
import Testing

/// The whole way on real things: embedded log, worker's thread, PostgreSQL.
@Suite struct WorkerThreadTests {
    private static let partitions: Int32 = 3

    private final class Pipeline {
        let directory: String
        let log: EmbeddedLog
        let producer: EmbeddedProducer
        let database: TestDatabase
        private var thread: WorkerThread?
        private var sink: PostgresSink?

        init() throws {
            directory = try FileSystem.makeTemporaryDirectory("/tmp/heartline-worker-")
            log = try EmbeddedLog(directory: directory)
            try log.createTopics(
                [.heartbeats, .alerts, .deadLetters].map {
                    TopicSettings($0, partitions: WorkerThreadTests.partitions)
                })
            producer = try log.makeProducer(ProducerSettings())
            database = try TestDatabase.make()
            try database.connect().run(Tally.createTables)
        }

        deinit {
            stop()
            producer.close()
            log.close()
            try? FileManager.default.removeItem(atPath: directory)
        }

        func start() {
            let waker = Waker()
            let sink = PostgresSink(
                PostgresSink.Settings(
                    address: database.url, pipeline: "tally", source: .heartbeats,
                    tables: Tally.tables, owner: "tests"), waker: waker)
            self.sink = sink
            let partitions = WorkerThreadTests.partitions
            let settings = WorkerSettings(
                pipeline: "tally",
                outputPartitions: [.alerts: partitions, .deadLetters: partitions])
            let log = log
            thread = WorkerThread.start(
                Tally.self, settings: settings, processor: tallySettings(), producer: producer,
                store: sink, waker: waker
            ) { () throws(EventLogError) in
                try log.makeConsumer(of: .heartbeats, group: "tally", waker: waker)
            }
        }

        func stop() {
            thread?.stop(milliseconds: 10_000)
            sink?.close()
            thread = nil
            sink = nil
        }

        var status: WorkerStatus? { thread?.board.current }

        /// Appends records `range`: key and value are counted up; every hundredth is unreadable.
        func append(_ range: Range<Int>) {
            var batch = RecordBatch(.heartbeats)
            for number in range {
                let key = ByteBuffer("\(number % 40)".utf8)
                let text = number % 100 == 99 ? "!" : "\(number % 40) \(number % 100)"
                batch.append(
                    partition: Partitioner.partition(
                        of: key.span, count: WorkerThreadTests.partitions),
                    timestamp: EventTime(milliseconds: SystemClock.wallMilliseconds()),
                    key: key.span, value: ByteBuffer(text.utf8).span)
            }
            guard case .accepted = producer.send(batch, receipt: nil) else {
                Issue.record("the producer refused a batch")
                return
            }
        }

        func query(_ sql: String) throws -> Int64 {
            try database.connect().execute(sql).only().int8(0)
        }

        /// Waits until the stored offsets add up to `records` and the outbox is empty.
        func waitUntilStored(_ records: Int) throws -> Bool {
            let connection = try database.connect()
            let pause = Waker()
            for _ in 0..<1_200 {
                let row = try connection.execute(
                    """
                    SELECT (SELECT COALESCE(sum(next_offset), 0)::int8
                              FROM heartline.stream_partitions),
                           (SELECT count(*) FROM heartline.outbox)
                    """
                ).only()
                if try row.int8(0) == Int64(records), try row.int8(1) == 0 { return true }
                pause.wait(milliseconds: 50)
            }
            return false
        }

        func published(_ topic: Topic) throws -> Int64 {
            var count: Int64 = 0
            for partition in 0..<WorkerThreadTests.partitions {
                count += try log.offsets(of: TopicPartition(topic, partition)).next
            }
            return count
        }
    }

    @Test func everyRecordCountsOnceThroughRestartsAndLostSessions() throws {
        let pipeline = try Pipeline()
        pipeline.append(0..<1_000)
        pipeline.start()
        #expect(try pipeline.waitUntilStored(1_000))
        pipeline.append(1_000..<2_000)
        pipeline.stop()
        pipeline.append(2_000..<3_000)
        pipeline.start()
        _ = try pipeline.query(
            """
            SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE application_name = 'heartline tally'
            """)
        #expect(try pipeline.waitUntilStored(3_000))
        let readable = (0..<3_000).filter { $0 % 100 != 99 }
        #expect(
            try pipeline.query("SELECT sum(count)::int8 FROM heartline.tally_now")
                == Int64(readable.count))
        #expect(
            try pipeline.query("SELECT sum(sum)::int8 FROM heartline.tally_now")
                == Int64(readable.reduce(0) { $0 + $1 % 100 }))
        #expect(
            try pipeline.query("SELECT count(*) FROM heartline.tally_steps")
                == Int64(readable.filter { $0 % 100 % 4 == 0 }.count))
        #expect(
            try pipeline.query(
                "SELECT count(DISTINCT (partition, position)) FROM heartline.tally_steps")
                == Int64(readable.filter { $0 % 100 % 4 == 0 }.count))
        #expect(try pipeline.published(.deadLetters) >= 30)
        #expect(pipeline.status?.isReady == true)
        pipeline.stop()
        // A worker that stops in order leaves nothing to be done again.
        #expect(
            try pipeline.query(
                "SELECT sum(next_offset)::int8 FROM heartline.stream_partitions") == 3_000)
    }

    /// A worker whose topic nobody has made.
    private func startOnMissingTopic(_ pipeline: Pipeline) -> (WorkerThread, PostgresSink) {
        let waker = Waker()
        let sink = PostgresSink(
            PostgresSink.Settings(
                address: pipeline.database.url, pipeline: "none", source: .waves,
                tables: Tally.tables, owner: "tests"), waker: waker)
        let log = pipeline.log
        let thread = WorkerThread.start(
            Tally.self,
            settings: WorkerSettings(
                pipeline: "none", outputPartitions: [.alerts: 3, .deadLetters: 3]),
            processor: tallySettings(), producer: pipeline.producer, store: sink, waker: waker
        ) { () throws(EventLogError) in
            try log.makeConsumer(of: .waves, group: "none", waker: waker)
        }
        return (thread, sink)
    }

    @Test func aTopicThatDoesNotExistIsToldAndReadOnceItDoes() throws {
        let pipeline = try Pipeline()
        let (thread, sink) = startOnMissingTopic(pipeline)
        defer { sink.close() }
        let log = pipeline.log
        func becomes(_ condition: (WorkerStatus) -> Bool) -> Bool {
            let pause = Waker()
            for _ in 0..<1_200 {
                if condition(thread.board.current) { return true }
                pause.wait(milliseconds: 50)
            }
            return false
        }
        #expect(becomes { $0.logFault?.contains("waves") == true })
        #expect(!thread.board.current.isReady)
        try log.createTopics([TopicSettings(.waves, partitions: 2)])
        #expect(becomes { $0.isReady && $0.partitions.count == 2 })
        thread.stop(milliseconds: 10_000)
    }

    @Test func aWorkerThatNeverGetsAConsumerStops() throws {
        let pipeline = try Pipeline()
        let (thread, sink) = startOnMissingTopic(pipeline)
        defer { sink.close() }
        // Hangs if the thread does not heed it.
        thread.stop(milliseconds: 1_000)
    }
}
