internal import CSystem
internal import Glibc

/// Standard output and standard error, written without buffers of this process.
public enum Terminal {
    public enum Stream: Int32, Sendable { case output = 1, errors = 2 }

    /// Whether a person sees the stream at once.
    public static func isTerminal(_ stream: Stream = .output) -> Bool {
        isatty(stream.rawValue) == 1
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
