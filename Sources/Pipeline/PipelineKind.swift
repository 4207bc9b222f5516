public import Processors
public import Schemas

extension PipelineFile {
    /// A processor and what it is told.
    public enum Kind: Sendable, Hashable {
        case tunnelHealth(TunnelHealthSettings)
        case configHash(ConfigHashSettings)
        case configDelivery(ConfigDeliverySettings)
        case telemetryRollup(TelemetryRollupSettings)

        /// One of each, with the defaults; in the order in which they are told of.
        public static let all: [Kind] = [
            .tunnelHealth(TunnelHealthSettings()), .configHash(ConfigHashSettings()),
            .configDelivery(ConfigDeliverySettings()), .telemetryRollup(TelemetryRollupSettings()),
        ]

        static let names = all.map(\.name)

        /// As files write it.
        public var name: String {
            switch self {
            case .tunnelHealth: "tunnel-health"
            case .configHash: "config-hash"
            case .configDelivery: "config-delivery"
            case .telemetryRollup: "telemetry-rollup"
            }
        }

        /// The type that decides.
        public var type: any Processor.Type {
            switch self {
            case .tunnelHealth: TunnelHealth.self
            case .configHash: ConfigHash.self
            case .configDelivery: ConfigDelivery.self
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
            case .telemetryRollup: [.telemetryMinutes, .agentLogs]
            }
        }

        /// Time between commits where a file does not say it, in milliseconds: a bell does not wait
        /// for others.
        public var defaultCommitInterval: Int64 {
            switch self {
            case .configHash: 0
            case .tunnelHealth, .configDelivery: 200
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
        if Set(tables) != Set(running.tables) || Set(topics) != Set(running.topics) {
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
    case telemetryMinutes = "telemetry_minutes"
    case agentLogs = "agent_logs"

    /// What is behind the name: two of them are views.
    public var storedName: String {
        switch self {
        case .deviceStateHistory: "device_state_ended"
        case .fleetMinutes: "fleet_minutes_by_partition"
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
