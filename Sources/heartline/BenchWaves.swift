import Bytes
import EventLog
import Foundation
import Pipeline
import Postgres
import Processors
import Schemas
import Sinks
import System

/// Measures `MutualWaves`: memory and time an edge, and one worker from the log to committed rows.
enum BenchWaves {
    static func run(accounts: Int, edges: Int, waves: Int, connections: Int) throws {
        Bench.say("Mutual waves in memory: decode, apply, drain; one core, one partition")
        for count in [edges / 100, edges / 10, edges] where count >= 1_000 {
            memory(accounts: max(100, accounts * count / edges), edges: count)
        }
        for share in [1_000, 100] {
            let bench = try BenchWavesWorker(accounts: accounts / 10)
            defer { bench.remove() }
            try bench.measure(waves: waves, reciprocated: share, connections: connections)
        }
    }

    /// Edges of people who all wave at others; one of a hundred waves back.
    private static func memory(accounts: Int, edges: Int) {
        let before = Bench.anonymousBytes()
        var processor = MutualWaves(partition: 0, settings: MutualWavesSettings())
        var effects = Effects(tables: MutualWaves.tables)
        let decoder = WavesDecoder()
        var feed = WavesFeed(accounts: accounts, reciprocated: 10)
        var bytes = ByteBuffer()
        var records: [(Range<Int>, EventTime)] = []
        var spent: UInt64 = 0
        var worst: UInt64 = 0
        var offset: Int64 = 0
        while offset < edges {
            // Records are made outside the measurement.
            bytes.removeAll()
            records.removeAll(keepingCapacity: true)
            for _ in 0..<min(10_000, edges - Int(offset)) {
                let start = bytes.count
                let wave = feed.next()
                bytes.append(.wave(wave))
                // A day's waves, all alive.
                let time = Int64(Double(feed.count) * 80_000_000 / Double(edges))
                records.append(
                    (
                        start..<bytes.count,
                        EventTime(milliseconds: BenchRecords.start + time)
                    ))
            }
            let began = SystemClock.processCPUNanoseconds()
            for (range, time) in records {
                let place = RecordPlace(partition: 0, offset: offset, timestamp: time)
                if case .event(let event) = decoder.decode(bytes.span.extracting(range)) {
                    processor.apply(event, at: place, into: &effects)
                }
                offset += 1
            }
            processor.drain(into: &effects)
            effects.removeAll()
            let took = SystemClock.processCPUNanoseconds() - began
            spent += took
            worst = max(worst, took)
        }
        let grown = Bench.anonymousBytes() - before
        Bench.say(
            """
              \(accounts) accounts, \(processor.edgeCount) live edges: \
            \(Bench.ratio(Double(processor.memoryBytes) / Double(processor.edgeCount))) bytes an edge \
            (the process grew by \(Bench.ratio(Double(grown) / Double(processor.edgeCount)))); \
            \(Bench.rounded(Double(spent) / Double(edges))) ns a wave, the slowest 10,000 \
            \(Bench.ratio(Double(worst) / 1e6)) ms
            """)
        Bench.note(
            "mutual waves in memory, \(processor.edgeCount) live edges",
            Double(processor.memoryBytes) / Double(processor.edgeCount), "bytes an edge")
        Bench.note("the same", Double(spent) / Double(edges), "ns a wave")
    }
}

/// Waves between people, at tokens that are UUIDs.
private struct WavesFeed {
    private let accounts: Int
    /// Waves of 1,000 that answer one.
    private let reciprocated: Int
    private var random: UInt64 = 0x9E37_79B9_7F4A_7C15
    private(set) var count = 0
    private var unanswered: [Wave] = []

    init(accounts: Int, reciprocated: Int) {
        self.accounts = accounts
        self.reciprocated = reciprocated
    }

    static func account(_ index: Int) -> AccountID {
        var mixed = (UInt64(index) &+ 1) &* 0xD6E8_FEB8_6659_FD93
        mixed ^= mixed >> 32
        return AccountID(
            high: mixed & ~0xF000 | 0x4000, low: (mixed &* 0xA076_1D64_78BD_642F) >> 2 | 1 << 63)
    }

    private mutating func below(_ bound: Int) -> Int {
        random ^= random << 13
        random ^= random >> 7
        random ^= random << 17
        return Int(random % UInt64(bound))
    }

    private mutating func token() -> InlineText {
        var text = ByteBuffer()
        let high = random
        _ = below(2)
        text.append(DeviceID(high: high, low: random))
        return InlineText(text.span)
    }

    /// The next wave: an answer to an earlier one, or at somebody new.
    mutating func next() -> Wave {
        count += 1
        let origin = EventOrigin(boot: 1, counter: UInt64(count))
        if !unanswered.isEmpty, below(1_000) < reciprocated {
            let index = below(unanswered.count)
            unanswered.swapAt(index, unanswered.count - 1)
            let first = unanswered.removeLast()
            let sender = first.sender == first.pair.first ? first.pair.second : first.pair.first
            return Wave(origin: origin, pair: first.pair, sender: sender, token: token())
        }
        let a = below(accounts)
        let b = (a + 1 + below(accounts - 1)) % accounts
        guard let pair = AccountPair(Self.account(a), Self.account(b)) else {
            preconditionFailure("two of the bench's accounts are one")
        }
        let wave = Wave(origin: origin, pair: pair, sender: Self.account(a), token: token())
        if unanswered.count < 10_000 { unanswered.append(wave) }
        return wave
    }
}

/// One worker on a log and a PostgreSQL of its own.
private final class BenchWavesWorker {
    private let accounts: Int
    private let directory: String
    private let log: EmbeddedLog
    private let producer: EmbeddedProducer
    private let database: PrivateDatabase
    private let connection: PostgresConnection

    init(accounts: Int) throws {
        self.accounts = accounts
        directory =
            FileManager.default.temporaryDirectory
            .appendingPathComponent("heartline-bench-\(UUID().uuidString.prefix(8))").path
        try FileManager.default.createDirectory(
            atPath: directory, withIntermediateDirectories: true,
            attributes: [.posixPermissions: 0o711])
        log = try EmbeddedLog(directory: "\(directory)/log")
        try log.createTopics(
            [.waves, .pushes, .deadLetters].map { TopicSettings($0, partitions: 4) })
        producer = try log.makeProducer(ProducerSettings())
        database = try PrivateDatabase.start(directory: "\(directory)/postgres")
        connection = try PostgresConnection(database.url)
        try Migrator.migrate(connection, try Migrations.load())
        var rows = RowBuffer(
            TableSchema("accounts", [.init("account_id", .uuid)], key: [0], mode: .append))
        for index in 0..<accounts {
            rows.beginRow(origin: 0)
            rows.put(WavesFeed.account(index))
        }
        try connection.run("CREATE TEMPORARY TABLE ids (account_id uuid)")
        try connection.copyIn("COPY ids FROM STDIN (FORMAT binary)", tuples: rows.bytes)
        try connection.run(
            """
            INSERT INTO heartline.accounts (account_id, provider, provider_subject)
            SELECT account_id, 'apple', account_id::text FROM ids
            """)
        try connection.run("VACUUM ANALYZE heartline.accounts")
        try connection.run("CHECKPOINT")
    }

    func remove() {
        producer.close()
        log.close()
        connection.close()
        database.stop()
        try? FileManager.default.removeItem(atPath: directory)
    }

    private func append(_ count: Int, _ feed: inout WavesFeed) throws {
        var key = ByteBuffer()
        var value = ByteBuffer()
        var batch = RecordBatch(.waves)
        for index in 0..<count {
            let wave = feed.next()
            key.removeAll()
            key.append(wave.pair)
            value.removeAll()
            value.append(.wave(wave))
            batch.append(
                partition: Partitioner.partition(of: key.span, count: 4),
                timestamp: EventTime(milliseconds: BenchRecords.start + Int64(feed.count)),
                key: key.span, value: value.span)
            if batch.count >= 2_000 || index == count - 1 {
                while case .queueFull = producer.send(batch, receipt: nil) { usleep(1_000) }
                batch = RecordBatch(.waves)
            }
        }
        guard producer.flush(milliseconds: 120_000) else {
            throw Failure("filling the log: it does not store what was sent")
        }
    }

    /// - Parameter reciprocated: waves of 1,000 that answer another, as soon as there is one.
    func measure(waves: Int, reciprocated: Int, connections: Int) throws {
        var feed = WavesFeed(accounts: accounts, reciprocated: reciprocated)
        let waker = Waker()
        var sinkSettings = PostgresSink.Settings(
            address: database.url, pipeline: "mutual-waves", source: .waves,
            tables: MutualWaves.tables, owner: "bench")
        sinkSettings.connections = connections
        let sink = PostgresSink(sinkSettings, waker: waker)
        defer { sink.close() }
        var settings = WorkerSettings(
            pipeline: "mutual-waves", outputPartitions: [.pushes: 4, .deadLetters: 4])
        settings.commitInterval = 0
        var worker = Worker<EmbeddedConsumer, EmbeddedProducer, PostgresSink, MutualWaves>(
            consumer: try log.makeConsumer(of: .waves, group: "bench", waker: waker),
            producer: producer, store: sink, settings: settings,
            processor: ProcessorSettings(MutualWavesSettings()), waker: waker,
            now: SystemClock.monotonicMilliseconds())
        // The first pass fills tables and caches.
        for isMeasured in [false, true] {
            try append(isMeasured ? waves : waves / 4, &feed)
            let before = worker.board.current
            let matched = try connection.execute("SELECT count(*) FROM heartline.connections")
                .only().int8(0)
            let cpu = SystemClock.processCPUNanoseconds()
            let wall = SystemClock.monotonicNanoseconds()
            try catchUp(&worker, waker)
            let seconds = Double(SystemClock.monotonicNanoseconds() - wall) / 1e9
            let spent = Double(SystemClock.processCPUNanoseconds() - cpu) / 1e9
            guard isMeasured else { continue }
            let after = worker.board.current
            let matches =
                try connection.execute("SELECT count(*) FROM heartline.connections").only().int8(0)
                - matched
            Bench.say(
                """
                One worker, embedded log to committed rows, \(accounts) accounts: \
                \(Bench.rounded(Double(waves) / seconds)) waves a second \
                (\(Bench.rounded(Double(matches) / seconds)) matches, \
                \(Bench.rounded(Double(after.rows - before.rows) / seconds)) rows, \
                \(Bench.rounded(Double(after.events - before.events) / seconds)) doorbells a second; \
                \(Bench.ratio(spent / seconds)) CPUs of this process)
                """)
            Bench.note(
                "waves through one worker, \(1_000 / reciprocated == 1 ? "each answering one" : "one of ten answering")",
                Double(waves) / seconds, "a second")
        }
        worker.stop()
        while !worker.isStopped {
            _ = worker.step(now: SystemClock.monotonicMilliseconds())
            waker.wait(milliseconds: 20)
        }
    }

    private func catchUp(
        _ worker: inout Worker<EmbeddedConsumer, EmbeddedProducer, PostgresSink, MutualWaves>,
        _ waker: Waker
    ) throws {
        while true {
            let wake = worker.step(now: SystemClock.monotonicMilliseconds())
            let status = worker.board.current
            if let fault = status.logFault ?? status.partitions.lazy.compactMap(\.fault).first,
                !fault.contains("has not answered")
            {
                throw Failure("the worker: \(fault)")
            }
            var isDone = status.partitions.count == 4
            for partition in status.partitions {
                let end = try log.offsets(of: TopicPartition(.waves, partition.partition)).next
                if partition.committedOffset < end { isDone = false }
            }
            if isDone { return }
            let wait = wake - SystemClock.monotonicMilliseconds()
            if wait > 0 { waker.wait(milliseconds: min(wait, 100)) }
        }
    }
}
