internal import CLMDB
internal import Glibc
internal import Synchronization

public struct KeyValueSettings: Sendable {
    /// Address space, and so the greatest size of the file, in bytes. The file grows as it is used.
    public var mapBytes: Int
    /// Read transactions of all processes together.
    public var maximumReaders: UInt32
    public var maximumDatabases: UInt32

    public init(mapBytes: Int, maximumReaders: UInt32 = 510, maximumDatabases: UInt32 = 1_024) {
        self.mapBytes = mapBytes
        self.maximumReaders = maximumReaders
        self.maximumDatabases = maximumDatabases
    }
}

/// A named database of an environment. Valid as long as the environment is open in this process.
public struct KeyValueDatabase: Hashable, Sendable {
    let handle: UInt32
}

/// An LMDB environment: a directory with one memory-mapped file and one lock file, which several
/// processes may use at once.
///
/// LMDB must not open a directory twice in one process (closing one would drop the other's locks),
/// so all that open the same directory here share one environment; the settings of the first hold.
/// - Thread safety: any thread. Transactions belong to the thread that uses them.
@safe public final class KeyValueEnvironment: Sendable {
    let native: NativeEnvironment

    /// Opens `directory`, which is made with its parents (mode 0700) where it is missing.
    public init(directory: String, _ settings: KeyValueSettings) throws(KeyValueError) {
        let path = try Self.makeDirectory(directory)
        native = try NativeEnvironment.registry.withLock { (open) throws(KeyValueError) in
            if let native = open[path] {
                native.handles += 1
                return native
            }
            let native = try NativeEnvironment(path, settings)
            open[path] = native
            return native
        }
    }

    deinit {
        // Closed under the lock: another thread that opens the directory now must wait for it.
        NativeEnvironment.registry.withLock { open in
            native.handles -= 1
            guard native.handles == 0 else { return }
            open[native.path] = nil
            unsafe mdb_env_close(native.pointer)
        }
    }

    /// The directory without symbolic links.
    public var path: String { native.path }

    /// How a database orders its keys.
    public enum Keys: Sendable { case bytes, integers }

    /// The database of that name; `nil` if there is none.
    public func database(
        _ name: String, keys: Keys
    ) throws(KeyValueError) -> KeyValueDatabase? {
        try open(name, keys, create: false)
    }

    /// The database of that name, which is made if there is none. Making it waits for the writer:
    /// not to be called inside a write transaction.
    public func makeDatabase(_ name: String, keys: Keys) throws(KeyValueError) -> KeyValueDatabase {
        if let database = try open(name, keys, create: false) { return database }
        guard let database = try open(name, keys, create: true) else {
            throw KeyValueError(.opening, MDB_NOTFOUND, path)
        }
        return database
    }

    private func open(
        _ name: String, _ keys: Keys, create: Bool
    ) throws(KeyValueError) -> KeyValueDatabase? {
        try native.databases.withLock { (known) throws(KeyValueError) in
            if let database = known[name] { return database }
            // LMDB keeps a handle when the transaction that opened it is committed, and allows one
            // such transaction at a time: the lock sees to that.
            var transaction: OpaquePointer?
            try check(
                .opening,
                unsafe mdb_txn_begin(
                    native.pointer, nil, create ? 0 : UInt32(MDB_RDONLY), &transaction))
            var flags = keys == .integers ? UInt32(MDB_INTEGERKEY) : 0
            if create { flags |= UInt32(MDB_CREATE) }
            var handle: UInt32 = 0
            let code = unsafe mdb_dbi_open(transaction, name, flags, &handle)
            guard code == 0 else {
                unsafe mdb_txn_abort(transaction)
                if code == MDB_NOTFOUND { return nil }
                throw KeyValueError(.opening, code, path)
            }
            try check(.opening, unsafe mdb_txn_commit(transaction))
            let database = KeyValueDatabase(handle: handle)
            known[name] = database
            return database
        }
    }

    /// Frees the reader slots of processes that died.
    /// - Returns: how many were freed.
    @discardableResult
    public func clearDeadReaders() throws(KeyValueError) -> Int {
        var dead: Int32 = 0
        try check(.reading, unsafe mdb_reader_check(native.pointer, &dead))
        return Int(dead)
    }

    func check(_ operation: KeyValueError.Operation, _ code: Int32) throws(KeyValueError) {
        guard code == 0 else { throw KeyValueError(operation, code, path) }
    }

    private static func makeDirectory(_ directory: String) throws(KeyValueError) -> String {
        var made = directory.hasPrefix("/") ? "/" : ""
        for part in directory.split(separator: "/") {
            made += part
            if unsafe mkdir(made, 0o700) != 0, errno != EEXIST {
                // A parent we may not write to but that exists says EROFS or EACCES first.
                let code = errno
                guard unsafe access(made, F_OK) == 0 else {
                    throw KeyValueError(.opening, code, directory)
                }
            }
            made += "/"
        }
        guard let resolved = unsafe realpath(directory, nil) else {
            throw KeyValueError(.opening, errno, directory)
        }
        defer { unsafe free(resolved) }
        return unsafe String(cString: resolved)
    }
}

/// The one environment that this process has open on a directory.
///
/// `@unchecked`: LMDB's environment may be used from any thread, and `handles` is touched only
/// under the registry's lock.
@safe final class NativeEnvironment: @unchecked Sendable {
    static let registry = Mutex<[String: NativeEnvironment]>([:])

    let pointer: OpaquePointer
    let path: String
    var handles = 1
    let databases = Mutex<[String: KeyValueDatabase]>([:])

    init(_ path: String, _ settings: KeyValueSettings) throws(KeyValueError) {
        var created: OpaquePointer?
        let code = unsafe mdb_env_create(&created)
        guard code == 0, let pointer = unsafe created else {
            throw KeyValueError(.opening, code, path)
        }
        // No thread-local readers: consumers are handed from thread to thread. No read-ahead: the
        // map is larger than memory, and readers of its end read what was just written.
        let flags = UInt32(MDB_NOTLS | MDB_NORDAHEAD)
        var result = unsafe mdb_env_set_mapsize(pointer, settings.mapBytes)
        if result == 0 { result = unsafe mdb_env_set_maxdbs(pointer, settings.maximumDatabases) }
        if result == 0 { result = unsafe mdb_env_set_maxreaders(pointer, settings.maximumReaders) }
        if result == 0 { result = Self.allocateLocks(path, settings.maximumReaders) }
        if result == 0 { result = unsafe mdb_env_open(pointer, path, flags, 0o600) }
        guard result == 0 else {
            unsafe mdb_env_close(pointer)
            throw KeyValueError(.opening, result, path)
        }
        unsafe self.pointer = pointer
        self.path = path
    }

    /// Gives the lock file its disk space. LMDB maps it sparse, and dies of SIGBUS on a full disk.
    ///
    /// Its size must not change under another process, so it is set only when there is none. No
    /// lock of ours can be on the file, which closing it here would drop: the environment is not
    /// open in this process.
    private static func allocateLocks(_ path: String, _ readers: UInt32) -> Int32 {
        let descriptor = unsafe open("\(path)/lock.mdb", O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
        guard descriptor >= 0 else { return errno }
        defer { close(descriptor) }
        let size = lseek(descriptor, 0, SEEK_END)
        // A cache line (64 bytes) a reader, and a page for the rest.
        return posix_fallocate(descriptor, 0, size > 0 ? size : 4_096 + 64 * off_t(readers))
    }
}
