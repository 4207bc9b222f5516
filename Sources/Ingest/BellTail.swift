internal import Bytes
internal import EventLog
internal import JSON
internal import Schemas
internal import Synchronization
internal import System

/// Follows topic `device-configs` from its end and keeps a cache true to it, on a thread of its own.
///
/// Nothing may be read into the cache before this listens: a change rung in between would be missed.
/// If the log fails, everything known is forgotten, because a bell may have been missed. That the log
/// is away for a while takes a front-end that has listened out of service no more than a quiet one:
/// nobody can ring then, and when it listens again everything is forgotten once more.
final class BellTail<LogType: EventLog>: Sendable {
    private let log: LogType
    private let cache: ConfigCache
    private let readiness: Readiness
    private let group: String
    private let waker = Waker()
    private let isStopping = Atomic(false)
    private let isListening = Atomic(false)
    private let listening = Waker()
    private let thread = Mutex<SystemThread?>(nil)

    static var part: String { "device-configs" }

    /// - Parameter group: of no one else, so that every partition is this front-end's.
    init(_ log: LogType, cache: ConfigCache, readiness: Readiness, group: String) {
        self.log = log
        self.cache = cache
        self.readiness = readiness
        self.group = group
    }

    func start() {
        readiness.set(Self.part, "not following the topic yet")
        thread.withLock { $0 = SystemThread.start("bell") { self.run() } }
    }

    /// - Returns: whether every partition is listened to within the time.
    func waitUntilListening(milliseconds: Int64) -> Bool {
        let deadline = SystemClock.monotonicMilliseconds() + milliseconds
        while !isListening.load(ordering: .acquiring) {
            let left = deadline - SystemClock.monotonicMilliseconds()
            guard left > 0 else { return false }
            listening.wait(milliseconds: left)
        }
        return true
    }

    func stop() {
        isStopping.store(true, ordering: .releasing)
        waker.signal()
        let running = thread.withLock { thread in
            defer { thread = nil }
            return thread
        }
        running?.join()
    }

    private var mustStop: Bool { isStopping.load(ordering: .acquiring) }

    private func run() {
        var hasListened = false
        while !mustStop {
            do throws(EventLogError) {
                try follow()
            } catch {
                hasListened =
                    isListening.exchange(false, ordering: .acquiringAndReleasing) || hasListened
                cache.forgetAll()
                let mayPass = if case .unavailable = error.kind { hasListened } else { false }
                readiness.set(Self.part, mayPass ? nil : "\(error)")
                Log.warning("following device-configs", ["error": "\(error)"])
                waker.wait(milliseconds: 1_000)
            }
        }
    }

    private func follow() throws(EventLogError) {
        guard let count = try log.partitionCount(of: .deviceConfigs) else {
            throw EventLogError(
                .consuming, .configuration,
                "topic device-configs does not exist, or this user may not see it; create the topics"
            )
        }
        let consumer = try log.makeConsumer(of: .deviceConfigs, group: group, waker: waker)
        var followed: Set<Int32> = []
        var reader = BellReader()
        while !mustStop {
            while let change = try consumer.nextAssignmentChange() {
                switch change {
                case .assigned(let partitions):
                    for partition in partitions {
                        try consumer.start(
                            partition, at: try consumer.offsets(of: partition).next)
                        followed.insert(partition)
                    }
                    guard followed.count == Int(count) else { continue }
                    // What was read before this moment may be older than the end of the topic.
                    cache.forgetAll()
                    isListening.store(true, ordering: .releasing)
                    listening.signal()
                    readiness.set(Self.part, nil)
                case .revoked(let partitions):
                    try consumer.release(partitions)
                    throw lost()
                case .lost: throw lost()
                }
            }
            let polled = try consumer.poll(limit: 4_096) { _, key, value in
                reader.ring(key, value, cache)
            }
            if polled == 0 { waker.wait(milliseconds: 500) }
        }
    }

    private func lost() -> EventLogError {
        EventLogError(.consuming, .unavailable, "partitions were taken away; joining again")
    }
}

/// Reads records of topic `device-configs`.
struct BellReader: ~Copyable {
    private static let fields = JSONFields(["v", "device_id", "version", "suspended"])
    private var parser = JSONParser(fields)

    mutating func ring(_ key: Span<UInt8>, _ value: borrowing RecordValue, _ cache: ConfigCache) {
        if value.isTombstone {
            if let device = DeviceID(parsing: key) { cache.removed(device) }
            return
        }
        do throws(JSONError) {
            try parser.parse(value.bytes)
        } catch {
            Log.warning("reading a record of device-configs", ["error": "\(error)"])
            return
        }
        // A later version of the event says the same to us, as long as it has these fields.
        guard let device = parser.withString(1, { DeviceID(parsing: $0) }) ?? nil,
            let version = parser.integer(2)
        else { return }
        cache.changed(device, version: version, isSuspended: parser.bool(3) ?? false)
    }
}
