import EventLog
import System

/// The embedded log of a data directory.
enum LogAccess {
    static func folder(in data: String) -> String { "\(data)/log" }

    /// The log of `--data`, for looking at; `nil` if there is none on this machine.
    static func openIfThere(_ arguments: Arguments) throws -> EmbeddedLog? {
        let folder = folder(in: arguments.text("data"))
        guard FileSystem.isDirectory(folder) else { return nil }
        return try EmbeddedLog(directory: folder)
    }
}
