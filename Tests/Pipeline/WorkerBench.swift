import Bytes
import EventLog
import Pipeline
import Processors
import Schemas
import Sinks
import System
import Simulation
import TestSupport

/// One worker after another on a simulated log and database in which nothing goes wrong by itself.
final class WorkerBench<P: Processor> {
    typealias BenchWorker = Worker<SimulatedConsumer, SimulatedProducer, SimulatedSession, P>

    let log: SimulatedLog
    let store = SimulatedStore(seed: 1)
    var settings: WorkerSettings
    var processor: ProcessorSettings<P.Settings>
    private(set) var now: Int64 = 1_000
    private var worker: BenchWorker?
    private var consumer: SimulatedConsumer?

    init(_ processor: ProcessorSettings<P.Settings>, records: [[SimulatedRecord]]) {
        log = SimulatedLog(records: records, seed: 1)
        self.processor = processor
        settings = WorkerSettings(
            pipeline: "bench",
            outputPartitions: Dictionary(uniqueKeysWithValues: P.outputTopics.map { ($0, 1) }))
        log.calm()
        store.calm()
    }

    /// Joins the group and gets every free partition.
    func start() {
        let joined = log.join()
        consumer = joined
        worker = BenchWorker(
            consumer: joined, producer: SimulatedProducer(log: log), store: store.connect(),
            settings: settings, processor: processor, waker: Waker(), now: now)
        log.rebalance()
    }

    /// The process is gone, with all that it knew.
    func crash() {
        worker = nil
        if let member = consumer?.member { log.leave(member) }
        consumer = nil
    }

    /// Steps the worker whenever it asks for it, and as often as replies would wake it, until
    /// `milliseconds` have passed.
    func run(_ milliseconds: Int64) {
        let end = now + milliseconds
        let cadence: Int64 = milliseconds > 60_000 ? 1_000 : 10
        while true {
            log.advance(to: now)
            store.advance(to: now)
            guard let wake = worker?.step(now: now), now < end else { return }
            now = min(max(now + 1, wake), now + cadence, end)
        }
    }

    /// Time passes and nobody runs.
    func suspend(_ milliseconds: Int64) { now += milliseconds }

    func stop() { worker?.stop() }
    func reconfigure(_ processor: ProcessorSettings<P.Settings>) { worker?.reconfigure(processor) }

    var status: WorkerStatus { worker?.board.current ?? WorkerStatus(pipeline: "none") }
    var isStopped: Bool { worker?.isStopped ?? true }

    func published(_ topic: Topic) -> [String] {
        log.published.filter { $0.topic == topic }.map { $0.value.span.text }
    }
}

/// A record for `Tally`.
func tallyRecord(_ text: String, at milliseconds: Int64 = 0) -> SimulatedRecord {
    SimulatedRecord(
        key: ByteBuffer("key".utf8), value: ByteBuffer(text.utf8),
        timestamp: EventTime(milliseconds: milliseconds))
}

func tallySettings(_ every: Int64 = 3) -> ProcessorSettings<Tally.Settings> {
    ProcessorSettings(
        Tally.Settings(publishEvery: every), text: "\(every)", read: { Tally.Settings(text: $0) })
}
