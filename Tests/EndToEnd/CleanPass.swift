import Bytes
import EventLog
import Foundation
import Pipeline
import Postgres
import Processors
import Schemas
import System
import Simulation
import TestSupport
import Testing

/// One pass of a new processor over the log that a running or ended instance left, without a crash:
/// what all tables must equal.
struct CleanPass {
    private(set) var tables = SimulatedTables()
    /// The free-form `state` of every heartbeat, without repeats.
    private(set) var agentStates: Set<String> = []
    private(set) var malformed = 0
    private(set) var lastSeen: [DeviceID: EventTime] = [:]

    /// - Parameters:
    ///   - log: opened beside the processes that use it.
    ///   - ends: by partition, the first offset that is not read.
    init(_ log: EmbeddedLog, pipelines: String, ends: [Int32: Int64]) throws {
        let files = try PipelineFile.loadFolder(pipelines)
        let file = try #require(files.first { $0.name == "tunnel-health" })
        guard case .tunnelHealth(let settings) = file.processor else {
            throw OtherProcessor(name: file.processor.name)
        }
        let consumer = try log.makeConsumer(of: .heartbeats, group: "clean pass", waker: Waker())
        _ = try consumer.nextAssignmentChange()
        let decoder = HeartbeatsDecoder()
        for (partition, end) in ends.sorted(by: { $0.key < $1.key }) {
            try consumer.start(partition, at: 0)
            var processor = TunnelHealth(partition: partition, settings: settings)
            var effects = Effects(tables: TunnelHealth.tables)
            var position: Int64 = 0
            while position < end {
                let count = try consumer.poll(limit: 10_000) { place, key, value in
                    guard place.offset < end else { return }
                    position = place.offset + 1
                    guard !value.isTombstone, case .event(let event) = decoder.decode(value.bytes)
                    else {
                        malformed += 1
                        return
                    }
                    if case .heartbeat(let heartbeat) = event {
                        agentStates.insert(heartbeat.agentState.description)
                        lastSeen[heartbeat.device] = place.timestamp
                    }
                    processor.apply(event, at: place, into: &effects)
                }
                if count == 0, position < end {
                    throw ShortLog(partition: partition, position: position, end: end)
                }
                processor.drain(into: &effects)
                tables.write(effects.rows)
                effects.removeAll()
            }
            consumer.pause(partition)
        }
    }

    /// The pipeline `tunnel-health` has another processor than its name says.
    struct OtherProcessor: Error {
        var name: String
    }

    /// The log ends before what the tables say they were made from.
    struct ShortLog: Error {
        var partition: Int32
        var position: Int64
        var end: Int64
    }

    /// Where each partition of the pipeline stands in the database.
    static func committed(_ connection: PostgresConnection) throws -> [Int32: Int64] {
        var ends: [Int32: Int64] = [:]
        for row in try connection.execute(
            """
            SELECT partition, next_offset FROM heartline.stream_partitions
             WHERE pipeline = 'tunnel-health'
            """)
        { ends[try row.int4(0)] = try row.int8(1) }
        return ends
    }

    /// Waits until everything that is in the log now is in the tables.
    static func waitForTables(
        _ log: EmbeddedLog, _ connection: PostgresConnection, within seconds: Double = 120
    ) async throws -> Bool {
        let count = try #require(try log.partitionCount(of: .heartbeats))
        var ends: [Int32: Int64] = [:]
        for partition in 0..<count {
            ends[partition] = try log.offsets(of: TopicPartition(.heartbeats, partition)).next
        }
        return try await holds(within: seconds) {
            let committed = try Self.committed(connection)
            return ends.allSatisfy { committed[$0.key, default: -1] >= $0.value }
        }
    }

    /// What is wrong with the tables as they are now; empty if they equal a clean pass up to where
    /// they were made from. Commits may go on meanwhile.
    static func check(
        _ log: EmbeddedLog, _ connection: PostgresConnection, pipelines: String,
        _ extent: TableContents.Extent = .all
    ) throws -> (pass: CleanPass, difference: String) {
        _ = try connection.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
        let ends = try committed(connection)
        let found = try TableContents(connection, extent)
        _ = try connection.run("COMMIT")
        let pass = try CleanPass(log, pipelines: pipelines, ends: ends)
        return (pass, found.difference(from: TableContents(pass.tables, extent)))
    }
}

extension EmbeddedLog {
    /// Beside the processes that use it.
    convenience init(of data: String) throws { try self.init(directory: "\(data)/log") }

    /// Keys and values of every record of a topic.
    func records(of topic: Topic) throws -> [(place: RecordPlace, key: String, value: String)] {
        let count = try #require(try partitionCount(of: topic))
        let consumer = try makeConsumer(of: topic, group: "test", waker: Waker())
        _ = try consumer.nextAssignmentChange()
        for partition in 0..<count {
            let earliest = try offsets(of: TopicPartition(topic, partition)).earliest
            try consumer.start(partition, at: earliest)
        }
        var found: [(place: RecordPlace, key: String, value: String)] = []
        while try consumer.poll(
            limit: 1_000, { found.append(($0, $1.text, $2.bytes.text)) }) > 0
        {}
        return found
    }

    /// Numbers of the heartbeats of `HeartbeatLoad` that are in the log.
    func heartbeatNumbers() throws -> Set<Substring> {
        Set(
            try records(of: .heartbeats).compactMap { record -> Substring? in
                guard let start = record.value.range(of: "\"state\":\"n") else { return nil }
                return record.value[start.upperBound...].prefix { $0 != "\"" }
            })
    }

    /// How many records a topic has.
    func count(of topic: Topic) throws -> Int64 {
        let partitions = try #require(try partitionCount(of: topic))
        return try (0..<partitions).reduce(0) {
            let range = try offsets(of: TopicPartition(topic, $1))
            return $0 + range.next - range.earliest
        }
    }
}
