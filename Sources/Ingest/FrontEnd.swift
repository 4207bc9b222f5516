internal import Crypto
public import EventLog
public import HTTP
internal import Schemas
internal import Synchronization
internal import System

/// Takes in what devices say: HTTP in, events in the log, answers from memory.
///
/// The topics must exist. PostgreSQL need not be there: while it is away, devices that are in memory
/// are answered, and the others get 500.
/// - Thread safety: every method may be called from any thread; `start` and `stop` once each.
public final class FrontEnd<LogType: EventLog>: Sendable {
    /// What this and other parts of the process wait for; `/readyz` shows it.
    public let readiness: Readiness
    public let counters: IngestCounters
    /// `nil` where agents cannot be provisioned.
    public var provisioning: ProvisionCounters? { provisioner?.counters }
    /// `nil` where the log has no topic `telemetry`.
    public let telemetry: TelemetryCounters?

    let settings: FrontEndSettings
    let producer: LogType.Producer
    private let cache: ConfigCache
    private let loader: ConfigLoader
    private let provisioner: Provisioner?
    private let proximity: Proximity?
    private let bell: BellTail<LogType>
    private let sessions: Sessions
    private let pushes: PushService<LogType>?
    private let beacons: BeaconWriter
    let server: Server
    private let updates: UpdateService?
    /// Where the update routes have a listener of their own.
    let updateServer: Server?
    let admin: AdminListener?
    private let isStopped = Atomic(false)

    /// Binds the listeners; nothing is answered before `start`.
    ///
    /// - Parameters:
    ///   - databaseURL: as libpq takes it.
    ///   - readiness: shared with other parts of the process.
    public init(
        log: LogType, databaseURL: String, settings: FrontEndSettings,
        readiness: Readiness = Readiness()
    ) throws {
        guard !settings.name.isEmpty, settings.name.utf8.count <= InlineText.capacity else {
            throw FrontEndError(reason: "a name has 1 to \(InlineText.capacity) bytes")
        }
        guard settings.secretKey.count == AESGCM.keyBytes else {
            throw FrontEndError(reason: "the secret key has not 32 bytes")
        }
        guard settings.salt.isEmpty || settings.salt.count >= SecretFiles.minimumSaltBytes else {
            throw FrontEndError(
                reason: "the salt has fewer than \(SecretFiles.minimumSaltBytes) bytes")
        }
        guard let partitions = try log.partitionCount(of: .heartbeats) else {
            throw FrontEndError(reason: "topic heartbeats does not exist; create the topics first")
        }
        // A log that was made before there was telemetry goes on without.
        let telemetry = try log.partitionCount(of: .telemetry).map {
            TelemetryState(partitions: $0, queueBytes: settings.queueBytes / 2)
        }
        var producerSettings = ProducerSettings()
        producerSettings.queueBytes = settings.queueBytes
        let producer = try log.makeProducer(producerSettings)
        let boot = try Random.integer()
        let cache = ConfigCache(settings.cache)
        let queue = LoadQueue()
        let state = IngestState(
            producer: producer, partitions: partitions, durability: settings.durability,
            cache: cache, loadQueue: queue, overloadBytes: settings.overloadBytes, boot: boot,
            loops: settings.server.loops)
        self.settings = settings
        self.readiness = readiness
        self.producer = producer
        self.cache = cache
        counters = state.counters
        self.telemetry = telemetry?.counters
        loader = ConfigLoader(
            cache: cache, queue: queue, readiness: readiness, databaseURL: databaseURL,
            secretKey: settings.secretKey,
            statementMilliseconds: settings.databaseMilliseconds)
        let provisioner =
            settings.salt.isEmpty
            ? nil
            : Provisioner(
                settings: settings.provisioning, cache: cache, salt: settings.salt,
                secretKey: settings.secretKey, databaseURL: databaseURL,
                statementMilliseconds: settings.databaseMilliseconds)
        self.provisioner = provisioner
        let sessions = Sessions(
            databaseURL: databaseURL, statementMilliseconds: settings.databaseMilliseconds,
            limit: settings.proximity?.sessions ?? 200_000)
        self.sessions = sessions
        let proximity = try settings.proximity.map { proximity in
            var partitions: [Topic: Int32] = [:]
            for topic in ProximityEvents.topics {
                guard let count = try log.partitionCount(of: topic) else {
                    throw FrontEndError(
                        reason: "topic \(topic.rawValue) does not exist; create the topics first")
                }
                partitions[topic] = count
            }
            return Proximity(
                proximity, state, sessions, partitions: partitions, databaseURL: databaseURL,
                statementMilliseconds: settings.databaseMilliseconds)
        }
        self.proximity = proximity
        let rates = settings.provisioning.limit.map { ClientRates<ClientAddress>($0) }
        bell = BellTail(
            log, cache: cache, readiness: readiness,
            group: "front-end-\(String(boot, radix: 16))")
        let pushes = settings.sockets.map { sockets in
            PushService(
                log, sessions: sessions, databaseURL: databaseURL, settings: sockets,
                statementMilliseconds: settings.databaseMilliseconds,
                group: "front-end-pushes-\(String(boot, radix: 16))")
        }
        self.pushes = pushes
        beacons = BeaconWriter(
            state, frontEnd: InlineText(settings.name),
            intervalMilliseconds: settings.beaconMilliseconds)
        var listener = settings.server
        listener.limits.drainMilliseconds = min(
            listener.limits.drainMilliseconds, settings.drainMilliseconds)
        listener.routes = RouteNames.publicNames
        let updates = try settings.updates.map { asked in
            guard let partitions = try log.partitionCount(of: .updates) else {
                throw FrontEndError(
                    reason: "topic updates does not exist; create the topics first")
            }
            let shared = SharedPlace(asked.listener ?? listener)
            return (
                try UpdateService(
                    asked, producer: producer, partitions: partitions,
                    origin: { state.nextOrigin() }, databaseURL: databaseURL,
                    secretKey: settings.secretKey,
                    statementMilliseconds: settings.databaseMilliseconds,
                    listening: { shared.place }), shared
            )
        }
        let service = updates?.0
        let isApart = settings.updates?.listener != nil
        server = try Server(configuration: listener) { loop in
            var others: [any Routes] = []
            if let provisioner {
                others.append(
                    ProvisionAPI(provisioner, rates: rates, overloadBytes: state.overloadBytes))
            }
            if let proximity {
                others.append(ProximityAPI(proximity, overloadBytes: state.overloadBytes))
            }
            if let pushes { others.append(pushes.makeRoutes()) }
            if let service, !isApart {
                others.append(UpdateAPI(service, overloadBytes: state.overloadBytes))
            }
            if let telemetry { others.append(TelemetryAPI(state, telemetry)) }
            return IngestHandler(AgentAPI(state, loop: loop), others)
        }
        self.updates = service
        updateServer = try settings.updates?.listener.map { configuration in
            var configuration = configuration
            configuration.limits.drainMilliseconds = listener.limits.drainMilliseconds
            configuration.routes = RouteNames.publicNames
            return try Server(configuration: configuration) { _ in
                guard let service else { preconditionFailure("a listener without its service") }
                return UpdateHandler(UpdateAPI(service, overloadBytes: state.overloadBytes))
            }
        }
        updates?.1.found((updateServer ?? server).boundAddress.port)
        admin = try settings.admin.map { configuration in
            try AdminListener(
                configuration, readiness: readiness,
                administration: settings.administration(databaseURL: databaseURL) {
                    try? log.offsets(of: $0).next
                }, metrics: settings.metrics)
        }
    }

    /// Where the public listener really listens.
    public var boundAddress: (host: String, port: UInt16) { server.boundAddress }
    /// Where the listener of updates really listens; `nil` where it has none of its own.
    public var updateAddress: (host: String, port: UInt16)? { updateServer?.boundAddress }
    /// Where the operators' listener really listens.
    public var adminAddress: (host: String, port: UInt16)? { admin?.boundAddress }
    /// Counters of the public listener.
    public var serverCounters: ServerCounters { server.counters }
    /// `nil` where no sockets are opened.
    package var pushCounters: PushCounters? { pushes?.hub.counters }
    /// Whether the doorbells of pushes are heard.
    package var hearsPushes: Bool { pushes?.isListening ?? false }
    /// Answers that are kept in memory.
    public var cachedAnswers: Int { cache.count }
    /// Bytes of them.
    public var cachedBytes: Int { cache.sizeBytes }

    /// Whether what is known of people's sessions holds without asking the database.
    package var hearsSessions: Bool { sessions.isListening }

    /// Starts to answer, once the log is followed and has taken a first beacon.
    ///
    /// - Parameter interrupt: called now and then while it waits; what it throws ends the start.
    /// - Throws: `FrontEndError` if the log does not get that far within `startMilliseconds`.
    public func start(interrupt: () throws -> Void = {}) throws {
        try admin?.start()
        bell.start()
        do {
            let listeningDeadline =
                SystemClock.monotonicMilliseconds() + settings.startMilliseconds
            while !bell.waitUntilListening(milliseconds: 100) {
                try interrupt()
                guard SystemClock.monotonicMilliseconds() >= listeningDeadline else { continue }
                let reason = readiness.unready.first { $0.part == BellTail<LogType>.part }?.reason
                throw FrontEndError(
                    reason: "topic device-configs cannot be followed: \(reason ?? "no answer")")
            }
            // No device may be judged by a log in which this front-end has not announced itself.
            let deadline = SystemClock.monotonicMilliseconds() + settings.startMilliseconds
            let pause = Waker()
            while !beacons.writeFirst() {
                guard SystemClock.monotonicMilliseconds() < deadline else {
                    throw FrontEndError(reason: "the log takes no beacon; see its own messages")
                }
                try interrupt()
                pause.wait(milliseconds: 50)
            }
            loader.start()
            provisioner?.start()
            sessions.start()
            proximity?.start()
            pushes?.start()
            beacons.start()
            updates?.start()
            try server.start()
            try updateServer?.start()
        } catch {
            stop()
            throw error
        }
    }

    /// Finishes what is in flight, says goodbye in the log and waits until it is stored.
    ///
    /// - Returns: whether everything accepted was stored in time.
    @discardableResult
    public func stop() -> Bool {
        guard !isStopped.exchange(true, ordering: .acquiringAndReleasing) else { return true }
        readiness.set("front-end", "stopping")
        // Streams have to end before a drain can.
        updates?.beginStopping(milliseconds: max(0, settings.drainMilliseconds - 1_500))
        server.drain()
        updateServer?.drain()
        updates?.stop()
        loader.stop()
        provisioner?.stop()
        proximity?.stop()
        pushes?.stop()
        sessions.stop()
        bell.stop()
        // No loop runs any more, so nothing can come behind this beacon.
        beacons.leave()
        let isFlushed = producer.flush(milliseconds: settings.flushMilliseconds)
        if !isFlushed {
            Log.warning(
                "stopping with events that the log did not take",
                ["log.bytes": "\(producer.queuedBytes)"])
        }
        producer.close()
        admin?.stop()
        return isFlushed
    }
}

/// Where apps find the update routes; the port is known once it is bound.
private final class SharedPlace: Sendable {
    private let value: Mutex<UpdateListening>

    init(_ configuration: ServerConfiguration) {
        value = Mutex(
            UpdateListening(
                host: configuration.address.host, port: configuration.address.port,
                isSecure: configuration.tls != nil))
    }

    var place: UpdateListening { value.withLock { $0 } }

    func found(_ port: UInt16) { value.withLock { $0.port = port } }
}
