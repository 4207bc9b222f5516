import HTTP
import Pipeline

/// The options and operands of one invocation, checked before anything is done.
struct Arguments: Sendable {
    private var values: [String: [String]] = [:]
    /// Names that were given on the command line or in the environment, not by default.
    private(set) var given: Set<String> = []
    private(set) var operands: [String] = []

    /// Reads the words after the command's name.
    init(
        _ words: [String], of command: Command, environment: [String: String]
    ) throws(UsageError) {
        let options = command.allOptions
        var index = 0
        while index < words.count {
            let word = words[index]
            index += 1
            if word == "--" {
                operands.append(contentsOf: words[index...])
                break
            }
            if word == "-h" {
                values["help"] = ["true"]
                continue
            }
            guard word.hasPrefix("-"), word != "-" else {
                operands.append(word)
                continue
            }
            guard word.hasPrefix("--") else {
                throw UsageError("unknown option \(word): options are long, as --data")
            }
            let body = word.dropFirst(2)
            let name = String(body.prefix { $0 != "=" })
            guard let option = options.first(where: { $0.name == name }) else {
                var message = "unknown option --\(name)"
                if let near = NearestName.of(name, among: options.map(\.name)) {
                    message += ": did you mean --\(near)?"
                }
                throw UsageError(message)
            }
            var value = body.count > name.count ? String(body.dropFirst(name.count + 1)) : nil
            if case .flag = option.kind {
                value = value ?? "true"
            } else if value == nil {
                guard index < words.count else {
                    throw UsageError("--\(name) needs a value: \(option.placeholder ?? "")")
                }
                value = words[index]
                index += 1
            }
            if given.contains(name) && !option.repeats {
                throw UsageError("--\(name) is given twice")
            }
            values[name, default: []].append(
                try Self.check(value ?? "", for: option, named: "--\(name)"))
            given.insert(name)
        }
        // Help is given whatever else is wrong.
        if flag("help") { return }
        for option in options where !given.contains(option.name) {
            if option.name != "help", let value = environment[option.environmentName],
                !value.isEmpty
            {
                values[option.name] = [
                    try Self.check(value, for: option, named: option.environmentName)
                ]
                given.insert(option.name)
            } else if let value = option.defaultValue {
                values[option.name] = [value]
            }
        }
        let allowed = command.operands?.count ?? 0...0
        if operands.count > allowed.upperBound {
            throw UsageError("unexpected \"\(operands[allowed.upperBound])\"")
        }
        if operands.count < allowed.lowerBound {
            throw UsageError("missing \(command.operands?.placeholder ?? "operand")")
        }
    }

    private static func check(
        _ value: String, for option: Option, named name: String
    ) throws(UsageError) -> String {
        switch option.kind {
        case .flag:
            switch value.lowercased() {
            case "true", "1", "yes": return "true"
            case "false", "0", "no": return "false"
            default: throw UsageError("\(name) is true or false, not \"\(value)\"")
            }
        case .text, .path:
            guard !value.isEmpty else { throw UsageError("\(name) is empty") }
        case .integer(_, let range):
            guard let number = Int(value), range.contains(number) else {
                throw UsageError(
                    "\(name) is a whole number from \(range.lowerBound) to \(range.upperBound), not \"\(value)\""
                )
            }
        case .duration(let range):
            guard let time = DurationText.milliseconds(value), range.contains(time) else {
                let low = DurationText.text(milliseconds: range.lowerBound)
                let high = DurationText.text(milliseconds: range.upperBound)
                throw UsageError(
                    "\(name) is a time with its unit, as 30s or 10m, from \(low) to \(high), not \"\(value)\""
                )
            }
        case .address:
            guard (try? SocketAddress(parsing: value)) != nil else {
                throw UsageError(
                    "\(name) is an IP address and a port, as 127.0.0.1:8080, not \"\(value)\"")
            }
        case .choice(let choices):
            guard choices.contains(value) else {
                throw UsageError(
                    "\(name) is \(choices.joined(separator: " or ")), not \"\(value)\"")
            }
        }
        return value
    }

    func flag(_ name: String) -> Bool { values[name]?.last == "true" }

    func optionalText(_ name: String) -> String? { values[name]?.last }

    func all(_ name: String) -> [String] { values[name] ?? [] }

    /// For options with a default.
    func text(_ name: String) -> String {
        guard let value = values[name]?.last else {
            preconditionFailure("--\(name) has no default")
        }
        return value
    }

    /// For options with a default.
    func integer(_ name: String) -> Int { Int(text(name)) ?? 0 }

    func optionalInteger(_ name: String) -> Int? { values[name]?.last.flatMap { Int($0) } }

    /// In milliseconds.
    func optionalDuration(_ name: String) -> Int64? {
        values[name]?.last.flatMap { DurationText.milliseconds($0) }
    }

    /// In milliseconds, for options with a default.
    func duration(_ name: String) -> Int64 { DurationText.milliseconds(text(name)) ?? 0 }

    var wantsHelp: Bool { flag("help") }
    var wantsJSON: Bool { flag("json") }
}
