internal import Bytes
internal import EventLog
public import Pipeline
public import Processors
internal import Schemas
internal import Sinks
internal import System

/// The production worker on a simulated log and database: one thread, one clock, one seed.
///
/// A run goes through a storm of crashes, lost answers, outages, rebalances, zombies, stalls and clock
/// jumps, then through a calm in which everything is caught up. What stands in the tables and topics
/// afterwards must equal what one clean pass over the same records makes.
public struct WorkerStorm<P: Processor> {
    /// What a run leaves behind.
    public struct Outcome: Equatable {
        public var tables: SimulatedTables
        /// Events by source and partition, in the order of their sequence.
        public var events: [String: [Int64: SimulatedLog.PublishedEvent]]
    }

    /// A promise that was broken, for the test's message.
    public struct Broken: Error, CustomStringConvertible {
        public var description: String
    }

    public typealias SimulatedWorker = Worker<
        SimulatedConsumer, SimulatedProducer, SimulatedSession, P
    >

    private final class Member {
        var worker: SimulatedWorker
        let consumer: SimulatedConsumer
        let session: SimulatedSession
        var wake: Int64 = 0

        init(
            _ worker: consuming SimulatedWorker, _ consumer: SimulatedConsumer,
            _ session: SimulatedSession
        ) {
            self.worker = worker
            self.consumer = consumer
            self.session = session
        }
    }

    public let log: SimulatedLog
    public let store: SimulatedStore
    private let records: [[SimulatedRecord]]
    /// Settings that take turns; the first is in force at the start.
    private let variants: [ProcessorSettings<P.Settings>]
    private var variant = 0
    private var random: SplitMix64
    private var now: Int64 = 1_000
    private var members: [Member] = []
    private let workerSettings: WorkerSettings

    public init(
        seed: UInt64, records: [[SimulatedRecord]], settings: [ProcessorSettings<P.Settings>]
    ) {
        var random = SplitMix64(seed: seed)
        self.records = records
        variants = settings
        log = SimulatedLog(records: records, seed: random.next())
        store = SimulatedStore(seed: random.next())
        store.connections = 1 + Int(seed % 3)
        var worker = WorkerSettings(
            pipeline: "simulated",
            outputPartitions: Dictionary(uniqueKeysWithValues: P.outputTopics.map { ($0, 4) }))
        // Some runs have snapshots all the time, some hardly any.
        worker.snapshotInterval = [0, 500, 5_000, 30_000][random.below(4)]
        worker.commitInterval = [0, 50, 200][random.below(3)]
        worker.commitRows = [5, 50, 20_000][random.below(3)]
        worker.bufferedRows = [20, 200, 200_000][random.below(3)]
        worker.outboxEntries = [10, 50_000][random.below(2)]
        worker.pollLimit = [7, 50, 10_000][random.below(3)]
        workerSettings = worker
        self.random = random
    }

    /// A storm of `steps` events, then calm until everything is stored and published.
    public mutating func run(steps: Int) throws(Broken) -> Outcome {
        start()
        for _ in 0..<steps { try storm() }
        return try settle()
    }

    private mutating func start() {
        let consumer = log.join()
        let session = store.connect()
        let worker = SimulatedWorker(
            consumer: consumer, producer: SimulatedProducer(log: log), store: session,
            settings: workerSettings, processor: variants[variant], waker: Waker(), now: now)
        members.append(Member(worker, consumer, session))
        log.rebalance()
    }

    private mutating func crash(_ index: Int) {
        let member = members.remove(at: index)
        member.session.abandon()
        log.leave(member.consumer.member)
    }

    private mutating func storm() throws(Broken) {
        now += random.chance(5) ? Int64(random.below(60_000)) : Int64(random.below(40))
        log.advance(to: now)
        store.advance(to: now)
        switch random.below(1_000) {
        case 0..<12: if !members.isEmpty { crash(random.below(members.count)) }
        case 12..<30: if members.count < 3 { start() }
        case 30..<45: log.rebalance()
        case 45..<50: store.setDown(true)
        case 50..<75: store.setDown(false)
        case 75..<80: log.setDown(true)
        case 80..<100: log.setDown(false)
        case 100..<104 where variants.count > 1:
            variant = (variant + 1) % variants.count
            for member in members { member.worker.reconfigure(variants[variant]) }
        case 104..<110:
            if !members.isEmpty { members[random.below(members.count)].worker.stop() }
        default: break
        }
        if !members.isEmpty { step(members[random.below(members.count)]) }
        for index in members.indices.reversed() where members[index].worker.isStopped {
            crash(index)
        }
    }

    private func step(_ member: Member) { member.wake = member.worker.step(now: now) }

    private mutating func settle() throws(Broken) -> Outcome {
        log.calm()
        store.calm()
        while members.count > 1 { crash(0) }
        if members.isEmpty { start() }
        var rounds = 0
        while !isSettled {
            // From here on only the worker's own wish wakes it: one that oversleeps stands out.
            now = min(max(now + 1, members[0].wake), now + 1_000)
            log.advance(to: now)
            store.advance(to: now)
            if rounds % 50 == 0 { log.rebalance() }
            step(members[0])
            for index in members.indices.reversed() where members[index].worker.isStopped {
                crash(index)
                start()
            }
            rounds += 1
            guard rounds < 3_000 else {
                throw Broken(description: "the worker does not come to rest: \(unsettled)")
            }
        }
        return try outcome()
    }

    private var isSettled: Bool {
        log.isDrained && store.outboxCount == 0
            && records.indices.allSatisfy {
                store.nextOffset(of: Int32($0)) == Int64(records[$0].count) || records[$0].isEmpty
            }
    }

    private var unsettled: String {
        let offsets = records.indices.map { store.nextOffset(of: Int32($0)) ?? -1 }
        return """
            drained \(log.isDrained), outbox \(store.outboxCount), offsets \(offsets) of \
            \(records.map(\.count)), faults \(members.map { $0.worker.board.current.faults })
            """
    }

    private func outcome() throws(Broken) -> Outcome {
        var events: [String: [Int64: SimulatedLog.PublishedEvent]] = [:]
        for event in log.published {
            let cut = event.origin.lastIndex(of: "/") ?? event.origin.startIndex
            let source = String(event.origin[..<cut])
            guard let sequence = Int64(event.origin[event.origin.index(after: cut)...]) else {
                throw Broken(description: "an event without a sequence: \(event.origin)")
            }
            if let first = events[source]?[sequence], first != event {
                throw Broken(
                    description: """
                        two events \(source)/\(sequence): \(first.value.span.text) and \
                        \(event.value.span.text)
                        """)
            }
            events[source, default: [:]][sequence] = event
        }
        if let violation = store.tables.violations.first { throw Broken(description: violation) }
        return Outcome(tables: store.tables, events: events)
    }

    /// What one uninterrupted pass makes, with the settings changes at the offsets that the run chose.
    public func cleanPass() -> Outcome {
        var tables = SimulatedTables()
        var events: [String: [Int64: SimulatedLog.PublishedEvent]] = [:]
        let decoder = P.Decoder()
        for partition in records.indices {
            var changes = store.settingsHistory[Int32(partition)] ?? []
            let first = changes.isEmpty ? nil : changes.removeFirst()
            let initial = variants.first { $0.revision == first?.revision } ?? variants[0]
            var processor = P(partition: Int32(partition), settings: initial.values)
            var effects = Effects(tables: P.tables)
            var outbox = OutboxBuffer()
            func drain() {
                processor.drain(into: &effects)
                tables.write(effects.rows)
                outbox.append(effects.outbox)
                effects.removeAll()
            }
            for (index, record) in records[partition].enumerated() {
                while let change = changes.first, change.offset == Int64(index) {
                    changes.removeFirst()
                    if let variant = variants.first(where: { $0.revision == change.revision }) {
                        processor.reconfigure(variant.values)
                    }
                    drain()
                }
                let place = RecordPlace(
                    partition: Int32(partition), offset: Int64(index), timestamp: record.timestamp)
                switch decoder.decode(record.value.span) {
                case .event(let event): processor.apply(event, at: place, into: &effects)
                case .skipped: break
                case .malformed(let reason):
                    let letter = DeadLetter(
                        topic: P.source, partition: Int32(partition), offset: Int64(index),
                        reason: "decoding the record: \(reason)")
                    var json = ByteBuffer()
                    letter.append(to: &json, key: record.key.span, value: record.value.span)
                    effects.emit(
                        to: .deadLetters, key: record.key.span, at: record.timestamp,
                        origin: Int64(index)
                    ) { $0.append(json) }
                }
            }
            drain()
            let source = "simulated/\(partition)"
            for entry in outbox.entries {
                let key = ByteBuffer(copying: outbox.bytes.span.extracting(entry.key))
                events[source, default: [:]][entry.sequence] = SimulatedLog.PublishedEvent(
                    topic: entry.topic, partition: Partitioner.partition(of: key.span, count: 4),
                    key: key, value: ByteBuffer(copying: outbox.bytes.span.extracting(entry.value)),
                    origin: "\(source)/\(entry.sequence)", isTombstone: entry.isTombstone)
            }
        }
        return Outcome(tables: tables, events: events)
    }
}
