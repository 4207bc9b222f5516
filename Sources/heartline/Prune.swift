import Pipeline
import Postgres
import System

/// `heartline prune`.
enum Prune {
    private static let day: Int64 = 86_400_000

    static let command = Command(
        name: "prune", summary: "remove old history, alerts and versions from the database",
        details: """
            Removes days of device_state_history, minutes of fleet_minutes, resolved alerts with what was
            sent of them, silences that are over, superseded versions of configurations and their
            delivery, and registration tokens past their end. Whatever holds now stays, however old it
            is. Safe while everything runs; run it daily.
            """,
        options: [
            .duration(
                "older-than", day...36_500 * day, default: "90d", "age in whole days, as 90d"),
            .flag("audit", "also what operators did (audit_log)"),
            .flag("dry-run", "count what would be removed"),
        ] + DatabaseAccess.options
    ) { arguments in
        let age = arguments.duration("older-than")
        guard age % day == 0 else { throw UsageError("--older-than is in whole days, as 90d") }
        let isDry = arguments.flag("dry-run")
        let connection = try DatabaseAccess.connect(arguments, as: "prune")
        let removed = try Pruning(
            olderThanDays: Int32(age / day), includesAudit: arguments.flag("audit")
        ).run(connection, isDry: isDry)
        for item in removed where item.count > 0 {
            Terminal.write("\(isDry ? "would remove" : "removed") \(item.count) \(item.what)\n")
        }
        if removed.allSatisfy({ $0.count == 0 }) { Terminal.write("There is nothing to remove.\n") }
        return .done
    }
}
