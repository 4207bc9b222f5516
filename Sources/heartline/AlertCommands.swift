import Alerts
import Bytes
import Ingest
import Pipeline
import Postgres
import Schemas
import System

/// `heartline alert …`.
enum AlertCommands {
    private static let kindOption = Option(
        name: "kind", kind: .choice(AlertKind.allCases.map(\.rawValue)), defaultValue: nil,
        help: "alerts of this kind (default: of any)")
    private static let deviceOption = Option.text(
        "device", "ID", "alerts of this device (default: of any)")
    private static let json = Option.flag("json", "print one JSON object a line")
    private static let actor = Option(
        name: "as", kind: .text("NAME"), defaultValue: nil,
        help: "who does it, for the audit log (default: the login name)",
        variable: "HEARTLINE_ACTOR")

    private static func device(_ arguments: Arguments) throws(UsageError) -> DeviceID? {
        guard let text = arguments.optionalText("device") else { return nil }
        guard let id = DeviceID(text) else {
            throw UsageError("--device is a device's UUID, not \"\(text)\"")
        }
        return id
    }

    private static func ids(
        _ arguments: Arguments, of what: String
    ) throws(UsageError) -> [DeviceID] {
        var ids: [DeviceID] = []
        for text in arguments.operands {
            guard let id = DeviceID(text) else {
                throw UsageError("\(what) is a UUID, not \"\(text)\"")
            }
            ids.append(id)
        }
        return ids
    }

    static func actor(_ arguments: Arguments) throws -> String {
        do throws(RegistryError) {
            return try OperatorRequest(
                actor: arguments.optionalText("as") ?? UnixAccount.currentName, id: nil
            ).actor
        } catch {
            throw UsageError(error.reason)
        }
    }

    // MARK: - list

    static let list = Command(
        name: "alert list", summary: "alerts that are open, the newest first",
        options: [
            .flag("all", "those that are resolved as well"), kindOption, deviceOption,
            .integer("limit", 1...1_000_000, default: 1_000, "at most so many"), json,
        ] + DatabaseAccess.options
    ) { arguments in
        let connection = try DatabaseAccess.connect(arguments, as: "alert list")
        let alerts = try AlertAdministration.alerts(
            connection, all: arguments.flag("all"), kind: arguments.optionalText("kind"),
            device: device(arguments), limit: Int64(arguments.integer("limit")))
        if arguments.wantsJSON {
            for alert in alerts { Terminal.write(try JSONText.line(AlertDocument(alert))) }
            return .done
        }
        if alerts.isEmpty {
            Terminal.write(arguments.flag("all") ? "no alerts\n" : "no open alerts\n")
            return .done
        }
        var text =
            FleetScreen.pad("alert", 38) + FleetScreen.pad("kind", 16)
            + FleetScreen.pad("opened", 26) + FleetScreen.pad("told", 10) + "about\n"
        for alert in alerts {
            text += FleetScreen.pad("\(alert.id)", 38) + FleetScreen.pad(alert.kind, 16)
            text += FleetScreen.pad("\(alert.openedAt)", 26)
            text += FleetScreen.pad(alert.state ?? "new", 10)
            text += alert.deviceCount.map { "\($0) devices" } ?? alert.entity
            text += " (\(alert.reason))"
            if let resolved = alert.resolvedAt { text += ", resolved \(resolved)" }
            if alert.waiting > 0 { text += ", \(alert.waiting) messages wait" }
            if let who = alert.acknowledgedBy { text += ", acknowledged by \(who)" }
            text += "\n"
        }
        Terminal.write(text)
        return .done
    }

    // MARK: - Silences

    static let silence = Command(
        name: "alert silence",
        summary: "send no alerts for a while: of a device, of a kind, of all",
        details: """
            Prints the id of the silence. Alerts that match stand in the tables all the same. Those whose
            cause is still there when it ends are sent then; those that are resolved before are not sent.
            """,
        options: [
            deviceOption, kindOption,
            .duration("for", 1_000...31_536_000_000, "how long, as 30m or 2h"),
            .text(
                "from", "TIME", "when it begins, as 2026-06-26T22:00:00Z (default: now)"),
            .text("reason", "TEXT", "why, for whoever wonders later"), actor,
        ] + DatabaseAccess.options
    ) { arguments in
        guard let length = arguments.optionalDuration("for") else {
            throw UsageError("--for is missing: how long, as 2h")
        }
        guard let reason = arguments.optionalText("reason"), !reason.isEmpty else {
            throw UsageError("--reason is missing: why, in a few words")
        }
        var start: EventTime?
        if let text = arguments.optionalText("from") {
            guard let time = EventTime(parsing: ByteBuffer(text.utf8).span) else {
                throw UsageError(
                    "--from is a time with seconds and zone, as 2026-06-26T22:00:00Z, not \"\(text)\""
                )
            }
            start = time
        }
        let device = try device(arguments)
        let connection = try DatabaseAccess.connect(arguments, as: "alert silence")
        let silence = try AlertAdministration.silence(
            connection, device: device, kind: arguments.optionalText("kind"), from: start,
            milliseconds: length, reason: reason, by: try actor(arguments))
        Terminal.write("\(silence.id)\n")
        Terminal.write(
            "silent from \(silence.startsAt) to \(silence.endsAt)\n", to: .errors)
        return .done
    }

    static let silences = Command(
        name: "alert silences", summary: "silences that hold or are to come",
        options: [.flag("all", "those that have ended as well"), json] + DatabaseAccess.options
    ) { arguments in
        let connection = try DatabaseAccess.connect(arguments, as: "alert silences")
        let silences = try AlertAdministration.silences(connection, all: arguments.flag("all"))
        if arguments.wantsJSON {
            for silence in silences { Terminal.write(try JSONText.line(SilenceDocument(silence))) }
            return .done
        }
        if silences.isEmpty {
            Terminal.write("no silences\n")
            return .done
        }
        var text =
            FleetScreen.pad("silence", 38) + FleetScreen.pad("from", 26)
            + FleetScreen.pad("to", 26) + "of\n"
        for silence in silences {
            text += FleetScreen.pad("\(silence.id)", 38)
            text += FleetScreen.pad("\(silence.startsAt)", 26)
            text += FleetScreen.pad("\(silence.endsAt)", 26)
            text += silence.kind ?? "everything"
            if let device = silence.device { text += " of \(device)" }
            text += ": \(silence.reason) (\(silence.createdBy))\n"
        }
        Terminal.write(text)
        return .done
    }

    static let unsilence = Command(
        name: "alert unsilence", summary: "end a silence now",
        operands: Operands(placeholder: "ID", count: 1...1, help: "the silence's id"),
        options: [actor] + DatabaseAccess.options
    ) { arguments in
        let id = try ids(arguments, of: "a silence's id")[0]
        let connection = try DatabaseAccess.connect(arguments, as: "alert unsilence")
        guard try AlertAdministration.unsilence(connection, id, by: try actor(arguments)) else {
            throw Failure(
                "ending silence \(id): there is none that holds or is to come; alert silences lists them"
            )
        }
        return .done
    }

    // MARK: - acknowledge

    static let acknowledge = Command(
        name: "alert acknowledge", summary: "say that somebody looks after alerts",
        details: """
            It stands beside the alert for others to see. Receivers are not told, and an alert that is
            resolved is still said to be.
            """,
        operands: Operands(placeholder: "ID…", count: 1...1_000, help: "ids of alerts"),
        options: [actor] + DatabaseAccess.options
    ) { arguments in
        let ids = try ids(arguments, of: "an alert's id")
        let connection = try DatabaseAccess.connect(arguments, as: "alert acknowledge")
        let known = try AlertAdministration.acknowledge(connection, ids, by: try actor(arguments))
        let missing = ids.filter { !known.contains($0) }
        guard missing.isEmpty else {
            throw Failure(
                "acknowledging: there is no alert \(missing.map(\.description).joined(separator: ", "))"
            )
        }
        return .done
    }
}

/// An alert for programs.
struct AlertDocument: Encodable {
    var alert_id: String
    var kind: String
    var entity: String
    var device_id: String?
    var reason: String
    var opened_at: String
    var resolved_at: String?
    var count: Int64?
    var state: String?
    var waiting: Int64
    var acknowledged_at: String?
    var acknowledged_by: String?

    init(_ alert: AlertAdministration.Listed) {
        alert_id = "\(alert.id)"
        kind = alert.kind
        entity = alert.entity
        device_id = alert.device.map { "\($0)" }
        reason = alert.reason
        opened_at = "\(alert.openedAt)"
        resolved_at = alert.resolvedAt.map { "\($0)" }
        count = alert.deviceCount
        state = alert.state
        waiting = alert.waiting
        acknowledged_at = alert.acknowledgedAt.map { "\($0)" }
        acknowledged_by = alert.acknowledgedBy
    }
}

/// A silence for programs.
struct SilenceDocument: Encodable {
    var silence_id: String
    var device_id: String?
    var kind: String?
    var starts_at: String
    var ends_at: String
    var reason: String
    var created_by: String

    init(_ silence: AlertAdministration.Silence) {
        silence_id = "\(silence.id)"
        device_id = silence.device.map { "\($0)" }
        kind = silence.kind
        starts_at = "\(silence.startsAt)"
        ends_at = "\(silence.endsAt)"
        reason = silence.reason
        created_by = silence.createdBy
    }
}
