public import Schemas
internal import System
public import YAML

/// One pipeline as its YAML file says it: source topic, processor with its settings, sinks, and the
/// cases that prove it (as in `pipelines/tunnel-health.yaml`).
public struct PipelineFile: Sendable {
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
    /// Connections to the database, among which the partitions are shared.
    public var connections = defaultConnections
    /// Time between commits in milliseconds; 0 commits at every poll.
    public var commitInterval: Int64
    public var cases: [PipelineCase]

    /// While one of them waits for the disk, the other writes.
    public static let defaultConnections = 2
    public static let connectionsRange: ClosedRange<Int64> = 1...32

    /// Reads a pipeline file.
    /// - Throws: everything that is wrong with it, in the order of its lines.
    public static func load(_ path: String) throws(PipelineFileErrors) -> PipelineFile {
        try parse(try PipelineFileReader.text(of: path), path: path)
    }

    /// Reads the text of a pipeline file; `path` is for messages.
    public static func parse(
        _ text: [UInt8], path: String
    ) throws(PipelineFileErrors) -> PipelineFile {
        let root = try PipelineFileReader.root(of: text, path: path)
        var reader = PipelineFileReader(path: path)
        let file = reader.pipeline(root)
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
