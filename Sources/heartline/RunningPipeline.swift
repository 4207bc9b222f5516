import EventLog
import Metrics
import Pipeline
import Processors
import Schemas
import Sinks
import System

/// One pipeline at work: its worker, its sink and its place in the log.
final class RunningPipeline {
    let name: String
    private let source: Topic
    private let thread: WorkerThread
    private let sink: PostgresSink
    private let producer: any EventProducer
    /// Hands new settings to the worker, if they are its processor's.
    private let post: (PipelineFile.Kind) -> Void

    /// - Parameters:
    ///   - database: as libpq takes it.
    ///   - owner: host and process, for people.
    convenience init<LogType: EventLog>(
        _ file: PipelineFile, log: LogType, database: String, owner: String,
        outputPartitions: [Topic: Int32]
    ) throws where LogType.Consumer: SendableMetatype {
        let place = Place(
            database: database, owner: owner, outputPartitions: outputPartitions)
        // A worker is of its processor's type, so that nothing is looked up for each record.
        switch file.processor {
        case .tunnelHealth(let values):
            try self.init(file, log, place, TunnelHealth.self, ProcessorSettings(values)) {
                if case .tunnelHealth(let newest) = $0 { ProcessorSettings(newest) } else { nil }
            }
        case .configHash(let values):
            try self.init(file, log, place, ConfigHash.self, ProcessorSettings(values)) {
                if case .configHash(let newest) = $0 { ProcessorSettings(newest) } else { nil }
            }
        case .configDelivery(let values):
            try self.init(file, log, place, ConfigDelivery.self, ProcessorSettings(values)) {
                if case .configDelivery(let newest) = $0 { ProcessorSettings(newest) } else { nil }
            }
        case .mutualWaves(let values):
            try self.init(file, log, place, MutualWaves.self, ProcessorSettings(values)) {
                if case .mutualWaves(let newest) = $0 { ProcessorSettings(newest) } else { nil }
            }
        case .encounters(let values):
            try self.init(file, log, place, Encounters.self, ProcessorSettings(values)) {
                if case .encounters(let newest) = $0 { ProcessorSettings(newest) } else { nil }
            }
        case .messages(let values):
            try self.init(file, log, place, Messages.self, ProcessorSettings(values)) {
                if case .messages(let newest) = $0 { ProcessorSettings(newest) } else { nil }
            }
        case .updateRollout(let values):
            try self.init(file, log, place, UpdateRollout.self, ProcessorSettings(values)) {
                if case .updateRollout(let newest) = $0 { ProcessorSettings(newest) } else { nil }
            }
        case .telemetryRollup(let values):
            try self.init(file, log, place, TelemetryRollup.self, ProcessorSettings(values)) {
                if case .telemetryRollup(let newest) = $0 { ProcessorSettings(newest) } else { nil }
            }
        }
    }

    private struct Place {
        var database: String
        var owner: String
        var outputPartitions: [Topic: Int32]
    }

    /// - Parameter newest: the settings of a file that was read again; `nil` if they are another
    ///   processor's.
    private init<LogType: EventLog, P: Processor>(
        _ file: PipelineFile, _ log: LogType, _ place: Place, _ type: P.Type,
        _ processor: ProcessorSettings<P.Settings>,
        newest: @escaping (PipelineFile.Kind) -> ProcessorSettings<P.Settings>?
    ) throws where LogType.Consumer: SendableMetatype {
        name = file.name
        source = file.source
        let waker = Waker()
        let producer = try log.makeProducer(ProducerSettings())
        self.producer = producer
        var settings = PostgresSink.Settings(
            address: place.database, pipeline: file.name, source: file.source, tables: P.tables,
            owner: place.owner)
        settings.connections = file.connections
        sink = PostgresSink(settings, waker: waker)
        let mailbox = SettingsMailbox<P.Settings>(waker: waker)
        post = { kind in if let settings = newest(kind) { mailbox.post(settings) } }
        let (source, group) = (file.source, file.name)
        thread = WorkerThread.start(
            type, settings: Self.workerSettings(file, place), processor: processor,
            mailbox: mailbox, producer: producer, store: sink, waker: waker
        ) { () throws(EventLogError) in
            try log.makeConsumer(of: source, group: group, waker: waker)
        }
    }

    private static func workerSettings(_ file: PipelineFile, _ place: Place) -> WorkerSettings {
        var settings = WorkerSettings(
            pipeline: file.name, outputPartitions: place.outputPartitions)
        settings.commitInterval = file.commitInterval
        settings.omittedTables = file.omittedTables
        settings.omittedTopics = file.omittedTopics
        switch file.processor {
        // One pipeline watches over the front-ends' beacons.
        case .tunnelHealth: settings.ingestSilentAfter = 30_000
        // A change must not wait for a snapshot of a whole fleet, and little comes after one.
        case .configHash: settings.snapshotInterval = 300_000
        // Each may be 128 KiB, twice.
        case .messages: settings.pollLimit = 500
        case .configDelivery, .mutualWaves, .encounters, .updateRollout: break
        // Six minutes of sums are a large snapshot; two minutes of log are soon read again.
        case .telemetryRollup: settings.snapshotInterval = 120_000
        }
        return settings
    }

    /// What it tells Prometheus.
    func metrics() -> MetricsSources.Source {
        let (board, source) = (thread.board, source)
        return { page in
            board.current.write(
                to: &page, source: source,
                now: EventTime(milliseconds: SystemClock.wallMilliseconds()))
        }
    }

    /// Why the pipeline is not ready; empty if it is.
    var faults: [String] { thread.board.current.faults }

    /// Takes effect in each partition at a commit. Settings of another processor are ignored.
    func reconfigure(_ settings: PipelineFile.Kind) { post(settings) }

    /// Commits what was applied and gives the partitions up, in so many milliseconds at most; what
    /// is not stored by then is read again at the next start.
    func stop(milliseconds: Int64) {
        thread.stop(milliseconds: milliseconds)
        sink.close()
        producer.close()
    }
}
