import EventLog
import Foundation
import Postgres
import System

/// `heartline status`.
enum Status {
    static let command = Command(
        name: "status", summary: "rates, lag, states and alerts",
        details: """
            Reads the database, the log where it is under --data, and what the instance that runs on --data
            says of itself. It changes nothing and may be run at any time, also beside several instances.
            With --watch a database that goes away is waited for.
            """,
        options: DatabaseAccess.options + LogAccess.options + [
            .flag("watch", "again every second, until Ctrl-C"),
            .flag("json", "print a JSON object"),
        ]
    ) { arguments in
        Signals.hold()
        let isWatching = arguments.flag("watch")
        let connection = try DatabaseAccess.connect(
            arguments, as: "status", responseTimeout: isWatching ? .seconds(10) : .seconds(300))
        let log = try LogAccess.openIfThere(arguments)
        defer { log?.close() }
        let isTerminal = Terminal.isTerminal()
        let isDrawing = isWatching && isTerminal && !arguments.wantsJSON
        if isDrawing { Terminal.write(hideCursor) }
        defer { if isDrawing { Terminal.write(showCursor) } }
        var last: (status: FleetStatus, glance: FrontEndGlance?)?
        while true {
            do {
                let status = try FleetStatus(connection, log: log?.log)
                let glance = (try? AdminClient(data: arguments.text("data"))).map {
                    FrontEndGlance($0)
                }
                if arguments.wantsJSON {
                    Terminal.write(try json(status))
                } else {
                    let front = glance?.text(since: last?.glance) ?? ""
                    var text =
                        FleetScreen.text(status, since: last?.status, colors: isTerminal) + front
                    if isDrawing, let rows = Terminal.rows, text.count(where: { $0 == "\n" }) > rows
                    {
                        text =
                            FleetScreen.text(
                                status, since: last?.status, colors: true, isBrief: true) + front
                    }
                    if isDrawing {
                        Terminal.draw(text)
                    } else if last != nil || !isWatching {
                        Terminal.write(text)
                    }
                }
                last = (status, glance)
            } catch let error as PostgresError where isWatching {
                let text = "The database does not answer: \(error)\n"
                if isDrawing {
                    Terminal.draw(text)
                } else {
                    Terminal.write(text, to: .errors)
                }
                last = nil
                try? connection.reconnect()
            }
            guard isWatching else { return .done }
            if let signal = Signals.wait(milliseconds: 1_000), signal != .hangup { return .done }
        }
    }

    private static let hideCursor = "\u{1B}[?25l\u{1B}[2J"
    private static let showCursor = "\u{1B}[?25h"

    private struct Document: Encodable {
        struct Partition: Encodable {
            var pipeline: String
            var partition: Int32
            var committed_offset: Int64
            var lag: Int64?
            var owner: String
        }

        var devices: Int64
        var states: [String: Int64]
        var open_alerts: [String: Int64]
        var partitions: [Partition]
        var outbox: Int64
    }

    private static func json(_ status: FleetStatus) throws -> String {
        let document = Document(
            devices: status.registered, states: status.states,
            open_alerts: Dictionary(
                uniqueKeysWithValues: status.alerts.map { ($0.kind, $0.count) }),
            partitions: status.partitions.map {
                .init(
                    pipeline: $0.pipeline, partition: $0.partition, committed_offset: $0.committed,
                    lag: $0.lag, owner: $0.owner)
            }, outbox: status.outbox)
        return try JSONText.line(document)
    }
}

/// JSON for programs: one line a value.
enum JSONText {
    static func line(_ value: some Encodable) throws -> String {
        let encoder = JSONEncoder()
        encoder.outputFormatting = [.sortedKeys, .withoutEscapingSlashes]
        return String(decoding: try encoder.encode(value), as: UTF8.self) + "\n"
    }
}
