import EventLog
import Foundation
import Postgres
import System

/// `heartline status`.
enum Status {
    static let command = Command(
        name: "status", summary: "rates, lag, states and alerts",
        details: """
            Reads the database, and the log where it is under --data. It changes nothing and may be run
            at any time, also beside several instances.
            """,
        options: DatabaseAccess.options + LogAccess.options + [
            .flag("watch", "again every second, until Ctrl-C"),
            .flag("json", "print a JSON object"),
        ]
    ) { arguments in
        Signals.hold()
        let connection = try DatabaseAccess.connect(arguments, as: "status")
        let log = try LogAccess.openIfThere(arguments)
        defer { log?.close() }
        let isWatching = arguments.flag("watch")
        var last: FleetStatus?
        while true {
            let status = try FleetStatus(connection, log: log?.log)
            if arguments.wantsJSON {
                Terminal.write(try json(status))
            } else if isWatching && Terminal.isTerminal() {
                Terminal.draw(FleetScreen.text(status, since: last, colors: true))
            } else if last != nil || !isWatching {
                Terminal.write(
                    FleetScreen.text(status, since: last, colors: Terminal.isTerminal()))
            }
            guard isWatching else { return .done }
            last = status
            if let signal = Signals.wait(milliseconds: 1_000), signal != .hangup { return .done }
        }
    }

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
