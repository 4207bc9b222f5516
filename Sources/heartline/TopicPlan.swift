import EventLog
import Postgres
import Schemas

/// The number of partitions of every topic, fixed in `heartline.topics` when it is first made: state
/// is kept by partition, so it can never change under a running fleet.
struct TopicPlan {
    static let embeddedDefault: Int32 = 4
    /// As many workers as can ever share a pipeline's work.
    static let kafkaDefault: Int32 = 12

    private(set) var partitions: [Topic: Int32] = [:]

    /// Reads the numbers, and stores those of topics that have none.
    /// - Parameter wanted: what the operator asks for; `nil` takes what there is, or the default.
    /// - Throws: if the operator asks for another number than is stored.
    init(_ connection: PostgresConnection, wanted: Int32?, isKafka: Bool = false) throws {
        for topic in Topic.allCases {
            try connection.execute(
                "INSERT INTO heartline.topics (topic, partitions) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                .text(topic.rawValue),
                .int4(wanted ?? (isKafka ? Self.kafkaDefault : Self.embeddedDefault)))
        }
        for row in try connection.execute("SELECT topic, partitions FROM heartline.topics") {
            guard let topic = Topic(rawValue: try row.text(0)) else { continue }
            let stored = try row.int4(1)
            if let wanted, wanted != stored {
                throw Failure(
                    "creating topics: \(topic.rawValue) was made with \(stored) partitions and keeps them; leave --partitions \(wanted) out, or begin with an empty data directory"
                )
            }
            partitions[topic] = stored
        }
    }

    /// Makes the topics that the log does not have.
    func create(in log: any EventLog, retentionBytes: Int64) throws {
        try log.createTopics(settings(retentionBytes: retentionBytes))
    }

    func settings(retentionBytes: Int64) -> [TopicSettings] {
        partitions.sorted { $0.key.rawValue < $1.key.rawValue }.map {
            TopicSettings($0.key, partitions: $0.value, retentionBytes: retentionBytes)
        }
    }

    /// Why the topics of `log` cannot be used yet; `nil` if all are there.
    /// - Throws: if one has another number of partitions.
    func fault(in log: any EventLog) throws -> String? {
        for (topic, count) in partitions.sorted(by: { $0.key.rawValue < $1.key.rawValue }) {
            guard let found = try log.partitionCount(of: topic) else {
                return
                    "topic \(topic.rawValue) does not exist, or this user may not see it; make the topics with heartline topics create"
            }
            guard found == count else {
                throw Failure(
                    "starting: topic \(topic.rawValue) has \(found) partitions, and the database was made with \(count): these brokers and this database do not belong together"
                )
            }
        }
        return nil
    }
}
