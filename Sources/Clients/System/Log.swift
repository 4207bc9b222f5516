internal import Synchronization
internal import Glibc

/// Structured logging: a constant message, its data beside it under dotted keys.
///
/// Nothing is logged per event. Values must hold no secrets; identifiers are shortened by the caller.
public enum Log {
    public enum Level: Int, Sendable, Comparable {
        case debug, info, notice, warning, error

        public static func < (a: Level, b: Level) -> Bool { a.rawValue < b.rawValue }

        var name: String {
            switch self {
            case .debug: "debug"
            case .info: "info"
            case .notice: "notice"
            case .warning: "warning"
            case .error: "error"
            }
        }
    }

    public enum Format: Sendable { case text, json }

    private struct Settings {
        var minimum = Level.info
        var format = Format.text
    }

    private static let settings = Mutex(Settings())

    public static func configure(minimum: Level, format: Format) {
        settings.withLock { $0 = Settings(minimum: minimum, format: format) }
    }

    public static func debug(_ message: StaticString, _ data: [String: String] = [:]) {
        write(.debug, message, data)
    }
    public static func info(_ message: StaticString, _ data: [String: String] = [:]) {
        write(.info, message, data)
    }
    public static func notice(_ message: StaticString, _ data: [String: String] = [:]) {
        write(.notice, message, data)
    }
    public static func warning(_ message: StaticString, _ data: [String: String] = [:]) {
        write(.warning, message, data)
    }
    /// An operator must act.
    public static func error(_ message: StaticString, _ data: [String: String] = [:]) {
        write(.error, message, data)
    }

    private static func write(_ level: Level, _ message: StaticString, _ data: [String: String]) {
        let current = settings.withLock { $0 }
        guard level >= current.minimum else { return }
        var seconds = time(nil)
        var parts = unsafe tm()
        unsafe gmtime_r(&seconds, &parts)
        var stampBytes = [CChar](repeating: 0, count: 32)
        let size = unsafe strftime(&stampBytes, 32, "%Y-%m-%dT%H:%M:%SZ", &parts)
        let stamp = String(
            decoding: stampBytes.prefix(size).map { UInt8(bitPattern: $0) }, as: UTF8.self)
        let pairs = data.sorted { $0.key < $1.key }
        var line: String
        switch current.format {
        case .text:
            line = "\(stamp) \(level.name) \(text(message))"
            for (key, value) in pairs { line += " \(key)=\(quoted(value))" }
        case .json:
            line =
                "{\"time\":\"\(stamp)\",\"level\":\"\(level.name)\",\"message\":\(json(text(message)))"
            for (key, value) in pairs { line += ",\(json(key)):\(json(value))" }
            line += "}"
        }
        line += "\n"
        line.withUTF8 { unsafe _ = Glibc.write(STDERR_FILENO, $0.baseAddress, $0.count) }
    }

    private static func text(_ message: StaticString) -> String {
        message.withUTF8Buffer { unsafe String(decoding: $0, as: UTF8.self) }
    }

    private static func quoted(_ value: String) -> String {
        value.utf8.contains { $0 <= 0x20 || $0 == 0x22 || $0 == 0x3D } || value.isEmpty
            ? json(value) : value
    }

    private static func json(_ value: String) -> String {
        var result = "\""
        for scalar in value.unicodeScalars {
            switch scalar {
            case "\"": result += "\\\""
            case "\\": result += "\\\\"
            case "\n": result += "\\n"
            case "\r": result += "\\r"
            case "\t": result += "\\t"
            case "\u{0}"..<"\u{20}": result += " "
            default: result.unicodeScalars.append(scalar)
            }
        }
        return result + "\""
    }
}
