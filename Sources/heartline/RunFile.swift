import Foundation
import System

/// `DIR/run.json`: where a running instance is. Only its owner may read it; it is there while the
/// instance is ready, and gone after an orderly end.
struct RunFile: Codable {
    /// Where devices send heartbeats, `http://127.0.0.1:8080`.
    var listen: String
    /// Where the admin listener is.
    var admin: String
    /// Where apps ask for updates, if that is a listener of its own.
    var updates: String?
    /// A libpq connection string: with a password only if `--database` had one, the private database is
    /// entered by its socket.
    var database: String
    var pid: Int32

    static func path(in folder: String) -> String { "\(folder)/run.json" }

    func write(in folder: String) throws {
        let encoder = JSONEncoder()
        encoder.outputFormatting = [.sortedKeys, .prettyPrinted, .withoutEscapingSlashes]
        let text = String(decoding: try encoder.encode(self), as: UTF8.self) + "\n"
        try FileSystem.write(text, to: Self.path(in: folder), mode: 0o600)
    }

    static func remove(in folder: String) { FileSystem.remove(path(in: folder)) }

    /// The instance that runs on `folder`.
    static func read(in folder: String) throws -> RunFile {
        let path = path(in: folder)
        guard FileSystem.exists(path) else {
            throw Failure(
                "finding the running instance: \(path) is not there; start one with heartline up --data \(folder), or name its database with --database"
            )
        }
        let bytes = try FileSystem.bytes(of: path)
        guard let file = try? JSONDecoder().decode(RunFile.self, from: Data(bytes)) else {
            throw Failure("finding the running instance: \(path) is not what heartline up writes")
        }
        guard ChildProcess.exists(file.pid) else {
            throw Failure(
                "finding the running instance: its process \(file.pid) is gone and left \(path); start it again with heartline up --data \(folder)"
            )
        }
        return file
    }
}
