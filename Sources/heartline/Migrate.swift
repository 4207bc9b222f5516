import Pipeline
import Schemas
import System

/// `heartline migrate`.
enum Migrate {
    static let command = Command(
        name: "migrate", summary: "bring a database to the schema of this version",
        details:
            "Safe to run at any time and from several machines at once: one of them does the work.",
        options: DatabaseAccess.options
    ) { arguments in
        let connection = try DatabaseAccess.connect(arguments, as: "migrate")
        let applied = try Migrator.migrate(connection, try Migrations.load())
        if applied.isEmpty { Terminal.write("The database is up to date.\n") }
        for migration in applied {
            Terminal.write("applied \(migration.number) \(migration.name)\n")
        }
        return .done
    }
}
