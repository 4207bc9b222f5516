import EventLog
import Postgres
import Schemas
import Sinks
import System

/// `heartline pipeline resume`: what an operator decides when the log lost what a pipeline still
/// needed.
enum PipelineResume {
    static let command = Command(
        name: "pipeline resume", summary: "go on without records that the log no longer holds",
        details: """
            A pipeline whose next record was deleted by retention stops and says so: it never skips
            records by itself. This command accepts the gap. The partition goes on at the first record
            that is still there, with the state that it last stored; what the lost records would have
            changed is not in the tables. A worker that holds the partition takes it up again by itself.
            """,
        operands: Operands(
            placeholder: "NAME", count: 1...1, help: "name of the pipeline, as in its file"),
        options: DatabaseAccess.options + LogAccess.options + [
            .integer("partition", 0...9_999, "the partition that stands still")
        ]
    ) { arguments in
        let name = arguments.operands[0]
        guard let number = arguments.optionalInteger("partition") else {
            throw UsageError("--partition is missing: the worker's error names it")
        }
        let partition = Int32(number)
        guard let log = try LogAccess.openIfThere(arguments) else {
            throw Failure(
                "opening the log in \(arguments.text("data")): there is none. Name the data directory"
                    + " with --data")
        }
        defer { log.close() }
        let connection = try DatabaseAccess.connect(arguments, as: "pipeline resume")
        let stored = try connection.execute(
            """
            SELECT next_offset, least(next_offset, (SELECT min(snapshot_offset) FROM heartline.snapshots s
                                                     WHERE (s.pipeline, s.partition) = ($1, $2))),
                   topic
              FROM heartline.stream_partitions WHERE pipeline = $1 AND partition = $2
            """, .text(name), .int4(partition))
        guard let row = stored.first else {
            throw Failure(
                "resuming pipeline \(name), partition \(partition): it never ran. SELECT pipeline,"
                    + " partition FROM heartline.stream_partitions tells what did")
        }
        let topic = try row.text(2)
        guard let source = Topic(rawValue: topic) else {
            throw Failure(
                "resuming pipeline \(name): its topic \(topic) is not known to this release")
        }
        let range = try log.log.offsets(of: TopicPartition(source, partition))
        // What a restart reads again begins at the snapshot.
        let (next, needed) = (try row.int8(0), try row.int8(1))
        guard needed < range.earliest else {
            Terminal.write(
                "\(name), partition \(partition): nothing to decide, its next record \(next) is there\n"
            )
            return .done
        }
        _ = try StreamAdministration.resume(
            name, partition: partition, from: range.earliest, connection)
        Terminal.write(
            "\(name), partition \(partition): goes on at \(max(next, range.earliest));"
                + " \(max(0, range.earliest - next)) records that were not processed are given up\n"
        )
        return .done
    }
}
