internal import Bytes
internal import EventLog
internal import HTTP
internal import Schemas
internal import System
internal import Zlib

/// The routes of telemetry on one event loop: `POST /v1/telemetry` (NDJSON) and `POST /v1/metrics`
/// (OTLP/HTTP, JSON).
///
/// A request is read whole; what is good of it becomes records, one or a few a device, which are handed
/// to the log when the round of the loop ends, and is answered at once (topic `telemetry` is queued).
/// Where a device of it is not in memory, the request waits here while the database is read.
///
/// `@unchecked Sendable`: everything mutable is touched on the loop's own thread only. Other threads
/// hold it to post work to that thread through the loop's mailbox.
final class TelemetryAPI: Routes, DeviceWaiting, @unchecked Sendable {
    /// Largest body, packed and unpacked.
    static let bodyBytes = 1 << 20
    /// Bytes of requests that may wait for the database on one loop.
    private static let waitingBytes = 16 << 20
    /// A batch goes to the log before its round ends if it has so many bytes.
    private static let batchBytes = 1 << 20

    private enum Form { case lines, metrics }

    private final class Waiting {
        let form: Form
        let time: EventTime
        let response: DeferredResponse
        var request: TelemetryRequest
        /// Devices that are still being read.
        var open: Int

        init(
            _ form: Form, _ time: EventTime, _ response: DeferredResponse,
            _ request: TelemetryRequest, open: Int
        ) {
            self.form = form
            self.time = time
            self.response = response
            self.request = request
            self.open = open
        }
    }

    private let state: IngestState
    private let telemetry: TelemetryState
    private var mailbox: LoopMailbox?
    private var lineReader = TelemetryReader()
    private var metricsReader = MetricsReader()
    /// Made with the first packed body.
    private var unpacker: Unpacker?
    private var records = RecordBatch(.telemetry)
    /// Devices that are being read, by the number under which the answer comes: whose they are, and
    /// which of its groups.
    private var reads: [UInt64: (waiting: Waiting, group: Int)] = [:]
    private var lastRead: UInt64 = 0
    private var waitingSize = 0
    private var body = ByteBuffer()

    init(_ state: IngestState, _ telemetry: TelemetryState) {
        self.state = state
        self.telemetry = telemetry
    }

    func attached(to loop: LoopContext) { mailbox = loop.mailbox }

    func bodyLimit(_ head: borrowing RequestHead) -> Int? {
        head.pathIs("/v1/telemetry") || head.pathIs("/v1/metrics") ? Self.bodyBytes : nil
    }

    // MARK: - Requests

    func handle(_ request: borrowing Request, _ exchange: borrowing Exchange) -> Bool {
        guard request.pathHasPrefix("/v1/") else { return false }
        let form: Form
        if request.pathIs("/v1/telemetry") {
            form = .lines
        } else if request.pathIs("/v1/metrics") {
            form = .metrics
        } else {
            return false
        }
        let name = form == .lines ? RouteNames.Public.telemetry : .metrics
        exchange.count(as: name.rawValue)
        guard request.method == .post else {
            exchange.methodNotAllowed(allow: "POST")
            return true
        }
        // First of all: whoever must come again costs as little as can be.
        guard hasRoom(for: request.bodyBytes),
            exchange.counters.bytesInFlight <= state.overloadBytes
        else {
            refuse(exchange)
            return true
        }
        if form == .metrics, let type = request.header("content-type"),
            type.lowercased().hasPrefix("application/x-protobuf")
        {
            exchange.respondError(.unsupportedMediaType, "metrics are taken as application/json")
            return true
        }
        var read = TelemetryRequest()
        switch request.header("content-encoding")?.lowercased() {
        case nil, "", "identity":
            guard request.withBody({ take($0, form, into: &read, exchange) }) else { return true }
        case "gzip", "x-gzip":
            guard request.withBody({ unpack($0, form, into: &read, exchange) }) else {
                return true
            }
        default:
            exchange.respondError(
                .unsupportedMediaType, "unknown content encoding",
                headers: [Header("Accept-Encoding", "gzip")])
            return true
        }
        let peer = request.withPeerName { name -> Peer in
            guard let name else { return .anyone }
            return DeviceID(parsing: name).map { .device($0) } ?? .nobody
        }
        complete(read, form, peer, exchange)
        return true
    }

    /// Whom the client's certificate names.
    private enum Peer {
        /// It showed none.
        case anyone
        case device(DeviceID)
        case nobody

        func mayBe(_ device: DeviceID) -> Bool {
            switch self {
            case .anyone: true
            case .device(let own): own == device
            case .nobody: false
            }
        }
    }

    private func hasRoom(for bytes: Int) -> Bool {
        state.producer.queuedBytes + records.sizeBytes + bytes <= telemetry.queueBytes
    }

    private func refuse(_ exchange: borrowing Exchange) {
        telemetry.counters.addUnavailable()
        exchange.overloaded()
    }

    /// - Returns: `false` if the request has been answered.
    private func unpack(
        _ packed: Span<UInt8>, _ form: Form, into read: inout TelemetryRequest,
        _ exchange: borrowing Exchange
    ) -> Bool {
        do throws(ZlibError) {
            let unpacker: Unpacker
            if let made = self.unpacker {
                unpacker = made
            } else {
                unpacker = try Unpacker(limit: Self.bodyBytes)
                self.unpacker = unpacker
            }
            try unpacker.unpack(packed)
            return unpacker.withOutput { take($0, form, into: &read, exchange) }
        } catch {
            switch error {
            case .tooLarge: exchange.respondError(.contentTooLarge, "content too large")
            case .outOfMemory: exchange.respondError(.internalServerError, "telemetry failed")
            case .damaged, .truncated: exchange.respondError(.badRequest, "invalid gzip")
            }
            return false
        }
    }

    /// - Returns: `false` if the request has been answered.
    private func take(
        _ body: Span<UInt8>, _ form: Form, into read: inout TelemetryRequest,
        _ exchange: borrowing Exchange
    ) -> Bool {
        switch form {
        case .lines:
            lineReader.read(body, into: &read) { state.nextOrigin() }
            if read.rejected == 0, read.accepted == 0 {
                exchange.respondError(.badRequest, "empty body")
                return false
            }
        case .metrics:
            let fault = metricsReader.read(body, into: &read) { state.nextOrigin() }
            if let fault {
                self.body.removeAll()
                // `google.rpc.Status`; 3: INVALID_ARGUMENT.
                self.body.append("{\"code\":3,\"message\":\"")
                self.body.append(fault)
                self.body.append("\"}")
                let answer = self.body
                exchange.respond(.badRequest, contentType: "application/json", answer.span)
                return false
            }
        }
        read.finishAll { state.nextOrigin() }
        return true
    }

    /// Looks the devices up, and answers unless one of them has to be read.
    private func complete(
        _ read: consuming TelemetryRequest, _ form: Form, _ peer: Peer,
        _ exchange: borrowing Exchange
    ) {
        let time = EventTime(milliseconds: SystemClock.wallMilliseconds())
        let now = SystemClock.monotonicMilliseconds()
        var opened: [(number: UInt64, group: Int)] = []
        var isFull = false
        let mayWait = waitingSize + read.sizeBytes <= Self.waitingBytes
        for group in read.groups.indices {
            let device = read.groups[group].device
            guard peer.mayBe(device) else {
                read.refuse(group, .foreign)
                continue
            }
            let lookup = state.cache.lookUp(device, now: now) {
                mayWait ? DeviceWaiter(receiver: self, number: lastRead + 1) : nil
            }
            switch lookup {
            case .found(let answer):
                if answer.isSuspended { read.refuse(group, .suspended) }
            case .unknown: read.refuse(group, .unknown)
            case .waiting(let load):
                lastRead += 1
                opened.append((lastRead, group))
                if let load {
                    state.loadQueue.append(LoadQueue.Item(device: device, ticket: load))
                }
            case .full: isFull = true
            }
            if isFull { break }
        }
        // What was asked of the database meanwhile will be known when the client comes again.
        if isFull { return refuse(exchange) }
        guard opened.isEmpty else {
            waitingSize += read.sizeBytes
            let waiting = Waiting(form, time, exchange.deferred(), read, open: opened.count)
            for (number, group) in opened { reads[number] = (waiting, group) }
            return
        }
        publish(read, at: time)
        let status = answer(read, form)
        let body = body
        exchange.respond(status, contentType: "application/json", body.span)
    }

    // MARK: - Answers of the database

    /// Called on the loader's thread.
    func post(_ outcome: ConfigCache.Shard.Outcome, to number: UInt64) {
        mailbox?.post { self.resolve(number, outcome) }
    }

    private func resolve(_ number: UInt64, _ outcome: ConfigCache.Shard.Outcome) {
        guard let (waiting, group) = reads.removeValue(forKey: number), waiting.open > 0 else {
            return
        }
        switch outcome {
        case .found(let answer):
            if answer.isSuspended { waiting.request.refuse(group, .suspended) }
        case .unknown: waiting.request.refuse(group, .unknown)
        case .failed:
            // Nothing of it has been taken: all of it may come again.
            end(waiting)
            return sendAway(waiting)
        }
        waiting.open -= 1
        guard waiting.open == 0 else { return }
        waitingSize -= waiting.request.sizeBytes
        guard hasRoom(for: waiting.request.sizeBytes) else { return sendAway(waiting) }
        publish(waiting.request, at: waiting.time)
        let status = answer(waiting.request, waiting.form)
        waiting.response.respond(status, contentType: "application/json", body)
        submit()
    }

    private func end(_ waiting: Waiting) {
        waiting.open = 0
        waitingSize -= waiting.request.sizeBytes
    }

    private func sendAway(_ waiting: Waiting) {
        telemetry.counters.addUnavailable()
        var body = ByteBuffer()
        body.append("{\"error\":\"telemetry failed\"}")
        // Spread, so that they do not all come again at once.
        waiting.response.respond(
            .serviceUnavailable, contentType: "application/json",
            headers: [Header("Retry-After", String(UInt32.random(in: 1...10)))], body)
    }

    // MARK: - Answers

    /// Fills `body`.
    private func answer(_ read: TelemetryRequest, _ form: Form) -> Status {
        telemetry.counters.add(accepted: read.accepted, rejected: read.rejected)
        body.removeAll()
        switch form {
        case .lines: return answerLines(read)
        case .metrics:
            answerMetrics(read)
            return .ok
        }
    }

    private func answerLines(_ read: TelemetryRequest) -> Status {
        let accepted = read.accepted
        body.append("{")
        if accepted == 0 { body.append("\"error\":\"no line was accepted\",") }
        body.append("\"accepted\":")
        body.append(decimal: Int64(accepted))
        body.append(",\"rejected\":")
        body.append(decimal: Int64(read.rejected))
        body.append(",\"errors\":[")
        var isFirst = true
        for fault in read.listed {
            body.append(isFirst ? "{\"line\":" : ",{\"line\":")
            isFirst = false
            body.append(decimal: Int64(fault.line))
            body.append(",\"error\":\"")
            body.append(fault.reason)
            body.append("\"}")
        }
        body.append("]}")
        if accepted > 0 { return .ok }
        return read.forbidden == read.rejected ? .forbidden : .badRequest
    }

    /// `ExportMetricsServiceResponse`.
    private func answerMetrics(_ read: TelemetryRequest) {
        guard read.rejected > 0 else { return body.append("{}") }
        body.append("{\"partialSuccess\":{\"rejectedDataPoints\":\"")
        body.append(decimal: Int64(read.rejected))
        body.append("\",\"errorMessage\":\"")
        if let first = read.listed.first {
            body.append("data point ")
            body.append(decimal: Int64(first.line))
            body.append(": ")
            body.append(first.reason)
        }
        body.append("\"}}")
    }

    // MARK: - To the log

    private func publish(_ read: TelemetryRequest, at time: EventTime) {
        read.append(to: &records, at: time, partitions: telemetry.partitions)
        if records.sizeBytes >= Self.batchBytes { submit() }
    }

    func roundEnded() { submit() }

    func tick() { submit() }

    private func submit() {
        guard !records.isEmpty else { return }
        let count = UInt64(records.count)
        let receipt = DeliveryReceipt(telemetry.losses, token: count)
        switch state.producer.send(records, receipt: receipt) {
        case .accepted: break
        // Heartbeats of this very moment filled it.
        case .queueFull, .closed: telemetry.counters.addLost(count)
        }
        records.removeAll()
    }
}

/// Holds what unpacks bodies, so that it is made once and only where somebody packs them.
private final class Unpacker {
    private var inflate: Inflate

    init(limit: Int) throws(ZlibError) { inflate = try Inflate(limit: limit) }

    func unpack(_ bytes: Span<UInt8>) throws(ZlibError) { try inflate.unpack(bytes) }

    func withOutput<Result>(_ body: (Span<UInt8>) -> Result) -> Result { inflate.withOutput(body) }
}
