internal import Processors
internal import Schemas
internal import System
internal import YAML

/// Reads the nodes of one pipeline file and gathers everything that is wrong with them.
struct PipelineFileReader {
    let path: String
    private(set) var errors: [PipelineFileError] = []

    init(path: String) { self.path = path }

    static func text(of path: String) throws(PipelineFileErrors) -> [UInt8] {
        do throws(SystemError) {
            return try FileSystem.bytes(of: path, limit: YAMLLimits().sizeBytes)
        } catch {
            throw PipelineFileErrors([PipelineFileError(path, nil, "\(error)")])
        }
    }

    /// What a text holds; a mapping of nothing if it holds nothing.
    static func root(
        of text: [UInt8], path: String
    ) throws(PipelineFileErrors) -> YAMLNode {
        do throws(YAMLError) {
            return try YAMLNode.parse(text.span)
                ?? YAMLNode(.mapping([]), at: YAMLMark(line: 1, column: 1))
        } catch {
            throw PipelineFileErrors([PipelineFileError(path, error.mark, error.reason)])
        }
    }

    mutating func fail(_ mark: YAMLMark, _ message: String) {
        errors.append(PipelineFileError(path, mark, message))
    }

    // MARK: - Shapes

    /// The entries of a mapping by key; a key that is not in `keys` is an error.
    mutating func fields(
        _ node: YAMLNode, of what: String, _ keys: [String]
    ) -> [String: YAMLEntry]? {
        guard let entries = node.mapping else {
            fail(node.mark, "\(what) is a mapping, not \(node.kind)")
            return nil
        }
        var fields: [String: YAMLEntry] = [:]
        for entry in entries {
            if keys.contains(entry.key) {
                fields[entry.key] = entry
            } else {
                fail(
                    entry.keyMark, "unknown key \"\(entry.key)\" in \(what)\(hint(entry.key, keys))"
                )
            }
        }
        return fields
    }

    func hint(_ name: String, _ known: [String]) -> String {
        if let near = NearestName.of(name, among: known) { return ": did you mean \(near)?" }
        if known.isEmpty { return "" }
        return ": known are \(known.joined(separator: ", "))"
    }

    mutating func list(_ node: YAMLNode, of what: String) -> [YAMLNode]? {
        if node.sequence == nil { fail(node.mark, "\(what) is a list, not \(node.kind)") }
        return node.sequence
    }

    mutating func text(_ node: YAMLNode, of what: String) -> String? {
        guard let text = node.scalar, !text.isEmpty else {
            fail(node.mark, "\(what) is a text, not \(node.kind)")
            return nil
        }
        return text
    }

    mutating func bool(_ node: YAMLNode, of what: String) -> Bool? {
        if case .scalar(let text, isPlain: true) = node.content {
            if text == "true" { return true }
            if text == "false" { return false }
        }
        fail(node.mark, "\(what) is true or false, not \(node.kind)")
        return nil
    }

    /// A length of time in milliseconds.
    mutating func duration(
        _ node: YAMLNode, of what: String, _ range: ClosedRange<Int64>
    ) -> Int64? {
        guard let text = node.scalar, let value = DurationText.milliseconds(text) else {
            var message =
                "\(what) is a time with its unit, as 200ms, 30s, 10m or 1h, not \(node.kind)"
            if let text = node.scalar, Int64(text) != nil {
                message += ": did you mean \(text)s?"
            }
            fail(node.mark, message)
            return nil
        }
        guard range.contains(value) else {
            let low = DurationText.text(milliseconds: range.lowerBound)
            let high = DurationText.text(milliseconds: range.upperBound)
            fail(node.mark, "\(what) is \(text) but must be from \(low) to \(high)")
            return nil
        }
        return value
    }

    mutating func count(
        _ node: YAMLNode, of what: String, _ range: ClosedRange<Int64>
    ) -> Int64? {
        guard case .scalar(let text, isPlain: true) = node.content, let value = Int64(text) else {
            fail(node.mark, "\(what) is a whole number, not \(node.kind)")
            return nil
        }
        guard range.contains(value) else {
            fail(
                node.mark,
                "\(what) is \(value) but must be from \(range.lowerBound) to \(range.upperBound)")
            return nil
        }
        return value
    }

    // MARK: - The file

    mutating func pipeline(_ root: YAMLNode) -> PipelineFile? {
        let keys = ["name", "source", "processor", "sinks", "commit_interval", "tests"]
        guard let fields = fields(root, of: "a pipeline", keys) else { return nil }
        for key in ["name", "source", "processor", "sinks"] where fields[key] == nil {
            fail(root.mark, "the pipeline has no \(key)")
        }
        let name = fields["name"].flatMap { self.name($0.value) }
        let processor = fields["processor"].flatMap { self.processor($0.value) }
        let source = fields["source"].flatMap { self.source($0.value, for: processor) }
        // What can stand in them depends on the processor.
        let sinks = processor.flatMap { processor in
            fields["sinks"].flatMap { self.sinks($0.value, of: processor) }
        }
        var interval: Int64?
        if let entry = fields["commit_interval"] {
            interval = duration(entry.value, of: "commit_interval", 0...10_000)
        }
        var cases: [PipelineCase] = []
        if let processor, let entry = fields["tests"] {
            cases = self.cases(entry.value, of: processor)
        }
        guard let name, let processor, let source, let sinks else { return nil }
        return PipelineFile(
            path: path, name: name, source: source, processor: processor, tables: sinks.tables,
            topics: sinks.topics, connections: sinks.connections,
            commitInterval: interval ?? processor.defaultCommitInterval, cases: cases)
    }

    private mutating func name(_ node: YAMLNode) -> String? {
        guard let name = text(node, of: "name") else { return nil }
        let isName =
            name.utf8.count <= 63 && name.utf8.first.map { $0 >= 0x61 && $0 <= 0x7A } == true
            && name.utf8.allSatisfy {
                $0 >= 0x61 && $0 <= 0x7A || $0 >= 0x30 && $0 <= 0x39 || $0 == 0x2D
            }
        guard isName else {
            fail(
                node.mark,
                "name is up to 63 lower-case letters, digits and hyphens, a letter first, not \"\(name)\""
            )
            return nil
        }
        return name
    }

    private mutating func source(_ node: YAMLNode, for processor: PipelineFile.Kind?) -> Topic? {
        guard let fields = fields(node, of: "source", ["topic"]) else { return nil }
        guard let entry = fields["topic"] else {
            fail(node.mark, "source has no topic")
            return nil
        }
        guard let topic = topic(entry.value) else { return nil }
        if let processor, topic != processor.source {
            fail(
                entry.value.mark,
                "the processor \(processor.name) reads the topic \(processor.source.rawValue), not \(topic.rawValue)"
            )
            return nil
        }
        return topic
    }

    private mutating func topic(_ node: YAMLNode) -> Topic? {
        guard let name = text(node, of: "topic") else { return nil }
        guard let topic = Topic(rawValue: name) else {
            fail(
                node.mark, "unknown topic \"\(name)\"\(hint(name, Topic.allCases.map(\.rawValue)))")
            return nil
        }
        return topic
    }

    private mutating func processor(_ node: YAMLNode) -> PipelineFile.Kind? {
        guard let fields = fields(node, of: "processor", PipelineFile.Kind.names) else {
            return nil
        }
        guard fields.count == 1, let entry = fields.values.first,
            let kind = PipelineFile.Kind.all.first(where: { $0.name == entry.key })
        else {
            if fields.count > 1 {
                fail(node.mark, "a pipeline has one processor; make a file for each")
            } else if node.mapping?.isEmpty == true {
                fail(
                    node.mark,
                    "processor names none of: \(PipelineFile.Kind.names.joined(separator: ", "))")
            }
            return nil
        }
        switch kind {
        case .tunnelHealth: return .tunnelHealth(tunnelHealth(entry.value))
        case .mutualWaves(var settings):
            // A restart reads the waves again, and the log keeps them for a week.
            settings.waveLife =
                only("wave_ttl", entry.value, of: kind.name, 60_000...6 * 86_400_000)
                ?? settings.waveLife
            return .mutualWaves(settings)
        case .encounters(var settings):
            settings.window =
                only("window", entry.value, of: kind.name, 1_000...12 * 3_600_000)
                ?? settings.window
            return .encounters(settings)
        case .configHash, .configDelivery, .messages:
            // `config-hash:` alone is enough; there is nothing to set.
            if entry.value.content != .scalar("", isPlain: true) {
                _ = self.fields(entry.value, of: kind.name, [])
            }
            return kind
        case .updateRollout(var settings):
            settings.unconfirmedAfter =
                only(
                    "unconfirmed_after", entry.value, of: kind.name, UpdateRolloutSettings.range)
                ?? settings.unconfirmedAfter
            return .updateRollout(settings)
        case .telemetryRollup: return .telemetryRollup(telemetryRollup(entry.value))
        }
    }

    /// The one setting of a processor, a time; `nil`: not said, or not right.
    private mutating func only(
        _ name: String, _ node: YAMLNode, of processor: String, _ range: ClosedRange<Int64>
    ) -> Int64? {
        if node.content == .scalar("", isPlain: true) { return nil }
        guard let entry = fields(node, of: processor, [name])?[name] else { return nil }
        return duration(entry.value, of: name, range)
    }

    private mutating func telemetryRollup(_ node: YAMLNode) -> TelemetryRollupSettings {
        var settings = TelemetryRollupSettings()
        // `telemetry-rollup:` alone has the defaults.
        if node.content == .scalar("", isPlain: true) { return settings }
        let members = TelemetryRollupField.all
        guard let fields = fields(node, of: "telemetry-rollup", members.map(\.name)) else {
            return settings
        }
        for member in members {
            guard let entry = fields[member.name] else { continue }
            let value =
                member.isTime
                ? duration(entry.value, of: member.name, member.range)
                : count(entry.value, of: member.name, member.range)
            if let value { settings[keyPath: member.path] = value }
        }
        return settings
    }

    private mutating func tunnelHealth(_ node: YAMLNode) -> TunnelHealthSettings {
        var settings = TunnelHealthSettings()
        var marks: [String: YAMLMark] = [:]
        // `tunnel-health:` alone is tunnel health with its defaults.
        if node.content == .scalar("", isPlain: true) { return settings }
        let own = TunnelHealthField.all.filter { $0.group.isEmpty }
        guard
            let fields = fields(
                node, of: "tunnel-health", own.map(\.name) + TunnelHealthField.groups)
        else { return settings }
        read(own, from: fields, into: &settings, marks: &marks)
        for group in TunnelHealthField.groups {
            guard let entry = fields[group] else { continue }
            let members = TunnelHealthField.all.filter { $0.group == group }
            guard let inner = self.fields(entry.value, of: group, members.map(\.name)) else {
                continue
            }
            read(members, from: inner, into: &settings, marks: &marks)
        }
        if settings.flappingTransitions == 1 {
            fail(
                marks["flapping.transitions"] ?? node.mark,
                "flapping.transitions is 1 but one transition is no flapping: 2 to 6, or 0 to turn it off"
            )
        }
        if settings.jitter >= settings.offlineAfter {
            fail(
                marks["jitter"] ?? marks["offline_after"] ?? node.mark,
                "jitter (\(DurationText.text(milliseconds: settings.jitter))) must be shorter than offline_after (\(DurationText.text(milliseconds: settings.offlineAfter)))"
            )
        }
        return settings
    }

    private mutating func read(
        _ members: [TunnelHealthField], from fields: [String: YAMLEntry],
        into settings: inout TunnelHealthSettings, marks: inout [String: YAMLMark]
    ) {
        for member in members {
            guard let entry = fields[member.name] else { continue }
            let name = member.fullName
            marks[name] = entry.value.mark
            let value =
                switch member.unit {
                case .time: duration(entry.value, of: name, member.range)
                case .count: count(entry.value, of: name, member.range)
                }
            if let value { settings[keyPath: member.path] = value }
        }
    }

    private struct Sinks {
        var tables: [PipelineTable] = []
        var topics: [Topic] = []
        var connections = PipelineFile.defaultConnections
    }

    private mutating func sinks(
        _ node: YAMLNode, of processor: PipelineFile.Kind
    ) -> Sinks? {
        guard let items = list(node, of: "sinks") else { return nil }
        var sinks = Sinks()
        for item in items {
            guard let fields = fields(item, of: "a sink", ["postgres", "topic"]) else { continue }
            if fields.count > 1 {
                fail(item.mark, "a sink is one of postgres and topic; write two")
            }
            if let entry = fields["postgres"] {
                self.postgres(entry.value, of: processor, into: &sinks)
            }
            if let entry = fields["topic"], let topic = topic(entry.value) {
                if !processor.topics.contains(topic) {
                    let known = processor.topics.map(\.rawValue).joined(separator: ", ")
                    fail(
                        entry.value.mark,
                        "the processor \(processor.name) writes no events for the topic \(topic.rawValue): it has \(known.isEmpty ? "none" : known)"
                    )
                } else if sinks.topics.contains(topic) {
                    fail(entry.value.mark, "the topic \(topic.rawValue) is a sink already")
                } else {
                    sinks.topics.append(topic)
                }
            }
        }
        if sinks.tables.isEmpty && sinks.topics.isEmpty && errors.isEmpty {
            fail(node.mark, "sinks names nothing: what the pipeline finds would be lost")
        }
        return sinks
    }

    private mutating func postgres(
        _ node: YAMLNode, of processor: PipelineFile.Kind, into sinks: inout Sinks
    ) {
        guard let fields = fields(node, of: "postgres", ["tables", "connections"]) else { return }
        if let entry = fields["connections"],
            let value = count(entry.value, of: "connections", PipelineFile.connectionsRange)
        {
            sinks.connections = Int(value)
        }
        guard let entry = fields["tables"] else {
            return fail(node.mark, "postgres has no tables")
        }
        guard let items = list(entry.value, of: "tables") else { return }
        for item in items {
            guard let name = text(item, of: "a table") else { continue }
            guard let table = processor.tables.first(where: { $0.rawValue == name }) else {
                fail(
                    item.mark,
                    "the processor \(processor.name) has no table \"\(name)\"\(hint(name, processor.tables.map(\.rawValue)))"
                )
                continue
            }
            if sinks.tables.contains(table) {
                fail(item.mark, "the table \(name) is named already")
            } else {
                sinks.tables.append(table)
            }
        }
        if case .tunnelHealth = processor, !sinks.tables.contains(.deviceStatus) {
            fail(
                entry.value.mark,
                "tables lacks device_status: the history ends with it, and status is read from it")
        }
        if processor.topics.contains(.pushes), !sinks.tables.contains(.pushes) {
            fail(entry.value.mark, "tables lacks pushes: the doorbells would ring for nothing")
        }
    }
}
