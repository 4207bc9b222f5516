import Alerts
import Fleet
import Ingest
import Pipeline
import Postgres
import Processors
import Schemas
import System

/// `heartline demo`.
enum Demo {
    static let command = Command(
        name: "demo", summary: "a first look: up with a simulated fleet that also fails",
        details: """
            Everything is real: agents over HTTP, the log, the pipeline, PostgreSQL. Only the clockwork is
            quicker than in production, so that a minute shows what otherwise takes a quarter of an hour.
            Without --data everything is in a temporary directory that is removed at the end.
            """,
        options: [
            .path("data", "DIR", "where everything is kept (default: a temporary directory)"),
            .integer("agents", 10...100_000, default: 100, "simulated devices"),
            .duration(
                "duration", 5_000...86_400_000,
                "end after this (default: at Ctrl-C on a terminal, otherwise 60s)"),
            InstanceOptions.partitions, InstanceOptions.retention, InstanceOptions.alerts,
        ] + InstanceOptions.frontEnd + InstanceOptions.logging
    ) { arguments in
        Signals.hold()
        InstanceOptions.configureLog(arguments)
        var temporary: String?
        if arguments.optionalText("data") == nil {
            let made = try FileSystem.makeTemporaryDirectory("/tmp/heartline-demo-")
            // PostgreSQL's user must get through.
            try FileSystem.setMode(made, 0o755)
            temporary = made
        }
        defer { if let temporary { FileSystem.removeTree(temporary) } }
        return try run(arguments, folder: temporary ?? arguments.text("data"), temporary != nil)
    }

    /// Production's settings, fifteen times as fast.
    private static let speed = 15.0
    private static let faults =
        "silent=6%:25s/50s,tunnel-down=5%:15s/30s,stale=6%:30s/45s,recovering=3%:10s/30s,stopped=3%:20s/40s,flapping=2%"

    static var pipelines: [PipelineFile] {
        var settings = TunnelHealthSettings()
        settings.staleAfter = 12_000
        settings.offlineAfter = 8_000
        settings.jitter = 200
        settings.flappingWithin = 40_000
        settings.refresh = 0
        settings.frontEndSilence = 3_000
        settings.frontEndExpulsion = 10_000
        return PipelineFile.Kind.all.map { kind in
            if case .tunnelHealth = kind { return PipelineFile(builtIn: .tunnelHealth(settings)) }
            return PipelineFile(builtIn: kind)
        }
    }

    private static func run(
        _ arguments: Arguments, folder: String, _ isTemporary: Bool
    ) throws -> ExitCode {
        var settings = Instance.Settings(
            roles: [.ingest, .process], data: folder, database: nil, pipelines: pipelines,
            partitions: arguments.optionalInteger("partitions").map { Int32($0) },
            retentionBytes: InstanceOptions.retentionBytes(arguments),
            frontEnd: {
                var settings = try InstanceOptions.frontEnd(arguments, secrets: $0)
                settings.beaconMilliseconds = 500
                return settings
            })
        var alerts = try InstanceOptions.alerts(arguments)
        if alerts.dispatch == AlertDispatchSettings() { alerts.dispatch.groupWait = 700 }
        settings.alerts = alerts
        settings.frontEndTakesAnyPort =
            !arguments.given.contains("listen") && !arguments.given.contains("admin")
        try FileSystem.makeDirectory(folder, mode: 0o755)
        settings.data = try FileSystem.realPath(folder)
        let instance = Instance(settings)
        let agents = arguments.integer("agents")
        let isTerminal = Terminal.isTerminal()
        let duration = arguments.optionalDuration("duration") ?? (isTerminal ? nil : 60_000)
        var fleet: RunningFleet?
        defer { try? fleet?.stop() }
        var picture = DemoPicture(isTerminal: isTerminal)
        let code = try Service.run(instance, arguments) { instance in
            let file = try Service.writeRunFile(instance)
            let connection = try PostgresConnection(
                instance.databaseURL, options: PostgresOptions(applicationName: "heartline demo"))
            guard let secrets = instance.secrets else { return }
            let registry = try Registry(connection, secretKey: secrets.secretKey)
            var devices = try registry.devices(limit: agents).map(\.device)
            if devices.count < agents {
                devices += try registry.addDevices(count: agents - devices.count)
            }
            connection.close()
            var simulation = SimulatorSettings(url: file.listen)
            simulation.agent = AgentSettings().faster(by: speed)
            simulation.faults = try FaultPlan(parsing: faults)
            fleet = RunningFleet(try Simulator(agents: devices, settings: simulation))
            picture.begin(
                instance, file, page: try PageLink.shown(instance, file), agents: agents,
                isTemporary: isTemporary)
        } whileReady: { instance in
            picture.draw(instance)
            if let fleet, fleet.hasEnded { return false }
            guard let duration else { return true }
            return picture.elapsed < duration
        }
        try fleet?.stop()
        fleet = nil
        picture.end(isTemporary: isTemporary)
        return code
    }
}
