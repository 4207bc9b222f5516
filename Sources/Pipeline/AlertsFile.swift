public import Alerts
internal import Bytes
internal import Schemas
internal import System
internal import YAML

/// `alerts.yaml`: who is told of alerts, and how they are grouped (`docs/alerts.md`).
public enum AlertsFile {
    /// Reads the file, and the files of secrets that it names.
    /// - Throws: everything that is wrong with it, in the order of its lines.
    public static func load(_ path: String) throws(PipelineFileErrors) -> AlertsConfiguration {
        try parse(try PipelineFileReader.text(of: path), path: path)
    }

    /// Reads the text of the file.
    /// - Parameter path: for messages; secrets' paths that are not absolute begin in its folder.
    public static func parse(
        _ text: [UInt8], path: String
    ) throws(PipelineFileErrors) -> AlertsConfiguration {
        let root = try PipelineFileReader.root(of: text, path: path)
        var reader = PipelineFileReader(path: path)
        let configuration = reader.alerts(root)
        guard reader.errors.isEmpty else { throw PipelineFileErrors(reader.errors) }
        return configuration
    }
}

extension PipelineFileReader {
    mutating func alerts(_ root: YAMLNode) -> AlertsConfiguration {
        var configuration = AlertsConfiguration()
        // A file with nothing but comments has the defaults.
        if root.content == .scalar("", isPlain: true) { return configuration }
        guard let fields = fields(root, of: "alerts", ["group_wait", "mass_offline", "receivers"])
        else { return configuration }
        if let entry = fields["group_wait"] {
            let wait = duration(entry.value, of: "group_wait", 0...600_000)
            if let wait { configuration.dispatch.groupWait = wait }
        }
        if let entry = fields["mass_offline"] {
            massOffline(entry.value, into: &configuration.dispatch)
        }
        guard let entry = fields["receivers"] else { return configuration }
        for item in list(entry.value, of: "receivers") ?? [] {
            guard let receiver = receiver(item) else { continue }
            if configuration.receivers.contains(where: { $0.name == receiver.name }) {
                fail(item.mark, "a receiver is named \(receiver.name) already")
            } else {
                configuration.receivers.append(receiver)
            }
        }
        return configuration
    }

    private mutating func massOffline(
        _ node: YAMLNode, into settings: inout AlertDispatchSettings
    ) {
        let keys = ["share_percent", "at_least", "within", "resolved_percent"]
        guard let fields = fields(node, of: "mass_offline", keys) else { return }
        if let entry = fields["share_percent"] {
            let share = count(entry.value, of: "mass_offline.share_percent", 1...100)
            settings.massShare = share ?? settings.massShare
        }
        if let entry = fields["at_least"] {
            let minimum = count(entry.value, of: "mass_offline.at_least", 2...1_000_000_000)
            settings.massMinimum = minimum ?? settings.massMinimum
        }
        if let entry = fields["within"] {
            let within = duration(entry.value, of: "mass_offline.within", 1_000...3_600_000)
            settings.massWithin = within ?? settings.massWithin
        }
        if let entry = fields["resolved_percent"] {
            let share = count(entry.value, of: "mass_offline.resolved_percent", 1...100)
            settings.massResolvedShare = share ?? settings.massResolvedShare
        }
    }

    private mutating func receiver(_ node: YAMLNode) -> AlertReceiverSettings? {
        let targets = ["webhook", "alertmanager", "notify"]
        guard let fields = fields(node, of: "a receiver", ["name", "kinds"] + targets) else {
            return nil
        }
        guard let entry = fields["name"] else {
            fail(node.mark, "the receiver has no name")
            return nil
        }
        let name = receiverName(entry.value)
        var kinds: Set<String>?
        if let entry = fields["kinds"] { kinds = self.kinds(entry.value) }
        let given = targets.compactMap { fields[$0] }
        guard given.count == 1 else {
            fail(
                given.isEmpty ? node.mark : given[1].keyMark,
                "a receiver is one of \(targets.joined(separator: ", "))")
            return nil
        }
        let target: AlertReceiverSettings.Target? =
            switch given[0].key {
            case "webhook": webhook(given[0].value)
            case "alertmanager": alertmanager(given[0].value)
            default: channel(given[0].value)
            }
        guard let name, let target else { return nil }
        return AlertReceiverSettings(name: name, kinds: kinds, target: target)
    }

    private mutating func receiverName(_ node: YAMLNode) -> String? {
        guard let name = text(node, of: "name") else { return nil }
        let isName =
            name.utf8.count <= 63
            && name.utf8.allSatisfy {
                $0 >= 0x61 && $0 <= 0x7A || $0 >= 0x30 && $0 <= 0x39 || $0 == 0x2D
            }
        if isName { return name }
        fail(
            node.mark,
            "a receiver's name is up to 63 lower-case letters, digits and hyphens, not \"\(name)\"")
        return nil
    }

    private mutating func kinds(_ node: YAMLNode) -> Set<String>? {
        let known = AlertKind.allCases.map(\.rawValue)
        var kinds: Set<String> = []
        for item in list(node, of: "kinds") ?? [] {
            guard let kind = text(item, of: "a kind") else { continue }
            if !known.contains(kind) {
                fail(item.mark, "there is no kind of alert \"\(kind)\"\(hint(kind, known))")
            } else if !kinds.insert(kind).inserted {
                fail(item.mark, "the kind \(kind) is named already")
            }
        }
        if kinds.isEmpty && errors.isEmpty {
            fail(node.mark, "kinds names none: leave it away to send all")
        }
        return kinds
    }

    private mutating func webhook(_ node: YAMLNode) -> AlertReceiverSettings.Target? {
        let keys = [
            "url", "url_file", "secret_file", "authorization_file", "timeout", "concurrency",
            "proxy",
        ]
        guard let fields = fields(node, of: "webhook", keys) else { return nil }
        let url = url(node, fields)
        var webhook = WebhookSettings(url: url ?? "")
        if let entry = fields["secret_file"] {
            webhook.secret = secret(entry).map { ByteBuffer($0.utf8) }
        }
        if let entry = fields["authorization_file"] { webhook.authorization = secret(entry) }
        if let entry = fields["timeout"] {
            webhook.timeout =
                duration(entry.value, of: "timeout", 100...120_000) ?? webhook.timeout
        }
        if let entry = fields["concurrency"] {
            webhook.concurrency = count(entry.value, of: "concurrency", 1...64).map { Int($0) } ?? 8
        }
        if let entry = fields["proxy"] {
            webhook.usesEnvironmentProxy = bool(entry.value, of: "proxy") ?? true
        }
        return url == nil ? nil : .webhook(webhook)
    }

    private mutating func alertmanager(_ node: YAMLNode) -> AlertReceiverSettings.Target? {
        let keys = ["url", "url_file", "authorization_file", "timeout", "repeat", "proxy"]
        guard let fields = fields(node, of: "alertmanager", keys) else { return nil }
        let url = url(node, fields)
        var manager = AlertmanagerSettings(url: url ?? "")
        if let entry = fields["authorization_file"] { manager.authorization = secret(entry) }
        if let entry = fields["timeout"] {
            manager.timeout =
                duration(entry.value, of: "timeout", 100...120_000) ?? manager.timeout
        }
        if let entry = fields["repeat"] {
            let time = duration(entry.value, of: "repeat", 1_000...3_600_000)
            manager.repeatInterval = time ?? manager.repeatInterval
        }
        if let entry = fields["proxy"] {
            manager.usesEnvironmentProxy = bool(entry.value, of: "proxy") ?? true
        }
        return url == nil ? nil : .alertmanager(manager)
    }

    private mutating func channel(_ node: YAMLNode) -> AlertReceiverSettings.Target? {
        guard let fields = fields(node, of: "notify", ["channel"]) else { return nil }
        guard let entry = fields["channel"] else {
            fail(node.mark, "notify has no channel")
            return nil
        }
        guard let channel = text(entry.value, of: "channel") else { return nil }
        // PostgreSQL cuts longer names off, and these two are Heartline's own.
        let isTaken = ["heartline_alerts", "heartline_alert_deliveries", "heartline_outbox"]
            .contains(channel)
        if channel.utf8.count > 63 || isTaken {
            fail(
                entry.value.mark,
                isTaken
                    ? "the channel \(channel) is Heartline's own: choose another"
                    : "a channel's name has at most 63 bytes")
            return nil
        }
        return .notify(channel: channel)
    }

    // MARK: - Addresses and secrets

    private mutating func url(_ node: YAMLNode, _ fields: [String: YAMLEntry]) -> String? {
        let url: String?
        let mark: YAMLMark
        switch (fields["url"], fields["url_file"]) {
        case (let entry?, nil):
            url = text(entry.value, of: "url")
            mark = entry.value.mark
        case (nil, let entry?):
            url = secret(entry)
            mark = entry.value.mark
        case (nil, nil):
            fail(node.mark, "it has no url")
            return nil
        case (_, let entry?):
            fail(entry.keyMark, "url and url_file: give one of them")
            return nil
        }
        guard let url else { return nil }
        // The address itself may be a secret, so no message shows it.
        guard url.hasPrefix("http://") || url.hasPrefix("https://"),
            !url.utf8.contains(where: { $0 <= 0x20 || $0 == 0x7F })
        else {
            fail(mark, "the url must begin with http:// or https:// and have no spaces")
            return nil
        }
        let host = url.drop { $0 != "/" }.dropFirst(2).prefix { $0 != "/" && $0 != "?" }
        if host.isEmpty {
            fail(mark, "the url names no host")
            return nil
        }
        if host.contains("@") {
            fail(mark, "the url holds a password: put it into a file, as authorization_file")
            return nil
        }
        return url
    }

    /// The first line of the file that an entry names.
    mutating func secret(_ entry: YAMLEntry) -> String? {
        guard let name = text(entry.value, of: entry.key) else { return nil }
        let place = self.place(name)
        let bytes: [UInt8]
        do throws(SystemError) {
            bytes = try FileSystem.bytes(of: place, limit: 64 << 10)
        } catch {
            fail(entry.value.mark, "\(entry.key): \(error)")
            return nil
        }
        let line = bytes.prefix { $0 != 0x0A && $0 != 0x0D }
        let rest = bytes.dropFirst(line.count).filter { $0 != 0x0A && $0 != 0x0D }
        guard !line.isEmpty, rest.isEmpty, line.allSatisfy({ $0 >= 0x20 && $0 < 0x7F }) else {
            fail(
                entry.value.mark,
                "\(entry.key): \(place) must hold one line of printable ASCII characters")
            return nil
        }
        return String(decoding: line, as: UTF8.self)
    }

    /// A path that is not absolute begins in the file's folder.
    func place(_ name: String) -> String {
        let folder =
            path.contains("/")
            ? path.split(
                separator: "/", omittingEmptySubsequences: false
            ).dropLast().joined(separator: "/") : "."
        return name.hasPrefix("/") ? name : "\(folder)/\(name)"
    }
}
