import EventLog
import Postgres
import Schemas
import System

/// What the demo shows: the fleet's states over time, once a second.
struct DemoPicture {
    private let isTerminal: Bool
    private var head = ""
    private var start: Int64 = 0
    private var connection: PostgresConnection?
    private var last: FleetStatus?
    /// Devices by state, a sample a second, the newest last.
    private var history: [[String: Int64]] = []
    private var seen: [(state: String, causes: String, at: Int64)] = []

    private static let samples = 60

    init(isTerminal: Bool) { self.isTerminal = isTerminal }

    /// In milliseconds.
    var elapsed: Int64 { start == 0 ? 0 : SystemClock.monotonicMilliseconds() - start }

    mutating func begin(
        _ instance: Instance, _ file: RunFile, page: String, agents: Int, isTemporary: Bool
    ) {
        start = SystemClock.monotonicMilliseconds()
        let end = isTerminal ? "Ctrl-C ends it." : ""
        head = """
            heartline demo: \(agents) simulated agents over HTTP, some of which fail. \(end)
            Quicker than production: a heartbeat every 2 s (30 s), offline after 8 s of silence (90 s),
            stale after 12 s without a handshake (180 s); last_seen is written at once (120 s).

              page        \(page)
              heartbeats  POST \(file.listen)/api/v1/heartbeat
              admin       \(file.admin)/readyz
              data        \(instance.settings.data)\(isTemporary ? " (removed at the end)" : "")
              look        psql '\(file.database)'

              SELECT state, count(*) FROM heartline.device_status GROUP BY state;
              SELECT * FROM heartline.device_state_history ORDER BY started_at DESC LIMIT 10;
              SELECT state, count(*), max(delay) FROM heartline.config_rollout GROUP BY state;
              SELECT kind, entity, opened_at, resolved_at FROM heartline.alerts ORDER BY opened_at DESC LIMIT 10;


            """
        // What is on the screen stays above in its memory.
        Terminal.write(isTerminal ? "\u{1B}[2J" : head)
    }

    mutating func draw(_ instance: Instance) {
        do {
            if connection == nil {
                connection = try PostgresConnection(
                    instance.databaseURL,
                    options: PostgresOptions(applicationName: "heartline demo"))
            }
            guard let connection else { return }
            let status = try FleetStatus(connection, log: instance.eventLog?.log)
            note(status)
            if isTerminal {
                Terminal.draw(head + text(status))
            } else {
                Terminal.write(
                    FleetScreen.right("\(elapsed / 1_000)", 4) + " s  "
                        + FleetScreen.line(status) + "\n")
            }
            last = status
        } catch {
            // The picture can wait; what it shows goes on.
            connection?.close()
            connection = nil
        }
    }

    private mutating func note(_ status: FleetStatus) {
        history.append(status.states)
        if history.count > Self.samples { history.removeFirst() }
        for state in FleetStatus.states where (status.states[state] ?? 0) > 0 {
            if !seen.contains(where: { $0.state == state }) {
                seen.append(
                    (state, FleetScreen.causes(of: state, in: status), elapsed / 1_000))
            }
        }
    }

    private func text(_ status: FleetStatus) -> String {
        FleetScreen.text(status, since: last, colors: true) { state in
            FleetScreen.sparkline(history.map { $0[state] ?? 0 })
        }
    }

    mutating func end(isTemporary: Bool) {
        connection?.close()
        connection = nil
        guard !seen.isEmpty else { return }
        let states = seen.map {
            "\($0.state) after \($0.at) s" + ($0.causes.isEmpty ? "" : " (\($0.causes))")
        }
        Terminal.write("\nStates that appeared: \(states.joined(separator: ", ")).\n")
        // As it was found this time, it will be found again.
        let program = CommandLine.arguments.first ?? "heartline"
        Terminal.write(
            "To keep one running: \(program) up, then \(program) device add --count 10.\n")
    }
}
