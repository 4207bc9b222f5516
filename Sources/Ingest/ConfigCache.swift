internal import Schemas
internal import Synchronization

/// A front-end's memory of what it answers to devices: bounded, and shared by its event loops.
///
/// Split in shards, each with its own lock, so that loops seldom meet. No call does I/O.
final class ConfigCache: Sendable {
    typealias Shard = CacheShard<DeviceWaiter>

    private final class Locked: Sendable {
        let shard: Mutex<Shard>
        init(_ limits: CacheLimits) { shard = Mutex(Shard(limits: limits)) }
    }

    private static let shardCount = 64
    private let shards: [Locked]

    init(_ limits: CacheLimits) {
        let each = limits.divided(by: Self.shardCount)
        shards = (0..<Self.shardCount).map { _ in Locked(each) }
    }

    private func shard(of device: DeviceID) -> Locked {
        // The middle bits of a UUID are fixed by its version; these are random in all we make.
        shards[Int(truncatingIfNeeded: device.low & UInt64(Self.shardCount - 1))]
    }

    func lookUp(_ device: DeviceID, now: Int64, waiter: () -> DeviceWaiter?) -> Shard.Lookup {
        shard(of: device).shard.withLock { $0.lookUp(device, now: now, waiter: waiter) }
    }

    func loaded(
        _ device: DeviceID, ticket: UInt64, _ answer: DeviceAnswer?, now: Int64
    ) -> Shard.Loaded {
        shard(of: device).shard.withLock {
            $0.loaded(device, ticket: ticket, answer, now: now)
        }
    }

    func failed(_ device: DeviceID, ticket: UInt64) -> Shard.Loaded {
        shard(of: device).shard.withLock { $0.failed(device, ticket: ticket) }
    }

    func changed(_ device: DeviceID, version: Int64, isSuspended: Bool) {
        shard(of: device).shard.withLock {
            $0.changed(device, version: version, isSuspended: isSuspended)
        }
    }

    func removed(_ device: DeviceID) {
        shard(of: device).shard.withLock { $0.removed(device) }
    }

    func forgetAll() {
        for shard in shards { shard.shard.withLock { $0.forgetAll() } }
    }

    /// Answers kept now.
    var count: Int { shards.reduce(0) { $0 + $1.shard.withLock { $0.count } } }
    /// Bytes of them.
    var sizeBytes: Int { shards.reduce(0) { $0 + $1.shard.withLock { $0.sizeBytes } } }
}

/// Holds what waits for a device to be read from the database.
protocol DeviceWaiting: AnyObject, Sendable {
    /// Called on the loader's thread.
    func post(_ outcome: ConfigCache.Shard.Outcome, to number: UInt64)
}

/// Something whose device is being read from the database: who holds it, and its number there.
struct DeviceWaiter: Sendable {
    let receiver: any DeviceWaiting
    let number: UInt64
}
