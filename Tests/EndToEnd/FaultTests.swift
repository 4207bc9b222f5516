import Foundation
import Testing

/// What faults do to a running installation: real processes, real sockets, a real PostgreSQL.
///
/// One after the other: each of them wants the machine's attention.
@Suite("Faults", .serialized) struct FaultTests {}

/// Processes that were started with something of `path`, besides our own.
func processes(on path: String) -> [String] {
    let names = (try? FileManager.default.contentsOfDirectory(atPath: "/proc")) ?? []
    return names.compactMap { name in
        guard let process = Int32(name), process != ProcessInfo.processInfo.processIdentifier,
            let line = FileManager.default.contents(atPath: "/proc/\(name)/cmdline")
        else { return nil }
        let words = String(decoding: line, as: UTF8.self)
        return words.contains(path) ? "\(process) \(words)" : nil
    }
}
