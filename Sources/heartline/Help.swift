/// Help texts, generated from the commands themselves.
enum Help {
    static func overview(_ commands: [Command]) -> String {
        var text = """
            heartline: what a fleet of devices says about itself, judged and kept in PostgreSQL.

            usage: heartline COMMAND [OPTIONS]

            commands:

            """
        text += table(commands.map { ($0.name, $0.summary) })
        text += """

            heartline COMMAND --help tells a command's options. Exit codes: 0 done, 1 failed, 2 usage.

            """
        return text
    }

    /// The commands below a first word, as `device`.
    static func group(_ name: String, _ commands: [Command]) -> String {
        "usage: heartline \(name) COMMAND [OPTIONS]\n\ncommands:\n"
            + table(commands.map { ($0.name, $0.summary) })
    }

    static func of(_ command: Command) -> String {
        var text = "usage: \(command.usage)\n\n\(command.summary)\n"
        if !command.details.isEmpty { text += "\n\(command.details)\n" }
        if let operands = command.operands {
            text += "\n" + table([(operands.placeholder, operands.help)])
        }
        let rows = command.allOptions.map { option in
            var left = "--\(option.name)"
            if let placeholder = option.placeholder { left += " \(placeholder)" }
            var right = option.help
            if let value = option.defaultValue { right += " (default: \(value))" }
            if option.name != "help" { right += " [\(option.environmentName)]" }
            return (left, right)
        }
        return text + "\noptions:\n" + table(rows)
    }

    private static func table(_ rows: [(String, String)]) -> String {
        let width = min(36, rows.map(\.0.count).max() ?? 0)
        var text = ""
        for (left, right) in rows {
            text += "  " + left
            if left.count > width {
                text += "\n  " + String(repeating: " ", count: width)
            } else {
                text += String(repeating: " ", count: width - left.count)
            }
            text += "  " + right + "\n"
        }
        return text
    }
}
