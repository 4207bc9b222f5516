import Ingest
import System

/// `heartline audit list`.
enum AuditList {
    static let command = Command(
        name: "audit list", summary: "what operators did, the newest first",
        options: [
            .integer("limit", 1...1_000_000, default: 50, "at most so many"),
            .integer("before", 1...Int.max, "those before this number"),
            .text("entity", "ID", "only what was done to this device or token"),
            .flag("json", "print one JSON object a line"),
        ] + DatabaseAccess.options
    ) { arguments in
        let registry = try RegistryAccess.open(arguments, as: "audit list")
        let entries = try registry.auditLog(
            limit: arguments.integer("limit"),
            before: arguments.optionalInteger("before").map { Int64($0) },
            entity: arguments.optionalText("entity")?.lowercased())
        if arguments.wantsJSON {
            for entry in entries { Terminal.write(try JSONText.line(entry)) }
            return .done
        }
        var table = TextTable("number", "time", "who", "action", "of", "details")
        for entry in entries {
            table.add(
                "\(entry.number)", "\(entry.time)", entry.actor, entry.action, entry.entity,
                String(entry.details.prefix(100)))
        }
        Terminal.write(table.text)
        return .done
    }
}
