import EventLog
import Postgres
import Schemas

/// The number of partitions of every topic, fixed in `heartline.topics` when it is first made: state
/// is kept by partition, so it can never change under a running fleet.
struct TopicPlan {
    static let embeddedDefault: Int32 = 4

    private(set) var partitions: [Topic: Int32] = [:]

    /// Reads the numbers, and stores those of topics that have none.
    /// - Parameter wanted: what the operator asks for; `nil` takes what there is, or the default.
    /// - Throws: if the operator asks for another number than is stored.
    init(_ connection: PostgresConnection, wanted: Int32?) throws {
        for topic in Topic.allCases {
            try connection.execute(
                "INSERT INTO heartline.topics (topic, partitions) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                .text(topic.rawValue), .int4(wanted ?? Self.embeddedDefault))
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
    func create(in log: EmbeddedLog, retentionBytes: Int64) throws {
        try log.createTopics(
            partitions.sorted { $0.key.rawValue < $1.key.rawValue }.map {
                TopicSettings($0.key, partitions: $0.value, retentionBytes: retentionBytes)
            })
    }
}
