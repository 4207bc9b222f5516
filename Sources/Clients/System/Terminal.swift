internal import CSystem
internal import Glibc

/// Standard output and standard error, written without buffers of this process.
public enum Terminal {
    public enum Stream: Int32, Sendable { case output = 1, errors = 2 }

    /// Whether a person sees the stream at once.
    public static func isTerminal(_ stream: Stream = .output) -> Bool {
        isatty(stream.rawValue) == 1
    }

    /// How many lines it shows; `nil` if that is not known.
    public static var rows: Int? {
        let rows = Int(heartline_terminal_rows(Stream.output.rawValue))
        return rows > 0 ? rows : nil
    }

    /// Draws a picture in place of the one before, without the flicker of an empty screen. What is below
    /// the last line of the terminal is left out.
    public static func draw(_ text: String) {
        var lines = text.split(separator: "\n", omittingEmptySubsequences: false)[...]
        if let rows, lines.count > rows { lines = lines.prefix(rows) }
        write("\u{1B}[H" + lines.joined(separator: "\u{1B}[K\n") + "\u{1B}[J")
    }

    /// Writes all of `text`; what a reader that went away does not take is dropped.
    public static func write(_ text: String, to stream: Stream = .output) {
        var text = text
        text.withUTF8 { bytes in
            var written = 0
            while written < bytes.count {
                let count = unsafe Glibc.write(
                    stream.rawValue, bytes.baseAddress! + written, bytes.count - written)
                if count < 0 && errno == EINTR { continue }
                if count < 0 && errno == EAGAIN {
                    var item = pollfd(fd: stream.rawValue, events: Int16(POLLOUT), revents: 0)
                    unsafe _ = poll(&item, 1, 1_000)
                    continue
                }
                guard count > 0 else { return }
                written += count
            }
        }
    }
}
