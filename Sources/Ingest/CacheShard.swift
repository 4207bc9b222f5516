public import Bytes
package import Schemas

/// A device's answer to its heartbeats, complete.
public struct DeviceAnswer: Sendable, Equatable, CustomStringConvertible {
    /// The registry's version of the device.
    public var version: Int64
    /// Suspended devices are answered 403, and `body` is empty.
    public var isSuspended: Bool
    /// The JSON of a 200. Holds secrets: goes to the device alone.
    public var body: ByteBuffer

    public init(version: Int64, isSuspended: Bool, body: ByteBuffer) {
        self.version = version
        self.isSuspended = isSuspended
        self.body = body
    }

    public var description: String {
        "DeviceAnswer(version: \(version), isSuspended: \(isSuspended), body: hidden)"
    }
}

/// Bounds of a cache of answers.
public struct CacheLimits: Sendable {
    /// Devices whose answers are kept.
    public var entries = 2_000_000
    /// Bytes of answers, with an estimate of what keeping one costs.
    public var bytes = 1 << 30
    /// Devices that are being read from the database at one time.
    public var pending = 16_384
    /// Heartbeats that wait for those reads.
    public var waiters = 32_768
    /// Ids that no device has, remembered so that they are not asked for again and again.
    public var unknown = 65_536
    /// How long an unknown id is believed to be unknown.
    public var unknownMilliseconds: Int64 = 5_000

    public init() {}

    func divided(by shards: Int) -> CacheLimits {
        var result = self
        result.entries = max(1, entries / shards)
        result.bytes = max(1, bytes / shards)
        result.pending = max(1, pending / shards)
        result.waiters = max(1, waiters / shards)
        result.unknown = max(1, unknown / shards)
        return result
    }
}

/// The decisions of a cache that is filled by reading a database and told of changes by a bell.
///
/// Two ways lead here and race: what a read found, and what the bell says. The rule is that the
/// highest version wins. A change that is rung while a read is under way may be missing from what
/// that read found, so a read that found less than was rung is done again. Once the bell rang
/// version `v` nothing older than `v` is answered.
///
/// A value without I/O and clock: time comes in as `now`, monotonic milliseconds.
package struct CacheShard<Waiter: Sendable>: Sendable {
    package enum Lookup {
        case found(DeviceAnswer)
        case unknown
        /// The waiter was taken. With a ticket the caller must see that the device is read.
        case waiting(load: UInt64?)
        /// Too many wait already; the waiter was not taken.
        case full
    }

    package enum Outcome: Sendable, Equatable {
        case found(DeviceAnswer)
        case unknown
        /// The database could not be read.
        case failed
    }

    package enum Loaded {
        /// What was read is older than what the bell said: read again.
        case again
        case resolved(Outcome, [Waiter])
        /// Nobody waits for this read any more.
        case obsolete
    }

    private struct Entry {
        var device: DeviceID
        var answer: DeviceAnswer
        var wasUsed: Bool
    }

    private struct Pending {
        var ticket: UInt64
        var waiters: [Waiter]
        /// The highest version that was rung since the read was asked for.
        var required: Int64 = 0
        /// The device was removed, or everything is in doubt, since the read began.
        var isStale = false
        var attempts = 0
    }

    private struct Unknown {
        var until: Int64
        var slot: Int
    }

    private let limits: CacheLimits
    private var places: [DeviceID: Int] = [:]
    private var entries: ContiguousArray<Entry> = []
    private var hand = 0
    private var pendings: [DeviceID: Pending] = [:]
    private var waiterCount = 0
    private var lastTicket: UInt64 = 0
    private var unknowns: [DeviceID: Unknown] = [:]
    /// Remembered unknown ids in the order they came; the oldest is overwritten.
    private var unknownRing: ContiguousArray<DeviceID> = []
    private var unknownNext = 0

    package private(set) var sizeBytes = 0
    package var count: Int { entries.count }
    package var pendingCount: Int { pendings.count }
    package var unknownCount: Int { unknowns.count }

    /// Reads of one device that may find too little before its heartbeats are answered 500.
    private static var maximumAttempts: Int { 5 }

    package init(limits: CacheLimits) { self.limits = limits }

    /// What to answer to a device now. `waiter` is called only if it has to wait, and may refuse by
    /// `nil`.
    package mutating func lookUp(
        _ device: DeviceID, now: Int64, waiter: () -> Waiter?
    ) -> Lookup {
        if let place = places[device] {
            if !entries[place].wasUsed { entries[place].wasUsed = true }
            return .found(entries[place].answer)
        }
        if pendings[device] != nil {
            guard waiterCount < limits.waiters, let waiter = waiter() else { return .full }
            pendings[device]!.waiters.append(waiter)
            waiterCount += 1
            return .waiting(load: nil)
        }
        if let unknown = unknowns[device] {
            if now < unknown.until { return .unknown }
            unknowns[device] = nil
        }
        guard pendings.count < limits.pending, waiterCount < limits.waiters,
            let waiter = waiter()
        else { return .full }
        lastTicket += 1
        pendings[device] = Pending(ticket: lastTicket, waiters: [waiter])
        waiterCount += 1
        return .waiting(load: lastTicket)
    }

    /// A read found `answer`, or no such device.
    package mutating func loaded(
        _ device: DeviceID, ticket: UInt64, _ answer: DeviceAnswer?, now: Int64
    ) -> Loaded {
        guard var pending = pendings[device], pending.ticket == ticket else { return .obsolete }
        if pending.isStale || (answer?.version ?? 0) < pending.required {
            pending.isStale = false
            pending.attempts += 1
            guard pending.attempts < Self.maximumAttempts else {
                return finish(device, .failed)
            }
            pendings[device] = pending
            return .again
        }
        guard let answer else {
            remember(unknown: device, until: now + limits.unknownMilliseconds)
            return finish(device, .unknown)
        }
        insert(device, answer)
        return finish(device, .found(answer))
    }

    /// A read failed.
    package mutating func failed(_ device: DeviceID, ticket: UInt64) -> Loaded {
        guard let pending = pendings[device], pending.ticket == ticket else { return .obsolete }
        return finish(device, .failed)
    }

    /// The bell: the device is at `version` now. Repeats and older versions change nothing.
    package mutating func changed(_ device: DeviceID, version: Int64, isSuspended: Bool) {
        unknowns[device] = nil
        if pendings[device] != nil {
            pendings[device]!.required = max(pendings[device]!.required, version)
        }
        guard let place = places[device], entries[place].answer.version < version else { return }
        if isSuspended {
            // All that a 403 needs is known.
            replace(
                at: place, DeviceAnswer(version: version, isSuspended: true, body: ByteBuffer()))
        } else {
            remove(at: place)
        }
    }

    /// The bell: the device is gone.
    package mutating func removed(_ device: DeviceID) {
        pendings[device]?.isStale = true
        // A version counts from 1 again if the same id ever returns.
        pendings[device]?.required = 0
        if let place = places[device] { remove(at: place) }
    }

    /// The bell was out of order for a while: whatever is known may be old.
    package mutating func forgetAll() {
        places.removeAll(keepingCapacity: true)
        entries.removeAll(keepingCapacity: true)
        hand = 0
        sizeBytes = 0
        unknowns.removeAll()
        unknownRing.removeAll()
        unknownNext = 0
        for device in Array(pendings.keys) { pendings[device]!.isStale = true }
    }

    private mutating func finish(_ device: DeviceID, _ outcome: Outcome) -> Loaded {
        guard let pending = pendings.removeValue(forKey: device) else { return .obsolete }
        waiterCount -= pending.waiters.count
        return .resolved(outcome, pending.waiters)
    }

    // MARK: - Entries, with second chances

    /// Bytes that an answer takes: its own, and about what its dictionary place, entry and
    /// allocation cost.
    private static func cost(_ answer: DeviceAnswer) -> Int { answer.body.count + 160 }

    private mutating func insert(_ device: DeviceID, _ answer: DeviceAnswer) {
        let cost = Self.cost(answer)
        guard cost <= limits.bytes else { return }
        while !entries.isEmpty, entries.count >= limits.entries || sizeBytes + cost > limits.bytes {
            evictOne()
        }
        sizeBytes += cost
        places[device] = entries.count
        entries.append(Entry(device: device, answer: answer, wasUsed: false))
    }

    private mutating func evictOne() {
        while true {
            if hand >= entries.count { hand = 0 }
            if !entries[hand].wasUsed { break }
            entries[hand].wasUsed = false
            hand += 1
        }
        remove(at: hand)
    }

    private mutating func replace(at place: Int, _ answer: DeviceAnswer) {
        sizeBytes += Self.cost(answer) - Self.cost(entries[place].answer)
        entries[place].answer = answer
    }

    private mutating func remove(at place: Int) {
        sizeBytes -= Self.cost(entries[place].answer)
        places[entries[place].device] = nil
        // The last entry takes the place, so that entries stay without gaps.
        let last = entries.removeLast()
        if place < entries.count {
            entries[place] = last
            places[last.device] = place
        }
    }

    // MARK: - Unknown ids

    private mutating func remember(unknown device: DeviceID, until: Int64) {
        if unknownRing.count < limits.unknown {
            unknowns[device] = Unknown(until: until, slot: unknownRing.count)
            unknownRing.append(device)
            return
        }
        let slot = unknownNext
        unknownNext = (unknownNext + 1) % unknownRing.count
        if unknowns[unknownRing[slot]]?.slot == slot { unknowns[unknownRing[slot]] = nil }
        unknownRing[slot] = device
        unknowns[device] = Unknown(until: until, slot: slot)
    }
}
