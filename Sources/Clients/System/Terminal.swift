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

    /// Writes all of `text`; what a reader that went away does not take is dropped, and so is what a full disk
    /// does not.
    public static func write(_ text: String, to stream: Stream = .output) {
        _ = put(text, stream)
    }

    /// Writes all of `text` to standard output, for what must not be cut off without a word. A reader that
    /// went away wants no more, and is no error.
    public static func writeAll(_ text: String) throws(SystemError) {
        let failure = put(text, .output)
        guard failure == 0 || failure == EPIPE else {
            throw SystemError("writing to standard output", code: failure)
        }
    }

    /// - Returns: the error number; 0: everything is written.
    private static func put(_ text: String, _ stream: Stream) -> Int32 {
        var text = text
        return text.withUTF8 { bytes in
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
                guard count > 0 else { return count < 0 ? errno : EIO }
                written += count
            }
            return 0
        }
    }
}
