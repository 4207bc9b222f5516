public import Processors
public import Schemas
internal import System
public import YAML

/// One pipeline as its YAML file says it: source topic, processor with its settings, sinks, and the
/// cases that prove it (`docs/pipelines.md`).
public struct PipelineFile: Sendable {
    /// A processor and what it is told.
    public enum Kind: Sendable, Hashable {
        case tunnelHealth(TunnelHealthSettings)

        /// As files write it.
        public var name: String {
            switch self {
            case .tunnelHealth: "tunnel-health"
            }
        }

        static let names = ["tunnel-health"]
    }

    /// As it was given; for messages.
    public var path: String
    /// Names the pipeline's offsets and snapshots in the database: a renamed pipeline starts anew.
    public var name: String
    public var source: Topic
    public var processor: Kind
    /// Tables that are written, by the names analysts use.
    public var tables: [PipelineTable]
    /// Topics that the outbox is published to.
    public var topics: [Topic]
    /// Time between commits in milliseconds; 0 commits at every poll. Default: 200 ms.
    public var commitInterval: Int64 = Self.defaultCommitInterval
    public var cases: [PipelineCase]

    public static let defaultCommitInterval: Int64 = 200

    /// The pipeline that runs where no file says otherwise: tunnel health with its defaults.
    public static var builtIn: PipelineFile {
        PipelineFile(
            path: "built-in", name: "tunnel-health", source: .heartbeats,
            processor: .tunnelHealth(TunnelHealthSettings()), tables: PipelineTable.allCases,
            topics: [.alerts], cases: [])
    }

    /// Reads a pipeline file.
    /// - Throws: everything that is wrong with it, in the order of its lines.
    public static func load(_ path: String) throws(PipelineFileErrors) -> PipelineFile {
        let bytes: [UInt8]
        do throws(SystemError) {
            bytes = try FileSystem.bytes(of: path, limit: YAMLLimits().sizeBytes)
        } catch {
            throw PipelineFileErrors([PipelineFileError(path, nil, "\(error)")])
        }
        return try parse(bytes, path: path)
    }

    /// Reads the text of a pipeline file; `path` is for messages.
    public static func parse(
        _ text: [UInt8], path: String
    ) throws(PipelineFileErrors) -> PipelineFile {
        let root: YAMLNode?
        do throws(YAMLError) {
            root = try YAMLNode.parse(text.span)
        } catch {
            throw PipelineFileErrors([PipelineFileError(path, error.mark, error.reason)])
        }
        var reader = PipelineFileReader(path: path)
        let file = reader.pipeline(
            root ?? YAMLNode(.mapping([]), at: YAMLMark(line: 1, column: 1)))
        guard let file, reader.errors.isEmpty else { throw PipelineFileErrors(reader.errors) }
        return file
    }

    /// Reads every `.yaml` and `.yml` file of a folder, by name.
    /// - Throws: what is wrong with any of them; two pipelines of one name are an error too.
    public static func loadFolder(_ path: String) throws(PipelineFileErrors) -> [PipelineFile] {
        let names: [String]
        do throws(SystemError) {
            names = try FileSystem.names(in: path)
        } catch {
            throw PipelineFileErrors([PipelineFileError(path, nil, "\(error)")])
        }
        var files: [PipelineFile] = []
        var errors: [PipelineFileError] = []
        for name in names where name.hasSuffix(".yaml") || name.hasSuffix(".yml") {
            do throws(PipelineFileErrors) {
                let file = try load(path.hasSuffix("/") ? path + name : "\(path)/\(name)")
                if let other = files.first(where: { $0.name == file.name }) {
                    errors.append(
                        PipelineFileError(
                            file.path, nil,
                            "the pipeline \"\(file.name)\" is in \(other.path) already"))
                }
                files.append(file)
            } catch {
                errors.append(contentsOf: error.errors)
            }
        }
        guard errors.isEmpty else { throw PipelineFileErrors(errors) }
        return files
    }

    /// What the processor has and no sink names, for `WorkerSettings`.
    public var omittedTables: Set<String> {
        Set(PipelineTable.allCases.filter { !tables.contains($0) }.map(\.storedName))
    }

    /// What the processor has and no sink names. Dead letters are always written.
    public var omittedTopics: Set<Topic> {
        switch processor {
        case .tunnelHealth:
            Set(TunnelHealth.outputTopics.filter { $0 != .deadLetters && !topics.contains($0) })
        }
    }

    /// Digest of the processor's settings; stored with the offset from which they hold. Two files
    /// that judge alike have the same, however they are written.
    public var settingsRevision: String {
        switch processor {
        case .tunnelHealth(let settings): ProcessorSettings(settings).revision
        }
    }
}

/// A table that `TunnelHealth` fills, by the name analysts use.
public enum PipelineTable: String, CaseIterable, Sendable {
    case deviceStatus = "device_status"
    case deviceStateHistory = "device_state_history"
    case fleetMinutes = "fleet_minutes"
    case alerts

    /// What is behind the name: two of them are views.
    public var storedName: String {
        switch self {
        case .deviceStatus: "device_status"
        case .deviceStateHistory: "device_state_ended"
        case .fleetMinutes: "fleet_minutes_by_partition"
        case .alerts: "alerts"
        }
    }
}

/// One thing that is wrong with a pipeline file, and where.
public struct PipelineFileError: Error, Hashable, Sendable, CustomStringConvertible {
    public var path: String
    /// `nil`: the file as a whole.
    public var mark: YAMLMark?
    public var message: String

    public init(_ path: String, _ mark: YAMLMark?, _ message: String) {
        self.path = path
        self.mark = mark
        self.message = message
    }

    /// `file:line:column: message`.
    public var description: String {
        mark.map { "\(path):\($0): \(message)" } ?? "\(path): \(message)"
    }
}

/// All that is wrong with pipeline files; never empty.
public struct PipelineFileErrors: Error, Hashable, Sendable, CustomStringConvertible {
    public var errors: [PipelineFileError]

    public init(_ errors: [PipelineFileError]) { self.errors = errors }

    /// One a line.
    public var description: String { errors.map(\.description).joined(separator: "\n") }
}
