internal import CLMDB
internal import Glibc

/// A call of LMDB that failed: what was being done, where, and what LMDB or the system said.
public struct KeyValueError: Error, Hashable, Sendable, CustomStringConvertible {
    public enum Operation: String, Sendable { case opening, reading, writing, committing }

    public enum Kind: Sendable {
        /// The map or the disk has no room left.
        case full
        /// The file is damaged, is not LMDB's, or the disk does not answer.
        case damaged
        /// The directory cannot be used as it is: missing, read-only, not ours, another version.
        case unusable
        /// The same call may succeed later.
        case busy
    }

    public let operation: Operation
    /// An `MDB_…` code (negative) or an `errno`.
    public let code: Int32
    /// The environment's directory.
    public let path: String

    init(_ operation: Operation, _ code: Int32, _ path: String) {
        self.operation = operation
        self.code = code
        self.path = path
    }

    public var kind: Kind {
        switch code {
        case MDB_MAP_FULL, MDB_TXN_FULL, ENOSPC, EDQUOT, EFBIG: .full
        case MDB_READERS_FULL, MDB_TLS_FULL, EAGAIN, EINTR, ENOMEM, EMFILE, ENFILE: .busy
        case EACCES, EPERM, EROFS, ENOENT, ENOTDIR, EINVAL, ENAMETOOLONG, ELOOP, MDB_DBS_FULL,
            MDB_VERSION_MISMATCH, MDB_INCOMPATIBLE, MDB_MAP_RESIZED, MDB_BAD_VALSIZE:
            .unusable
        default: .damaged
        }
    }

    /// What LMDB or the system says of the code.
    public var reason: String { unsafe String(cString: mdb_strerror(code)) }

    public var description: String { "\(operation) \(path): \(reason) (\(code))" }
}
