import Pipeline
import System

/// `heartline process`.
enum ProcessCommand {
    static let command = Command(
        name: "process", summary: "the pipelines alone: judge what is in the log",
        details: """
            For installations of several processes. The database must have been migrated and the topics made;
            SERVER_SALT and HEARTLINE_SECRET_KEY must be in the environment, as for the front-ends.
            The log is Kafka with --brokers, where any number of workers share the partitions, and otherwise
            the one under --data. SIGHUP reads the pipeline files and alerts.yaml again.
            """,
        options: [
            InstanceOptions.data, IngestCommand.requiredDatabase, InstanceOptions.pipelines,
            InstanceOptions.alerts,
            InstanceOptions.partitions, InstanceOptions.retention, InstanceOptions.workerAdmin,
            InstanceOptions.adminToken, InstanceOptions.metricsToken,
        ] + LogAccess.options + InstanceOptions.logging
    ) { arguments in
        Signals.hold()
        InstanceOptions.configureLog(arguments)
        try IngestCommand.requireDatabase(arguments)
        let instance = Instance(
            try Service.settings(arguments, roles: .process, preparesAll: false))
        return try Service.run(instance, arguments) { instance in
            let names = instance.settings.pipelines.map(\.name).joined(separator: ", ")
            let admin =
                instance.adminURL.isEmpty ? "" : "  admin       \(instance.adminURL)/readyz\n"
            Terminal.write(
                "heartline \(Version.current) runs the pipelines \(names)\n\(admin)")
        }
    }
}
