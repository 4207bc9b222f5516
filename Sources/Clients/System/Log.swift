internal import Synchronization
internal import Glibc

/// Structured logging: a constant message, its data beside it under dotted keys.
///
/// Nothing is logged per event. Values must hold no secrets; identifiers are shortened by the caller.
public enum Log {
    public enum Level: Int, Sendable, Comparable {
        case debug, info, notice, warning, error

        public static func < (a: Level, b: Level) -> Bool { a.rawValue < b.rawValue }

        package var name: String {
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

    private struct State {
        var minimum = Level.info
        var format = Format.text
        var limiter = LogLimiter()
        /// Lines asked for, by level, whether they were written or held back.
        var counts = InlineArray<5, Int>(repeating: 0)
        var held = 0
    }

    private static let state = Mutex(State())

    public static func configure(minimum: Level, format: Format) {
        state.withLock {
            $0.minimum = minimum
            $0.format = format
        }
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

    /// Says something to whoever started the process or sent it a signal, whatever the level: as it is
    /// in a text log, as a line of its own in a JSON log.
    public static func tell(_ text: String) {
        let format = state.withLock { $0.format }
        switch format {
        case .text: Terminal.write(text, to: .errors)
        case .json:
            let words = text.hasSuffix("\n") ? String(text.dropLast()) : text
            put(line(.notice, words, [], .json))
        }
    }

    /// Lines so far, by level, debug first. Those below the least level that is logged are none.
    public static var counts: [(level: String, count: Int)] {
        let counts = state.withLock { $0.counts }
        return [Level.debug, .info, .notice, .warning, .error].map {
            ($0.name, counts[$0.rawValue])
        }
    }

    /// Lines that were held back because many like them were written.
    public static var heldCount: Int { state.withLock { $0.held } }

    /// Writes how many lines were held back in the windows that are over; call it about every second,
    /// and at the end of the process with `isEnd`.
    public static func summarize(isEnd: Bool = false) {
        let now = SystemClock.monotonicMilliseconds()
        let (ended, format) = state.withLock { state in
            (isEnd ? state.limiter.flush() : state.limiter.ended(now: now), state.format)
        }
        for (kind, held) in ended { put(summary(kind, held, format)) }
    }

    private static func write(_ level: Level, _ message: StaticString, _ data: [String: String]) {
        let text = text(message)
        let now = SystemClock.monotonicMilliseconds()
        let (isWritten, ended, format) = state.withLock {
            state -> (Bool, [(kind: LogLimiter.Kind, held: Int)], Format) in
            guard level >= state.minimum else { return (false, [], state.format) }
            state.counts[level.rawValue] += 1
            let ended = state.limiter.ended(now: now)
            // Who asks for debug lines wants all of them.
            let isWritten =
                level == .debug
                || state.limiter.takes(.init(level: level, message: text), now: now)
            if !isWritten { state.held += 1 }
            return (isWritten, ended, state.format)
        }
        for (kind, held) in ended { put(summary(kind, held, format)) }
        guard isWritten else { return }
        put(line(level, text, data.sorted { $0.key < $1.key }, format))
    }

    private static func summary(
        _ kind: LogLimiter.Kind, _ held: Int, _ format: Format
    ) -> String {
        line(
            kind.level, "\(held) more like this in 30 s", [("log.message", kind.message)], format)
    }

    private static func line(
        _ level: Level, _ message: String, _ pairs: [(key: String, value: String)],
        _ format: Format
    ) -> String {
        var seconds = time(nil)
        var parts = unsafe tm()
        unsafe gmtime_r(&seconds, &parts)
        var stampBytes = [CChar](repeating: 0, count: 32)
        let size = unsafe strftime(&stampBytes, 32, "%Y-%m-%dT%H:%M:%SZ", &parts)
        let stamp = String(
            decoding: stampBytes.prefix(size).map { UInt8(bitPattern: $0) }, as: UTF8.self)
        var line: String
        switch format {
        case .text:
            line = "\(stamp) \(level.name) \(message)"
            for (key, value) in pairs { line += " \(key)=\(quoted(value))" }
        case .json:
            line = "{\"time\":\"\(stamp)\",\"level\":\"\(level.name)\",\"message\":\(json(message))"
            for (key, value) in pairs { line += ",\(json(key)):\(json(value))" }
            line += "}"
        }
        return line + "\n"
    }

    private static func put(_ line: String) {
        var line = line
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
