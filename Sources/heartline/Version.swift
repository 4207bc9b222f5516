import System

/// `heartline version`.
enum Version {
    static let current = "0.1.0"

    static let command = Command(
        name: "version", summary: "print the version",
        options: [.flag("json", "print a JSON object")]
    ) { arguments in
        Terminal.write(
            arguments.wantsJSON ? "{\"version\":\"\(current)\"}\n" : "heartline \(current)\n")
        return .done
    }
}
