import EventLog
import Pipeline
import Processors
import Schemas
import Sinks
import System

/// One pipeline at work: its worker, its sink and its place in the log.
final class RunningPipeline {
    let name: String
    private let thread: WorkerThread
    private let sink: PostgresSink
    private let producer: any EventProducer
    private let mailbox: SettingsMailbox<TunnelHealthSettings>

    /// - Parameters:
    ///   - database: as libpq takes it.
    ///   - owner: host and process, for people.
    init<LogType: EventLog>(
        _ file: PipelineFile, log: LogType, database: String, owner: String,
        outputPartitions: [Topic: Int32]
    ) throws where LogType.Consumer: SendableMetatype {
        name = file.name
        var settings = WorkerSettings(pipeline: file.name, outputPartitions: outputPartitions)
        settings.commitInterval = file.commitInterval
        settings.omittedTables = file.omittedTables
        settings.omittedTopics = file.omittedTopics
        settings.ingestSilentAfter = file.source == .heartbeats ? 30_000 : nil
        let waker = Waker()
        let producer = try log.makeProducer(ProducerSettings())
        self.producer = producer
        sink = PostgresSink(
            PostgresSink.Settings(
                address: database, pipeline: file.name, source: file.source,
                tables: TunnelHealth.tables, owner: owner), waker: waker)
        mailbox = SettingsMailbox(waker: waker)
        let values =
            switch file.processor {
            case .tunnelHealth(let values): values
            }
        let (source, group) = (file.source, file.name)
        thread = WorkerThread.start(
            TunnelHealth.self, settings: settings, processor: ProcessorSettings(values),
            mailbox: mailbox, producer: producer, store: sink, waker: waker
        ) { () throws(EventLogError) in
            try log.makeConsumer(of: source, group: group, waker: waker)
        }
    }

    /// Why the pipeline is not ready; empty if it is.
    var faults: [String] { thread.board.current.faults }

    /// Takes effect in each partition at a commit.
    func reconfigure(_ settings: TunnelHealthSettings) {
        mailbox.post(ProcessorSettings(settings))
    }

    /// Commits what was applied and gives the partitions up, in so many milliseconds at most; what
    /// is not stored by then is read again at the next start.
    func stop(milliseconds: Int64) {
        thread.stop(milliseconds: milliseconds)
        sink.close()
        producer.close()
    }
}
