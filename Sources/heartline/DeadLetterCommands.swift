import Bytes
import EventLog
import Pipeline
import Postgres
import Processors
import Schemas
import System

/// `heartline dead-letters …`.
enum DeadLetterCommands {
    private static let json = Option.flag("json", "print one JSON object a line")
    private static let filters: [Option] = [
        .text("pipeline", "NAME", "letters of this pipeline (default: of any)"),
        .text("topic", "TOPIC", "letters about records of this topic (default: of any)"),
        .text("reason", "TEXT", "letters whose reason contains this (default: any)"),
        .text("since", "TIME", "letters of this time and later, as 2026-06-26T22:00:00Z"),
        .text("until", "TIME", "letters before this time"),
    ]
    private static let actor = Option(
        name: "as", kind: .text("NAME"), defaultValue: nil,
        help: "who does it, for the table (default: the login name)", variable: "HEARTLINE_ACTOR")

    static func time(
        _ name: String, _ arguments: Arguments
    ) throws(UsageError) -> EventTime? {
        guard let text = arguments.optionalText(name) else { return nil }
        guard let time = EventTime(parsing: ByteBuffer(text.utf8).span) else {
            throw UsageError(
                "--\(name) is a time with seconds and zone, as 2026-06-26T22:00:00Z, not \"\(text)\""
            )
        }
        return time
    }

    private static func filter(
        _ arguments: Arguments
    ) throws(UsageError) -> StoredDeadLetter.Filter {
        var filter = StoredDeadLetter.Filter()
        for text in arguments.operands {
            guard let id = StoredDeadLetter.ID(text) else {
                throw UsageError(
                    "a dead letter's id is PARTITION:OFFSET, as heartline dead-letters list shows it, not \"\(text)\""
                )
            }
            filter.ids.insert(id)
        }
        filter.pipeline = arguments.optionalText("pipeline")
        filter.reason = arguments.optionalText("reason")
        filter.since = try time("since", arguments)
        filter.until = try time("until", arguments)
        if let name = arguments.optionalText("topic") {
            guard let topic = Topic(rawValue: name) else {
                throw UsageError("--topic: there is no topic \"\(name)\"")
            }
            filter.topic = topic
        }
        return filter
    }

    /// The log that the options name.
    static func log(_ arguments: Arguments) throws -> OpenLog {
        guard let log = try LogAccess.openIfThere(arguments) else {
            throw Failure(
                "opening the log in \(arguments.text("data")): there is none. Name the data directory"
                    + " with --data, or the brokers with --brokers")
        }
        return log
    }

    private static func read(
        _ log: OpenLog, _ filter: StoredDeadLetter.Filter,
        _ body: (StoredDeadLetter) throws -> Void
    ) throws {
        var reader = DeadLetterReader()
        switch log {
        case .embedded(let log): try reader.letters(in: log, filter, body)
        case .kafka(let log): try reader.letters(in: log, filter, body)
        }
    }

    /// What was replayed; `nil` if no database can be asked.
    private static func replayed(
        _ arguments: Arguments
    ) throws -> [StoredDeadLetter.Identity: String]? {
        let connection: PostgresConnection
        do {
            connection = try DatabaseAccess.connect(arguments, as: "dead-letters")
        } catch {
            // Of an instance that is stopped the log can be read all the same.
            guard !arguments.given.contains("database") else { throw error }
            return nil
        }
        return try DeadLetterReplay.replayed(connection)
    }

    // MARK: - list

    static let list = Command(
        name: "dead-letters list", summary: "what could not be processed, and why",
        details: """
            Reads topic dead-letters, which keeps 30 days. A letter is about a record that could not be
            decoded, or about a row that PostgreSQL rejected. Also of an instance that is stopped; then
            it is not known what was replayed.
            """,
        options: filters + [
            .flag("waiting", "only letters that were not replayed"),
            .flag("counts", "the number of letters by pipeline and reason instead"),
            .integer("limit", 1...10_000_000, default: 1_000, "at most so many letters"), json,
        ] + DatabaseAccess.options + LogAccess.options
    ) { arguments in
        let filter = try filter(arguments)
        let log = try log(arguments)
        defer { log.close() }
        let replayed = try replayed(arguments)
        if replayed == nil, arguments.flag("waiting") {
            throw Failure(
                "finding out what was replayed: that stands in the database; start the instance, or name it with --database"
            )
        }
        var groups = DeadLetterCounts()
        var shown: [StoredDeadLetter] = []
        let limit = arguments.integer("limit")
        try read(log, filter) { letter in
            if arguments.flag("waiting"), replayed?[letter.identity] != nil { return }
            groups.add(letter, isReplayed: replayed?[letter.identity] != nil)
            if !arguments.flag("counts"), shown.count < limit { shown.append(letter) }
        }
        shown.sort { ($0.time, $0.id) < ($1.time, $1.id) }
        if arguments.flag("counts") {
            try groups.write(asJSON: arguments.wantsJSON)
        } else if arguments.wantsJSON {
            for letter in shown {
                let state = replayed.map { $0[letter.identity] ?? "waiting" }
                Terminal.write(try JSONText.line(DeadLetterDocument(letter, state: state)))
            }
        } else {
            if groups.total == 0 { Terminal.write("no dead letters\n") }
            write(shown, replayed)
            if groups.total > shown.count {
                Terminal.write("… and \(groups.total - shown.count) more (--limit)\n")
            }
            if replayed == nil, groups.total > 0 {
                Terminal.write(
                    "The database does not answer: it is not known what was replayed.\n",
                    to: .errors)
            }
        }
        return .done
    }

    private static func write(
        _ letters: [StoredDeadLetter], _ replayed: [StoredDeadLetter.Identity: String]?
    ) {
        if letters.isEmpty { return }
        var text =
            FleetScreen.pad("id", 14) + FleetScreen.pad("time", 26)
            + FleetScreen.pad("pipeline", 20) + FleetScreen.pad("about", 30)
            + FleetScreen.pad("replayed", 12) + "reason\n"
        for letter in letters {
            let origin = letter.content.letter
            text += FleetScreen.pad("\(letter.id)", 14) + FleetScreen.pad("\(letter.time)", 26)
            text += FleetScreen.pad(letter.pipeline.isEmpty ? "?" : letter.pipeline, 20)
            text += FleetScreen.pad(
                "\(origin.topic.rawValue)/\(origin.partition)@\(origin.offset)", 30)
            text += FleetScreen.pad(replayed.map { $0[letter.identity] ?? "no" } ?? "?", 12)
            text += origin.reason.shownSafely + "\n"
        }
        Terminal.write(text)
    }

    // MARK: - show

    static let show = Command(
        name: "dead-letters show",
        summary: "a dead letter: the record as it came, and what is wrong",
        operands: Operands(
            placeholder: "ID…", count: 1...100, help: "PARTITION:OFFSET, as list shows it"),
        options: [json] + DatabaseAccess.options + LogAccess.options
    ) { arguments in
        let filter = try filter(arguments)
        let log = try log(arguments)
        defer { log.close() }
        let replayed = try replayed(arguments)
        var missing = filter.ids
        try read(log, filter) { letter in
            missing.remove(letter.id)
            let state = replayed.map { $0[letter.identity] ?? "waiting" }
            let document = DeadLetterDocument(letter, state: state)
            Terminal.write(arguments.wantsJSON ? try JSONText.line(document) : document.page)
        }
        guard missing.isEmpty else {
            let ids = missing.sorted().map(\.description).joined(separator: ", ")
            throw Failure("showing \(ids): the log holds no such dead letter")
        }
        return .done
    }

    // MARK: - replay

    static let replay = Command(
        name: "dead-letters replay", summary: "process dead letters again, each exactly once",
        details: """
            A record goes back to its topic, for the pipeline that had put it aside and no other, with the
            time of its first receipt; if it still cannot be processed, it becomes a new dead letter. A
            row that PostgreSQL had rejected is written to its table, unless that has a row of the key.
            Each letter is replayed once, however often this is run and wherever it was interrupted. An
            instance publishes the records; if none runs, they wait in the database for the next start.
            """,
        operands: Operands(
            placeholder: "[ID…]", count: 0...10_000, help: "PARTITION:OFFSET, as list shows it"),
        options: [.flag("all", "all letters that the filters mean; needed if none is given")]
            + filters + [
                .flag("as-new", "records count as received now, not when they were"),
                .flag("dry-run", "only tell what would be replayed"), actor,
                .path(
                    "pipelines", "DIR", default: "pipelines",
                    "pipeline files; where the default is not there, every pipeline with its defaults"
                ),
            ] + DatabaseAccess.options + LogAccess.options
    ) { arguments in
        let filter = try filter(arguments)
        let isNarrow =
            !filter.ids.isEmpty || filter.pipeline != nil || filter.reason != nil
            || filter.topic != nil || filter.since != nil || filter.until != nil
        guard isNarrow || arguments.flag("all") else {
            throw UsageError("name letters by their ids or by a filter, or take --all")
        }
        let pipelines = try Service.pipelineFiles(arguments)
        let database = try StoppedDatabase(arguments, as: "dead-letters replay")
        defer { database.close() }
        let log = try log(arguments)
        defer { log.close() }
        let replay = DeadLetterReplay(
            database.connection, actor: try AlertCommands.actor(arguments),
            now: EventTime(milliseconds: SystemClock.wallMilliseconds()),
            isAsNew: arguments.flag("as-new"), pipelines: pipelines)
        var tally = DeadLetterTally()
        var batch: [StoredDeadLetter] = []
        var bytes = 0
        let isDry = arguments.flag("dry-run")
        let replayed = isDry ? try DeadLetterReplay.replayed(database.connection) : [:]
        func flush() throws {
            for (letter, outcome) in zip(batch, try replay.replay(batch)) {
                tally.add(outcome, letter)
            }
            batch = []
            bytes = 0
            if Terminal.isTerminal(.errors) {
                Terminal.write("\r\(tally.total) letters", to: .errors)
            }
        }
        try read(log, filter) { letter in
            if isDry {
                if replayed[letter.identity] != nil {
                    tally.add(.known, letter)
                } else if let obstacle = replay.obstacle(letter) {
                    tally.add(.refused(obstacle), letter)
                } else {
                    tally.add(letter.isRow ? .written : .published, letter)
                }
                return
            }
            batch.append(letter)
            bytes += letter.content.sizeBytes
            if batch.count == DeadLetterReplay.batch || bytes > 4 << 20 { try flush() }
        }
        if !batch.isEmpty { try flush() }
        if !isDry, Terminal.isTerminal(.errors) { Terminal.write("\r\u{1B}[K", to: .errors) }
        Terminal.write(tally.text(isDry: isDry))
        if !isDry, tally.published > 0 {
            Terminal.write(try waitForOutbox(database))
        }
        return tally.refused.isEmpty ? .done : .failed
    }

    /// Waits for the instance to publish, as long as it does.
    private static func waitForOutbox(_ database: StoppedDatabase) throws -> String {
        if database.isStopped {
            return "They are published when the instance is started again.\n"
        }
        let pause = Waker()
        var least = Int64.max
        var quietSince = SystemClock.monotonicMilliseconds()
        while true {
            let count = try DeadLetterReplay.unpublished(database.connection)
            if count == 0 { return "They are in the log again.\n" }
            if count < least {
                least = count
                quietSince = SystemClock.monotonicMilliseconds()
            }
            if SystemClock.monotonicMilliseconds() - quietSince > 5_000 {
                return """
                    \(count) of them wait in the database: no instance publishes them now. The next that \
                    does will.

                    """
            }
            pause.wait(milliseconds: 50)
        }
    }
}
