import Foundation
import Ingest
import Pipeline
import Schemas
import System

/// `heartline migrate`.
enum Migrate {
    static let command = Command(
        name: "migrate", summary: "bring a database to the schema of this version",
        details: """
            Safe to run at any time and from several machines at once: one of them does the work. Where
            SERVER_SALT and HEARTLINE_SECRET_KEY are in the environment it also stores the network that
            devices join, if there is none yet, and checks that the key is the database's.
            """,
        options: DatabaseAccess.options + [InstanceOptions.network]
    ) { arguments in
        let connection = try DatabaseAccess.connect(arguments, as: "migrate")
        let applied = try Migrator.migrate(connection, try Migrations.load())
        if applied.isEmpty { Terminal.write("The database is up to date.\n") }
        for migration in applied {
            Terminal.write("applied \(migration.number) \(migration.name)\n")
        }
        let environment = ProcessInfo.processInfo.environment
        if environment["HEARTLINE_SECRET_KEY"] != nil {
            let secrets = try SecretFiles.load(environment: environment, directory: nil)
            var network = NetworkSettings()
            network.prefix = arguments.text("network")
            let registry = try Registry(connection, secretKey: secrets.secretKey)
            if try registry.prepareNetwork(network) {
                Terminal.write("stored the network \(network.prefix)\n")
            }
        }
        return .done
    }
}
