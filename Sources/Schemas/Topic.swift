/// A topic of Heartline, with what its records promise.
public enum Topic: String, CaseIterable, Sendable {
    case heartbeats
    case configChanges = "config-changes"
    case deviceConfigs = "device-configs"
    case encounters, waves, messages, pushes, updates, telemetry, alerts
    case deadLetters = "dead-letters"

    /// What a 2xx answer promises about the event behind it.
    public enum Durability: String, Sendable {
        /// Answered only after the log acknowledged the event.
        case acked
        /// Answered at once; the event waits in a bounded queue.
        case queued
    }

    public var durability: Durability {
        switch self {
        case .heartbeats, .pushes, .telemetry: .queued
        default: .acked
        }
    }

    /// Keeps the last value of each key instead of a span of time.
    public var isCompacted: Bool { self == .deviceConfigs }

    /// Age at which records may be deleted, in milliseconds; `nil` for a compacted topic.
    public var retentionMilliseconds: Int64? {
        let hour: Int64 = 3_600_000
        return switch self {
        case .heartbeats, .encounters, .telemetry: 24 * hour
        case .configChanges, .waves: 7 * 24 * hour
        case .messages, .updates, .alerts, .deadLetters: 30 * 24 * hour
        case .pushes: hour
        case .deviceConfigs: nil
        }
    }
}

public struct TopicPartition: Hashable, Sendable, CustomStringConvertible {
    public var topic: Topic
    public var partition: Int32

    public init(_ topic: Topic, _ partition: Int32) {
        self.topic = topic
        self.partition = partition
    }

    public var description: String { "\(topic.rawValue)/\(partition)" }
}

/// Where a record stands in the log.
public struct RecordPlace: Hashable, Sendable {
    public var partition: Int32
    public var offset: Int64
    /// Receipt time, stamped by the front-end.
    public var timestamp: EventTime

    @inlinable public init(partition: Int32, offset: Int64, timestamp: EventTime) {
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
    }
}

/// Heartline's own choice of a partition, the same on every log.
public enum Partitioner {
    /// The partition of `key` among `count`, as Kafka's Java client chooses it:
    /// `toPositive(murmur2(key)) % count`.
    /// - SeeAlso: Apache Kafka, `org.apache.kafka.common.utils.Utils.murmur2`.
    @inlinable public static func partition(of key: Span<UInt8>, count: Int32) -> Int32 {
        Int32(bitPattern: murmur2(key) & 0x7FFF_FFFF) % count
    }

    @inlinable public static func murmur2(_ data: Span<UInt8>) -> UInt32 {
        let multiplier: UInt32 = 0x5BD1_E995
        var hash: UInt32 = 0x9747_B28C ^ UInt32(truncatingIfNeeded: data.count)
        var index = 0
        while index + 4 <= data.count {
            var word =
                UInt32(data[index]) | UInt32(data[index + 1]) << 8
                | UInt32(data[index + 2]) << 16 | UInt32(data[index + 3]) << 24
            word = word &* multiplier
            word ^= word >> 24
            word = word &* multiplier
            hash = hash &* multiplier
            hash ^= word
            index += 4
        }
        let rest = data.count - index
        if rest >= 3 { hash ^= UInt32(data[index + 2]) << 16 }
        if rest >= 2 { hash ^= UInt32(data[index + 1]) << 8 }
        if rest >= 1 {
            hash ^= UInt32(data[index])
            hash = hash &* multiplier
        }
        hash ^= hash >> 13
        hash = hash &* multiplier
        hash ^= hash >> 15
        return hash
    }
}
