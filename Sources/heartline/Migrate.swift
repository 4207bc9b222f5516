import Foundation
import Ingest
import Pipeline
import Postgres
import Schemas
import System

/// `heartline migrate`.
enum Migrate {
    static let command = Command(
        name: "migrate", summary: "bring a database to the schema of this version",
        details: """
            Safe to run at any time and from several machines at once: one of them does the work. With
            SERVER_SALT and HEARTLINE_SECRET_KEY in the environment it also stores the network's settings,
            once: without them no front-end starts.
            """,
        options: DatabaseAccess.options + [InstanceOptions.network]
    ) { arguments in
        try InstanceChecks.network(arguments)
        let connection = try DatabaseAccess.connect(arguments, as: "migrate")
        let applied = try Migrator.migrate(connection, try Migrations.load())
        if applied.isEmpty { Terminal.write("The database is up to date.\n") }
        for migration in applied {
            Terminal.write("applied \(migration.number) \(migration.name)\n")
        }
        let hasNetwork = try !connection.execute("SELECT FROM heartline.network").isEmpty
        guard !hasNetwork else { return .done }
        guard ProcessInfo.processInfo.environment["HEARTLINE_SECRET_KEY"] != nil else {
            Terminal.write(
                "The network's settings are not stored yet: front-ends need them. Run this again with SERVER_SALT and HEARTLINE_SECRET_KEY in the environment.\n",
                to: .errors)
            return .done
        }
        let secrets = try SecretFiles.load(
            environment: ProcessInfo.processInfo.environment, directory: nil)
        var network = NetworkSettings()
        network.prefix = arguments.text("network")
        try Registry(connection, secretKey: secrets.secretKey).prepareNetwork(network)
        Terminal.write("stored the network's settings: \(network.prefix)\n")
        return .done
    }
}
