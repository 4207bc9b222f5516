public import HTTP
internal import Bytes
internal import EventLog
internal import Schemas
internal import Synchronization
internal import System
public import Updates

/// How a front-end serves updates.
public struct UpdateSettings: Sendable {
    public var configuration = UpdatesConfiguration()
    /// Where downloads and work in progress are kept; made if it is missing.
    public var directory: String
    /// A plain listener with the update routes alone; `nil`: they are on the public one.
    public var listener: ServerConfiguration?
    /// Proxies whose `X-Forwarded-For` is believed.
    public var trustedProxies: [ClientNetwork] = []
    /// Requests that may be under way at once; above it they are answered 503. Default: 10,000.
    public var maximumJobs = 10_000
    /// Time between the records that tell pipelines of the time, in milliseconds. Default: 60 s.
    public var clockMilliseconds: Int64 = 60_000
    /// For how long after the last attempt they are told, in milliseconds. Default: 2 h.
    public var clockLasts: Int64 = 2 * 3_600_000

    /// - Parameter directory: absolute.
    public init(directory: String) { self.directory = directory }
}

/// Carries out what apps ask for: finds out who they are, asks their sources, downloads, installs,
/// and writes each step to topic `updates`.
///
/// One thread decides (`UpdateConductor`); others do what blocks: the database, sources, downloads,
/// commands. An attempt goes on without its client, as the contract has it.
/// - Thread safety: any thread.
final class UpdateService: Sendable {
    let clients: UpdateClients
    private let mailbox: UpdateMailbox
    private let thread = Mutex<SystemThread?>(nil)
    private let makeConductor: @Sendable () -> UpdateConductor
    private let records: UpdateRecordThread

    /// - Parameters:
    ///   - partitions: of topic `updates`.
    ///   - listening: where apps find the routes; asked when one is to be signed.
    init(
        _ settings: UpdateSettings, producer: any EventProducer, partitions: Int32,
        origin: @escaping @Sendable () -> EventOrigin, databaseURL: String, secretKey: [UInt8],
        statementMilliseconds: Int64, listening: @escaping @Sendable () -> UpdateListening
    ) throws {
        clients = UpdateClients(trustedProxies: settings.trustedProxies)
        let mailbox = UpdateMailbox()
        self.mailbox = mailbox
        let records = UpdateRecordThread(
            databaseURL: databaseURL, secretKey: secretKey,
            statementMilliseconds: statementMilliseconds)
        self.records = records
        let cache = try DownloadCache(
            "\(settings.directory)/cache", sizeBytes: settings.configuration.cache.sizeBytes)
        try Self.clearWork("\(settings.directory)/work")
        let events = UpdateEvents(
            producer, partitions: partitions, mailbox: mailbox, origin: origin)
        makeConductor = {
            UpdateConductor(
                settings, mailbox: mailbox, records: records, cache: cache, events: events,
                listening: listening)
        }
    }

    /// Removes what attempts of a process that was killed have left.
    private static func clearWork(_ directory: String) throws {
        try FileSystem.makeDirectory(directory, mode: 0o700)
        let yesterday = SystemClock.wallMilliseconds() - 86_400_000
        for name in try FileSystem.names(in: directory) {
            let path = "\(directory)/\(name)"
            if FileSystem.modified(path) ?? .max < yesterday { FileSystem.removeTree(path) }
        }
    }

    func start() {
        records.start()
        thread.withLock { thread in
            thread = SystemThread.start("updates") { [makeConductor] in makeConductor().run() }
        }
    }

    func submit(_ request: UpdateRequest, _ responder: UpdateResponder) {
        if !mailbox.post(.request(request, responder)) {
            responder.respondError(.serviceUnavailable, "stopping")
        }
    }

    /// Refuses requests from now on and ends what can be ended. What has begun on a device has
    /// `milliseconds` to finish; then it is cut, and it is recorded that nobody knows what became of it.
    func beginStopping(milliseconds: Int64) {
        mailbox.post(.beginStopping(until: SystemClock.monotonicMilliseconds() + milliseconds))
    }

    /// Ends the threads. Call `beginStopping` first.
    func stop() {
        mailbox.post(.stop)
        thread.withLock { $0.take() }?.join()
        records.stop()
    }
}

/// Where apps find the update routes.
struct UpdateListening: Sendable {
    var host: String
    var port: UInt16
    var isSecure: Bool
}

/// What happens, for the one thread that decides.
final class UpdateMailbox: Sendable {
    enum Message: Sendable {
        case request(UpdateRequest, UpdateResponder)
        /// `nil`: the database cannot be read.
        case lookedUp([UpdateConductor.Asked], [UpdateLookup]?)
        case confirmed(UpdateConductor.Asked, InstallationRecord, attempt: DeviceID?)
        /// `nil`: the database cannot be read.
        case locked(UInt64, DeviceID, Bool?)
        case checkEnded(UpdateConductor.CheckKey, Result<SourceState, SourceFault>)
        case downloading(String, completed: Int64, total: Int64?)
        case downloadEnded(String, DownloadEnd)
        /// `nil`: no id could be issued.
        case issued(UInt64, id: String?)
        case input(UInt64, UpdateJob.Input)
        case acked(UInt64, isStored: Bool)
        case beginStopping(until: Int64)
        case stop
    }

    private struct Box {
        var messages: [Message] = []
        var isClosed = false
    }

    private let box = Mutex(Box())
    private let waker = Waker()

    /// - Returns: whether somebody will read it.
    @discardableResult
    func post(_ message: Message) -> Bool {
        let (isOpen, isFirst) = box.withLock { box -> (Bool, Bool) in
            guard !box.isClosed else { return (false, false) }
            box.messages.append(message)
            return (true, box.messages.count == 1)
        }
        if isFirst { waker.signal() }
        return isOpen
    }

    func take(waiting milliseconds: Int64) -> [Message] {
        waker.wait(milliseconds: milliseconds)
        return box.withLock { box in
            defer { box.messages = [] }
            return box.messages
        }
    }

    /// Refuses messages from now on; what is there is handed out.
    func close() -> [Message] {
        box.withLock { box in
            box.isClosed = true
            defer { box.messages = [] }
            return box.messages
        }
    }
}

/// Writes events to topic `updates`: those of a round in one batch, whose storage is told.
final class UpdateEvents: DeliveryReceiver, Sendable {
    private let producer: any EventProducer
    private let partitions: Int32
    private let mailbox: UpdateMailbox
    private let origin: @Sendable () -> EventOrigin

    init(
        _ producer: any EventProducer, partitions: Int32, mailbox: UpdateMailbox,
        origin: @escaping @Sendable () -> EventOrigin
    ) {
        self.producer = producer
        self.partitions = partitions
        self.mailbox = mailbox
        self.origin = origin
    }

    /// Adds an event to a batch.
    func append(
        _ kind: UpdatesEvent.Kind, of installation: DeviceID, source: String,
        to batch: inout RecordBatch
    ) {
        var (key, value) = (ByteBuffer(), ByteBuffer())
        key.append(installation)
        value.append(
            UpdatesEvent(
                origin: origin(), installation: installation, source: source, kind: kind))
        batch.append(
            partition: Partitioner.partition(of: key.span, count: partitions), timestamp: now,
            key: key.span, value: value.span)
    }

    /// Adds the time, for every partition.
    func appendClock(to batch: inout RecordBatch) {
        let key = ByteBuffer("clock".utf8)
        for partition in 0..<partitions {
            var value = ByteBuffer()
            value.append(
                UpdatesEvent(
                    origin: origin(), installation: DeviceID(high: 0, low: 0), source: "",
                    kind: .clock))
            batch.append(
                partition: partition, timestamp: now, key: key.span, value: value.span)
        }
    }

    private var now: EventTime { EventTime(milliseconds: SystemClock.wallMilliseconds()) }

    /// The outcome comes to the mailbox.
    func send(_ batch: RecordBatch, token: UInt64) {
        let outcome = producer.send(batch, receipt: DeliveryReceipt(self, token: token))
        if case .accepted = outcome { return }
        mailbox.post(.acked(token, isStored: false))
    }

    func delivered(_ token: UInt64, _ outcome: DeliveryOutcome) {
        let isStored = if case .stored = outcome { true } else { false }
        mailbox.post(.acked(token, isStored: isStored))
    }
}
