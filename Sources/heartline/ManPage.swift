import Foundation

/// The man page, generated from the commands themselves: `heartline help --man` prints it, for packages.
enum ManPage {
    static func text(_ commands: [Command]) -> String {
        var text = """
            .TH HEARTLINE 1 "" "heartline \(Version.current)" "Heartline"
            .SH NAME
            heartline \\- stream processing for fleets of devices
            .SH SYNOPSIS
            .B heartline
            .I COMMAND
            [\\fIOPTIONS\\fR]
            .SH DESCRIPTION
            Takes in what a fleet of devices says about itself (heartbeats, encounters, waves, update progress,
            telemetry), judges it, and keeps the answers in PostgreSQL.
            .PP
            Options may be given as \\fB\\-\\-name\\fR \\fIVALUE\\fR, \\fB\\-\\-name=\\fR\\fIVALUE\\fR, or in the environment, as each
            says.
            .SH COMMANDS

            """
        for command in commands {
            text += ".SS \"\(plain(command.usage))\"\n\(paragraph(command.summary + "."))\n"
            for part in command.details.split(separator: "\n\n") {
                text += ".PP\n\(paragraph(String(part)))\n"
            }
            if let operands = command.operands {
                text += ".TP\n.I \(plain(operands.placeholder))\n\(paragraph(operands.help))\n"
            }
            for option in command.allOptions {
                text += ".TP\n\\fB\\-\\-\(plain(option.name))\\fR"
                if let placeholder = option.placeholder { text += " \\fI\(plain(placeholder))\\fR" }
                text += "\n" + paragraph(option.help)
                if let value = option.defaultValue { text += " (default: \(plain(value)))" }
                if option.name != "help" { text += " [\\fB\(plain(option.environmentName))\\fR]" }
                text += "\n"
            }
        }
        return text + """
            .SH EXIT STATUS
            0: done. 1: failed. 2: the command line is wrong.
            .SH FILES
            .TP
            .I DIR/run.json
            where a running instance is, for other commands
            .TP
            .I /etc/heartline
            settings and pipelines of the services, where a package installed them
            .SH SEE ALSO
            .BR psql (1),
            .I /usr/share/doc/heartline

            """
    }

    /// As roff takes it in a line.
    private static func plain(_ text: String) -> String {
        text.replacing("\\", with: "\\e").replacing("-", with: "\\-").replacing("\"", with: "\\(dq")
            .replacing("'", with: "\\(aq")
    }

    /// Lines of text; none of them may begin with what roff takes for a request.
    private static func paragraph(_ text: String) -> String {
        text.split(separator: "\n").map { line in
            let line = plain(line.trimmingCharacters(in: .whitespaces))
            return line.hasPrefix(".") ? "\\&\(line)" : line
        }.joined(separator: "\n")
    }
}
