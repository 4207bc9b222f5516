import System

/// `heartline ingest`.
enum IngestCommand {
    static let command = Command(
        name: "ingest", summary: "the front-end alone: takes in what devices say",
        details: """
            For installations of several processes. The database must have been migrated and the topics made;
            SERVER_SALT and HEARTLINE_SECRET_KEY must be in the environment. The log is Kafka with --brokers;
            then --data holds the spool, and is this front-end's alone. Without, it is the one under --data.
            """,
        options: [
            InstanceOptions.data, requiredDatabase, InstanceOptions.partitions,
            InstanceOptions.retention, InstanceOptions.spool,
        ] + LogAccess.options + InstanceOptions.frontEnd + UpdateOptions.all
            + InstanceOptions.logging
    ) { arguments in
        Signals.hold()
        InstanceOptions.configureLog(arguments)
        try requireDatabase(arguments)
        let instance = Instance(
            try Service.settings(arguments, roles: .ingest, preparesAll: false))
        return try Service.run(instance, arguments) { instance in
            Terminal.write(
                """
                heartline \(Version.current) takes heartbeats and provisions agents.
                  heartbeats  POST \(instance.url)/api/v1/heartbeat
                  agents      POST \(instance.url)/api/v1/provision
                  people      \(instance.url)/v1
                  admin       \(instance.adminURL)/readyz

                """)
        }
    }

    static let requiredDatabase = Option.text(
        "database", "URL", "address of PostgreSQL, as libpq takes it; needed")

    static func requireDatabase(_ arguments: Arguments) throws {
        guard arguments.optionalText("database") != nil else {
            throw UsageError("--database is needed: this role starts no PostgreSQL of its own")
        }
    }
}
