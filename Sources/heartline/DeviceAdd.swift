import Foundation
import Ingest
import Schemas
import System

/// `heartline device add`.
enum DeviceAdd {
    static let command = Command(
        name: "device add", summary: "add devices to the registry",
        details: "Prints their ids, one a line.",
        options: [
            .integer("count", 1...Registry.maximumAddition, default: 1, "how many"),
            .duration(
                "expected-interval", 1_000...7 * 86_400_000,
                "time between their heartbeats, where it is not the fleet's"),
            .flag("json", "print an array of objects with device_id"),
        ] + DatabaseAccess.options
    ) { arguments in
        let registry = try RegistryAccess.open(arguments, as: "device add")
        let devices = try registry.addDevices(
            count: arguments.integer("count"),
            expectedInterval: arguments.optionalDuration("expected-interval")
                .map { .milliseconds($0) })
        if arguments.wantsJSON {
            Terminal.write(try JSONText.line(devices.map { ["device_id": "\($0)"] }))
        } else {
            Terminal.write(devices.map { "\($0)\n" }.joined())
        }
        return .done
    }
}

/// The registry of an instance, with its secret key: from the environment, or the data directory.
enum RegistryAccess {
    static func open(_ arguments: Arguments, as role: String) throws -> Registry {
        let folder = arguments.text("data")
        let connection = try DatabaseAccess.connect(arguments, as: role)
        let environment = ProcessInfo.processInfo.environment
        // Looking must not make secrets where none are.
        let hasFiles = FileSystem.exists("\(folder)/secret-key")
        let secrets = try SecretFiles.load(
            environment: environment, directory: hasFiles ? folder : nil)
        let registry = try Registry(connection, secretKey: secrets.secretKey)
        // Keys that are sealed under another could never be opened.
        try registry.checkKey()
        return registry
    }
}
