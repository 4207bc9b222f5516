import Bytes
import EventLog
import Pipeline
import Postgres
import Processors
import Schemas
import System

/// A second database into which every pipeline reads the same log once, without a crash: what the
/// tables of the first one must equal.
///
/// What the pipelines only look at (the registry, accounts, blocks) is copied from the first.
final class SoakOracle {
    private static let name = "oracle"
    private static let patienceMilliseconds: Int64 = 3_600_000
    /// Exact only to within `refresh`.
    private static let refreshed: Set<String> = [
        "last_seen", "last_handshake", "tunnel_up", "agent_status", "agent_state",
    ]

    private let installation: SoakInstallation
    private let connection: PostgresConnection
    /// Records that the pipelines have read.
    private(set) var records: Int64 = 0

    /// Copies the database. Nothing may be connected to it, and nothing may write to the log.
    init(_ installation: SoakInstallation) throws {
        self.installation = installation
        let database = installation.database
        let maintenance = try PostgresConnection(database.url(database: "postgres"))
        defer { maintenance.close() }
        try maintenance.run(
            """
            SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'heartline'
            """)
        try maintenance.run("CREATE DATABASE \(Self.name) TEMPLATE heartline")
        connection = try PostgresConnection(database.url(database: Self.name))
        let tables = Set(Self.tables.map(\.table.name)).sorted().map { "heartline.\($0)" }
        try connection.run(
            """
            TRUNCATE \(tables.joined(separator: ", ")), heartline.stream_partitions,
            heartline.snapshots, heartline.outbox CASCADE
            """)
    }

    func close() { connection.close() }

    /// Every table that a pipeline writes, with the columns that are compared.
    private static var tables: [(pipeline: String, table: TableSchema)] {
        var seen: Set<String> = []
        return PipelineFile.builtIn.flatMap { file in
            file.processor.type.tables.compactMap { table in
                // Others are ways of changing the same rows.
                guard table.mode != .delete, table.mode != .update, seen.insert(table.name).inserted
                else { return nil }
                return (file.name, table)
            }
        }
    }

    /// Runs every pipeline to the end of the log, one after the other: messages need the
    /// connections that waves make.
    func run(_ progress: (String) -> Void) throws {
        let pause = Waker()
        for file in PipelineFile.builtIn {
            let end = try installation.end(of: file.source)
            records += end
            progress("a clean pass of \(file.name) over \(end) records")
            let pipeline = try RunningPipeline(
                file, log: installation.log,
                database: installation.database.url(database: Self.name), owner: "clean pass",
                outputPartitions: installation.outputPartitions)
            defer { pipeline.stop(milliseconds: 30_000) }
            let deadline = SystemClock.monotonicMilliseconds() + Self.patienceMilliseconds
            while try installation.committed(connection)[file.name, default: 0] < end {
                guard SystemClock.monotonicMilliseconds() < deadline else {
                    throw Failure(
                        "a clean pass of \(file.name): it does not come to its end:"
                            + " \(pipeline.faults.joined(separator: "; "))")
                }
                pause.wait(milliseconds: 50)
            }
        }
    }

    /// Compares every table.
    func checks(_ live: PostgresConnection) throws -> [SoakReport.Check] {
        try Self.tables.map { pipeline, table in
            let mine = try Self.digest(of: table, connection)
            let found = try Self.digest(of: table, live)
            let isSame = mine == found
            let note = isSame ? "" : try difference(table, live)
            return SoakReport.Check(
                what: "rows of \(table.name) (\(pipeline)) equal a clean pass's",
                expected: "\(mine.rows)", found: "\(found.rows)\(note)", holds: isSame)
        }
    }

    private struct Digest: Equatable {
        var rows: Int64
        /// The sum of the rows' hashes: their order does not matter.
        var sum: String
    }

    /// A row of the compared columns as text, of the rows that are compared.
    private static func source(of table: TableSchema) -> (row: String, from: String) {
        var columns = table.columns.filter(\.isStored).map { "\"\($0.name)\"" }
        if table.name == "device_status" {
            columns = table.columns.map(\.name).filter { !refreshed.contains($0) }
        }
        var condition = ""
        if table.name == "alerts" {
            columns.append("resolved_at")
            // Front-ends' and the fleet's own alerts are judged by other clocks than the log.
            condition =
                " WHERE kind NOT IN ('ingest-silent', 'front-end-lost', 'mass-offline', 'pool-exhausted')"
        }
        return (
            "ROW(\(columns.joined(separator: ", ")))::text",
            "heartline.\(table.name)\(condition)"
        )
    }

    private static func digest(
        of table: TableSchema, _ connection: PostgresConnection
    ) throws -> Digest {
        let (text, from) = source(of: table)
        let row = try connection.execute(
            "SELECT count(*), coalesce(sum(hashtextextended(\(text), 0)), 0)::text FROM \(from)"
        ).only()
        return Digest(rows: try row.int8(0), sum: try row.text(1))
    }

    /// The first row that only one of the two has.
    private func difference(_ table: TableSchema, _ live: PostgresConnection) throws -> String {
        let (text, from) = Self.source(of: table)
        func rows(_ connection: PostgresConnection) throws -> [String: Int] {
            var counts: [String: Int] = [:]
            try connection.copyOut("COPY (SELECT \(text) FROM \(from)) TO STDOUT") {
                counts[$0.text, default: 0] += 1
            }
            return counts
        }
        let (clean, found) = (try rows(connection), try rows(live))
        let missing = clean.filter { $0.value > found[$0.key, default: 0] }.keys.sorted()
        let extra = found.filter { $0.value > clean[$0.key, default: 0] }.keys.sorted()
        func first(_ rows: [String]) -> String {
            rows.first.map { ", as \($0.trimmingPrefix(while: \.isNewline).prefix(300))" } ?? ""
        }
        return
            "; \(missing.count) are missing\(first(missing)); \(extra.count) are too many\(first(extra))"
    }
}
