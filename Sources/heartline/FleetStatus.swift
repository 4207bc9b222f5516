import EventLog
import Postgres
import Schemas
import System

/// What the database, and where it is at hand the log, say of an instance now.
struct FleetStatus {
    struct Partition {
        var pipeline: String
        /// What the pipeline reads; `nil` if this release does not know the topic.
        var source: Topic?
        var partition: Int32
        var committed: Int64
        var updatedAt: Int64
        var owner: String
        /// The offset that the next record gets; `nil` where the log is not at hand.
        var end: Int64?

        var lag: Int64? { end.map { max(0, $0 - committed) } }
    }

    struct OpenAlerts {
        var kind: String
        var count: Int64
        var oldest: Int64
    }

    struct Change {
        var device: DeviceID
        var from: String
        var to: String
        var reason: String
        var at: Int64
    }

    /// In the order of the state table, strongest first.
    static let states = [
        "suspended", "offline", "stopped", "recovering", "down", "stale", "healthy", "unknown",
    ]

    var now: Int64 = 0
    var monotonic: Int64 = 0
    var registered: Int64 = 0
    var states: [String: Int64] = [:]
    /// Why devices are in a state, the most frequent reason first.
    var reasons: [String: [(reason: String, count: Int64)]] = [:]
    var alerts: [OpenAlerts] = []
    var partitions: [Partition] = []
    var changes: [Change] = []
    /// Events that wait to be published.
    var outbox: Int64 = 0

    /// - Parameter log: the instance's log, for the ends of its partitions.
    init(_ connection: PostgresConnection, log: (any EventLog)?) throws {
        now = SystemClock.wallMilliseconds()
        monotonic = SystemClock.monotonicMilliseconds()
        registered = try connection.execute("SELECT count(*) FROM heartline.devices").only().int8(0)
        outbox = try connection.execute("SELECT count(*) FROM heartline.outbox").only().int8(0)
        for row in try connection.execute(
            """
            SELECT state, reason, count(*) FROM heartline.device_status
             WHERE state <> 'removed' GROUP BY state, reason ORDER BY count(*) DESC, reason
            """)
        {
            let (state, count) = (try row.text(0), try row.int8(2))
            states[state, default: 0] += count
            reasons[state, default: []].append((try row.text(1), count))
        }
        for row in try connection.execute(
            """
            SELECT kind, count(*), min(opened_at) FROM heartline.alerts
             WHERE resolved_at IS NULL GROUP BY kind ORDER BY kind
            """)
        {
            alerts.append(
                OpenAlerts(
                    kind: try row.text(0), count: try row.int8(1),
                    oldest: EventTime(postgresMicroseconds: try row.timestamptz(2)).milliseconds))
        }
        for row in try connection.execute(
            """
            SELECT pipeline, partition, next_offset, updated_at, owner, topic
              FROM heartline.stream_partitions ORDER BY pipeline, partition
            """)
        {
            partitions.append(
                Partition(
                    pipeline: try row.text(0), source: Topic(rawValue: try row.text(5)),
                    partition: try row.int4(1),
                    committed: try row.int8(2),
                    updatedAt: EventTime(postgresMicroseconds: try row.timestamptz(3)).milliseconds,
                    owner: try row.text(4)))
        }
        for row in try connection.execute(
            """
            SELECT s.device_id, e.state, s.state, s.reason, s.since
              FROM (SELECT * FROM heartline.device_status ORDER BY since DESC LIMIT 5) s
              JOIN heartline.device_state_ended e
                ON e.device_id = s.device_id AND e.transition = s.transitions - 1
             ORDER BY s.since DESC
            """)
        {
            let (high, low) = try row.uuid(0)
            changes.append(
                Change(
                    device: DeviceID(high: high, low: low), from: try row.text(1),
                    to: try row.text(2), reason: try row.text(3),
                    at: EventTime(postgresMicroseconds: try row.timestamptz(4)).milliseconds))
        }
        guard let log else { return }
        var ends: [TopicPartition: Int64] = [:]
        for index in partitions.indices {
            guard let source = partitions[index].source else { continue }
            let place = TopicPartition(source, partitions[index].partition)
            if ends[place] == nil { ends[place] = try? log.offsets(of: place).next }
            partitions[index].end = ends[place]
        }
    }

    /// Sums over the partitions that are read: several pipelines may read one.
    private func sum(_ value: (Partition) -> Int64?) -> Int64 {
        var least: [TopicPartition: Int64] = [:]
        for partition in partitions {
            guard let source = partition.source, let value = value(partition) else { continue }
            let place = TopicPartition(source, partition.partition)
            least[place] = min(least[place] ?? .max, value)
        }
        return least.values.reduce(0, +)
    }

    /// Records of the log a second since `earlier`; `nil` where that cannot be told.
    func recordsPerSecond(since earlier: FleetStatus?) -> Double? {
        guard let earlier, monotonic > earlier.monotonic else { return nil }
        let before = earlier.sum { $0.end }
        let after = sum { $0.end }
        guard partitions.contains(where: { $0.end != nil }), after >= before else { return nil }
        return Double(after - before) * 1_000 / Double(monotonic - earlier.monotonic)
    }

    /// The same for what every pipeline that reads them has stored.
    func storedPerSecond(since earlier: FleetStatus?) -> Double? {
        guard let earlier, monotonic > earlier.monotonic else { return nil }
        let before = earlier.sum { $0.committed }
        let after = sum { $0.committed }
        return Double(max(0, after - before)) * 1_000 / Double(monotonic - earlier.monotonic)
    }
}
