internal import CSystem
internal import Glibc

/// A file that is written at its end, and can be cut or given up.
///
/// - Thread safety: one thread at a time.
@safe public final class GrowingFile {
    private let descriptor: Int32
    private let path: String
    /// Bytes that it has now.
    public private(set) var count: Int64

    /// Opens a file to go on at its end, or makes it, readable by its owner only.
    public init(_ path: String) throws(SystemError) {
        let flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW
        descriptor = unsafe open(path, flags, 0o600)
        guard descriptor >= 0 else { throw SystemError("opening \(path)") }
        self.path = path
        count = Int64(lseek(descriptor, 0, SEEK_END))
    }

    deinit { close(descriptor) }

    public func append(_ bytes: Span<UInt8>) throws(SystemError) {
        var done = 0
        while done < bytes.count {
            let rest = bytes.extracting(done..<bytes.count)
            let written = unsafe rest.withUnsafeBytes {
                unsafe Glibc.write(descriptor, $0.baseAddress, $0.count)
            }
            if written < 0 && errno == EINTR { continue }
            guard written > 0 else { throw SystemError("writing \(path)") }
            done += written
            count += Int64(written)
        }
    }

    /// Waits until all of it is on the disk.
    public func sync() throws(SystemError) {
        guard fdatasync(descriptor) == 0 else { throw SystemError("syncing \(path)") }
    }

    /// Removes all that was written.
    public func clear() throws(SystemError) {
        guard ftruncate(descriptor, 0) == 0, lseek(descriptor, 0, SEEK_SET) == 0 else {
            throw SystemError("emptying \(path)")
        }
        count = 0
    }

    /// Lends the whole file, piece by piece, from its beginning.
    public func readAll(_ body: (Span<UInt8>) -> Void) throws(SystemError) {
        var offset: off_t = 0
        var piece = [UInt8](repeating: 0, count: 256 << 10)
        while true {
            let got = unsafe pread(descriptor, &piece, piece.count, offset)
            if got < 0 && errno == EINTR { continue }
            guard got >= 0 else { throw SystemError("reading \(path)") }
            if got == 0 { return }
            body(piece.span.extracting(0..<got))
            offset += off_t(got)
        }
    }
}

extension FileSystem {
    /// When a file was last changed, in milliseconds since 1970; `nil` if there is none.
    public static func modified(_ path: String) -> Int64? {
        var found = stat()
        guard unsafe stat(path, &found) == 0 else { return nil }
        return Int64(found.st_mtim.tv_sec) * 1_000 + Int64(found.st_mtim.tv_nsec) / 1_000_000
    }

    /// Sets the time of a file's last change to now.
    public static func touch(_ path: String) { unsafe _ = utimensat(AT_FDCWD, path, nil, 0) }

    /// Bytes of a file, or of what a link leads to; `nil` if it is no ordinary file.
    public static func fileBytes(_ path: String) -> Int64? {
        var found = stat()
        guard unsafe stat(path, &found) == 0, found.st_mode & S_IFMT == S_IFREG else { return nil }
        return Int64(found.st_size)
    }
}
