import EventLog
import Postgres
import Schemas
import System

/// `heartline topics create` and `heartline topics check`.
enum Topics {
    private static let replication = Option.integer(
        "replication", 1...32, "copies of each partition on Kafka (default: what the brokers take)")

    static let create = Command(
        name: "topics create", summary: "make the topics of the log",
        details: """
            Numbers of partitions are fixed in the database when a topic is first made. heartline up does
            this by itself; here it prepares a log before the roles ingest and process start on it. Topics
            that exist on Kafka keep their settings: heartline topics check tells what differs.
            """,
        options: DatabaseAccess.options + LogAccess.options + [
            InstanceOptions.partitions, InstanceOptions.retention, replication,
        ]
    ) { arguments in
        let opened = try open(arguments)
        defer { opened.close() }
        let plan = try plan(arguments)
        try plan.create(
            in: opened.log, retentionBytes: InstanceOptions.retentionBytes(arguments))
        for (topic, count) in plan.partitions.sorted(by: { $0.key.rawValue < $1.key.rawValue }) {
            Terminal.write("\(FleetScreen.pad(topic.rawValue, 20))\(count) partitions\n")
        }
        return .done
    }

    static let check = Command(
        name: "topics check", summary: "tell what of the topics on Kafka is not as it should be",
        details: """
            Compares partitions, retention, compaction, timestamps and the largest message with what
            heartline topics create would make. Exit code 1 if anything differs. It changes nothing.
            """,
        options: DatabaseAccess.options + LogAccess.options + [
            InstanceOptions.partitions, InstanceOptions.retention,
        ]
    ) { arguments in
        guard case .kafka(let log) = try open(arguments) else {
            throw UsageError(
                "topics check needs --brokers: the embedded log keeps its own settings")
        }
        defer { log.close() }
        let plan = try plan(arguments)
        let differences = try log.differences(
            from: plan.settings(retentionBytes: InstanceOptions.retentionBytes(arguments)))
        guard !differences.isEmpty else {
            Terminal.write("All \(plan.partitions.count) topics are as they should be.\n")
            return .done
        }
        for difference in differences { Terminal.write("\(difference)\n") }
        return .failed
    }

    private static func open(_ arguments: Arguments) throws -> OpenLog {
        if var settings = try LogAccess.kafkaSettings(arguments) {
            settings.isWatched = false
            settings.replication = arguments.optionalInteger("replication").map { Int32($0) } ?? -1
            return .kafka(try KafkaLog(settings))
        }
        return .embedded(
            try EmbeddedLog(directory: LogAccess.folder(in: arguments.text("data"))))
    }

    private static func plan(_ arguments: Arguments) throws -> TopicPlan {
        try TopicPlan(
            try DatabaseAccess.connect(arguments, as: "topics"),
            wanted: arguments.optionalInteger("partitions").map { Int32($0) },
            isKafka: arguments.given.contains("brokers"))
    }
}
