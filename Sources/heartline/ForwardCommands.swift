import Ingest
import Schemas
import System

/// `heartline forward list`, `add`, `remove` and `set`.
enum ForwardCommands {
    private static let protocolOption = Option(
        name: "proto", kind: .choice(["tcp", "udp"]), defaultValue: "tcp",
        help: "protocol that is forwarded")

    private static func listenPort(_ arguments: Arguments) throws -> UInt16 {
        guard let port = arguments.optionalInteger("listen") else {
            throw UsageError("--listen is needed: the port that is listened on")
        }
        return UInt16(clamping: port)
    }

    private static let listen = Option.integer(
        "listen", 1...65_535, "port that is listened on; needed")

    private static func device(_ arguments: Arguments) throws -> DeviceID {
        try RegistryAccess.device(arguments.operands[0])
    }

    private static let oneDevice = Operands(
        placeholder: "DEVICE", count: 1...1, help: "the device's UUID")

    static let list = Command(
        name: "forward list", summary: "list the port forwards of a device",
        operands: oneDevice,
        options: [.flag("json", "print one JSON object a line")] + DatabaseAccess.options
    ) { arguments in
        let id = try device(arguments)
        let registry = try RegistryAccess.open(arguments, as: "forward list")
        let forwards = try registry.forwards(of: id)
        if arguments.wantsJSON {
            for forward in forwards { Terminal.write(try JSONText.line(forward)) }
            return .done
        }
        var table = TextTable("protocol", "listen", "target")
        for forward in forwards {
            let target = forward.text.drop { $0 != "=" }.dropFirst()
            table.add(forward.transport, "\(forward.listenPort)", String(target))
        }
        Terminal.write(table.text)
        return .done
    }

    static let add = Command(
        name: "forward add", summary: "forward a port to a host behind a device",
        operands: oneDevice,
        options: [
            protocolOption, listen,
            .text("to", "HOST:PORT", "target, an IPv6 address in brackets; needed"),
            DeviceChanges.json,
        ] + OperatorOptions.all + DatabaseAccess.options
    ) { arguments in
        let id = try device(arguments)
        let port = try listenPort(arguments)
        guard let target = arguments.optionalText("to") else {
            throw UsageError("--to is needed: where the port leads to, as 10.0.0.5:80")
        }
        let forward = try checked {
            () throws(ForwardFault) in
            try PortForward(
                transport: arguments.text("proto"), listenPort: port, target: target)
        }
        let request = try OperatorOptions.request(arguments)
        let registry = try RegistryAccess.open(arguments, as: "forward add")
        try DeviceChanges.show(
            try registry.addForward(to: id, forward, by: request), arguments,
            done: "forwards \(forward.text)", idle: "forwarded \(forward.text) already")
        return .done
    }

    static let remove = Command(
        name: "forward remove", summary: "remove the forward of a port", operands: oneDevice,
        options: [protocolOption, listen, DeviceChanges.json] + OperatorOptions.all
            + DatabaseAccess.options
    ) { arguments in
        let id = try device(arguments)
        let port = try listenPort(arguments)
        let transport = arguments.text("proto")
        let request = try OperatorOptions.request(arguments)
        let registry = try RegistryAccess.open(arguments, as: "forward remove")
        try DeviceChanges.show(
            try registry.removeForward(
                from: id, transport: transport, listenPort: port, by: request), arguments,
            done: "forwards \(transport)/\(port) no more", idle: "is unchanged")
        return .done
    }

    static let set = Command(
        name: "forward set",
        summary: "make a list the forwards of a device, instead of those it has",
        operands: Operands(
            placeholder: "DEVICE [FORWARD...]", count: 1...(1 + PortForward.maximumCount),
            help: "the device's UUID; forwards as tcp/8080=10.0.0.5:80, none to remove all"),
        options: [DeviceChanges.json] + OperatorOptions.all + DatabaseAccess.options
    ) { arguments in
        let id = try device(arguments)
        let forwards = try checked {
            () throws(ForwardFault) in
            var read: [PortForward] = []
            for text in arguments.operands.dropFirst() {
                read.append(try PortForward(parsing: text))
            }
            return try PortForward.checked(read)
        }
        let request = try OperatorOptions.request(arguments)
        let registry = try RegistryAccess.open(arguments, as: "forward set")
        let count = forwards.count == 1 ? "1 forward" : "\(forwards.count) forwards"
        try DeviceChanges.show(
            try registry.setForwards(of: id, forwards, by: request), arguments,
            done: "has \(count)", idle: "had the same \(count) already")
        return .done
    }

    /// What is wrong with a forward on the command line is a fault of usage.
    private static func checked<Value>(
        _ read: () throws(ForwardFault) -> Value
    ) throws(UsageError) -> Value {
        do throws(ForwardFault) {
            return try read()
        } catch {
            throw UsageError(error.description)
        }
    }
}
