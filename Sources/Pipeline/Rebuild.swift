public import EventLog
internal import Postgres
public import Schemas
internal import Processors
internal import Sinks
internal import System

/// Builds the derived tables of one pipeline anew from what the log still holds, beside the live ones, by
/// the pipeline's own worker and sink; then puts them in the place of the live ones in one transaction.
///
/// The pipeline may run meanwhile. The rebuild follows it until little is missing, holds its commits (they
/// begin with a row of `stream_partitions`, which the last transaction locks), reads the rest up to the
/// very offset that is stored, exchanges rows, states and epoch, and lets go: the worker is fenced, and
/// goes on from the rebuilt state. No event is published again.
///
/// Killed at any moment it has changed nothing, or everything. What it leaves is a schema of its own,
/// which the next rebuild removes.
public enum Rebuild {
    /// What came of it.
    public struct Report: Sendable {
        public struct Table: Sendable, Hashable {
            public var name: String
            /// Rows that the live table had and the rebuild has not.
            public var removed: Int
            /// Rows that the rebuild has and the live table had not, or had otherwise.
            public var written: Int
        }

        public var tables: [Table] = []
        /// Tables of the pipeline that are never rebuilt, with the reason.
        public var kept: [(name: String, reason: String)] = []
        /// Rows of this time and later were built; `nil`: all were.
        public var from: EventTime?
        public var records: Int64 = 0
        /// Records that cannot be decoded, now either.
        public var deadLetters: Int64 = 0
        /// How long the pipeline's commits waited. Milliseconds.
        public var heldMilliseconds: Int64 = 0
    }

    /// How far it is.
    public enum Progress: Sendable, Hashable {
        case reading(done: Int64, of: Int64)
        case exchanging
    }

    /// Why a pipeline is not rebuilt. Nothing was changed.
    public struct Refusal: Error, Hashable, Sendable, CustomStringConvertible {
        public var description: String

        init(_ pipeline: String, _ reason: String) {
            description = "replaying \(pipeline): \(reason)"
        }
    }

    /// - Parameters:
    ///   - file: the pipeline, with the settings that its records are to be judged by.
    ///   - from: rows before this moment stay as they are; `nil`: as many are built as can be.
    ///   - database: as libpq takes it. The user must be allowed to make a schema.
    ///   - progress: told on the caller's thread, some times a second.
    /// - Throws: `Refusal`, `PostgresError` or `EventLogError`.
    // As of a worker's `step`: callers are in another module.
    @specialized(where LogType == EmbeddedLog)
    @specialized(where LogType == KafkaLog)
    public static func run<LogType: EventLog>(
        _ file: PipelineFile, _ log: LogType, from: EventTime?, database: String,
        progress: @escaping (Progress) -> Void
    ) throws -> Report {
        switch file.processor {
        case .tunnelHealth(let values):
            try RebuildRun<LogType, TunnelHealth>(
                file, ProcessorSettings(values), log, database, progress
            ).run(from: from)
        case .configHash(let values):
            try RebuildRun<LogType, ConfigHash>(
                file, ProcessorSettings(values), log, database, progress
            ).run(from: from)
        case .configDelivery(let values):
            try RebuildRun<LogType, ConfigDelivery>(
                file, ProcessorSettings(values), log, database, progress
            ).run(from: from)
        case .mutualWaves(let values):
            try RebuildRun<LogType, MutualWaves>(
                file, ProcessorSettings(values), log, database, progress
            ).run(from: from)
        case .encounters(let values):
            try RebuildRun<LogType, Encounters>(
                file, ProcessorSettings(values), log, database, progress
            ).run(from: from)
        case .messages(let values):
            try RebuildRun<LogType, Messages>(
                file, ProcessorSettings(values), log, database, progress
            ).run(from: from)
        case .updateRollout(let values):
            try RebuildRun<LogType, UpdateRollout>(
                file, ProcessorSettings(values), log, database, progress
            ).run(from: from)
        case .telemetryRollup(let values):
            try RebuildRun<LogType, TelemetryRollup>(
                file, ProcessorSettings(values), log, database, progress
            ).run(from: from)
        }
    }
}

/// One rebuild of a pipeline of processor `P`.
///
/// - Thread safety: belongs to the thread that runs it.
private final class RebuildRun<LogType: EventLog, P: Processor> {
    private typealias Consumer = BoundedConsumer<LogType.Consumer>

    private let file: PipelineFile
    private let processor: ProcessorSettings<P.Settings>
    private let log: LogType
    private let database: String
    private let progress: (Rebuild.Progress) -> Void
    private let connection: PostgresConnection
    private let tables: RebuildTables
    private let waker = Waker()
    private let sink: PostgresSink

    private var worker: Worker<Consumer, DiscardingProducer, PostgresSink, P>?
    private var consumer: Consumer?
    private var starts: [RebuildStart] = []
    private var passedOver: [Int32: Set<Int64>] = [:]
    private var unread: Set<RebuildLetters.Origin> = []
    private var firstStamps: [Int32: EventTime] = [:]
    private var totals = (records: Int64(0), deadLetters: Int64(0))
    private var progressTime: Int64 = 0

    /// Records that may be missing when the pipeline's commits are held: they are read in a moment.
    private static var nearlyThere: Int64 { 2_000 }
    private static var rounds: Int { 50 }
    /// How long a partition may stand still before that is an error. Milliseconds.
    private static var patience: Int64 { 20_000 }
    /// SQLSTATE of what another try may get past: a lock that was not to be had in time, a deadlock.
    private static var passing: Set<String> { ["55P03", "40P01"] }

    init(
        _ file: PipelineFile, _ processor: ProcessorSettings<P.Settings>, _ log: LogType,
        _ database: String, _ progress: @escaping (Rebuild.Progress) -> Void
    ) throws(PostgresError) {
        self.file = file
        self.processor = processor
        self.log = log
        self.database = database
        self.progress = progress
        var options = PostgresOptions(applicationName: "heartline replay \(file.name)")
        // One statement may compare everything.
        options.responseTimeout = .seconds(24 * 3_600)
        connection = try PostgresConnection(database, options: options)
        // The end of this process or its machine lets the pipeline go on.
        try connection.run(
            """
            SET idle_in_transaction_session_timeout = '15min';
            SELECT set_config(name, '2s', false) FROM pg_settings
             WHERE name = 'client_connection_check_interval'
            """)
        let omitted = file.omittedTables
        tables = RebuildTables(
            file.name,
            P.tables.filter { !omitted.contains($0.name) }.compactMap { RebuiltTable($0) },
            connection)
        var settings = PostgresSink.Settings(
            address: database, pipeline: file.name, source: P.source, tables: P.tables,
            owner: "heartline replay")
        settings.schema = tables.schema
        settings.baseSnapshots = nil
        settings.connections = file.connections
        sink = PostgresSink(settings, waker: waker)
    }

    func run(from: EventTime?) throws -> Rebuild.Report {
        defer {
            worker = nil
            sink.close()
            connection.close()
        }
        try takeLease()
        try tables.drop()
        starts = try chooseStarts(from: from)
        try tables.create()
        for start in starts where try !tables.begin(start, topic: P.source) {
            throw Rebuild.Refusal(
                file.name,
                "the state that partition \(start.partition) was to begin from was forgotten just now; try again"
            )
        }
        var report = Rebuild.Report()
        let isWhole = from == nil && starts.allSatisfy { $0.exactFrom == nil }
        report.from = (starts.map(\.exactFrom) + [from]).compactMap { $0 }.max()
        passedOver = try letters().passedOver(starts, cut: report.from)
        report.kept = Set(P.tables.map(\.name)).sorted().compactMap { name in
            RebuiltTable.reasonToKeep(name).map { (name, $0) }
        }
        try follow()
        let began = try exchange(isWhole: isWhole, cut: report.from, into: &report)
        report.heldMilliseconds = SystemClock.monotonicMilliseconds() - began
        report.records = totals.records
        report.deadLetters = totals.deadLetters
        return report
    }

    // MARK: - Beginning

    /// One rebuild of a pipeline at a time, for as long as our session lives.
    private func takeLease() throws {
        let taken = try connection.execute(
            """
            SELECT pg_try_advisory_lock(hashtext('heartline replay'), hashtext($1))
            """, .text(file.name)
        ).only().bool(0)
        guard taken else {
            throw Rebuild.Refusal(file.name, "another replay of the pipeline is at work")
        }
    }

    private func chooseStarts(from: EventTime?) throws -> [RebuildStart] {
        if tables.tables.isEmpty {
            throw Rebuild.Refusal(
                file.name,
                "none of its tables is rebuilt: "
                    + Set(P.tables.map(\.name)).sorted().compactMap { name in
                        RebuiltTable.reasonToKeep(name).map { "\(name), because \($0)" }
                    }.joined(separator: "; "))
        }
        let rows = try connection.execute(
            """
            SELECT partition, next_offset, CASE WHEN resumed THEN NULL ELSE start_offset END, topic
              FROM heartline.stream_partitions WHERE pipeline = $1 ORDER BY partition
            """, .text(file.name))
        if rows.isEmpty {
            throw Rebuild.Refusal(file.name, "it never ran, so there is nothing to rebuild")
        }
        var starts: [RebuildStart] = []
        for row in rows {
            let (partition, next) = (try row.int4(0), try row.int8(1))
            let topic = try row.text(3)
            guard topic == P.source.rawValue else {
                throw Rebuild.Refusal(
                    file.name,
                    "its offsets are those of topic \(topic), and its file reads \(P.source.rawValue)"
                )
            }
            let place = TopicPartition(P.source, partition)
            let range = try log.offsets(of: place)
            guard next <= range.next else {
                throw Rebuild.Refusal(
                    file.name,
                    """
                    the log of \(place) ends at \(range.next), and the tables stand at \(next): it is not \
                    the log that they were made from
                    """)
            }
            let start = RebuildStart.choose(
                partition, begin: try row.optionalInt8(2), bases: try bases(partition), next: next,
                earliest: range.earliest, rests: P.restsOnRecentRecords, from: from)
            guard let start else {
                throw Rebuild.Refusal(
                    file.name,
                    """
                    the log of \(place) begins at \(range.earliest), after the pipeline's beginning, and \
                    no state from the time that it holds is kept. One is kept every \
                    \(Self.hours) hours; try again when the log reaches back to one, or give it more room
                    """)
            }
            starts.append(start)
        }
        return starts
    }

    private static var hours: Int64 {
        (PostgresSink.BaseSnapshots(topic: P.source)?.every ?? 0) / 3_600_000
    }

    private func bases(_ partition: Int32) throws(PostgresError) -> [RebuildStart.Base] {
        let rows = try connection.execute(
            """
            SELECT next_offset, snapshot_offset, greatest(kept_at, newest) FROM heartline.base_snapshots
             WHERE pipeline = $1 AND partition = $2 AND chunk = 0 ORDER BY next_offset
            """, .text(file.name), .int4(partition))
        var bases: [RebuildStart.Base] = []
        for row in rows {
            let (next, snapshot) = (try row.int8(0), try row.int8(1))
            bases.append(
                RebuildStart.Base(
                    nextOffset: next, snapshotOffset: snapshot,
                    keptAt: EventTime(postgresMicroseconds: try row.timestamptz(2))))
        }
        return bases
    }

    // MARK: - Reading

    /// Reads on until hardly anything is missing, however fast the pipeline runs ahead.
    private func follow() throws {
        for _ in 0..<Self.rounds {
            let goal = try tables.nextOffsets(ofRebuild: false, lock: false)
            try advance(to: goal)
            let newest = try tables.nextOffsets(ofRebuild: false, lock: false)
            let missing = newest.reduce(0) { $0 + $1.value - (goal[$1.key] ?? 0) }
            if missing <= Self.nearlyThere { return }
        }
        throw Rebuild.Refusal(
            file.name,
            "the pipeline stores records faster than they are read again; try at a calmer hour")
    }

    /// Applies and stores everything before these offsets.
    private func advance(to goal: [Int32: Int64]) throws {
        if worker == nil { try makeWorker() }
        try consumer?.raise(to: goal)
        var stillSince = SystemClock.monotonicMilliseconds()
        var last: Int64 = -1
        while true {
            let now = SystemClock.monotonicMilliseconds()
            let wake = worker?.step(now: now) ?? now
            let (done, isThere) = worker?.rebuilt(goal) ?? (0, true)
            tell(done, goal)
            if isThere { return }
            if done != last {
                last = done
                stillSince = now
            }
            if now - stillSince > Self.patience {
                let faults = worker?.board.current.faults ?? []
                throw Rebuild.Refusal(
                    file.name,
                    faults.first.map { "reading again stands still: \($0)" }
                        ?? "nothing is read or stored for \(Self.patience / 1_000) s; try again")
            }
            let wait = wake - SystemClock.monotonicMilliseconds()
            if wait > 0 { waker.wait(milliseconds: min(wait, 250)) }
        }
    }

    private func tell(_ done: Int64, _ goal: [Int32: Int64]) {
        let now = SystemClock.monotonicMilliseconds()
        guard now - progressTime >= 200 else { return }
        progressTime = now
        let start = starts.reduce(0) { $0 + $1.snapshotOffset }
        let end = starts.reduce(0) { $0 + (goal[$1.partition] ?? $1.nextOffset) }
        progress(.reading(done: max(0, done - start), of: end - start))
    }

    private func makeWorker() throws(EventLogError) {
        // A group of its own: one that was killed may still be a member of the last one's.
        let base = try log.makeConsumer(
            of: P.source, group: "heartline-replay-\(file.name)-\(SystemClock.wallMilliseconds())",
            waker: waker)
        let made = Consumer(base)
        var settings = WorkerSettings(
            pipeline: file.name,
            outputPartitions: Dictionary(uniqueKeysWithValues: P.outputTopics.map { ($0, 1) }))
        settings.commitInterval = 0
        settings.snapshotInterval = 3_600_000
        settings.pollLimit = P.source == .messages ? 500 : 10_000
        settings.omittedTopics = Set(P.outputTopics)
        settings.omittedTables = Set(P.tables.map(\.name)).subtracting(
            tables.tables.map(\.schema.name))
        settings.passedOver = passedOver
        worker = Worker(
            consumer: made, producer: DiscardingProducer(), store: sink, settings: settings,
            processor: processor, waker: waker, now: SystemClock.monotonicMilliseconds())
        consumer = made
    }

    private func letters() throws -> RebuildLetters {
        try RebuildLetters(file.name, P.source, in: log, connection)
    }

    /// Lets the state go on from the alerts that the tables hold, stores it, and ends the worker.
    private func stopWorker() throws {
        if P.tables.contains(where: { $0.name == TableSchema.alertsOpened.name }) {
            worker?.adopt(try tables.knownAlerts())
        }
        unread.formUnion(worker?.unread ?? [])
        worker?.stop()
        let deadline = SystemClock.monotonicMilliseconds() + 600_000
        while worker?.isStopped == false {
            let now = SystemClock.monotonicMilliseconds()
            guard now < deadline else {
                throw Rebuild.Refusal(file.name, "the database does not take the rebuilt state")
            }
            let wake = worker?.step(now: now) ?? now
            let wait = wake - SystemClock.monotonicMilliseconds()
            if wait > 0 { waker.wait(milliseconds: min(wait, 50)) }
        }
        if let status = worker?.board.current {
            totals.records += status.records
            totals.deadLetters += status.deadLetters
        }
        firstStamps.merge(consumer?.firstStamps ?? [:]) { min($0, $1) }
        worker = nil
        consumer = nil
    }

    // MARK: - The end

    /// - Returns: when the pipeline's commits were held.
    private func exchange(
        isWhole: Bool, cut: EventTime?, into report: inout Rebuild.Report
    ) throws -> Int64 {
        var tries = 0
        while true {
            tries += 1
            // Read before commits are held: that takes its time, and there are rarely new ones.
            var letters = try letters()
            do {
                try connection.run("BEGIN; SET LOCAL lock_timeout = '10s'")
                let goal = try tables.nextOffsets(ofRebuild: false, lock: true)
                let began = SystemClock.monotonicMilliseconds()
                try advance(to: goal)
                try stopWorker()
                let built = try tables.nextOffsets(ofRebuild: true, lock: false)
                for (partition, next) in goal where built[partition] != next {
                    throw Rebuild.Refusal(
                        file.name,
                        """
                        partition \(partition) was built up to \(built[partition] ?? 0) and not to \
                        \(next); try again
                        """)
                }
                progress(.exchanging)
                // What is in the outbox no more by then is in the log.
                try letters.refresh(connection)
                if try !letters.isComplete(in: log) { letters = try self.letters() }
                try settle(letters, goal, cut)
                report.tables = try tables.exchange(
                    cut: cut, isWhole: isWhole, first: firstStamp
                ).map {
                    Rebuild.Report.Table(name: $0.table, removed: $0.removed, written: $0.written)
                }
                try tables.exchangeStates()
                try tables.drop()
                try connection.run("COMMIT")
                return began
            } catch let error as PostgresError
                where Self.passing.contains(error.sqlState?.code ?? "") && tries < 5
            {
                connection.rollBack()
                // The pipeline ran on meanwhile.
                try follow()
            }
        }
    }

    /// Receipt of the first record that was applied, of all partitions; `nil` if there was none.
    private var firstStamp: EventTime? { firstStamps.values.min() }

    /// In the last transaction: what was processed at its place is no dead letter any more.
    private func settle(
        _ newest: RebuildLetters, _ goal: [Int32: Int64], _ cut: EventTime?
    ) throws {
        let reading = RebuildLetters.Reading(
            starts: starts, goal: goal, cut: cut, passedOver: passedOver, unread: unread)
        guard let taken = newest.taken(by: reading), try tables.note(rebuilt: taken, of: P.source)
        else {
            throw Rebuild.Refusal(
                file.name, "dead letters of it came or were replayed in this moment; try again")
        }
    }
}

extension Worker {
    /// The state goes on from the alerts that the tables hold: stored with the next commit, or by itself.
    mutating func adopt(_ known: KnownAlerts) {
        var known = known
        known.compare(partitions.map(\.processor.sharedAlerts))
        for index in partitions.indices where partitions[index].phase == .running {
            partitions[index].processor.adopt(known)
            partitions[index].snapshotOffset = -1
        }
    }

    /// Records that a rebuild could not decode.
    var unread: Set<RebuildLetters.Origin> {
        var all: Set<RebuildLetters.Origin> = []
        for index in partitions.indices {
            let partition = partitions[index].partition
            for offset in partitions[index].rebuild?.unread ?? [] {
                all.insert(.init(partition: partition, offset: offset))
            }
        }
        return all
    }

    /// How far a rebuild is: the sum of what is stored of `goal`'s partitions, and whether that is all.
    func rebuilt(_ goal: [Int32: Int64]) -> (done: Int64, isThere: Bool) {
        var done: Int64 = 0
        var isThere = true
        for (partition, limit) in goal {
            let index = slot(of: partition)
            guard index >= 0, partitions[index].phase == .running else {
                isThere = false
                if index >= 0 { done += partitions[index].position }
                continue
            }
            done += partitions[index].committedOffset
            if partitions[index].committedOffset < limit { isThere = false }
        }
        return (done, isThere)
    }
}
