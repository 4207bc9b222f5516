import Foundation
import System

/// What the machine is, for reports of measurements.
struct MachineFacts: Codable {
    var processor: String
    var cores: Int
    var memory_mib: Int
    var kernel: String
    /// Processes that wanted to run in the last minute, on average.
    var load: Double

    static func read() -> MachineFacts {
        func text(_ path: String) -> String {
            (try? String(contentsOfFile: path, encoding: .utf8)) ?? ""
        }
        func value(_ name: String, in lines: String) -> String {
            let line = lines.split(separator: "\n").first { $0.hasPrefix(name) }
            let value = line?.split(separator: ":", maxSplits: 1).dropFirst().first ?? ""
            return value.trimmingCharacters(in: .whitespaces)
        }
        let memory = value("MemTotal", in: text("/proc/meminfo")).prefix { $0.isNumber }
        let processor = value("model name", in: text("/proc/cpuinfo"))
        return MachineFacts(
            processor: processor.isEmpty ? "unknown" : processor,
            cores: ProcessInfo.processInfo.activeProcessorCount,
            memory_mib: (Int(memory) ?? 0) / 1_024,
            // What stands behind the version is a distribution's, or somebody's own.
            kernel: String(text("/proc/sys/kernel/osrelease").prefix { $0.isNumber || $0 == "." }),
            load: Double(text("/proc/loadavg").prefix { $0 != " " }) ?? 0)
    }

    /// For people, without the load.
    var summary: String {
        "\(cores) cores of \(processor), \(memory_mib / 1_024) GiB, Linux \(kernel)"
    }

    /// Memory of a process that is in RAM and belongs to no file, in bytes; 0 if it is gone.
    static func anonymousBytes(of process: String) -> Int {
        guard let text = try? String(contentsOfFile: "/proc/\(process)/status", encoding: .utf8),
            let line = text.split(separator: "\n").first(where: { $0.hasPrefix("RssAnon:") }),
            let number = line.split(separator: " ").dropFirst().first.flatMap({ Int($0) })
        else { return 0 }
        return number * 1_024
    }

    /// The time now, as reports write it.
    static func now() -> String {
        Date(timeIntervalSince1970: Double(SystemClock.wallMilliseconds() / 1_000)).formatted(
            .iso8601)
    }
}
