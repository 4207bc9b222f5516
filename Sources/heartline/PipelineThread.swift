import EventLog
import Pipeline
import Processors
import Schemas
import Sinks
import Synchronization
import System

/// One pipeline at work: its worker on a thread of its own, with its sink and its place in the log.
final class PipelineThread: Sendable {
    struct Settings: Sendable {
        var file: PipelineFile
        /// Of PostgreSQL, as libpq takes it.
        var database: String
        /// Host and process, for people.
        var owner: String
        var outputPartitions: [Topic: Int32]
    }

    private enum Order { case reconfigure(TunnelHealthSettings) }

    private struct State {
        var orders: [Order] = []
        var stopDeadline: Int64?
        var board: WorkerStatusBoard?
        var failure: (any Error)?
        var hasEnded = false
        var thread: SystemThread?
    }

    let name: String
    private let waker = Waker()
    private let state = Mutex(State())

    init(_ settings: Settings, log: EmbeddedLog) {
        name = settings.file.name
        let started = SystemThread.start("pipe \(settings.file.name)") { [self] in
            do {
                switch settings.file.processor {
                case .tunnelHealth(let values): try run(settings, values, log)
                }
            } catch {
                state.withLock { $0.failure = error }
            }
            state.withLock { $0.hasEnded = true }
        }
        state.withLock { $0.thread = started }
    }

    private func run(
        _ settings: Settings, _ values: TunnelHealthSettings, _ log: EmbeddedLog
    ) throws {
        let file = settings.file
        var workerSettings = WorkerSettings(
            pipeline: file.name, outputPartitions: settings.outputPartitions)
        workerSettings.commitInterval = file.commitInterval
        workerSettings.ingestSilentAfter = file.source == .heartbeats ? 30_000 : nil
        let producer = try log.makeProducer(ProducerSettings())
        defer { producer.close() }
        let consumer = try log.makeConsumer(of: file.source, group: file.name, waker: waker)
        let sink = PostgresSink(
            PostgresSink.Settings(
                address: settings.database, pipeline: file.name, source: file.source,
                tables: TunnelHealth.tables, owner: settings.owner), waker: waker)
        defer { sink.close() }
        var worker = Worker<EmbeddedConsumer, EmbeddedProducer, PostgresSink, TunnelHealth>(
            consumer: consumer, producer: producer, store: sink, settings: workerSettings,
            processor: ProcessorSettings(values), waker: waker,
            now: SystemClock.monotonicMilliseconds())
        let board = worker.board
        state.withLock { $0.board = board }
        var isStopping = false
        while true {
            let (orders, deadline) = state.withLock { state in
                defer { state.orders = [] }
                return (state.orders, state.stopDeadline)
            }
            for order in orders {
                switch order {
                case .reconfigure(let newest): worker.reconfigure(ProcessorSettings(newest))
                }
            }
            let now = SystemClock.monotonicMilliseconds()
            if let deadline {
                if !isStopping { worker.stop() }
                isStopping = true
                if now >= deadline { break }
            }
            let wake = worker.step(now: now)
            if worker.isStopped { break }
            let wait = min(wake, deadline ?? .max) - SystemClock.monotonicMilliseconds()
            if wait > 0 { waker.wait(milliseconds: wait) }
        }
    }

    /// `nil` until the worker runs.
    var status: WorkerStatus? { state.withLock { $0.board }?.current }

    /// Why the pipeline does not run; `nil` if it does.
    var failure: (any Error)? { state.withLock { $0.failure } }

    /// Takes effect in each partition at a commit.
    func reconfigure(_ settings: TunnelHealthSettings) {
        state.withLock { $0.orders.append(.reconfigure(settings)) }
        waker.signal()
    }

    /// Asks the worker to commit what it applied and to give its partitions up.
    /// - Parameter deadline: of the monotonic clock, in milliseconds; what is not stored by then is
    ///   read again at the next start.
    func stop(deadline: Int64) {
        state.withLock { $0.stopDeadline = deadline }
        waker.signal()
    }

    /// Waits for the end of the thread; once.
    func join() {
        let thread = state.withLock { state in
            defer { state.thread = nil }
            return state.thread
        }
        thread?.join()
    }
}
