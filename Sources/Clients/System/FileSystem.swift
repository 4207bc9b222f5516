internal import Glibc

/// Files and directories with the modes and owners that Foundation does not set in one step.
public enum FileSystem {
    public struct Status: Hashable, Sendable {
        public var isDirectory: Bool
        public var ownerID: UInt32
        /// The permission bits.
        public var mode: UInt32
        public var sizeBytes: Int
    }

    /// `nil` if there is nothing at `path`. A symbolic link is not followed.
    public static func status(_ path: String) -> Status? {
        var found = stat()
        guard unsafe lstat(path, &found) == 0 else { return nil }
        return Status(
            isDirectory: found.st_mode & S_IFMT == S_IFDIR, ownerID: found.st_uid,
            mode: found.st_mode & 0o7777, sizeBytes: Int(found.st_size))
    }

    /// Whether `path` is a file that this process may run.
    public static func isExecutable(_ path: String) -> Bool { unsafe access(path, X_OK) == 0 }

    /// Makes a directory, and those above it that are missing, with exactly this mode. One that
    /// exists stays as it is.
    public static func makeDirectory(
        _ path: String, mode: UInt32, owner: UnixAccount? = nil
    ) throws(SystemError) {
        if let known = status(path), known.isDirectory { return }
        let parent = path.split(separator: "/").dropLast().joined(separator: "/")
        if path.hasPrefix("/"), !parent.isEmpty, status("/" + parent) == nil {
            try makeDirectory("/" + parent, mode: 0o755)
        }
        guard unsafe mkdir(path, mode) == 0 || errno == EEXIST else {
            throw SystemError("making directory \(path)")
        }
        // Not left to the umask.
        guard unsafe chmod(path, mode) == 0 else { throw SystemError("setting mode of \(path)") }
        if let owner {
            guard unsafe chown(path, owner.userID, owner.groupID) == 0 else {
                throw SystemError("giving \(path) to user \(owner.name)")
            }
        }
    }

    /// Makes a directory with a unique name, mode 0700.
    /// - Parameter prefix: the path up to the six characters that make it unique.
    public static func makeTemporaryDirectory(_ prefix: String) throws(SystemError) -> String {
        var template = Array((prefix + "XXXXXX").utf8CString)
        guard unsafe mkdtemp(&template) != nil else {
            throw SystemError("making a directory \(prefix)…")
        }
        return String(decoding: template.dropLast().map { UInt8(bitPattern: $0) }, as: UTF8.self)
    }

    public static func setMode(_ path: String, _ mode: UInt32) throws(SystemError) {
        guard unsafe chmod(path, mode) == 0 else { throw SystemError("setting mode of \(path)") }
    }

    public static func setOwner(_ path: String, _ owner: UnixAccount) throws(SystemError) {
        guard unsafe chown(path, owner.userID, owner.groupID) == 0 else {
            throw SystemError("giving \(path) to user \(owner.name)")
        }
    }

    /// The path without symbolic links, `.` and `..`.
    public static func realPath(_ path: String) throws(SystemError) -> String {
        guard let found = unsafe realpath(path, nil) else { throw SystemError("opening \(path)") }
        defer { unsafe free(found) }
        return unsafe String(cString: found)
    }

    public static func rename(_ old: String, to new: String) throws(SystemError) {
        guard unsafe Glibc.rename(old, new) == 0 else { throw SystemError("renaming \(old)") }
    }

    /// The whole of a file, as text.
    public static func read(_ path: String) throws(SystemError) -> String {
        let descriptor = unsafe open(path, O_RDONLY | O_CLOEXEC)
        guard descriptor >= 0 else { throw SystemError("reading \(path)") }
        defer { close(descriptor) }
        return readAll(descriptor)
    }

    /// Writes a small file in one step: readers see the old one or the new one.
    public static func write(
        _ text: String, to path: String, mode: UInt32
    ) throws(SystemError) {
        let partial = path + ".new"
        let descriptor = try openForWriting(partial, mode: mode)
        var rest = Array(text.utf8)[...]
        while !rest.isEmpty {
            let count = unsafe rest.withUnsafeBytes {
                unsafe Glibc.write(descriptor, $0.baseAddress, $0.count)
            }
            if count < 0 && errno == EINTR { continue }
            guard count > 0 else {
                let failure = SystemError("writing \(path)")
                close(descriptor)
                throw failure
            }
            rest = rest.dropFirst(count)
        }
        close(descriptor)
        try rename(partial, to: path)
    }

    /// Opens an empty file that children do not inherit. Close it with `close`.
    public static func openForWriting(_ path: String, mode: UInt32) throws(SystemError) -> Int32 {
        let flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW
        let descriptor = unsafe open(path, flags, mode)
        guard descriptor >= 0 else { throw SystemError("writing \(path)") }
        return descriptor
    }

    public static func close(_ descriptor: Int32) { _ = Glibc.close(descriptor) }

    static func readAll(_ descriptor: Int32) -> String {
        var bytes: [UInt8] = []
        var piece = [UInt8](repeating: 0, count: 16 << 10)
        while true {
            let count = unsafe Glibc.read(descriptor, &piece, piece.count)
            if count < 0 && errno == EINTR { continue }
            guard count > 0 else { break }
            bytes.append(contentsOf: piece[..<count])
        }
        return String(decoding: bytes, as: UTF8.self)
    }
}

/// Holds a file locked against other processes, and against others of this process, until its end.
public final class FileLock: Sendable {
    private let descriptor: Int32

    /// - Returns: `nil` if somebody else holds it.
    /// - SeeAlso: flock(2).
    public static func take(_ path: String) throws(SystemError) -> FileLock? {
        let flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW
        let descriptor = unsafe open(path, flags, 0o600)
        guard descriptor >= 0 else { throw SystemError("opening \(path)") }
        guard flock(descriptor, LOCK_EX | LOCK_NB) == 0 else {
            let failure = SystemError("locking \(path)")
            close(descriptor)
            if failure.code == EWOULDBLOCK { return nil }
            throw failure
        }
        return FileLock(descriptor)
    }

    private init(_ descriptor: Int32) { self.descriptor = descriptor }

    deinit { close(descriptor) }
}
