internal import EventLog
internal import Schemas
internal import Synchronization
internal import System

/// What the event loops of one front-end share.
final class IngestState: Sendable {
    let producer: any EventProducer
    let partitions: Int32
    let durability: Topic.Durability
    let cache: ConfigCache
    let counters = IngestCounters()
    let loadQueue: LoadQueue
    /// Bytes in flight above which nothing is read from the database any more.
    let overloadBytes: Int
    /// Random, and new at each start.
    let boot: UInt64
    /// For each event loop, the monotonic milliseconds up to which all that devices had sent it is in
    /// the log's queue, or counted as lost.
    let readings: [LoopReading]
    private let lastCounter = Atomic<UInt64>(0)

    init(
        producer: any EventProducer, partitions: Int32, durability: Topic.Durability,
        cache: ConfigCache, loadQueue: LoadQueue, overloadBytes: Int, boot: UInt64, loops: Int
    ) {
        self.producer = producer
        self.partitions = partitions
        self.durability = durability
        self.cache = cache
        self.loadQueue = loadQueue
        self.overloadBytes = overloadBytes
        self.boot = boot
        let now = SystemClock.monotonicMilliseconds()
        readings = (0..<loops).map { _ in LoopReading(now) }
    }

    /// A new event's origin; no two are the same.
    func nextOrigin() -> EventOrigin {
        EventOrigin(
            boot: boot, counter: lastCounter.wrappingAdd(1, ordering: .relaxed).newValue)
    }
}

final class LoopReading: Sendable {
    private let milliseconds: Atomic<Int64>

    init(_ start: Int64) { milliseconds = Atomic(start) }

    /// Only the loop itself calls this, after it handed over its events or counted them as lost.
    func publish(_ value: Int64) { milliseconds.store(value, ordering: .releasing) }

    var value: Int64 { milliseconds.load(ordering: .acquiring) }
}

/// What a front-end counts. Readable from any thread; a value is up to one round of a loop old.
public final class IngestCounters: Sendable {
    private let acceptedCount = Atomic<UInt64>(0)
    private let shedCount = Atomic<UInt64>(0)
    private let lostCount = Atomic<UInt64>(0)
    private let badRequestCount = Atomic<UInt64>(0)
    private let forbiddenCount = Atomic<UInt64>(0)
    private let failedCount = Atomic<UInt64>(0)
    private let unavailableCount = Atomic<UInt64>(0)
    private let flaggedCount = Atomic<UInt64>(0)
    private let missCount = Atomic<UInt64>(0)
    private let beaconCount = Atomic<UInt64>(0)

    init() {}

    /// Heartbeats answered 200.
    public var accepted: UInt64 { acceptedCount.load(ordering: .relaxed) }
    /// Of these, events that the log's full queue refused.
    public var shed: UInt64 { shedCount.load(ordering: .relaxed) }
    /// Heartbeats that are not in the log for a reason of ours: shed, failed in delivery, or
    /// answered 500 or 503. Beacons declare them.
    public var lost: UInt64 { lostCount.load(ordering: .acquiring) }
    /// Heartbeats answered 400.
    public var badRequest: UInt64 { badRequestCount.load(ordering: .relaxed) }
    /// Heartbeats answered 403.
    public var forbidden: UInt64 { forbiddenCount.load(ordering: .relaxed) }
    /// Heartbeats answered 500.
    public var failed: UInt64 { failedCount.load(ordering: .relaxed) }
    /// Heartbeats answered 503.
    public var unavailable: UInt64 { unavailableCount.load(ordering: .relaxed) }
    /// Heartbeats taken with a faulty optional field.
    public var flagged: UInt64 { flaggedCount.load(ordering: .relaxed) }
    /// Heartbeats that had to wait for the database.
    public var misses: UInt64 { missCount.load(ordering: .relaxed) }
    /// Beacons that the log's queue took (one for all partitions).
    public var beacons: UInt64 { beaconCount.load(ordering: .relaxed) }

    func add(_ tally: Tally) {
        func add(_ value: UInt64, to counter: borrowing Atomic<UInt64>) {
            if value > 0 { counter.wrappingAdd(value, ordering: .relaxed) }
        }
        add(tally.accepted, to: acceptedCount)
        add(tally.shed, to: shedCount)
        add(tally.badRequest, to: badRequestCount)
        add(tally.forbidden, to: forbiddenCount)
        add(tally.failed, to: failedCount)
        add(tally.unavailable, to: unavailableCount)
        add(tally.flagged, to: flaggedCount)
        add(tally.misses, to: missCount)
        if tally.lost > 0 { addLost(tally.lost) }
    }

    /// Before the reading that covers the loss is published, so that a beacon that claims the
    /// reading sees the loss.
    func addLost(_ count: UInt64) { lostCount.wrappingAdd(count, ordering: .releasing) }

    func addBeacon() { beaconCount.wrappingAdd(1, ordering: .relaxed) }

    /// What one loop counts in plain memory, published once a round.
    struct Tally {
        var accepted: UInt64 = 0
        var shed: UInt64 = 0
        var lost: UInt64 = 0
        var badRequest: UInt64 = 0
        var forbidden: UInt64 = 0
        var failed: UInt64 = 0
        var unavailable: UInt64 = 0
        var flagged: UInt64 = 0
        var misses: UInt64 = 0
    }
}

/// Devices to be read from the database, in the order asked for. Bounded by the cache, which asks
/// for each once.
final class LoadQueue: Sendable {
    struct Item: Sendable {
        var device: DeviceID
        var ticket: UInt64
    }

    private let items = Mutex<[Item]>([])
    let waker = Waker()

    func append(_ item: Item) {
        let wasEmpty = items.withLock {
            $0.append(item)
            return $0.count == 1
        }
        if wasEmpty { waker.signal() }
    }

    func take(atMost limit: Int) -> [Item] {
        items.withLock { items in
            if items.count <= limit {
                defer { items = [] }
                return items
            }
            let taken = Array(items.prefix(limit))
            items.removeFirst(limit)
            return taken
        }
    }
}
