import Postgres
import System

/// How commands that look at an instance find it: `--data DIR` of a running one, or `--database`.
enum DatabaseAccess {
    static let options: [Option] = [
        .path("data", "DIR", default: "data", "data directory of a running instance"),
        .text(
            "database", "URL",
            "address of its PostgreSQL, as libpq takes it; without it: the running instance of --data"
        ),
    ]

    static func address(_ arguments: Arguments) throws -> String {
        if let address = arguments.optionalText("database") { return address }
        return try RunFile.read(in: arguments.text("data")).database
    }

    /// An address as it may be shown: without its passwords.
    static func shown(_ address: String) -> String {
        address
            .replacing(#/(://[^/?#@:]*:)[^/?#]*@/#) { "\($0.1)***@" }
            .replacing(#/(password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&]+)/#) { "\($0.1)***" }
    }

    static func connect(
        _ arguments: Arguments, as role: String, responseTimeout: Duration = .seconds(300)
    ) throws -> PostgresConnection {
        var options = PostgresOptions(applicationName: "heartline \(role)")
        options.responseTimeout = responseTimeout
        return try PostgresConnection(address(arguments), options: options)
    }
}
