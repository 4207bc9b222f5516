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
        ] + LogAccess.options + InstanceOptions.frontEnd + UpdateOptions.all
            + InstanceOptions.logging
    ) { arguments in
        Signals.hold()
        InstanceOptions.configureLog(arguments)
        try InstanceChecks.network(arguments)
        let folder = DataFolder(arguments.text("data"))
        var settings = try Service.settings(
            arguments, roles: [.ingest, .process], preparesAll: true)
        settings.isNetworkGiven = arguments.given.contains("network")
        let instance = Instance(settings)
        var wasReady = false
        do {
            return try Service.run(instance, arguments) { instance in
                let file = try Service.writeRunFile(instance)
                wasReady = true
                Terminal.write(try description(instance, file))
            }
        } catch {
            if !wasReady {
                folder.removeIfNew(
                    isInUse: settings.database != nil && instance.mayHaveStoredNetwork)
            }
            throw error
        }
    }

    static func description(_ instance: Instance, _ file: RunFile) throws -> String {
        let pipelines = instance.settings.pipelines.map { "\($0.name) (\($0.path))" }
        return """
            heartline \(Version.current) is ready.
              heartbeats  POST \(file.listen)/api/v1/heartbeat
              agents      POST \(file.listen)/api/v1/provision
              people      \(file.listen)/v1
              page        \(try PageLink.shown(instance, file))
              admin       \(file.admin)/readyz
              updates     \(file.updates ?? file.listen)/api/app/ID/update
              operators   \(file.admin)/admin/v1, with the token in \(instance.adminTokenFile ?? "")
              database    psql '\(DatabaseAccess.shown(file.database))'
              data        \(instance.settings.data)
              pipelines   \(pipelines.joined(separator: ", "))

            """
    }
}
