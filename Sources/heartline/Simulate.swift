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
            Each agent behaves as the agent's document says: a heartbeat every 30 s, retries, recovery, a
            new tunnel when its configuration changed. Without --provision the agents are devices of the
            registry: make them with heartline device add.

            With --provision each agent starts with a registration token and a hardware id of its own,
            provisions itself and decrypts what it gets. The tokens are read from --tokens, one a line, or
            made in the running instance of --data. The salt that decryption needs is SERVER_SALT of the
            environment, or in --salt-file, or in DIR/server-salt. A front-end limits provisionings from
            one address: start it with --provision-limit 0 for more than a few.

            --faults takes KIND=SHARE[:DURATION[/PERIOD]], several separated by commas, for example
            silent=5%:60s,tunnel-down=3%,stale=2. Kinds: \(Fault.allCases.map(\.name).joined(separator: ", ")).

            \(SimulateWorld.details)
            """,
        options: [
            .integer(
                "agents", 1...10_000_000,
                "how many; without it: all devices of the registry, or one for each token"),
            .text("url", "URL", "where requests go; without it: the running instance of --data"),
            .flag("provision", "the agents provision themselves"),
            .path(
                "tokens", "FILE", "registration tokens, one a line; - is standard input"),
            .path("salt-file", "FILE", "SERVER_SALT of the installation"),
            .duration(
                "ramp", 1...86_400_000, default: "30s",
                "agents that provision themselves boot one after the other within this time"),
            .text("faults", "PLAN", "what goes wrong, and for how many"),
            .text(
                "speed", "FACTOR", default: "1", "the agents' timers run this many times as fast"),
            .integer(
                "seed", 0...Int.max, default: 1,
                "the same seed is the same hardware ids, and the same agents for faults"),
            .integer("connections", 1...10_000, default: 64, "requests on their way at once"),
            .duration("duration", 1_000...30 * 86_400_000, "end after this; without it: at Ctrl-C"),
            .path("ca", "FILE", "trust the authorities of this PEM file instead of the machine's"),
            .path(
                "observations", "FILE",
                "write a JSON line for each configuration that an agent saw, with the time"),
            .flag("json", "print the report at the end as one JSON object, and no progress"),
        ] + SimulateWorld.options + DatabaseAccess.options
    ) { arguments in
        if arguments.flag("deterministic") { return SimulateWorld.run(arguments) }
        Signals.hold()
        var settings = try settings(arguments)
        var observations: ObservationFile?
        if let path = arguments.optionalText("observations") {
            let file = try ObservationFile(path)
            settings.observe = { file.write($0) }
            observations = file
        }
        let simulator: Simulator
        if arguments.flag("provision") {
            let provisioning = try SimulateProvisioning.read(arguments)
            simulator = try Simulator(provisioning: provisioning, settings: settings)
        } else {
            for name in ["tokens", "salt-file", "ramp"] where arguments.given.contains(name) {
                throw UsageError("--\(name) goes with --provision")
            }
            let connection = try DatabaseAccess.connect(arguments, as: "simulate")
            let devices = try devices(connection, count: arguments.optionalInteger("agents"))
            connection.close()
            simulator = try Simulator(agents: devices, settings: settings)
        }
        let fleet = RunningFleet(simulator)
        watch(fleet, settings.url, quietly: arguments.wantsJSON) { observations?.flush() }
        try fleet.stop()
        try observations?.close()
        let report = simulator.report
        if arguments.wantsJSON {
            Terminal.write(try JSONText.line(FleetReportDocument(report)))
        } else {
            Terminal.write("\(Terminal.isTerminal() ? "\r\u{1B}[K" : "")\(report.summary)\n")
        }
        return .done
    }

    private static func settings(_ arguments: Arguments) throws -> SimulatorSettings {
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
        return settings
    }

    /// Shows how the fleet does until it ends or a signal comes.
    /// - Parameter also: called a few times a second.
    private static func watch(
        _ fleet: RunningFleet, _ url: String, quietly isQuiet: Bool, also: () -> Void
    ) {
        let count = fleet.simulator.report.agents
        let isTerminal = Terminal.isTerminal()
        if !isQuiet {
            let agents = count == 1 ? "1 agent" : "\(count) agents"
            Terminal.write("\(agents) against \(url); Ctrl-C ends them.\n")
        }
        var nextLine = SystemClock.monotonicMilliseconds()
        while !fleet.hasEnded {
            if let signal = Signals.wait(milliseconds: 250), signal != .hangup { break }
            also()
            let now = SystemClock.monotonicMilliseconds()
            guard !isQuiet, now >= nextLine else { continue }
            nextLine = now + (isTerminal ? 1_000 : 10_000)
            let line = fleet.simulator.report.progressLine
            Terminal.write(isTerminal ? "\r\u{1B}[K\(line)" : "\(line)\n")
        }
    }

    private static func devices(
        _ connection: PostgresConnection, count: Int?
    ) throws -> [DeviceID] {
        let rows = try connection.execute(
            "SELECT device_id FROM heartline.devices ORDER BY device_id LIMIT $1",
            .int8(Int64(count ?? 10_000_000)))
        if let count, rows.count < count {
            let devices = rows.count == 1 ? "1 device" : "\(rows.count) devices"
            throw Failure(
                "choosing agents: the registry has \(devices), fewer than \(count); make more with heartline device add --count \(count - rows.count)"
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
