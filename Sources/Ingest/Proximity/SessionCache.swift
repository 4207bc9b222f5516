internal import Schemas

/// Sessions that are known to be open, in bounded memory: a value without clock, thread or database.
///
/// What is known holds only while the ends of sessions are listened to (`isTrusted`). A read of the
/// database that an end may have overtaken is not kept.
///
/// Times are milliseconds of a clock that does not go back.
struct SessionCache: Sendable {
    struct Entry: Sendable, Equatable {
        var account: AccountID
        var expiresAt: Int64
    }

    /// What was known when a read of the database began.
    struct Reading: Sendable {
        fileprivate var epoch: UInt64
        fileprivate var number: UInt64
    }

    /// Two halves, so that what is not used any more goes without a list of uses.
    private var young: [SessionID: Entry] = [:]
    private var old: [SessionID: Entry] = [:]
    private let halfLimit: Int
    /// Until when what is here holds.
    private var trustedUntil: Int64 = .min
    /// Grows whenever ends may have been missed.
    private var epoch: UInt64 = 0
    private var readings: UInt64 = 0
    /// Ends that came during readings that go on: the last reading that each must spoil.
    private var ended: [SessionID: UInt64] = [:]
    private var openReadings: Set<UInt64> = []

    /// - Parameter limit: sessions that are kept.
    init(limit: Int) { halfLimit = max(1, limit / 2) }

    var count: Int { young.count + old.count }

    func isTrusted(now: Int64) -> Bool { now < trustedUntil }

    /// The account of an open session; `nil` if that must be asked of the database.
    mutating func account(of session: SessionID, now: Int64) -> AccountID? {
        entry(of: session, now: now)?.account
    }

    /// The same, with the time up to which it is open.
    mutating func entry(of session: SessionID, now: Int64) -> Entry? {
        guard isTrusted(now: now) else { return nil }
        if let entry = young[session] { return entry.expiresAt > now ? entry : nil }
        guard let entry = old.removeValue(forKey: session), entry.expiresAt > now else {
            return nil
        }
        insert(session, entry)
        return entry
    }

    /// Ends were heard of without a gap up to a moment not long before `until`.
    mutating func trust(until: Int64) { trustedUntil = max(trustedUntil, until) }

    /// Ends may have been missed: nothing that was known before holds.
    mutating func distrust() {
        young = [:]
        old = [:]
        trustedUntil = .min
        epoch += 1
    }

    mutating func beginReading() -> Reading {
        readings += 1
        openReadings.insert(readings)
        return Reading(epoch: epoch, number: readings)
    }

    /// Takes what a reading found open; of what it did not find there is nothing to keep.
    /// - Returns: the sessions that ended while it was read.
    mutating func endReading(
        _ reading: Reading, found: [(SessionID, Entry)]
    ) -> Set<SessionID> {
        var late: Set<SessionID> = []
        for (session, entry) in found {
            if let last = ended[session], last >= reading.number {
                late.insert(session)
            } else if reading.epoch == epoch {
                insert(session, entry)
            }
        }
        openReadings.remove(reading.number)
        if openReadings.isEmpty { ended = [:] }
        return late
    }

    mutating func end(_ session: SessionID) {
        young[session] = nil
        old[session] = nil
        if !openReadings.isEmpty { ended[session] = readings }
    }

    private mutating func insert(_ session: SessionID, _ entry: Entry) {
        if young.count >= halfLimit, young[session] == nil {
            old = young
            young = [:]
        }
        old[session] = nil
        young[session] = entry
    }
}
