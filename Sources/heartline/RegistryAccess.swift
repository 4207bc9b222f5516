import Foundation
import Ingest
import Schemas
import System

/// The registry of an instance, with its secret key: from the environment, or the data directory.
enum RegistryAccess {
    /// - Throws: also if the key is not the one that the registry was set up with.
    static func open(_ arguments: Arguments, as role: String) throws -> Registry {
        let folder = arguments.text("data")
        let connection = try DatabaseAccess.connect(arguments, as: role)
        let environment = ProcessInfo.processInfo.environment
        // Looking must not make secrets where none are.
        let hasFiles = FileSystem.exists("\(folder)/secret-key")
        let secrets = try SecretFiles.load(
            environment: environment, directory: hasFiles ? folder : nil)
        let registry = try Registry(connection, secretKey: secrets.secretKey)
        try registry.checkKey()
        return registry
    }

    static func device(_ text: String) throws(UsageError) -> DeviceID {
        guard let id = DeviceID(text) else {
            throw UsageError("a device's id is a UUID, not \"\(text)\"")
        }
        return id
    }
}

/// Options of commands that change the registry.
enum OperatorOptions {
    static let all: [Option] = [
        Option(
            name: "as", kind: .text("NAME"), defaultValue: nil,
            help: "who does it, for the audit log (default: the login name)",
            variable: "HEARTLINE_ACTOR"),
        .text(
            "request-id", "ID",
            "does it once, however often it is repeated with this id; needs a new id for each change"
        ),
    ]

    static func request(_ arguments: Arguments) throws -> OperatorRequest {
        do throws(RegistryError) {
            return try OperatorRequest(
                actor: arguments.optionalText("as") ?? UnixAccount.currentName,
                id: arguments.optionalText("request-id"))
        } catch {
            throw UsageError(error.reason)
        }
    }
}

/// Columns for people, as wide as what stands in them.
struct TextTable {
    private var rows: [[String]]

    init(_ head: String...) { rows = [head] }

    mutating func add(_ cells: String...) { rows.append(cells) }

    var text: String {
        let widths = rows[0].indices.map { column in
            rows.map { $0[column].count }.max() ?? 0
        }
        return rows.map { row in
            var line = ""
            for (cell, width) in zip(row, widths) {
                line += cell + String(repeating: " ", count: width - cell.count + 2)
            }
            while line.hasSuffix(" ") { line.removeLast() }
            return line + "\n"
        }.joined()
    }
}
