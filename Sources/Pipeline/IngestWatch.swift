internal import Postgres
internal import Schemas
internal import Sinks
internal import Processors
internal import EventLog

/// Decides when no front-end reports any more (`ingest-silent`): no beacon at the end of the log, by
/// the worker's own monotonic clock. What is known of the alert stands in the database, so that it
/// opens once an outage, however many workers watch and restart.
struct IngestWatch: Sendable {
    private enum Belief { case unknown, clear, open }
    private enum Question { case open, resolve }

    /// Age at which the belief that all is clear is put to the database again.
    private static let confirmation: Int64 = 60_000

    private let limit: Int64?
    private var belief = Belief.unknown
    /// When the database confirmed it last.
    private var confirmed: Int64
    /// Since when silence counts: the last beacon, or the last time that the worker was not at the
    /// end of the log.
    private var quietSince: Int64
    private var lastBeacon: EventTime?
    private var lastStep: Int64
    private var asked: (question: Question, ticket: UInt64)?
    private var notBefore: Int64 = 0
    private var failures = 0

    init(limit: Int64?, now: Int64) {
        self.limit = limit
        quietSince = now
        lastStep = now
        confirmed = now
    }

    var isOpen: Bool { belief == .open }

    mutating func sawBeacon(_ time: EventTime, now: Int64) {
        lastBeacon = max(time, lastBeacon ?? time)
        quietSince = now
    }

    /// What to ask the database, if anything.
    /// - Parameter isAtEnd: everything that the log has is read, in every partition.
    mutating func decide(isAtEnd: Bool, ticket: UInt64, now: Int64) -> StoreRequest.Action? {
        guard let limit else { return nil }
        // A process that was stopped for a while has not watched in the meantime.
        if !isAtEnd || now - lastStep > 5_000 { quietSince = now }
        lastStep = now
        guard asked == nil, now >= notBefore, isAtEnd else { return nil }
        if now - quietSince >= limit {
            guard belief != .open else { return nil }
            asked = (.open, ticket)
            return .openIngestSilent(since: lastBeacon)
        }
        // Another worker may have opened it and lost its partitions since: nobody but us would end it.
        guard belief != .clear || now - confirmed >= Self.confirmation, let lastBeacon else {
            return nil
        }
        asked = (.resolve, ticket)
        return .resolveIngestSilent(beacon: lastBeacon)
    }

    mutating func take(_ ticket: UInt64, isOpen: Bool, now: Int64) {
        guard asked?.ticket == ticket else { return }
        // An alert that was not opened because another worker saw a later beacon is judged anew.
        if asked?.question == .open, !isOpen { quietSince = now }
        asked = nil
        failures = 0
        belief = isOpen ? .open : .clear
        confirmed = now
        // Still open after a beacon: it came from before the outage. Ask again with a later one.
        notBefore = now + 1_000
    }

    /// `false` if the ticket is not of this watch.
    mutating func takeFailure(of ticket: UInt64, now: Int64) -> Bool {
        guard asked?.ticket == ticket else { return false }
        asked = nil
        failures += 1
        notBefore = now + Backoff().delay(afterFailures: failures)
        return true
    }

    /// The store had no room for the question.
    mutating func putBack(now: Int64) {
        asked = nil
        notBefore = now + 10
    }

    var wakeTime: Int64? {
        guard let limit, asked == nil, belief != .open else { return nil }
        return max(quietSince + limit, notBefore)
    }
}

extension Worker {
    mutating func watchIngest(polled: Int) {
        guard settings.ingestSilentAfter != nil, !partitions.isEmpty else { return }
        var isAtEnd = polled < settings.pollLimit && !status.isPaused && status.logFault == nil
        for index in partitions.indices where partitions[index].phase != .running {
            isAtEnd = false
        }
        let ticket = newTicket()
        guard let action = watch.decide(isAtEnd: isAtEnd, ticket: ticket, now: now) else { return }
        if !store.submit(StoreRequest(ticket: ticket, partition: 0, action: action)) {
            watch.putBack(now: now)
        }
    }
}
