import EventLog
import Schemas
import System

/// `heartline topics create`.
enum TopicsCreate {
    static let command = Command(
        name: "topics create", summary: "make the topics of the log",
        details: """
            Numbers of partitions are fixed in the database when a topic is first made. heartline up does
            this by itself; here it prepares a log before the roles ingest and process start on it.
            """,
        options: DatabaseAccess.options + [
            InstanceOptions.partitions, InstanceOptions.retention,
        ]
    ) { arguments in
        let connection = try DatabaseAccess.connect(arguments, as: "topics create")
        let plan = try TopicPlan(
            connection, wanted: arguments.optionalInteger("partitions").map { Int32($0) })
        let folder = LogAccess.folder(in: arguments.text("data"))
        let log = try EmbeddedLog(directory: folder)
        defer { log.close() }
        try plan.create(in: log, retentionBytes: InstanceOptions.retentionBytes(arguments))
        for (topic, count) in plan.partitions.sorted(by: { $0.key.rawValue < $1.key.rawValue }) {
            Terminal.write("\(FleetScreen.pad(topic.rawValue, 20))\(count) partitions\n")
        }
        return .done
    }
}
