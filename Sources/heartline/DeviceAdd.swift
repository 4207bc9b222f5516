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
        ] + OperatorOptions.all + DatabaseAccess.options
    ) { arguments in
        let registry = try RegistryAccess.open(arguments, as: "device add")
        let devices = try registry.addDevices(
            count: arguments.integer("count"),
            expectedInterval: arguments.optionalDuration("expected-interval")
                .map { .milliseconds($0) },
            by: OperatorOptions.request(arguments))
        if arguments.wantsJSON {
            Terminal.write(try JSONText.line(devices.map { ["device_id": "\($0)"] }))
        } else {
            Terminal.write(devices.map { "\($0)\n" }.joined())
        }
        return .done
    }
}
