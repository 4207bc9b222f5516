internal import Bytes
internal import EventLog
internal import Schemas
internal import Synchronization
internal import System

/// Follows topic `pushes` from its end and tells the hub whose doorbell rings, on a thread of its own.
///
/// A bell that is missed delays a push until the hub's next sweep; so nothing depends on this, and a log
/// that is away takes no front-end out of service.
final class PushBell<LogType: EventLog>: Sendable {
    private let log: LogType
    private let hub: PushHub
    private let group: String
    private let waker = Waker()
    private let isStopping = Atomic(false)
    private let isFollowing = Atomic(false)
    private let thread = Mutex<SystemThread?>(nil)

    /// - Parameter group: of no one else, so that every partition is this front-end's.
    init(_ log: LogType, hub: PushHub, group: String) {
        self.log = log
        self.hub = hub
        self.group = group
    }

    func start() {
        thread.withLock { $0 = SystemThread.start("push-bell") { self.run() } }
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

    /// Whether every partition is listened to.
    var isListening: Bool { isFollowing.load(ordering: .acquiring) }

    private var mustStop: Bool { isStopping.load(ordering: .acquiring) }

    private func run() {
        var complaints = Complaints("following topic pushes")
        while !mustStop {
            do throws(EventLogError) {
                try follow(&complaints)
            } catch {
                isFollowing.store(false, ordering: .releasing)
                complaints.add(error)
                waker.wait(milliseconds: 1_000) { !mustStop }
            }
        }
    }

    private func follow(_ complaints: inout Complaints) throws(EventLogError) {
        guard let count = try log.partitionCount(of: .pushes) else {
            throw EventLogError(
                .consuming, .configuration,
                "topic pushes does not exist, or this user may not see it; create the topics")
        }
        let consumer = try log.makeConsumer(of: .pushes, group: group, waker: waker)
        var followed: Set<Int32> = []
        var rung: [AccountID] = []
        while !mustStop {
            while let change = try consumer.nextAssignmentChange() {
                switch change {
                case .assigned(let partitions):
                    for partition in partitions {
                        try consumer.start(partition, at: try consumer.offsets(of: partition).next)
                        followed.insert(partition)
                    }
                    guard followed.count == Int(count) else { continue }
                    // What rang before this moment was not heard.
                    hub.missedBells()
                    isFollowing.store(true, ordering: .releasing)
                    complaints.end()
                case .revoked(let partitions):
                    try consumer.release(partitions)
                    throw lost()
                case .lost: throw lost()
                }
            }
            // The key says all that is to be known; whatever the value's version, somebody has news.
            let polled = try consumer.poll(limit: 4_096) { _, key, _ in
                if let account = AccountID(parsing: key) { rung.append(account) }
            }
            if polled == 0 {
                waker.wait(milliseconds: 500)
            } else {
                hub.counters.bells.add(UInt64(polled))
                hub.rung(rung)
                rung.removeAll(keepingCapacity: true)
            }
        }
    }

    private func lost() -> EventLogError {
        EventLogError(.consuming, .unavailable, "partitions were taken away; joining again")
    }
}
