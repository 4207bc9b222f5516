import Foundation
import Ingest
import Postgres
import Schemas
import System

/// `heartline installation add`, `list`, `show`, `revoke`, `pair` and `unpair`.
enum InstallationCommands {
    static let json = Option.flag("json", "print a JSON object")
    private static let oneInstallation = Operands(
        placeholder: "ID", count: 1...1, help: "the installation's UUID")

    static func installation(_ arguments: Arguments) throws(UsageError) -> DeviceID {
        guard let id = DeviceID(arguments.operands[0]) else {
            throw UsageError("an installation's id is a UUID")
        }
        return id
    }

    /// Where a running instance has its update routes; empty if that is not known.
    static func base(_ arguments: Arguments) -> String {
        if let base = arguments.optionalText("base") { return base }
        guard let file = try? RunFile.read(in: arguments.text("data")) else { return "" }
        return file.updates ?? file.listen
    }

    static let baseOption = Option.text(
        "base", "URL",
        "where the update routes are, as http://my-mac.local:19464 (default: the running instance of --data)"
    )

    static let add = Command(
        name: "installation add", summary: "let an app on a device be updated from here",
        details: """
            Prints the installation's id and, behind a space, the address that its app asks at. The address
            holds a credential: it is stored nowhere and cannot be shown again.
            """,
        options: [
            .text("device", "ID", "the device, as the installing commands know it; needed"),
            .text("app", "NAME", "the app's name (default: from the source)"),
            .text(
                "source", "SOURCE",
                "gh:owner/repo, an http or https address, or an absolute path; needed"),
            .text("installed", "VERSION", "the release that is installed"),
            .text("asset", "NAME", "the name of the file that is installed"),
            .text("filter", "WORDS", "words that the name of a release's file must have"),
            .text("team", "TEAM", "the signing team that is asked for"),
            Option(
                name: "channel", kind: .choice(["latest", "pre-release"]), defaultValue: "latest",
                help: "which releases it follows; an app of a certain tag follows latest"),
            Option(
                name: "paired", kind: .text("ADDRESS"), defaultValue: nil,
                help: "an address from which the device asks; several times", repeats: true),
            .flag("admin-device", "the device may ask for other devices' apps as well"),
            .path(
                "credential-file", "FILE",
                "the source's credential: a token, or a whole Authorization value, on one line"),
            baseOption, json,
        ] + OperatorOptions.all + DatabaseAccess.options
    ) { arguments in
        guard let device = arguments.optionalText("device") else {
            throw UsageError("--device is needed")
        }
        guard let source = arguments.optionalText("source") else {
            throw UsageError("--source is needed")
        }
        let name = source.split(separator: "/").last.map(String.init) ?? source
        var settings = Registry.InstallationSettings(
            device: device, app: arguments.optionalText("app") ?? name, source: source)
        settings.version = arguments.optionalText("installed")
        settings.assetName = arguments.optionalText("asset")
        settings.filter = arguments.optionalText("filter")
        settings.team = arguments.optionalText("team")
        settings.channel = arguments.text("channel")
        settings.addresses = arguments.all("paired")
        settings.isAdmin = arguments.flag("admin-device")
        if let file = arguments.optionalText("credential-file") {
            let bytes = try FileSystem.bytes(of: file, limit: 64 << 10)
            settings.credential = String(decoding: bytes, as: UTF8.self)
                .trimmingCharacters(in: .whitespacesAndNewlines)
        }
        let request = try OperatorOptions.request(arguments)
        let registry = try RegistryAccess.open(arguments, as: "installation add")
        let made = try registry.addInstallation(settings, by: request)
        let address = made.token.map { "\(base(arguments))/api/app/\($0)/update" }
        if arguments.wantsJSON {
            Terminal.write(
                try JSONText.line(Added(installation_id: "\(made.id)", update_url: address)))
        } else {
            Terminal.write("\(made.id)\(address.map { " \($0)" } ?? "")\n")
        }
        return .done
    }

    private struct Added: Encodable {
        var installation_id: String
        var update_url: String?
    }

    static let list = Command(
        name: "installation list", summary: "list installations, the newest first",
        options: [
            .integer("limit", 1...1_000_000, default: 100, "at most so many"),
            .text("device", "ID", "only of this device"),
            .flag("json", "print one JSON object a line"),
        ] + DatabaseAccess.options
    ) { arguments in
        let registry = try RegistryAccess.open(arguments, as: "installation list")
        let found = try registry.installations(
            limit: arguments.integer("limit"), device: arguments.optionalText("device"))
        if arguments.wantsJSON {
            for item in found { Terminal.write(try JSONText.line(Document(item))) }
            return .done
        }
        var table = TextTable("installation", "device", "app", "source", "version", "channel", "")
        for item in found {
            table.add(
                "\(item.id)", item.device, item.app, item.source, item.version ?? "",
                item.channel, item.revokedAt == nil ? "" : "revoked")
        }
        Terminal.write(table.text)
        return .done
    }

    static let show = Command(
        name: "installation show", summary: "an installation, its links and its last attempts",
        operands: oneInstallation, options: [json] + DatabaseAccess.options
    ) { arguments in
        let id = try installation(arguments)
        let registry = try RegistryAccess.open(arguments, as: "installation show")
        guard let found = try registry.installation(id) else {
            throw Failure("showing \(id): there is no such installation")
        }
        var document = Document(found)
        document.links = try registry.links(of: id).map { Document.Link($0) }
        document.addresses = try registry.pairedAddresses(of: found.device).map(\.address)
        let connection = try DatabaseAccess.connect(arguments, as: "installation show")
        document.attempts = try connection.execute(
            """
            SELECT attempt_id::text, action, state, to_release, reason, started_at \
            FROM heartline.update_attempts WHERE installation_id = $1 \
            ORDER BY started_at DESC LIMIT 10
            """, .uuid(id.high, id.low)
        ).map { row in
            Document.Attempt(
                attempt_id: try row.text(0), action: try row.text(1), state: try row.text(2),
                release: try row.optionalText(3), reason: try row.optionalText(4),
                started_at: "\(EventTime(postgresMicroseconds: try row.timestamptz(5)))")
        }
        if arguments.wantsJSON {
            Terminal.write(try JSONText.line(document))
            return .done
        }
        Terminal.write(document.text)
        return .done
    }

    static let revoke = Command(
        name: "installation revoke", summary: "make an app's ids and links good for nothing",
        operands: oneInstallation,
        options: [json] + OperatorOptions.all + DatabaseAccess.options
    ) { arguments in
        let id = try installation(arguments)
        let request = try OperatorOptions.request(arguments)
        let registry = try RegistryAccess.open(arguments, as: "installation revoke")
        try tell(
            id, changed: try registry.revokeInstallation(id, by: request), arguments,
            done: "revoked", idle: "was revoked already")
        return .done
    }

    static func tell(
        _ id: DeviceID, changed: Bool, _ arguments: Arguments, done: String, idle: String
    ) throws {
        if arguments.wantsJSON {
            Terminal.write(try JSONText.line(Changed(id: "\(id)", changed: changed)))
        } else {
            Terminal.write("\(id) \(changed ? done : idle)\n")
        }
    }

    private struct Changed: Encodable {
        var id: String
        var changed: Bool
    }

    private static let deviceAndAddresses = Operands(
        placeholder: "DEVICE ADDRESS...", count: 2...100,
        help: "the device, as its installations name it, and IP addresses")

    static let pair = Command(
        name: "installation pair", summary: "let a device ask for its apps from an address",
        operands: deviceAndAddresses,
        options: [.flag("admin-device", "it may ask for other devices' apps as well")]
            + OperatorOptions.all + DatabaseAccess.options
    ) { arguments in
        let request = try OperatorOptions.request(arguments)
        let registry = try RegistryAccess.open(arguments, as: "installation pair")
        try registry.pairDevice(
            arguments.operands[0], addresses: Array(arguments.operands.dropFirst()),
            isAdmin: arguments.flag("admin-device"), by: request)
        Terminal.write("\(arguments.operands[0]) paired\n")
        return .done
    }

    static let unpair = Command(
        name: "installation unpair", summary: "take an address from a device, or all of them",
        operands: Operands(
            placeholder: "DEVICE [ADDRESS...]", count: 1...100,
            help: "the device, and IP addresses, none for all"),
        options: OperatorOptions.all + DatabaseAccess.options
    ) { arguments in
        let request = try OperatorOptions.request(arguments)
        let registry = try RegistryAccess.open(arguments, as: "installation unpair")
        let changed = try registry.unpairDevice(
            arguments.operands[0], addresses: Array(arguments.operands.dropFirst()), by: request)
        Terminal.write(
            "\(arguments.operands[0]) \(changed ? "unpaired" : "was not paired with it")\n")
        return .done
    }

    /// An installation for programs and people. No ids that are credentials.
    private struct Document: Encodable {
        var installation_id: String
        var device: String
        var app: String
        var source: String
        var filter: String?
        var team: String?
        var channel: String
        var has_credential: Bool
        var version: String?
        var asset: String?
        var created_at: String
        var created_by: String
        var revoked_at: String?
        var addresses: [String]?
        var links: [Link]?
        var attempts: [Attempt]?

        struct Link: Encodable {
            var link_id: String
            var anywhere: Bool
            var created_at: String
            var revoked_at: String?

            init(_ link: LinkSummary) {
                link_id = "\(link.id)"
                anywhere = link.isAnywhere
                created_at = "\(link.createdAt)"
                revoked_at = link.revokedAt.map { "\($0)" }
            }
        }

        struct Attempt: Encodable {
            var attempt_id: String
            var action: String
            var state: String
            var release: String?
            var reason: String?
            var started_at: String
        }

        init(_ item: InstallationSummary) {
            installation_id = "\(item.id)"
            device = item.device
            app = item.app
            source = item.source
            filter = item.filter
            team = item.team
            channel = item.channel
            has_credential = item.hasCredential
            version = item.version
            asset = item.assetName
            created_at = "\(item.createdAt)"
            created_by = item.createdBy
            revoked_at = item.revokedAt.map { "\($0)" }
        }

        var text: String {
            var lines = """
                installation \(installation_id)\(revoked_at == nil ? "" : "  revoked")
                device       \(device)
                app          \(app)
                source       \(source)\(has_credential ? "  with a credential" : "")
                channel      \(channel)
                version      \(version ?? "not known")
                created      \(created_at) by \(created_by)

                """
            if let filter { lines += "filter       \(filter)\n" }
            if let team { lines += "team         \(team)\n" }
            for address in addresses ?? [] { lines += "paired       \(address)\n" }
            for link in links ?? [] {
                let kind = link.anywhere ? "anywhere" : "paired only"
                lines += "link         \(link.link_id)  \(kind)"
                lines += "\(link.revoked_at == nil ? "" : "  revoked")\n"
            }
            for attempt in attempts ?? [] {
                lines += "attempt      \(attempt.started_at) \(attempt.action) "
                lines += "\(attempt.release ?? "") \(attempt.state)"
                lines += "\(attempt.reason.map { ": \($0)" } ?? "")\n"
            }
            return lines
        }
    }
}

/// `heartline link create` and `revoke`.
enum LinkCommands {
    static let create = Command(
        name: "link create", summary: "make a global update link for an installation",
        details: """
            Prints the link alone. It is a credential: it is stored nowhere and cannot be shown again. Links
            that were made before stay as they are; link revoke takes one away.
            """,
        operands: Operands(placeholder: "ID", count: 1...1, help: "the installation's UUID"),
        options: [
            .flag(
                "paired-only",
                "good from this host and the device's addresses only, not from anywhere"),
            InstallationCommands.baseOption,
            .flag("json", "print a JSON object with the link and its id"),
        ] + OperatorOptions.all + DatabaseAccess.options
    ) { arguments in
        let id = try InstallationCommands.installation(arguments)
        let request = try OperatorOptions.request(arguments)
        let registry = try RegistryAccess.open(arguments, as: "link create")
        let made = try registry.createLink(
            of: id, isAnywhere: !arguments.flag("paired-only"), by: request)
        let base = InstallationCommands.base(arguments)
        let link = made.token.map { "\(base)/global-update/\($0)" }
        if arguments.wantsJSON {
            Terminal.write(try JSONText.line(Made(link_id: "\(made.id)", link: link)))
        } else if let link {
            Terminal.write("\(link)\n")
        } else {
            Terminal.write("\(made.id) was made before; what stands in it cannot be shown again\n")
        }
        return .done
    }

    private struct Made: Encodable {
        var link_id: String
        var link: String?
    }

    static let revoke = Command(
        name: "link revoke", summary: "make a global update link good for nothing",
        operands: Operands(
            placeholder: "ID", count: 1...1,
            help: "the link's UUID, as installation show tells it"),
        options: [InstallationCommands.json] + OperatorOptions.all + DatabaseAccess.options
    ) { arguments in
        guard let id = DeviceID(arguments.operands[0]) else {
            throw UsageError("a link's id is a UUID")
        }
        let request = try OperatorOptions.request(arguments)
        let registry = try RegistryAccess.open(arguments, as: "link revoke")
        try InstallationCommands.tell(
            id, changed: try registry.revokeLink(id, by: request), arguments, done: "revoked",
            idle: "was revoked already")
        return .done
    }
}
