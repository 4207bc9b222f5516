import Ingest
import Schemas
import System

/// `heartline device list`.
enum DeviceList {
    static let command = Command(
        name: "device list", summary: "list the registry's devices",
        options: [
            .integer("limit", 1...10_000_000, default: 1_000, "at most so many"),
            .text("after", "ID", "those behind this id"),
            .flag("json", "print one JSON object a line"),
        ] + DatabaseAccess.options
    ) { arguments in
        var after: DeviceID?
        if let text = arguments.optionalText("after") {
            guard let id = DeviceID(text) else {
                throw UsageError("--after is a device's UUID, not \"\(text)\"")
            }
            after = id
        }
        let registry = try RegistryAccess.open(arguments, as: "device list")
        let devices = try registry.devices(limit: arguments.integer("limit"), after: after)
        if arguments.wantsJSON {
            for device in devices { Terminal.write(try JSONText.line(device)) }
            return .done
        }
        var text =
            FleetScreen.pad("device", 38) + FleetScreen.pad("address", 18)
            + FleetScreen.pad("version", 9) + "created\n"
        for device in devices {
            text += FleetScreen.pad("\(device.device)", 38)
            text += FleetScreen.pad(device.internalAddress, 18)
            text += FleetScreen.pad("\(device.version)", 9)
            text += "\(device.createdAt)\(device.isSuspended ? "  suspended" : "")\n"
        }
        Terminal.write(text)
        let count = try registry.deviceCount
        if Int64(devices.count) < count && after == nil {
            Terminal.write(
                "\(devices.count) of \(count); --limit and --after show more\n", to: .errors)
        }
        return .done
    }
}
