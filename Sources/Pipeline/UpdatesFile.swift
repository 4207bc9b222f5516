internal import Schemas
internal import System
public import Updates
internal import YAML

/// `updates.yaml`: how apps are updated (`docs/updates.md`).
public enum UpdatesFile {
    /// Reads the file, and the files of secrets that it names.
    /// - Throws: everything that is wrong with it, in the order of its lines.
    public static func load(_ path: String) throws(PipelineFileErrors) -> UpdatesConfiguration {
        try parse(try PipelineFileReader.text(of: path), path: path)
    }

    /// Reads the text of the file.
    /// - Parameter path: for messages; secrets' paths that are not absolute begin in its folder.
    public static func parse(
        _ text: [UInt8], path: String
    ) throws(PipelineFileErrors) -> UpdatesConfiguration {
        let root = try PipelineFileReader.root(of: text, path: path)
        var reader = PipelineFileReader(path: path)
        let configuration = reader.updates(root)
        guard reader.errors.isEmpty else { throw PipelineFileErrors(reader.errors) }
        return configuration
    }
}

extension PipelineFileReader {
    mutating func updates(_ root: YAMLNode) -> UpdatesConfiguration {
        var configuration = UpdatesConfiguration()
        // A file with nothing but comments has the defaults.
        if root.content == .scalar("", isPlain: true) { return configuration }
        let keys = [
            "github", "cache", "sources", "allow_hosts", "installer", "destinations",
            "authorities_file",
        ]
        guard let fields = fields(root, of: "updates", keys) else { return configuration }
        if let entry = fields["github"] { gitHub(entry.value, into: &configuration.gitHub) }
        if let entry = fields["cache"] { cache(entry.value, into: &configuration.cache) }
        if let entry = fields["sources"] { sources(entry.value, into: &configuration.sources) }
        if let entry = fields["allow_hosts"] {
            configuration.allowedHosts = hosts(entry.value, of: "allow_hosts")
        }
        if let entry = fields["destinations"] {
            configuration.destinations = hosts(entry.value, of: "destinations")
        }
        if let entry = fields["authorities_file"],
            let name = text(entry.value, of: "authorities_file")
        {
            let place = self.place(name)
            if !FileSystem.exists(place) {
                fail(entry.value.mark, "authorities_file: \(place) is not there")
            }
            configuration.certificateAuthorities = place
        }
        if let entry = fields["installer"] { configuration.installer = installer(entry.value) }
        return configuration
    }

    private mutating func gitHub(
        _ node: YAMLNode, into settings: inout UpdatesConfiguration.GitHub
    ) {
        guard let fields = fields(node, of: "github", ["api", "token_file"]) else { return }
        if let entry = fields["api"], let url = text(entry.value, of: "github.api") {
            if let place = WebPlace(url), !place.hasCredentials, !url.contains("?") {
                settings.api = url.hasSuffix("/") ? String(url.dropLast()) : url
            } else {
                fail(
                    entry.value.mark,
                    "github.api is an http or https address without a query or password")
            }
        }
        if let entry = fields["token_file"], let secret = secret(entry) {
            settings.credential = SourceCredential(secret)
        }
    }

    private mutating func cache(
        _ node: YAMLNode, into settings: inout UpdatesConfiguration.Cache
    ) {
        guard let fields = fields(node, of: "cache", ["size_mib", "file_mib"]) else { return }
        let range: ClosedRange<Int64> = 1...1_000_000_000
        if let entry = fields["size_mib"],
            let value = count(entry.value, of: "cache.size_mib", range)
        {
            settings.sizeBytes = value << 20
        }
        if let entry = fields["file_mib"],
            let value = count(entry.value, of: "cache.file_mib", range)
        {
            settings.fileBytes = value << 20
        }
    }

    private mutating func sources(
        _ node: YAMLNode, into settings: inout UpdatesConfiguration.Sources
    ) {
        let keys = ["checks", "downloads", "silence", "check_timeout", "retries"]
        guard let fields = fields(node, of: "sources", keys) else { return }
        if let entry = fields["checks"] {
            let value = count(entry.value, of: "sources.checks", 1...256)
            settings.checks = value.map { Int($0) } ?? settings.checks
        }
        if let entry = fields["downloads"] {
            let value = count(entry.value, of: "sources.downloads", 1...256)
            settings.downloads = value.map { Int($0) } ?? settings.downloads
        }
        if let entry = fields["silence"] {
            let value = duration(entry.value, of: "sources.silence", 1_000...600_000)
            settings.silence = value ?? settings.silence
        }
        if let entry = fields["check_timeout"] {
            // An answer that takes longer is 503.
            let value = duration(entry.value, of: "sources.check_timeout", 1_000...50_000)
            settings.checkTimeout = value ?? settings.checkTimeout
        }
        if let entry = fields["retries"] {
            let value = count(entry.value, of: "sources.retries", 0...100)
            settings.retries = value.map { Int($0) } ?? settings.retries
        }
    }

    /// Host names and addresses, without scheme, port and path.
    private mutating func hosts(_ node: YAMLNode, of what: String) -> [String] {
        var hosts: [String] = []
        for item in list(node, of: what) ?? [] {
            guard let host = text(item, of: "a host") else { continue }
            let isHost =
                host.utf8.count <= 253
                && host.utf8.allSatisfy {
                    $0 >= 0x30 && $0 <= 0x39 || $0 >= 0x41 && $0 <= 0x5A
                        || $0 >= 0x61 && $0 <= 0x7A || $0 == 0x2D || $0 == 0x2E || $0 == 0x3A
                        || $0 == 0x5F
                }
            if isHost {
                hosts.append(host)
            } else {
                fail(
                    item.mark,
                    "\(what) has host names and addresses, without scheme, port and brackets, not \"\(host)\""
                )
            }
        }
        return hosts
    }

    // MARK: - The installer

    private mutating func installer(_ node: YAMLNode) -> UpdatesConfiguration.Installer? {
        let commands = UpdateJob.Command.allCases.map(\.rawValue)
        let keys = commands + commands.map { "\($0)_timeout" } + ["concurrency", "environment"]
        guard let fields = fields(node, of: "installer", keys) else { return nil }
        for key in ["sign", "install"] where fields[key] == nil {
            fail(node.mark, "installer has no \(key)")
        }
        let sign = fields["sign"].flatMap { command($0.value, of: "sign") }
        let install = fields["install"].flatMap { command($0.value, of: "install") }
        var installer = UpdatesConfiguration.Installer(sign: sign ?? [], install: install ?? [])
        installer.running = fields["running"].flatMap { command($0.value, of: "running") }
        installer.open = fields["open"].flatMap { command($0.value, of: "open") }
        if let entry = fields["running"], fields["open"] == nil {
            fail(entry.keyMark, "running without open is of no use: nothing would be reopened")
        }
        if let entry = fields["open"], fields["running"] == nil {
            fail(
                entry.keyMark,
                "open needs running: only an app that ran before is opened again")
        }
        let range: ClosedRange<Int64> = 1_000...86_400_000
        for key in commands {
            guard let entry = fields["\(key)_timeout"],
                let value = duration(entry.value, of: "installer.\(key)_timeout", range)
            else { continue }
            switch key {
            case "sign": installer.signTimeout = value
            case "install": installer.installTimeout = value
            case "running": installer.runningTimeout = value
            default: installer.openTimeout = value
            }
        }
        if let entry = fields["concurrency"] {
            let value = count(entry.value, of: "installer.concurrency", 1...256)
            installer.concurrency = value.map { Int($0) } ?? installer.concurrency
        }
        if let entry = fields["environment"] {
            installer.environment = environment(entry.value)
        }
        return sign == nil || install == nil ? nil : installer
    }

    private mutating func command(_ node: YAMLNode, of what: String) -> [String]? {
        guard let items = node.sequence, !items.isEmpty else {
            fail(
                node.mark,
                "\(what) is a list of arguments, as [/usr/local/bin/\(what), \"{device}\"], not \(node.kind)"
            )
            return nil
        }
        var words: [String] = []
        for (index, item) in items.enumerated() {
            guard let word = item.scalar else {
                fail(item.mark, "an argument is a text, not \(item.kind)")
                return nil
            }
            if index == 0 {
                guard word.hasPrefix("/"), FileSystem.isExecutable(word) else {
                    fail(
                        item.mark,
                        "\(what) begins with the absolute path of a program, not \"\(word)\"")
                    return nil
                }
            }
            placeholders(word, item.mark)
            words.append(word)
        }
        return words
    }

    private mutating func placeholders(_ word: String, _ mark: YAMLMark) {
        for match in word.matches(of: #/\{([a-z_]*)\}/#) {
            let name = String(match.output.1)
            let known = UpdatesConfiguration.placeholders
            if !known.contains(name) {
                fail(mark, "unknown placeholder {\(name)}\(hint(name, known))")
            }
        }
    }

    private mutating func environment(_ node: YAMLNode) -> [String: String] {
        guard let entries = node.mapping else {
            fail(node.mark, "environment is a mapping, not \(node.kind)")
            return [:]
        }
        var values: [String: String] = [:]
        for entry in entries {
            guard let value = entry.value.scalar, !entry.key.contains("="), !entry.key.isEmpty
            else {
                fail(entry.keyMark, "environment has names and texts")
                continue
            }
            values[entry.key] = value
        }
        return values
    }
}
