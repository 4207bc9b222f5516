import EventLog
import Pipeline
import Postgres
import Schemas
import System

/// `heartline replay`: the derived tables of a pipeline, anew.
enum Replay {
    static let command = Command(
        name: "replay", summary: "build a pipeline's tables anew from what the log still holds",
        details: """
            Reads the log again by the pipeline's own code and settings, into tables beside the live ones,
            and puts what differs into the live tables in one transaction: nobody sees a table half-built.
            Rows from before what the log holds stay. Connections, blocks, pushes, alerts and the registry
            are never rebuilt, and no event is published again. The pipeline may run, or not; killed at
            any moment, the replay has changed nothing.
            """,
        options: [
            .text("pipeline", "NAME", "the pipeline, as its file names it"),
            .text(
                "from", "TIME",
                "rows before this time stay as they are, as 2026-06-26T22:00:00Z (default: all that can be are built)"
            ),
            .path(
                "pipelines", "DIR", default: "pipelines",
                "pipeline files; where the default is not there, every pipeline with its defaults"),
            .flag("json", "print the result as one JSON object"),
        ] + DatabaseAccess.options + LogAccess.options
    ) { arguments in
        guard let name = arguments.optionalText("pipeline") else {
            throw UsageError("--pipeline is missing: which one is to be replayed")
        }
        let from = try DeadLetterCommands.time("from", arguments)
        let files = try Service.pipelineFiles(arguments)
        guard let file = files.first(where: { $0.name == name }) else {
            let near = NearestName.of(name, among: files.map(\.name))
            throw UsageError(
                "--pipeline: there is no pipeline \"\(name)\""
                    + (near.map { ": did you mean \($0)?" } ?? ""))
        }
        let database = try StoppedDatabase(arguments, as: "replay")
        defer { database.close() }
        let log = try DeadLetterCommands.log(arguments)
        defer { log.close() }
        let isWatched = Terminal.isTerminal(.errors)
        let progress: (Rebuild.Progress) -> Void = { step in
            guard isWatched else { return }
            let text =
                switch step {
                case .reading(let done, let total):
                    "\(name): \(done) of \(total) records (\(total == 0 ? 100 : done * 100 / total) %)"
                case .exchanging: "\(name): exchanging rows"
                }
            Terminal.write("\r\(text)\u{1B}[K", to: .errors)
        }
        defer { if isWatched { Terminal.write("\r\u{1B}[K", to: .errors) } }
        let report =
            switch log {
            case .embedded(let log):
                try Rebuild.run(
                    file, log, from: from, database: database.address, progress: progress)
            case .kafka(let log):
                try Rebuild.run(
                    file, log, from: from, database: database.address, progress: progress)
            }
        if isWatched { Terminal.write("\r\u{1B}[K", to: .errors) }
        Terminal.write(
            arguments.wantsJSON
                ? try JSONText.line(ReplayDocument(name, report)) : page(name, report))
        return .done
    }

    private static func page(_ name: String, _ report: Rebuild.Report) -> String {
        var text = "\(name): \(report.records) records read again"
        text += report.from.map { ", rows from \($0) on" } ?? ", all rows"
        text += "; its commits waited \(report.heldMilliseconds) ms\n"
        text +=
            FleetScreen.pad("table", 32) + FleetScreen.pad("written", 12) + "removed\n"
        for table in report.tables {
            text +=
                FleetScreen.pad(table.name, 32) + FleetScreen.pad("\(table.written)", 12)
                + "\(table.removed)\n"
        }
        for (table, reason) in report.kept { text += "\(table) stays: \(reason)\n" }
        if report.deadLetters > 0 {
            text += "\(report.deadLetters) records cannot be read now either\n"
        }
        return text
    }
}

/// What a replay did, for programs.
private struct ReplayDocument: Encodable {
    struct Table: Encodable {
        var name: String
        var written: Int
        var removed: Int
    }

    var pipeline: String
    var records: Int64
    /// Rows of this time and later were built; absent: all were.
    var from: String?
    var tables: [Table]
    var kept: [String]
    var dead_letters: Int64
    var held_ms: Int64

    init(_ name: String, _ report: Rebuild.Report) {
        pipeline = name
        records = report.records
        from = report.from.map { "\($0)" }
        tables = report.tables.map {
            Table(name: $0.name, written: $0.written, removed: $0.removed)
        }
        kept = report.kept.map(\.name)
        dead_letters = report.deadLetters
        held_ms = report.heldMilliseconds
    }
}
