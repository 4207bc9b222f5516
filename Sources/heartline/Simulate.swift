import Curl
import Fleet
import Postgres
import Schemas
import Synchronization
import System

/// `heartline simulate`.
enum Simulate {
    static let command = Command(
        name: "simulate", summary: "a fleet of agents over real HTTP, with faults on demand",
        details: """
            The agents are devices of the registry: make them with heartline device add. Each behaves as
            the agent's document says: a heartbeat every 30 s, retries, recovery, a new tunnel when its
            configuration changed.

            --faults takes KIND=SHARE[:DURATION[/PERIOD]], several separated by commas, for example
            silent=5%:60s,tunnel-down=3%,stale=2. Kinds: \(Fault.allCases.map(\.name).joined(separator: ", ")).

            \(SimulateWorld.details)
            """,
        options: [
            .integer("agents", 1...10_000_000, "how many; without it: all devices of the registry"),
            .text("url", "URL", "where heartbeats go; without it: the running instance of --data"),
            .text("faults", "PLAN", "what goes wrong, and for how many"),
            .text(
                "speed", "FACTOR", default: "1", "the agents' timers run this many times as fast"),
            .integer(
                "seed", 0...Int.max, default: 1, "the same seed chooses the same agents for faults"),
            .integer("connections", 1...10_000, default: 64, "requests on their way at once"),
            .duration("duration", 1_000...30 * 86_400_000, "end after this; without it: at Ctrl-C"),
            .path("ca", "FILE", "trust the authorities of this PEM file instead of the machine's"),
        ] + SimulateWorld.options + DatabaseAccess.options
    ) { arguments in
        if arguments.flag("deterministic") { return SimulateWorld.run(arguments) }
        Signals.hold()
        guard let speed = Double(arguments.text("speed")), speed.isFinite, speed > 0,
            speed <= 10_000
        else {
            throw UsageError("--speed is a number above 0, at most 10000")
        }
        var faults = FaultPlan()
        if let text = arguments.optionalText("faults") {
            do throws(FaultPlanError) {
                faults = try FaultPlan(parsing: text)
            } catch {
                throw UsageError("--faults: \(error)")
            }
        }
        let url =
            try arguments.optionalText("url") ?? RunFile.read(in: arguments.text("data")).listen
        var settings = SimulatorSettings(url: url)
        settings.agent = AgentSettings().faster(by: speed)
        settings.faults = faults
        settings.seed = UInt64(arguments.integer("seed"))
        settings.maximumInFlight = arguments.integer("connections")
        settings.duration = arguments.optionalDuration("duration").map { .milliseconds($0) }
        if let file = arguments.optionalText("ca") { settings.trust = .authorities(file: file) }
        let connection = try DatabaseAccess.connect(arguments, as: "simulate")
        let devices = try devices(connection, count: arguments.optionalInteger("agents"))
        connection.close()

        let fleet = RunningFleet(try Simulator(agents: devices, settings: settings))
        Terminal.write("\(devices.count) agents against \(url); Ctrl-C ends them.\n")
        let isTerminal = Terminal.isTerminal()
        var nextLine = SystemClock.monotonicMilliseconds()
        while !fleet.hasEnded {
            if let signal = Signals.wait(milliseconds: 250), signal != .hangup { break }
            let now = SystemClock.monotonicMilliseconds()
            guard now >= nextLine else { continue }
            nextLine = now + (isTerminal ? 1_000 : 10_000)
            let line = fleet.simulator.report.progressLine
            Terminal.write(isTerminal ? "\r\u{1B}[K\(line)" : "\(line)\n")
        }
        try fleet.stop()
        Terminal.write("\(isTerminal ? "\r\u{1B}[K" : "")\(fleet.simulator.report.summary)\n")
        return .done
    }

    private static func devices(
        _ connection: PostgresConnection, count: Int?
    ) throws -> [DeviceID] {
        let rows = try connection.execute(
            "SELECT device_id FROM heartline.devices ORDER BY device_id LIMIT $1",
            .int8(Int64(count ?? 10_000_000)))
        if let count, rows.count < count {
            throw Failure(
                "choosing \(count) agents: the registry has \(rows.count) devices; make more with heartline device add --count \(count - rows.count)"
            )
        }
        if rows.isEmpty {
            throw Failure(
                "choosing agents: the registry has no devices; make some with heartline device add --count 100"
            )
        }
        return try rows.map { row in
            let (high, low) = try row.uuid(0)
            return DeviceID(high: high, low: low)
        }
    }
}

/// A simulated fleet on a thread of its own.
final class RunningFleet: Sendable {
    let simulator: Simulator
    private let flag = StopFlag()
    private let outcome = Mutex<Result<Void, CurlError>?>(nil)
    private let thread = Mutex<SystemThread?>(nil)

    init(_ simulator: Simulator) {
        self.simulator = simulator
        let started = SystemThread.start("fleet") { [self] in
            do throws(CurlError) {
                try simulator.run(until: flag)
                outcome.withLock { $0 = .success(()) }
            } catch {
                outcome.withLock { $0 = .failure(error) }
            }
        }
        thread.withLock { $0 = started }
    }

    var hasEnded: Bool { outcome.withLock { $0 != nil } }

    /// Asks it to end and waits for that, a second or so.
    func stop() throws(CurlError) {
        flag.request()
        let running = thread.withLock { thread in
            defer { thread = nil }
            return thread
        }
        running?.join()
        if case .failure(let error) = outcome.withLock({ $0 }) { throw error }
    }
}
