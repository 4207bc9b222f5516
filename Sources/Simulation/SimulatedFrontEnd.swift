internal import Bytes
internal import EventLog
internal import Ingest
internal import Schemas

/// A front-end of the world: the production ledger of beacons and the production event encoders, on
/// modelled sockets, clocks, and a bounded queue on its way to the log.
struct SimulatedFrontEnd {
    enum Hang { case loop, process }

    /// Records that go to the log together or not at all.
    struct Batch {
        enum Content {
            case heartbeat
            case beacon(token: UInt64)
        }

        var content: Content
        var records: [(partition: Int, record: SimulatedRecord, note: Oracle.Record)]
        var queuedAt: Int64
    }

    /// A heartbeat that a hung front-end has not read yet.
    struct Waiting {
        var device: Int
        var heartbeat: Heartbeat
        var sentAt: Int64
    }

    let index: Int
    let name: InlineText
    /// Records that its queue takes.
    let capacity: Int
    /// Parts in a million by which its monotonic and its wall clock run fast.
    let drift: Int64
    let wallDrift: Int64
    private(set) var boot: UInt64 = 0
    private(set) var isUp = false
    var isCut = false
    private(set) var hang: Hang?
    var wallOffset: Int64
    /// Its wall clock was set since the last beacon that was queued.
    private(set) var hasJumped = false
    private(set) var queue: [Batch] = []
    private(set) var queued = 0
    var sockets: [Waiting] = []
    /// Heartbeats that were shed or failed in this boot.
    private(set) var losses: UInt64 = 0
    private var counter: UInt64 = 0
    private var ledger = BeaconLedger()
    private var lastToken: UInt64 = 0
    private var monotonicStart: Int64 = 0
    /// Up to where all that was accepted is queued, while its loop hangs.
    private var frozenReading: (monotonic: Int64, time: Int64) = (0, 0)

    init(
        index: Int, capacity: Int, drift: Int64, wallDrift: Int64, wallOffset: Int64
    ) {
        self.index = index
        name = InlineText("front-\(index)")
        self.capacity = capacity
        self.drift = drift
        self.wallDrift = wallDrift
        self.wallOffset = wallOffset
    }

    // MARK: - Clocks

    func monotonic(_ now: Int64) -> Int64 { monotonicStart + now + now * drift / 1_000_000 }

    func wall(_ now: Int64) -> EventTime {
        EventTime(milliseconds: World.epoch + now + wallOffset + now * wallDrift / 1_000_000)
    }

    mutating func setWall(by step: Int64) {
        wallOffset += step
        if isUp { hasJumped = true }
    }

    // MARK: - Life

    mutating func start(boot: UInt64, monotonicStart: Int64) {
        self.boot = boot
        self.monotonicStart = monotonicStart
        isUp = true
        hang = nil
        hasJumped = false
        counter = 0
        losses = 0
        ledger = BeaconLedger()
        lastToken = 0
    }

    /// What was queued and what waited in sockets is gone.
    mutating func crash() {
        isUp = false
        hang = nil
        queue.removeAll()
        queued = 0
        sockets.removeAll()
    }

    mutating func beginHang(_ kind: Hang, at now: Int64) {
        hang = kind
        frozenReading = (monotonic(now), now)
    }

    /// - Returns: what waited in its sockets, to be read now.
    mutating func endHang() -> [Waiting] {
        hang = nil
        defer { sockets.removeAll() }
        return sockets
    }

    // MARK: - To its queue

    /// - Returns: whether the queue took it; otherwise it is shed, counted, and declared by a beacon.
    mutating func accept(
        _ heartbeat: Heartbeat, of device: Int, key: ByteBuffer, partition: Int, at now: Int64
    ) -> Bool {
        guard queued < capacity else {
            losses += 1
            return false
        }
        var heartbeat = heartbeat
        heartbeat.origin = nextOrigin()
        heartbeat.configVersion = 1
        var value = ByteBuffer()
        value.append(heartbeat)
        append(
            Batch(
                content: .heartbeat,
                records: [
                    (
                        partition,
                        SimulatedRecord(key: key, value: value, timestamp: wall(now)),
                        Oracle.Record(
                            kind: .heartbeat(isStopped: heartbeat.status == .stopped),
                            subject: device, time: now)
                    )
                ], queuedAt: now))
        return true
    }

    /// - Returns: whether the queue took it, and whether it declares a loss.
    mutating func writeBeacon(
        partitions: Int, isLeaving: Bool = false, at now: Int64
    ) -> (isQueued: Bool, isLossy: Bool) {
        let reading = hang == nil ? (monotonic(now), now) : frozenReading
        let claim = ledger.claim(readings: [reading.0], losses: losses)
        lastToken += 1
        ledger.sent(claim, token: lastToken)
        guard queued < capacity else {
            ledger.settled(token: lastToken, isStored: false)
            return (false, claim.isLossy)
        }
        let age = monotonic(now) - claim.monotonicMilliseconds
        var batch = Batch(content: .beacon(token: lastToken), records: [], queuedAt: now)
        for partition in 0..<partitions {
            var value = ByteBuffer()
            value.append(
                Beacon(
                    frontEnd: name, origin: nextOrigin(),
                    monotonicMilliseconds: claim.monotonicMilliseconds, isLossy: claim.isLossy,
                    isLeaving: isLeaving, isBehind: claim.isBehind))
            batch.records.append(
                (
                    partition,
                    SimulatedRecord(
                        key: ByteBuffer(copying: name.span), value: value,
                        timestamp: wall(now) + -age),
                    Oracle.Record(
                        kind: .beacon(isWell: !claim.isLossy), subject: index, time: reading.1)
                ))
        }
        append(batch)
        // A claim of before the hang tells nothing new, and is passed over as a repeat.
        if hang == nil { hasJumped = false }
        return (true, claim.isLossy)
    }

    private mutating func append(_ batch: Batch) {
        queued += batch.records.count
        queue.append(batch)
    }

    private mutating func nextOrigin() -> EventOrigin {
        counter += 1
        return EventOrigin(boot: boot, counter: counter)
    }

    // MARK: - From its queue

    mutating func takeQueue() -> [Batch] {
        defer {
            queue.removeAll()
            queued = 0
        }
        return queue
    }

    /// An acknowledgement was lost: it will be sent again, before all that follows.
    mutating func putBack(_ batches: [Batch]) {
        queue.insert(contentsOf: batches, at: 0)
        for batch in batches { queued += batch.records.count }
    }

    mutating func settle(_ batch: Batch, isStored: Bool) {
        switch batch.content {
        case .heartbeat: if !isStored { losses += 1 }
        case .beacon(let token): ledger.settled(token: token, isStored: isStored)
        }
    }
}
