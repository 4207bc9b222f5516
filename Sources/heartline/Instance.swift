import Alerts
import EventLog
import Foundation
import HTTP
import Ingest
import Metrics
import Pipeline
import Postgres
import Schemas
import Sinks
import Synchronization
import System
import TLS

/// What runs in one process, and its way up and down.
///
/// Used by the main thread alone, which waits for signals; everything that works has threads of its
/// own.
final class Instance {
    struct Roles: OptionSet {
        var rawValue: Int
        static let ingest = Roles(rawValue: 1)
        static let process = Roles(rawValue: 2)
    }

    struct Settings {
        var roles: Roles
        /// Absolute.
        var data: String
        /// `nil`: a private PostgreSQL under `data`.
        var database: String?
        var pipelines: [PipelineFile]
        var partitions: Int32?
        var retentionBytes: Int64
        /// Makes the front-end's settings once the secrets are known; `nil` without that role.
        var frontEnd: ((ServerSecrets) throws -> FrontEndSettings)?
        /// Makes missing secrets and brings the database up to date: what `up` does and the roles of
        /// a larger installation leave to an operator.
        var preparesAll = true
        var network: String?
        /// Somebody asked for this `network`: another one that is stored already is an error.
        var isNetworkGiven = false
        /// `nil`: the embedded log under `data`.
        var kafka: KafkaLogSettings?
        /// Bytes that may wait for the cluster on disk.
        var spoolBytes = 4 << 30
        /// Heartbeats are answered only when they are stored.
        var isHeartbeatAcked = false
        /// The operators' listener of a process without front-end; `nil`: none.
        var admin: ServerConfiguration?
        /// What operators' token is read from; `nil`: `admin-token` under `data` where everything is
        /// prepared, otherwise only the environment.
        var adminTokenFile: String?
        /// What the token is read from that is good for metrics alone; `nil`: only the environment.
        var metricsTokenFile: String?
        /// Who is told of alerts; `nil` where nothing is judged.
        var alerts: AlertsConfiguration?
        /// Ports that are taken are no error: the system chooses others.
        var frontEndTakesAnyPort = false
    }

    /// Time for an orderly end, in milliseconds, before what is left is cut.
    private static let stopMilliseconds: Int64 = 9_000

    let settings: Settings
    let readiness = Readiness()
    let metrics = MetricsSources()
    private(set) var databaseURL = ""
    private(set) var secrets: ServerSecrets?
    private var adminToken: AdminToken?
    /// `nil` where nobody may read metrics.
    private var metricsAccess: MetricsAccess?
    private var fleetMetrics: FleetMetrics?
    private(set) var frontEnd: (any RunningFrontEnd)?
    private(set) var pipelines: [RunningPipeline] = []
    /// The database may hold what our secrets have sealed.
    private(set) var mayHaveStoredNetwork = false
    /// Of the public listener.
    private var tls: TLSContext?
    private var files: [PipelineFile]
    private var privateDatabase: PrivateDatabase?
    private(set) var eventLog: OpenLog?
    private var spool: SpoolingLog<KafkaLog>?
    /// Where the front-end has none of its own.
    private var adminListener: AdminListener?
    private var alertDispatcher: AlertDispatcher?
    private var stopRegistryOutbox: (@Sendable () -> Void)?
    private var lock: FileLock?

    init(_ settings: Settings) {
        self.settings = settings
        files = settings.pipelines
    }

    /// Where devices send to; empty without a front-end.
    var url: String { frontEnd?.url(isSecure: tls != nil) ?? "" }

    /// Where operators look; empty if nowhere.
    var adminURL: String { adminListener?.url ?? frontEnd?.adminURL ?? "" }

    /// Where apps ask for updates, if that is a listener of its own.
    var updateURL: String? { frontEnd?.updateURL }

    /// Where people look, with a code that signs them in once; `nil` without an operators' token.
    func pageLink() throws -> String? {
        try adminToken.map { try PageLink.text(adminURL, $0) }
    }

    // MARK: - Up

    /// Brings everything up; what was started is brought down again if that does not work out.
    /// - Parameter progress: told what is done next, for people.
    func start(_ progress: (String) -> Void) throws {
        // Until then what has not begun yet has nothing to say of itself.
        readiness.set(Self.startPart, "not everything is started yet")
        do {
            try bringUp(progress)
            look()
            readiness.set(Self.startPart, nil)
        } catch {
            stop()
            throw error
        }
    }

    /// The file that operators' token is read from, unless the environment has it.
    var adminTokenFile: String? {
        settings.adminTokenFile ?? (settings.preparesAll ? "\(settings.data)/admin-token" : nil)
    }

    private func readAdminToken() throws -> AdminToken? {
        let token = try SecretFiles.adminToken(
            environment: ProcessInfo.processInfo.environment, file: adminTokenFile,
            makesFile: settings.preparesAll && settings.adminTokenFile == nil)
        let metricsToken = try SecretFiles.metricsToken(
            environment: ProcessInfo.processInfo.environment, file: settings.metricsTokenFile)
        metricsAccess = MetricsAccess(metrics, tokens: [token, metricsToken])
        if metricsAccess == nil {
            Log.notice("the admin listener answers health only: no --admin-token-file is given")
        }
        return token
    }

    private func bringUp(_ progress: (String) -> Void) throws {
        try takeLock()
        // Also where only pipelines run: one with another installation's secrets is on the wrong database.
        secrets = try SecretFiles.load(
            environment: ProcessInfo.processInfo.environment,
            directory: settings.preparesAll ? settings.data : nil)
        if settings.roles.contains(.ingest) || settings.admin != nil {
            adminToken = try readAdminToken()
        }
        var frontEndSettings = try secrets.flatMap { try settings.frontEnd?($0) }
        frontEndSettings?.adminToken = adminToken
        frontEndSettings?.metrics = metricsAccess
        registerOwnMetrics()
        // Before anything is started that takes seconds.
        try InstanceChecks.addresses(settings, frontEndSettings)
        if let address = settings.database {
            databaseURL = address
        } else {
            progress("starting PostgreSQL under \(settings.data)/postgres")
            var options = PrivateDatabase.Settings()
            options.stopTimeout = .seconds(5)
            let started = try PrivateDatabase.start(directory: settings.data, settings: options)
            privateDatabase = started
            databaseURL = started.url
        }
        try checkInterrupt()
        let plan = try prepareDatabase(progress)
        try checkInterrupt()
        if let kafka = settings.kafka {
            try bringUp(onKafka: kafka, plan, frontEndSettings, progress)
        } else {
            if let admin = settings.admin { try startAdmin(admin) }
            let log = try EmbeddedLog(directory: LogAccess.folder(in: settings.data))
            eventLog = .embedded(log)
            try plan.create(in: log, retentionBytes: settings.retentionBytes)
            if settings.roles.contains(.process) { try startPipelines(log, plan) }
            if let frontEndSettings {
                startRegistryOutbox(log)
                try startFrontEnd(log, frontEndSettings)
            }
        }
    }

    /// A cluster may be away when we start: then `/readyz` and the log say so, and we wait.
    private func bringUp(
        onKafka kafka: KafkaLogSettings, _ plan: TopicPlan, _ frontEndSettings: FrontEndSettings?,
        _ progress: (String) -> Void
    ) throws {
        var kafka = kafka
        if settings.isHeartbeatAcked { kafka.ackedTopics.insert(.heartbeats) }
        let log = try KafkaLog(kafka)
        eventLog = .kafka(log)
        readiness.set(Self.kafkaPart, log.fault)
        if let admin = frontEndSettings?.admin ?? settings.admin {
            try startAdmin(
                admin,
                frontEndSettings?.administration(databaseURL: databaseURL) {
                    try? log.offsets(of: $0).next
                })
        }
        if settings.preparesAll {
            try wait(for: log, progress) { nil }
            try plan.create(in: log, retentionBytes: settings.retentionBytes)
        } else {
            try wait(for: log, progress) { try plan.fault(in: log) }
        }
        if settings.roles.contains(.process) { try startPipelines(log, plan) }
        guard var frontEndSettings else { return }
        frontEndSettings.admin = nil
        // A group's first member may have to wait for others, by the brokers' settings.
        frontEndSettings.startMilliseconds = 60_000
        var spoolSettings = SpoolSettings(directory: "\(settings.data)/spool")
        spoolSettings.topics = kafka.ackedTopics
        spoolSettings.limitBytes = settings.spoolBytes
        // The registry's events have an outbox in the database and need no spool.
        startRegistryOutbox(log)
        let spooling = try SpoolingLog(log, spoolSettings)
        spool = spooling
        let limit = settings.spoolBytes
        metrics.set("spool") { page in
            page.gauge(
                "heartline_spool_bytes", "Bytes of events that wait on the disk for the log.",
                spooling.spooledBytes)
            page.gauge(
                "heartline_spool_limit_bytes", "Bytes at which the spool takes no more.", limit)
            page.gauge(
                "heartline_spool_active",
                "Whether the log counts as away, or has not yet taken all that waited.",
                spooling.isSpooling)
        }
        try startFrontEnd(spooling, frontEndSettings)
    }

    private static let kafkaPart = "kafka"
    private static let startPart = "start"

    /// Waits until the cluster answers and nothing else is in the way.
    private func wait(
        for log: KafkaLog, _ progress: (String) -> Void, until fault: () throws -> String?
    ) throws {
        var told = ""
        let pause = Waker()
        while true {
            let reason: String?
            if let away = log.fault {
                reason = away
            } else {
                do {
                    reason = try fault()
                } catch let error as EventLogError where error.kind == .unavailable {
                    reason = "\(error)"
                }
            }
            readiness.set(Self.kafkaPart, reason)
            guard let reason else { return }
            if told.isEmpty { progress("waiting for Kafka at \(log.settings.brokers)") }
            if told != reason {
                Log.notice("waiting for Kafka", ["reason": reason])
            }
            told = reason
            try checkInterrupt()
            pause.wait(milliseconds: 200)
        }
    }

    private func startAdmin(
        _ configuration: ServerConfiguration, _ administration: AdministrationSettings? = nil
    ) throws {
        let listener = try AdminListener(
            configuration, readiness: readiness, administration: administration,
            metrics: metricsAccess)
        adminListener = listener
        metrics.set("admin listener") { listener.write(to: &$0) }
        try listener.start()
        // Long before all else is there.
        Log.notice("operators are answered", ["admin": listener.url])
    }

    private func startAlerts() {
        guard let alerts = self.settings.alerts else { return }
        var settings = AlertDispatcherSettings()
        settings.obstacleChanged = { [readiness] in readiness.set("alert dispatcher", $0) }
        let dispatcher = AlertDispatcher(
            database: databaseURL, configuration: alerts, settings: settings)
        dispatcher.start()
        alertDispatcher = dispatcher
    }

    private func startRegistryOutbox<LogType: EventLog>(_ log: LogType) {
        var settings = RegistryOutboxSettings()
        settings.obstacleChanged = { [readiness] in readiness.set("registry outbox", $0) }
        let outbox = RegistryOutbox(database: databaseURL, log: log, settings: settings)
        outbox.start()
        stopRegistryOutbox = { outbox.stop() }
    }

    private func startFrontEnd<LogType: EventLog>(
        _ log: LogType, _ settings: FrontEndSettings
    ) throws {
        tls = settings.server.tls
        let frontEnd = try bindFrontEnd(log, settings)
        self.frontEnd = frontEnd
        metrics.set("front-end") { frontEnd.write(to: &$0) }
        // An end that is asked for meanwhile need not wait for the log.
        try frontEnd.start { try checkInterrupt() }
    }

    private func bindFrontEnd<LogType: EventLog>(
        _ log: LogType, _ settings: FrontEndSettings
    ) throws -> FrontEnd<LogType> {
        do {
            return try FrontEnd(
                log: log, databaseURL: databaseURL, settings: settings, readiness: readiness)
        } catch let error as HTTPError where self.settings.frontEndTakesAnyPort {
            Log.info("taking any port", ["error": "\(error)"])
            var settings = settings
            settings.server.address = try SocketAddress(host: "127.0.0.1", port: 0)
            settings.admin?.address = try SocketAddress(host: "127.0.0.1", port: 0)
            return try FrontEnd(
                log: log, databaseURL: databaseURL, settings: settings, readiness: readiness)
        }
    }

    private func takeLock() throws {
        try FileSystem.makeDirectory(settings.data, mode: 0o711)
        let role = settings.roles == [.ingest, .process] ? "up" : "role"
        // The roles of a larger installation may stand side by side on one directory.
        guard role == "up" else { return }
        guard let taken = try FileLock.take("\(settings.data)/lock") else {
            let other = try? RunFile.read(in: settings.data)
            let who = other.map { "process \($0.pid)" } ?? "another process"
            throw Failure(
                "starting on \(settings.data): \(who) runs on it already; stop that one, or choose another --data"
            )
        }
        lock = taken
        // Left behind by one that was killed.
        RunFile.remove(in: settings.data)
    }

    private func checkInterrupt() throws {
        if let signal = Signals.wait(milliseconds: 0), signal != .hangup { throw Interrupted() }
    }

    private func prepareDatabase(_ progress: (String) -> Void) throws -> TopicPlan {
        let connection = try PostgresConnection(
            databaseURL, options: PostgresOptions(applicationName: "heartline"))
        defer { connection.close() }
        let migrations = try Migrations.load()
        if settings.preparesAll {
            let applied = try Migrator.migrate(connection, migrations)
            if !applied.isEmpty {
                progress("brought the database to version \(applied.last?.number ?? 0)")
            }
        } else {
            try Migrator.check(connection, migrations)
        }
        let plan = try TopicPlan(
            connection, wanted: settings.partitions, isKafka: settings.kafka != nil)
        if let secrets {
            let registry = try Registry(connection, secretKey: secrets.secretKey)
            if settings.preparesAll {
                var network = NetworkSettings()
                if let prefix = settings.network { network.prefix = prefix }
                mayHaveStoredNetwork = true
                try registry.prepareNetwork(network)
                if settings.isNetworkGiven { try registry.checkPrefix(network.prefix) }
            } else {
                do {
                    try registry.checkKey()
                } catch let error as RegistryError
                    where error.kind == .noNetwork && !settings.roles.contains(.ingest)
                {
                    // Nothing is there that another key could have sealed, and pipelines need none of it.
                }
            }
        }
        return plan
    }

    private func startPipelines<LogType: EventLog>(
        _ log: LogType, _ plan: TopicPlan
    ) throws where LogType.Consumer: SendableMetatype {
        startAlerts()
        if metricsAccess != nil {
            let fleet = FleetMetrics(database: databaseURL)
            fleet.start()
            fleetMetrics = fleet
            metrics.set("fleet") { fleet.write(to: &$0) }
        }
        let process = ProcessInfo.processInfo
        for file in files {
            pipelines.append(
                try RunningPipeline(
                    file, log: log, database: databaseURL,
                    owner: "\(process.hostName)/\(process.processIdentifier)",
                    outputPartitions: plan.partitions))
        }
        for pipeline in pipelines { metrics.set("pipeline \(pipeline.name)", pipeline.metrics()) }
    }

    private func registerOwnMetrics() {
        let (readiness, data) = (readiness, settings.data)
        metrics.set("process") { page in
            ProcessMetrics.write(to: &page, data: data)
            let checks = readiness.checks
            page.gauge(
                "heartline_ready", "Whether /readyz answers 200.",
                checks.allSatisfy { $0.reason == nil })
            // Parts are those of the code and of the pipeline files.
            for check in checks {
                page.gauge(
                    "heartline_part_ready", "Whether a part of the process is ready.",
                    check.reason == nil, .init("part", configured: check.part))
            }
        }
    }

    // MARK: - While it runs

    /// Looks after what can fail while running and tells the readiness.
    func look() {
        // A front-end goes on without the cluster; a worker has nothing to do.
        if !settings.roles.contains(.ingest), case .kafka(let log)? = eventLog {
            readiness.set(Self.kafkaPart, log.fault)
        }
        for pipeline in pipelines {
            let faults = pipeline.faults
            readiness.set(
                "pipeline \(pipeline.name)",
                faults.isEmpty ? nil : faults.prefix(3).joined(separator: "; "))
        }
    }

    /// Waits until every part is ready.
    /// - Parameters:
    ///   - seconds: `nil`: as long as it takes; `/readyz` tells why.
    ///   - hangup: called at that signal.
    /// - Throws: what is not, after `seconds`; `Interrupted` at a signal that ends the process.
    func waitUntilReady(seconds: Int64?, hangup: () -> Void) throws {
        let end = seconds.map { SystemClock.monotonicMilliseconds() + $0 * 1_000 } ?? .max
        while true {
            look()
            let unready = readiness.unready
            if unready.isEmpty { return }
            if SystemClock.monotonicMilliseconds() > end {
                let reasons = unready.map { "\($0.part): \($0.reason)" }.joined(separator: "\n  ")
                throw Failure("starting: not everything became ready:\n  \(reasons)")
            }
            switch Signals.wait(milliseconds: 20) {
            case .terminate, .interrupt: throw Interrupted()
            case .hangup: hangup()
            case nil: break
            }
        }
    }

    /// Takes the settings of changed pipeline files over. A fault in any file keeps all as they are.
    func reload(_ load: () throws -> [PipelineFile]) {
        let newest: [PipelineFile]
        do {
            newest = try load()
        } catch {
            Log.tell("The old pipeline settings stay in force:\n\(error)\n")
            return
        }
        for file in newest {
            guard let index = files.firstIndex(where: { $0.name == file.name }),
                let pipeline = pipelines.first(where: { $0.name == file.name })
            else {
                Log.tell(
                    "The pipeline \(file.name) is new: it starts with the next start.\n")
                continue
            }
            let waiting = file.waitingForStart(comparedTo: files[index])
            if !waiting.isEmpty {
                Log.tell(
                    "The pipeline \(file.name): \(waiting.joined(separator: ", ")) changed, which waits for the next start.\n"
                )
            }
            // Another processor cannot take the place of the one that runs.
            let isSame = files[index].processor.name == file.processor.name
            if isSame, files[index].processor != file.processor {
                pipeline.reconfigure(file.processor)
                // What waits for the next start is told of again at the next reload.
                files[index].processor = file.processor
                Log.tell(
                    "The pipeline \(file.name) goes on with settings \(file.settingsRevision).\n")
            } else if waiting.isEmpty {
                Log.tell("The pipeline \(file.name) has not changed.\n")
            }
        }
        for file in files where !newest.contains(where: { $0.name == file.name }) {
            Log.tell(
                "The pipeline \(file.name) has no file any more; it runs until the next stop.\n")
        }
    }

    /// Takes a changed file of alerts over; one with faults changes nothing.
    func reloadAlerts(_ load: () throws -> AlertsConfiguration) {
        guard let alertDispatcher else { return }
        do {
            let newest = try load()
            alertDispatcher.reload(newest)
            let names = newest.receivers.map(\.name).joined(separator: ", ")
            Log.tell(
                "Alerts go to \(names.isEmpty ? "no receiver" : names).\n")
        } catch {
            Log.tell("The old alert settings stay in force:\n\(error)\n")
        }
    }

    /// Reads the certificate's files again. New connections get the new certificate; those that are
    /// open go on. Files with a fault change nothing.
    func reloadCertificate() {
        guard let tls else { return }
        do throws(TLSError) {
            try tls.reload()
        } catch {
            Log.tell("The old certificate stays in use:\n\(error)\n")
            return
        }
        Log.tell(
            "The certificate in \(tls.files.certificateChain) was read again.\n")
        for warning in tls.warnings { Log.warning("TLS", ["tls.warning": warning]) }
    }

    // MARK: - Down

    /// Ends everything in order: no more requests, what came is in the log, what was read is in the
    /// tables.
    func stop() {
        let deadline = SystemClock.monotonicMilliseconds() + Self.stopMilliseconds
        if lock != nil { RunFile.remove(in: settings.data) }
        // A database or a cluster that hangs can hold up what waits for it. All of it can be cut: what
        // was not stored is read again.
        let isDown = Waker()
        if !settings.preparesAll { Self.cut(after: Self.stopMilliseconds + 500, unless: isDown) }
        // These wait for the log by themselves, beside the rest.
        let outboxEnd = stopRegistryOutbox.map { stop in
            SystemThread.start("outbox-end") { stop() }
        }
        let alertsEnd = alertDispatcher.map { dispatcher in
            SystemThread.start("alerts-end") { dispatcher.stop() }
        }
        if case .kafka(let log)? = eventLog { log.beginClosing() }
        frontEnd?.stop()
        for pipeline in pipelines {
            pipeline.stop(
                milliseconds: max(100, deadline - 2_000 - SystemClock.monotonicMilliseconds()))
        }
        alertsEnd?.join()
        outboxEnd?.join()
        spool?.close()
        eventLog?.close()
        adminListener?.stop()
        // They hold what they tell of.
        metrics.removeAll()
        fleetMetrics?.stop()
        privateDatabase?.stop()
        frontEnd = nil
        spool = nil
        adminListener = nil
        pipelines = []
        stopRegistryOutbox = nil
        alertDispatcher = nil
        eventLog = nil
        privateDatabase = nil
        lock = nil
        isDown.signal()
    }

    /// Ends the process if `isDown` is not signalled in time.
    private static func cut(after milliseconds: Int64, unless isDown: Waker) {
        SystemThread.start("cut") {
            guard !isDown.wait(milliseconds: milliseconds) else { return }
            Log.warning("the end took too long and was cut; the next start goes on where it stood")
            _exit(0)
        }.detach()
    }
}

/// A signal came before everything was up: an orderly end.
struct Interrupted: Error {}
