internal import Glibc

extension FileSystem {
    public static func exists(_ path: String) -> Bool { unsafe access(path, F_OK) == 0 }

    /// Whether this process may write `path`, or make files in it if it is a directory.
    public static func isWritable(_ path: String) -> Bool { unsafe access(path, W_OK) == 0 }

    /// Whether `path` is a directory, or a link to one.
    public static func isDirectory(_ path: String) -> Bool {
        var found = stat()
        return unsafe stat(path, &found) == 0 && found.st_mode & S_IFMT == S_IFDIR
    }

    /// The whole of a file.
    /// - Throws: `EFBIG` if it has more than `limit` bytes.
    public static func bytes(of path: String, limit: Int = 16 << 20) throws(SystemError) -> [UInt8]
    {
        let file = unsafe open(path, O_RDONLY | O_CLOEXEC)
        guard file >= 0 else { throw SystemError("reading \(path)") }
        defer { close(file) }
        var bytes: [UInt8] = []
        var piece = [UInt8](repeating: 0, count: 64 << 10)
        while true {
            let count = unsafe Glibc.read(file, &piece, piece.count)
            if count < 0 && errno == EINTR { continue }
            guard count >= 0 else { throw SystemError("reading \(path)") }
            if count == 0 { return bytes }
            bytes.append(contentsOf: piece[..<count])
            guard bytes.count <= limit else { throw SystemError("reading \(path)", code: EFBIG) }
        }
    }

    /// Removes a file; one that is not there is no error.
    public static func remove(_ path: String) { unsafe unlink(path) }

    /// Removes a directory and all that is in it, as far as that can be done. Links are not followed.
    public static func removeTree(_ path: String) {
        if status(path)?.isDirectory == true {
            for name in (try? names(in: path)) ?? [] { removeTree("\(path)/\(name)") }
            unsafe rmdir(path)
        } else {
            remove(path)
        }
    }

    /// Names in a directory, sorted; without `.` and `..`.
    public static func names(in path: String) throws(SystemError) -> [String] {
        guard let directory = unsafe opendir(path) else {
            throw SystemError("reading directory \(path)")
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
}
