public import EventLog
public import Kafka
internal import System

/// A mock cluster in this process and logs on it.
public final class MockKafka: Sendable {
    public let cluster: KafkaMock

    public init(brokers: Int32 = 1) throws { cluster = try KafkaMock(brokers: brokers) }

    /// What makes a test wait no longer than it must: the mock answers a fetch without records only
    /// after all of its time, and a group that lost a member waits for its session.
    public static let quick = [
        "fetch.wait.max.ms=20", "session.timeout.ms=6000", "heartbeat.interval.ms=200",
        "reconnect.backoff.max.ms=200",
    ]

    /// A log on the cluster. Close it.
    public func makeLog(
        _ properties: [String] = quick, _ change: (inout KafkaLogSettings) -> Void = { _ in }
    ) throws -> KafkaLog {
        var settings = try KafkaLogSettings(
            brokers: cluster.brokers,
            properties: properties.map { (text) throws(EventLogError) in
                try KafkaLogSettings.Property(text)
            })
        change(&settings)
        let cluster = cluster
        return try KafkaLog(settings) { topics in
            // The mock has no admin interface.
            for topic in topics {
                try cluster.createTopic(topic.name, partitions: topic.partitions)
            }
        }
    }

    /// Lends an empty log on a cluster of its own.
    public static func withLog<Result>(_ body: (KafkaLog) throws -> Result) throws -> Result {
        let mock = try MockKafka()
        let log = try mock.makeLog()
        defer { log.close() }
        return try body(log)
    }
}
