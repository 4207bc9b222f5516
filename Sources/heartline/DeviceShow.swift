import Ingest
import Pipeline
import Postgres
import Schemas
import System

/// A device of the registry with what the pipelines say of it, for programs. No secrets.
private struct DeviceDocument: Encodable {
    var device_id: String
    var internal_ip: String
    var public_key: String
    var version: Int64
    var suspended: Bool
    var expected_interval_ms: Int64?
    var created_at: String
    var forwards: [PortForward]
    var status: Status?

    struct Status: Encodable {
        var state: String
        var reason: String
        var since: String
        var last_seen: String?
        var flapping: Bool
    }

    init(_ device: DeviceSummary, _ forwards: [PortForward]) {
        device_id = "\(device.device)"
        internal_ip = device.internalAddress
        public_key = device.publicKey
        version = device.version
        suspended = device.isSuspended
        expected_interval_ms = device.expectedIntervalMilliseconds
        created_at = "\(device.createdAt)"
        self.forwards = forwards
    }
}

/// `heartline device show`.
enum DeviceShow {
    static let command = Command(
        name: "device show", summary: "a device of the registry, its state and its history",
        operands: Operands(placeholder: "ID", count: 1...1, help: "the device's UUID"),
        options: [.flag("json", "print a JSON object")] + DatabaseAccess.options
    ) { arguments in
        guard let id = DeviceID(arguments.operands[0]) else {
            throw UsageError("a device's id is a UUID, not \"\(arguments.operands[0])\"")
        }
        let registry = try RegistryAccess.open(arguments, as: "device show")
        guard let device = try registry.device(id) else {
            throw Failure("showing \(id): the registry has no such device")
        }
        let connection = try DatabaseAccess.connect(arguments, as: "device show")
        var document = DeviceDocument(device, try registry.forwards(of: id))
        document.status = try status(connection, id)
        if arguments.wantsJSON {
            Terminal.write(try JSONText.line(document))
            return .done
        }
        var text = """
            device     \(id)
            address    \(device.internalAddress)
            public key \(device.publicKey)
            version    \(device.version)\(device.isSuspended ? "  suspended" : "")
            created    \(device.createdAt)

            """
        if let interval = device.expectedIntervalMilliseconds {
            text += "interval   \(DurationText.text(milliseconds: interval))\n"
        }
        for forward in document.forwards { text += "forward    \(forward.text)\n" }
        if let status = document.status {
            text += "state      \(status.state) (\(status.reason)) since \(status.since)"
            text += "\(status.flapping ? ", flapping" : "")\n"
            text += "last seen  \(status.last_seen ?? "never")\n"
        } else {
            text += "state      not judged yet\n"
        }
        for row in try connection.execute(
            """
            SELECT state, reason, started_at FROM heartline.device_state_history
             WHERE device_id = $1 AND ended_at IS NOT NULL ORDER BY transition DESC LIMIT 10
            """, PostgresValue.uuid(id.high, id.low))
        {
            text +=
                "before     \(try row.text(0)) (\(try row.text(1))) since \(time(try row.timestamptz(2)))\n"
        }
        Terminal.write(text)
        return .done
    }

    private static func status(
        _ connection: PostgresConnection, _ id: DeviceID
    ) throws -> DeviceDocument.Status? {
        let rows = try connection.execute(
            """
            SELECT state, reason, since, last_seen, flapping
              FROM heartline.device_status WHERE device_id = $1
            """, PostgresValue.uuid(id.high, id.low))
        guard let row = rows.first else { return nil }
        return DeviceDocument.Status(
            state: try row.text(0), reason: try row.text(1), since: time(try row.timestamptz(2)),
            last_seen: try row.optionalTimestamptz(3).map { time($0) }, flapping: try row.bool(4))
    }

    private static func time(_ microseconds: Int64) -> String {
        "\(EventTime(postgresMicroseconds: microseconds))"
    }
}
