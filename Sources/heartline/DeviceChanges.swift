import Ingest
import Pipeline
import Schemas
import System

/// `heartline device suspend`, `resume`, `rotate`, `remove` and `interval`.
enum DeviceChanges {
    static let suspend = command(
        "suspend", "suspend devices: their heartbeats are answered 403", done: "suspended",
        idle: "was suspended already"
    ) { registry, id, request in try registry.suspend(id, by: request) }

    static let resume = command(
        "resume", "end the suspension of devices", done: "resumed", idle: "was not suspended"
    ) { registry, id, request in try registry.resume(id, by: request) }

    static let rotate = command(
        "rotate", "give devices new keys; they stay online and take them with a heartbeat",
        done: "has new keys", idle: "is unchanged"
    ) { registry, id, request in try registry.rotate(id, by: request) }

    static let remove = command(
        "remove", "take devices out of the registry, with their forwards", done: "removed",
        idle: "is unchanged"
    ) { registry, id, request in try registry.remove(id, by: request) }

    static let interval = Command(
        name: "device interval", summary: "set a device's own heartbeat interval",
        operands: Operands(
            placeholder: "ID TIME", count: 2...2,
            help: "the device's UUID; 1s to 7d, or none for the fleet's"),
        options: [json] + OperatorOptions.all + DatabaseAccess.options
    ) { arguments in
        let id = try RegistryAccess.device(arguments.operands[0])
        let text = arguments.operands[1]
        var interval: Duration?
        if text != "none" {
            guard let milliseconds = DurationText.milliseconds(text),
                (1_000...7 * 86_400_000).contains(milliseconds)
            else {
                throw UsageError(
                    "an interval is a time with its unit, as 30s or 10m, from 1s to 7d, or none; not \"\(text)\""
                )
            }
            interval = .milliseconds(milliseconds)
        }
        let request = try OperatorOptions.request(arguments)
        let registry = try RegistryAccess.open(arguments, as: "device interval")
        try show(
            try registry.setInterval(id, interval, by: request), arguments,
            done: "has interval \(text)", idle: "had interval \(text) already")
        return .done
    }

    static let json = Option.flag("json", "print one JSON object a device")

    private static func command(
        _ word: String, _ summary: String, done: String, idle: String,
        _ change:
            @escaping @Sendable (Registry, DeviceID, OperatorRequest) throws -> DeviceChange
    ) -> Command {
        Command(
            name: "device \(word)", summary: summary,
            details: "Each device is a change of its own; the first that fails ends the command.",
            operands: Operands(
                placeholder: "ID...", count: 1...10_000, help: "the devices' UUIDs"),
            options: [json] + OperatorOptions.all + DatabaseAccess.options
        ) { arguments in
            let ids = try arguments.operands.map { try RegistryAccess.device($0) }
            let request = try OperatorOptions.request(arguments)
            if request.id != nil, ids.count > 1 {
                throw UsageError("--request-id names one change, so it goes with one device")
            }
            let registry = try RegistryAccess.open(arguments, as: "device \(word)")
            for id in ids {
                try show(
                    try change(registry, id, request), arguments, done: done, idle: idle)
            }
            return .done
        }
    }

    /// Prints what a change came to.
    static func show(
        _ change: DeviceChange, _ arguments: Arguments, done: String, idle: String
    ) throws {
        if arguments.wantsJSON {
            Terminal.write(try JSONText.line(change))
        } else {
            let text = change.changed ? done : idle
            Terminal.write("\(change.device) \(text) (version \(change.version))\n")
        }
    }
}
