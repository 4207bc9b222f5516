/// Which lines of a log are written, and which are only counted because many like them were: a value,
/// told the time.
///
/// Lines are alike if their message and level are; messages are constants, so this holds as many
/// entries as the program has messages.
package struct LogLimiter: Sendable {
    package struct Kind: Hashable, Sendable {
        package var level: Log.Level
        package var message: String

        package init(level: Log.Level, message: String) {
            self.level = level
            self.message = message
        }
    }

    private struct Window {
        var start: Int64
        var written = 0
        var held = 0
    }

    /// Lines of one kind that are written in a window.
    package let burst: Int
    /// In milliseconds.
    package let window: Int64
    private var windows: [Kind: Window] = [:]

    package init(burst: Int = 20, window: Int64 = 30_000) {
        self.burst = burst
        self.window = window
    }

    /// Whether this line is written.
    /// - Parameter now: monotonic milliseconds. Call `ended` with it before.
    package mutating func takes(_ kind: Kind, now: Int64) -> Bool {
        var entry = windows[kind] ?? Window(start: now)
        if now - entry.start >= window, entry.held == 0 { entry = Window(start: now) }
        defer { windows[kind] = entry }
        guard entry.written < burst else {
            entry.held += 1
            return false
        }
        entry.written += 1
        return true
    }

    /// Kinds whose window is over and of which lines were held back, with how many; they start anew.
    package mutating func ended(now: Int64) -> [(kind: Kind, held: Int)] {
        var result: [(kind: Kind, held: Int)] = []
        for (kind, entry) in windows where entry.held > 0 && now - entry.start >= window {
            result.append((kind, entry.held))
            windows[kind] = nil
        }
        return result.sorted { ($0.kind.message, $0.kind.level) < ($1.kind.message, $1.kind.level) }
    }

    /// All that is held back, for the end of the process.
    package mutating func flush() -> [(kind: Kind, held: Int)] { ended(now: .max / 2) }
}
