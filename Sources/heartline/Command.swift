/// How the process ends.
enum ExitCode: Int32 {
    case done = 0
    case failed = 1
    case usage = 2
}

/// Something the user asked for that cannot be: printed with a pointer to `--help`, exit code 2.
struct UsageError: Error {
    var message: String

    init(_ message: String) { self.message = message }
}

/// Something that went wrong while doing it: printed, exit code 1.
struct Failure: Error, CustomStringConvertible {
    var description: String

    init(_ description: String) { self.description = description }
}

/// An option, as data: `--name value` or `--name=value`, and `HEARTLINE_NAME` in the environment.
struct Option: Sendable {
    enum Kind: Sendable {
        /// Present or not.
        case flag
        case text(String)
        case path(String)
        case integer(String, ClosedRange<Int>)
        /// `30s`, `10m`; kept in milliseconds.
        case duration(ClosedRange<Int64>)
        /// `127.0.0.1:8080`, `[::1]:0`.
        case address
        case choice([String])
    }

    var name: String
    var kind: Kind
    var defaultValue: String?
    var help: String
    /// May be given several times.
    var repeats = false
    /// Of the variable; `nil`: from the option's name.
    var variable: String?

    var environmentName: String {
        variable ?? "HEARTLINE_" + name.uppercased().replacing("-", with: "_")
    }

    /// What stands for the value in help texts; `nil` for a flag.
    var placeholder: String? {
        switch kind {
        case .flag: nil
        case .text(let placeholder), .path(let placeholder), .integer(let placeholder, _):
            placeholder
        case .duration: "TIME"
        case .address: "ADDRESS"
        case .choice(let values): values.joined(separator: "|")
        }
    }

    static func flag(_ name: String, _ help: String) -> Option {
        Option(name: name, kind: .flag, defaultValue: nil, help: help)
    }

    static func text(
        _ name: String, _ placeholder: String, default value: String? = nil, _ help: String
    ) -> Option {
        Option(name: name, kind: .text(placeholder), defaultValue: value, help: help)
    }

    static func path(
        _ name: String, _ placeholder: String, default value: String? = nil, _ help: String
    ) -> Option {
        Option(name: name, kind: .path(placeholder), defaultValue: value, help: help)
    }

    static func integer(
        _ name: String, _ range: ClosedRange<Int>, default value: Int? = nil, _ help: String
    ) -> Option {
        Option(
            name: name, kind: .integer("N", range), defaultValue: value.map(String.init),
            help: help)
    }

    static func duration(
        _ name: String, _ range: ClosedRange<Int64>, default value: String? = nil, _ help: String
    ) -> Option {
        Option(name: name, kind: .duration(range), defaultValue: value, help: help)
    }

    static func address(_ name: String, default value: String? = nil, _ help: String) -> Option {
        Option(name: name, kind: .address, defaultValue: value, help: help)
    }
}

/// What stands on the command line without dashes.
struct Operands: Sendable {
    /// For help, for example `ID` or `[FILE…]`.
    var placeholder: String
    var count: ClosedRange<Int>
    var help: String
}

/// A subcommand, as data.
struct Command: Sendable {
    /// One or two words: `up`, `device add`.
    var name: String
    /// One line.
    var summary: String
    /// Paragraphs for its own help.
    var details = ""
    var operands: Operands?
    var options: [Option]
    var run: @Sendable (Arguments) throws -> ExitCode

    /// The first words of its help, for the shell.
    var usage: String {
        var text = "heartline \(name)"
        if let operands { text += " \(operands.placeholder)" }
        if !allOptions.isEmpty { text += " [OPTIONS]" }
        return text
    }

    /// Its own options and those that all commands have.
    var allOptions: [Option] { options + Self.common }

    static let common: [Option] = [
        .flag("help", "print this and end")
    ]
}
