public import Processors
public import Schemas

extension PipelineFile {
    /// A processor and what it is told.
    public enum Kind: Sendable, Hashable {
        case tunnelHealth(TunnelHealthSettings)
        case configHash(ConfigHashSettings)
        case configDelivery(ConfigDeliverySettings)
        case mutualWaves(MutualWavesSettings)
        case encounters(EncountersSettings)
        case messages(MessagesSettings)
        case updateRollout(UpdateRolloutSettings)
        case telemetryRollup(TelemetryRollupSettings)

        /// One of each, with the defaults; in the order in which they are told of.
        public static let all: [Kind] = [
            .tunnelHealth(TunnelHealthSettings()), .configHash(ConfigHashSettings()),
            .configDelivery(ConfigDeliverySettings()), .mutualWaves(MutualWavesSettings()),
            .encounters(EncountersSettings()), .messages(MessagesSettings()),
            .updateRollout(UpdateRolloutSettings()),
            .telemetryRollup(TelemetryRollupSettings()),
        ]

        static let names = all.map(\.name)

        /// As files write it.
        public var name: String {
            switch self {
            case .tunnelHealth: "tunnel-health"
            case .configHash: "config-hash"
            case .configDelivery: "config-delivery"
            case .mutualWaves: "mutual-waves"
            case .encounters: "encounters"
            case .messages: "messages"
            case .updateRollout: "update-rollout"
            case .telemetryRollup: "telemetry-rollup"
            }
        }

        /// The type that decides.
        public var type: any Processor.Type {
            switch self {
            case .tunnelHealth: TunnelHealth.self
            case .configHash: ConfigHash.self
            case .configDelivery: ConfigDelivery.self
            case .mutualWaves: MutualWaves.self
            case .encounters: Encounters.self
            case .messages: Messages.self
            case .updateRollout: UpdateRollout.self
            case .telemetryRollup: TelemetryRollup.self
            }
        }

        /// The one topic that the processor reads.
        public var source: Topic { type.source }

        /// Topics that a file may name as sinks. Dead letters are always written.
        public var topics: [Topic] { type.outputTopics.filter { $0 != .deadLetters } }

        /// Tables that a file may name.
        public var tables: [PipelineTable] {
            switch self {
            case .tunnelHealth: [.deviceStatus, .deviceStateHistory, .fleetMinutes, .alerts]
            case .configHash: [.configVersions]
            case .configDelivery: [.configDelivery]
            case .mutualWaves: [.waves, .connections, .pushes]
            case .encounters: [.encounterReports, .encounters]
            case .messages: [.messages, .pushes]
            case .updateRollout: [.installations, .updateAttempts, .rollout]
            case .telemetryRollup: [.telemetryMinutes, .agentLogs]
            }
        }

        /// Time between commits where a file does not say it, in milliseconds: a bell does not wait
        /// for others, and neither does a person.
        public var defaultCommitInterval: Int64 {
            switch self {
            case .configHash, .mutualWaves, .messages: 0
            case .tunnelHealth, .configDelivery, .encounters, .updateRollout: 200
            // Its rows come once a minute or are read by people: larger commits are cheaper.
            case .telemetryRollup: 500
            }
        }

        /// Digest of the settings; stored with the offset from which they hold.
        var revision: String {
            switch self {
            case .tunnelHealth(let settings): ProcessorSettings(settings).revision
            case .configHash(let settings): ProcessorSettings(settings).revision
            case .configDelivery(let settings): ProcessorSettings(settings).revision
            case .mutualWaves(let settings): ProcessorSettings(settings).revision
            case .encounters(let settings): ProcessorSettings(settings).revision
            case .messages(let settings): ProcessorSettings(settings).revision
            case .updateRollout(let settings): ProcessorSettings(settings).revision
            case .telemetryRollup(let settings): ProcessorSettings(settings).revision
            }
        }
    }

    /// The pipelines that run where no files say otherwise: every processor with its defaults.
    public static var builtIn: [PipelineFile] { Kind.all.map { PipelineFile(builtIn: $0) } }

    /// A pipeline of the processor's name with all of its tables and topics, as without a file.
    public init(builtIn kind: Kind) {
        self.init(
            path: "built-in", name: kind.name, source: kind.source, processor: kind,
            tables: kind.tables, topics: kind.topics, commitInterval: kind.defaultCommitInterval,
            cases: [])
    }

    /// What the processor has and no sink names, for `WorkerSettings`.
    public var omittedTables: Set<String> {
        Set(processor.tables.filter { !tables.contains($0) }.map(\.storedName))
    }

    /// What the processor has and no sink names. Dead letters are always written.
    public var omittedTopics: Set<Topic> { Set(processor.topics.filter { !topics.contains($0) }) }

    /// Digest of the processor's settings; stored with the offset from which they hold. Two files
    /// that judge alike have the same, however they are written.
    public var settingsRevision: String { processor.revision }

    /// What of this file cannot be taken over while the pipeline runs as `running` says; the names
    /// that files give it.
    public func waitingForStart(comparedTo running: PipelineFile) -> [String] {
        var names: [String] = []
        if source != running.source { names.append("source") }
        if processor.name != running.processor.name { names.append("processor") }
        if Set(tables) != Set(running.tables) || Set(topics) != Set(running.topics)
            || connections != running.connections
        {
            names.append("sinks")
        }
        if commitInterval != running.commitInterval { names.append("commit_interval") }
        return names
    }
}

/// A table that a pipeline fills, by the name analysts use.
public enum PipelineTable: String, CaseIterable, Sendable {
    case deviceStatus = "device_status"
    case deviceStateHistory = "device_state_history"
    case fleetMinutes = "fleet_minutes"
    case alerts
    case configVersions = "config_versions"
    case configDelivery = "config_delivery"
    case waves, connections, pushes, encounters, messages
    case encounterReports = "encounter_reports"
    case installations
    case updateAttempts = "update_attempts"
    case rollout
    case telemetryMinutes = "telemetry_minutes"
    case agentLogs = "agent_logs"

    /// What is behind the name: three of them are views.
    public var storedName: String {
        switch self {
        case .deviceStateHistory: "device_state_ended"
        case .fleetMinutes: "fleet_minutes_by_partition"
        case .rollout: "rollout_by_partition"
        default: rawValue
        }
    }
}

extension ProcessorSettings where Values == ConfigHashSettings {
    /// There is nothing to write down.
    public init(_ settings: ConfigHashSettings) {
        self.init(settings, text: "") { $0.isEmpty ? ConfigHashSettings() : nil }
    }
}

extension ProcessorSettings where Values == ConfigDeliverySettings {
    /// There is nothing to write down.
    public init(_ settings: ConfigDeliverySettings) {
        self.init(settings, text: "") { $0.isEmpty ? ConfigDeliverySettings() : nil }
    }
}

extension ProcessorSettings where Values == MutualWavesSettings {
    /// The settings with their text: the life of a wave in milliseconds.
    public init(_ settings: MutualWavesSettings) {
        self.init(settings, text: "wave_ttl \(settings.waveLife)\n") { text in
            guard let value = value(of: "wave_ttl", in: text) else { return nil }
            var settings = MutualWavesSettings()
            settings.waveLife = value
            return settings
        }
    }
}

extension ProcessorSettings where Values == EncountersSettings {
    /// The settings with their text: the window in milliseconds.
    public init(_ settings: EncountersSettings) {
        self.init(settings, text: "window \(settings.window)\n") { text in
            guard let value = value(of: "window", in: text) else { return nil }
            var settings = EncountersSettings()
            settings.window = value
            return settings
        }
    }
}

extension ProcessorSettings where Values == MessagesSettings {
    /// There is nothing to write down.
    public init(_ settings: MessagesSettings) {
        self.init(settings, text: "") { $0.isEmpty ? MessagesSettings() : nil }
    }
}

/// The number of a text of one line, `name number`; `nil` for another text, or none above zero.
private func value(of name: String, in text: String) -> Int64? {
    let words = text.split(whereSeparator: { $0 == " " || $0 == "\n" })
    guard words.count == 2, words[0] == name, let value = Int64(words[1]), value > 0 else {
        return nil
    }
    return value
}

extension ProcessorSettings where Values == UpdateRolloutSettings {
    /// The settings with their text: the silence in milliseconds.
    public init(_ settings: UpdateRolloutSettings) {
        self.init(settings, text: "unconfirmed_after \(settings.unconfirmedAfter)\n") { text in
            guard let value = value(of: "unconfirmed_after", in: text) else { return nil }
            var settings = UpdateRolloutSettings()
            settings.unconfirmedAfter = value
            return settings
        }
    }
}

extension UpdateRolloutSettings {
    /// Of `unconfirmedAfter`, in milliseconds.
    static let range: ClosedRange<Int64> = 60_000...7 * 86_400_000
}
