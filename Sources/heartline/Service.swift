import Foundation
import Ingest
import Pipeline
import System

/// What `up`, `ingest` and `process` have in common: from arguments to an orderly end.
enum Service {
    /// The pipeline files that the options name.
    static func pipelineFiles(_ arguments: Arguments) throws -> [PipelineFile] {
        let folder = arguments.text("pipelines")
        if !FileSystem.isDirectory(folder) {
            guard !arguments.given.contains("pipelines") else {
                throw Failure("reading pipelines: there is no folder \(folder)")
            }
            return PipelineFile.builtIn
        }
        let files = try PipelineFile.loadFolder(folder)
        if files.isEmpty {
            throw Failure("reading pipelines: no .yaml file is in \(folder)")
        }
        return files
    }

    /// The data directory, made if it is missing; absolute, so that it stays the same place.
    static func dataFolder(_ arguments: Arguments) throws -> String {
        let folder = arguments.text("data")
        try FileSystem.makeDirectory(folder, mode: 0o755)
        return try FileSystem.realPath(folder)
    }

    static func settings(
        _ arguments: Arguments, roles: Instance.Roles, preparesAll: Bool
    ) throws -> Instance.Settings {
        // Everything that can be wrong with the options is found before anything is started.
        if roles.contains(.ingest) {
            _ = try InstanceOptions.frontEnd(
                arguments,
                secrets: ServerSecrets(
                    salt: [UInt8](repeating: 0, count: 16),
                    secretKey: [UInt8](repeating: 0, count: 32)))
            _ = try UpdateOptions.settings(arguments, directory: "/")
        }
        let kafka = try LogAccess.kafkaSettings(arguments)
        let pipelines = roles.contains(.process) ? try pipelineFiles(arguments) : []
        let alerts = roles.contains(.process) ? try InstanceOptions.alerts(arguments) : nil
        let data = try dataFolder(arguments)
        var settings = Instance.Settings(
            roles: roles, data: data,
            database: arguments.optionalText("database"),
            pipelines: pipelines,
            partitions: arguments.optionalInteger("partitions").map { Int32($0) },
            retentionBytes: InstanceOptions.retentionBytes(arguments),
            frontEnd: roles.contains(.ingest)
                ? { secrets in
                    var settings = try InstanceOptions.frontEnd(arguments, secrets: secrets)
                    settings.updates = try UpdateOptions.settings(
                        arguments, directory: "\(data)/updates")
                    return settings
                } : nil,
            preparesAll: preparesAll, network: arguments.optionalText("network"))
        settings.kafka = kafka
        if roles == .ingest { settings.spoolBytes = arguments.integer("spool-mib") << 20 }
        settings.metricsTokenFile = arguments.optionalText("metrics-token-file")
        settings.adminTokenFile = arguments.optionalText("admin-token-file")
        settings.isHeartbeatAcked = arguments.optionalText("heartbeats") == "acked"
        settings.alerts = alerts
        if !roles.contains(.ingest) {
            settings.admin = try InstanceOptions.workerAdmin(arguments)
        }
        return settings
    }

    /// Runs until a signal ends it.
    /// - Parameter whileReady: called about every second.
    static func run(
        _ instance: Instance, _ arguments: Arguments, whenReady: (Instance) throws -> Void,
        whileReady: (Instance) -> Bool = { _ in true }
    ) throws -> ExitCode {
        do {
            try instance.start { Log.tell("\($0) ...\n") }
            defer { Log.summarize(isEnd: true) }
            defer { instance.stop() }
            func reload() {
                instance.reloadCertificate()
                guard instance.settings.roles.contains(.process) else { return }
                instance.reload { try pipelineFiles(arguments) }
                instance.reloadAlerts { try InstanceOptions.alerts(arguments) }
            }
            // A role of a larger installation waits for the others; starting again would not help it.
            try instance.waitUntilReady(
                seconds: instance.settings.preparesAll ? 120 : nil, hangup: reload)
            try whenReady(instance)
            while true {
                let signal = Signals.wait(milliseconds: 1_000)
                switch signal {
                case .terminate, .interrupt:
                    Log.notice("stopping")
                    return .done
                case .hangup: reload()
                case nil: break
                }
                instance.look()
                Log.summarize()
                if !whileReady(instance) { return .done }
            }
        } catch is Interrupted {
            return .done
        }
    }

    /// `run.json` of a ready instance.
    static func writeRunFile(_ instance: Instance) throws -> RunFile {
        precondition(instance.frontEnd != nil, "an instance without a front-end has no run.json")
        let file = RunFile(
            listen: instance.url, admin: instance.adminURL, updates: instance.updateURL,
            database: instance.databaseURL, pid: ProcessInfo.processInfo.processIdentifier)
        try file.write(in: instance.settings.data)
        return file
    }
}
