internal import CSystem
internal import Glibc

/// A call of the operating system that failed: what was being done, and what it said.
public struct SystemError: Error, Hashable, Sendable, CustomStringConvertible {
    /// In the gerund, with the path.
    public var operation: String
    /// `errno`.
    public var code: Int32

    public init(_ operation: String, code: Int32) {
        self.operation = operation
        self.code = code
    }

    public var description: String {
        "\(operation): \(unsafe String(cString: strerror(code)))"
    }
}

/// Small files as wholes. Paths are not logged by these.
public enum Files {
    public static func exists(_ path: String) -> Bool { unsafe access(path, F_OK) == 0 }

    public static func isDirectory(_ path: String) -> Bool {
        var status = stat()
        return unsafe stat(path, &status) == 0 && status.st_mode & S_IFMT == S_IFDIR
    }

    /// Makes a directory and those above it that are missing.
    /// - Parameter mode: of the ones that are made, before the process's mask.
    public static func makeDirectory(_ path: String, mode: UInt32 = 0o755) throws(SystemError) {
        if path.isEmpty || isDirectory(path) { return }
        if let slash = path.lastIndex(of: "/"), slash != path.startIndex {
            try makeDirectory(String(path[..<slash]), mode: mode)
        }
        if path.hasSuffix("/") { return }
        guard unsafe mkdir(path, mode) == 0 || errno == EEXIST else {
            throw SystemError("making the directory \(path)", code: errno)
        }
        guard isDirectory(path) else {
            throw SystemError("making the directory \(path)", code: ENOTDIR)
        }
    }

    /// Reads a file.
    /// - Throws: `EFBIG` if it has more than `limit` bytes.
    public static func read(_ path: String, limit: Int = 16 << 20) throws(SystemError) -> [UInt8] {
        let file = unsafe open(path, O_RDONLY | O_CLOEXEC)
        guard file >= 0 else { throw SystemError("reading \(path)", code: errno) }
        defer { close(file) }
        var bytes: [UInt8] = []
        var part = [UInt8](repeating: 0, count: 64 << 10)
        while true {
            let count = unsafe Glibc.read(file, &part, part.count)
            if count < 0 && errno == EINTR { continue }
            guard count >= 0 else { throw SystemError("reading \(path)", code: errno) }
            if count == 0 { return bytes }
            bytes.append(contentsOf: part[..<count])
            guard bytes.count <= limit else { throw SystemError("reading \(path)", code: EFBIG) }
        }
    }

    /// Puts a file in its place as a whole, durable before its name is: a reader sees the old one or
    /// the new one, also after a crash.
    /// - Parameter mode: 0600 by default: its owner alone may read it.
    public static func write(
        _ bytes: [UInt8], to path: String, mode: UInt32 = 0o600
    ) throws(SystemError) {
        let temporary = "\(path).\(getpid()).new"
        let file = unsafe open(
            temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode)
        guard file >= 0 else { throw SystemError("writing \(path)", code: errno) }
        var failure: Int32 = 0
        var written = 0
        while written < bytes.count && failure == 0 {
            let count = unsafe bytes.withUnsafeBytes {
                unsafe Glibc.write(file, $0.baseAddress! + written, $0.count - written)
            }
            if count >= 0 { written += count } else if errno != EINTR { failure = errno }
        }
        if failure == 0 && fsync(file) != 0 { failure = errno }
        close(file)
        if unsafe failure == 0 && rename(temporary, path) != 0 { failure = errno }
        guard failure == 0 else {
            unsafe unlink(temporary)
            throw SystemError("writing \(path)", code: failure)
        }
    }

    /// Removes a file; one that is not there is no error.
    public static func remove(_ path: String) { unsafe unlink(path) }

    /// Names in a directory, sorted; without `.` and `..`.
    public static func names(in path: String) throws(SystemError) -> [String] {
        guard let directory = unsafe opendir(path) else {
            throw SystemError("reading the directory \(path)", code: errno)
        }
        defer { unsafe closedir(directory) }
        var names: [String] = []
        while let entry = unsafe readdir(directory) {
            let name = unsafe withUnsafePointer(to: &entry.pointee.d_name) {
                unsafe $0.withMemoryRebound(to: CChar.self, capacity: 256) {
                    unsafe String(cString: $0)
                }
            }
            if name != "." && name != ".." { names.append(name) }
        }
        return names.sorted()
    }

    /// The directory that relative paths start from.
    public static func currentDirectory() -> String {
        guard let path = unsafe getcwd(nil, 0) else { return "." }
        defer { unsafe free(path) }
        return unsafe String(cString: path)
    }
}

/// Holds a file as one process's own (`flock`); released at the end of its life, and by the system
/// if the process dies.
public final class FileLock: Sendable {
    private let file: Int32

    /// - Returns: `nil` if another process holds it.
    public init?(_ path: String) throws(SystemError) {
        let opened = unsafe open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
        guard opened >= 0 else { throw SystemError("opening \(path)", code: errno) }
        file = opened
        // From here on the end of a failed `init` runs `deinit`.
        if flock(file, LOCK_EX | LOCK_NB) == 0 { return }
        if errno == EWOULDBLOCK { return nil }
        throw SystemError("locking \(path)", code: errno)
    }

    deinit { close(file) }
}
