internal import Bytes
internal import EventLog
internal import HTTP
internal import Schemas
internal import System

/// The agents' routes on one event loop (agent contract): `POST /api/v1/heartbeat`.
///
/// A heartbeat of a known device becomes an event, gathered with those of its round and handed to
/// the log in one batch when the round ends, and is answered from memory. One of a device that is
/// not in memory waits here while the database is read.
///
/// `@unchecked Sendable`: everything mutable is touched on the loop's own thread only. Other
/// threads hold it to post work to that thread through the loop's mailbox.
final class AgentAPI: Routes, DeliveryReceiver, DeviceWaiting, @unchecked Sendable {
    private let state: IngestState
    private let reading: LoopReading
    private var mailbox: LoopMailbox?
    private var reader = HeartbeatReader()
    private var events = HeartbeatBatch()
    private var waiting = WaitingHeartbeats()
    private var tally = IngestCounters.Tally()
    /// Both clocks as this round read them; `nil` before its first heartbeat.
    private var round: (time: EventTime, monotonic: Int64)?
    private let losses: LossReceiver

    /// An answer that is held back until its event is safe.
    private struct Held {
        var response: DeferredResponse
        var body: ByteBuffer
    }

    /// Answers to the events of `batch`: all of them under `acked`, under `queued` those whose
    /// device had to be read.
    private var held: [Held] = []
    /// Under `acked`: answers by the token of their batch's delivery.
    private var undelivered: [UInt64: [Held]] = [:]
    private var lastToken: UInt64 = 0
    private var isFlushPosted = false

    init(_ state: IngestState, loop: Int) {
        self.state = state
        reading = state.readings[loop]
        losses = LossReceiver(state.counters)
    }

    func attached(to loop: LoopContext) { mailbox = loop.mailbox }

    // MARK: - Requests

    func handle(_ request: borrowing Request, _ exchange: borrowing Exchange) -> Bool {
        guard request.pathIs("/api/v1/heartbeat") else { return false }
        exchange.count(as: RouteNames.Public.heartbeat.rawValue)
        guard request.method == .post else {
            exchange.methodNotAllowed(allow: "POST")
            return true
        }
        switch request.withBody({ reader.read($0) }) {
        case .heartbeat(let heartbeat):
            guard isAllowed(heartbeat.device, request) else {
                tally.forbidden += 1
                exchange.respondError(.forbidden, "certificate does not match device")
                return true
            }
            handle(heartbeat, exchange)
        case .invalidJSON:
            tally.badRequest += 1
            exchange.respondError(.badRequest, "invalid json")
        case .invalidDeviceID:
            tally.badRequest += 1
            exchange.respondError(.badRequest, "invalid device id")
        case .outOfMemory: fail(exchange)
        }
        return true
    }

    /// Whether the client's certificate, if it showed one, is that of the device it speaks for.
    private func isAllowed(_ device: DeviceID, _ request: borrowing Request) -> Bool {
        request.withPeerName { name in
            guard let name else { return true }
            return DeviceID(parsing: name) == device
        }
    }

    private func handle(_ heartbeat: Heartbeat, _ exchange: borrowing Exchange) {
        let round = beginRound()
        let lookup = state.cache.lookUp(heartbeat.device, now: round.monotonic) {
            // Who has to wait is not known to be a device yet, and may be turned away.
            exchange.counters.bytesInFlight > state.overloadBytes
                ? nil : DeviceWaiter(receiver: self, number: waiting.nextNumber)
        }
        switch lookup {
        case .found(let answer):
            if answer.isSuspended {
                tally.forbidden += 1
                exchange.respondError(.forbidden, "device is suspended")
                return
            }
            append(heartbeat, version: answer.version, time: round.time)
            switch state.durability {
            case .queued:
                tally.accepted += 1
                exchange.respond(.ok, contentType: "application/json", answer.body.span)
            case .acked: held.append(Held(response: exchange.deferred(), body: answer.body))
            }
        case .unknown:
            tally.badRequest += 1
            exchange.respondError(.badRequest, "invalid device id")
        case .waiting(let load):
            tally.misses += 1
            waiting.append(
                WaitingHeartbeats.Item(
                    heartbeat: heartbeat, time: round.time, monotonic: round.monotonic,
                    response: exchange.deferred()))
            if let load {
                state.loadQueue.append(LoadQueue.Item(device: heartbeat.device, ticket: load))
            }
        case .full:
            tally.unavailable += 1
            tally.lost += 1
            exchange.overloaded()
        }
    }

    private func fail(_ exchange: borrowing Exchange) {
        tally.failed += 1
        tally.lost += 1
        exchange.respondError(.internalServerError, "heartbeat failed")
    }

    private func beginRound() -> (time: EventTime, monotonic: Int64) {
        if let round { return round }
        let now = (
            time: EventTime(milliseconds: SystemClock.wallMilliseconds()),
            monotonic: SystemClock.monotonicMilliseconds()
        )
        round = now
        return now
    }

    private func append(_ heartbeat: Heartbeat, version: Int64, time: EventTime) {
        var heartbeat = heartbeat
        heartbeat.configVersion = version
        heartbeat.origin = state.nextOrigin()
        if !heartbeat.flags.isEmpty { tally.flagged += 1 }
        events.append(heartbeat, time: time, partitions: state.partitions)
    }

    // MARK: - Answers of the database

    /// Called on the loader's thread.
    func post(_ outcome: ConfigCache.Shard.Outcome, to number: UInt64) {
        mailbox?.post { self.resolve(number, outcome) }
    }

    private func resolve(_ number: UInt64, _ outcome: ConfigCache.Shard.Outcome) {
        guard let item = waiting.remove(number) else { return }
        switch outcome {
        case .found(let answer) where answer.isSuspended:
            tally.forbidden += 1
            respond(item.response, .forbidden, "{\"error\":\"device is suspended\"}")
        case .found(let answer):
            append(item.heartbeat, version: answer.version, time: item.time)
            held.append(Held(response: item.response, body: answer.body))
        case .unknown:
            tally.badRequest += 1
            respond(item.response, .badRequest, "{\"error\":\"invalid device id\"}")
        case .failed:
            tally.failed += 1
            tally.lost += 1
            respond(item.response, .internalServerError, "{\"error\":\"heartbeat failed\"}")
        }
        // One read resolves many: their events go to the log together, behind the last of them.
        if !isFlushPosted {
            isFlushPosted = true
            mailbox?.post { self.flush() }
        }
    }

    private func flush() {
        isFlushPosted = false
        submit()
    }

    private func respond(_ response: DeferredResponse, _ status: Status, _ text: StaticString) {
        var body = ByteBuffer()
        body.append(text)
        response.respond(status, contentType: "application/json", body)
    }

    // MARK: - To the log

    func roundEnded() { submit() }

    func tick() { submit() }

    /// Hands the gathered events to the log, and answers what waited for that.
    private func submit() {
        if !events.records.isEmpty { send() }
        state.counters.add(tally)
        tally = IngestCounters.Tally()
        round = nil
    }

    /// Says up to when nothing is missing: what devices had sent by then has been read, and is in the
    /// log's queue or counted as lost. What waits for the database is not there yet: a beacon may
    /// claim the time before its receipt only.
    func caughtUp(to milliseconds: Int64) {
        submit()
        reading.publish(waiting.oldest.map { min($0 - 1, milliseconds) } ?? milliseconds)
    }

    private func send() {
        let count = UInt64(events.records.count)
        let receipt: DeliveryReceipt
        switch state.durability {
        case .queued: receipt = DeliveryReceipt(losses, token: count)
        case .acked:
            lastToken += 1
            receipt = DeliveryReceipt(self, token: lastToken)
        }
        let outcome = state.producer.send(events.records, receipt: receipt)
        events.removeAll()
        switch (outcome, state.durability) {
        case (.accepted, .queued): answerHeld()
        case (.accepted, .acked): undelivered[lastToken] = held
        case (.queueFull, .queued), (.closed, .queued):
            // The device's life is known to be lost to the log; its configuration is not lost to
            // the device. The next beacon tells.
            tally.shed += count
            tally.lost += count
            answerHeld()
        case (.queueFull, .acked), (.closed, .acked): refuse(held)
        }
        held.removeAll(keepingCapacity: true)
    }

    private func answerHeld() {
        for item in held { answer(item) }
    }

    private func answer(_ item: Held) {
        tally.accepted += 1
        item.response.respond(.ok, contentType: "application/json", item.body)
    }

    /// Their events will not be in the log: the devices must say it again.
    private func refuse(_ items: [Held]) {
        tally.unavailable += UInt64(items.count)
        tally.lost += UInt64(items.count)
        var body = ByteBuffer()
        body.append("{\"error\":\"heartbeat failed\"}")
        for item in items {
            // Spread, so that they do not all come again at once.
            let seconds = String(UInt32.random(in: 1...10))
            item.response.respond(
                .serviceUnavailable, contentType: "application/json",
                headers: [Header("Retry-After", seconds)], body)
        }
    }

    /// Called on a thread of the log.
    func delivered(_ token: UInt64, _ outcome: DeliveryOutcome) {
        let isStored = if case .stored = outcome { true } else { false }
        mailbox?.post { self.settle(token, isStored: isStored) }
    }

    private func settle(_ token: UInt64, isStored: Bool) {
        guard let items = undelivered.removeValue(forKey: token) else { return }
        if isStored {
            for item in items { answer(item) }
        } else {
            refuse(items)
        }
        submit()
    }
}

/// The events of a round, encoded.
private struct HeartbeatBatch {
    private(set) var records = RecordBatch(.heartbeats)
    private var key = ByteBuffer()
    private var value = ByteBuffer()

    mutating func append(_ heartbeat: Heartbeat, time: EventTime, partitions: Int32) {
        key.removeAll()
        key.append(heartbeat.device)
        value.removeAll()
        value.append(heartbeat)
        Self.append(key, value, time, partitions, to: &records)
    }

    private static func append(
        _ key: borrowing ByteBuffer, _ value: borrowing ByteBuffer, _ time: EventTime,
        _ partitions: Int32, to records: inout RecordBatch
    ) {
        records.append(
            partition: Partitioner.partition(of: key.span, count: partitions), timestamp: time,
            key: key.span, value: value.span)
    }

    mutating func removeAll() { records.removeAll() }
}

/// Counts events that were answered and then could not be stored. The token is their number.
final class LossReceiver: DeliveryReceiver {
    private let counters: IngestCounters

    init(_ counters: IngestCounters) { self.counters = counters }

    func delivered(_ token: UInt64, _ outcome: DeliveryOutcome) {
        if case .failed = outcome { counters.addLost(token) }
    }
}
