import Pipeline
import System

/// `heartline up`.
enum Up {
    static let command = Command(
        name: "up", summary: "everything in one process, with a PostgreSQL of its own",
        details: """
            Makes what is missing under --data: secrets, a private PostgreSQL (unless --database is given),
            tables, topics. When all is ready it prints where things are, and writes it to DIR/run.json, by
            which other commands find it. SIGHUP reads the pipeline files, alerts.yaml and the certificate
            again; SIGTERM and Ctrl-C end it
            in order.
            """,
        options: [
            InstanceOptions.data, InstanceOptions.database, InstanceOptions.pipelines,
            InstanceOptions.alerts,
            InstanceOptions.partitions, InstanceOptions.retention, InstanceOptions.network,
        ] + LogAccess.options + InstanceOptions.frontEnd + InstanceOptions.logging
    ) { arguments in
        Signals.hold()
        InstanceOptions.configureLog(arguments)
        let instance = Instance(
            try Service.settings(arguments, roles: [.ingest, .process], preparesAll: true))
        return try Service.run(instance, arguments) { instance in
            let file = try Service.writeRunFile(instance)
            Terminal.write(description(instance, file))
        }
    }

    static func description(_ instance: Instance, _ file: RunFile) -> String {
        let pipelines = instance.settings.pipelines.map { "\($0.name) (\($0.path))" }
        return """
            heartline \(Version.current) is ready.
              heartbeats  POST \(file.listen)/api/v1/heartbeat
              agents      POST \(file.listen)/api/v1/provision
              admin       \(file.admin)/readyz
              operators   \(file.admin)/admin/v1, with the token in \(instance.adminTokenFile ?? "")
              database    psql '\(file.database)'
              data        \(instance.settings.data)
              pipelines   \(pipelines.joined(separator: ", "))

            """
    }
}
