internal import Glibc

/// A user of this machine that a child process can run as.
public struct UnixAccount: Hashable, Sendable {
    public var name: String
    public var userID: UInt32
    public var groupID: UInt32

    /// `nil` if there is no user of that name.
    public init?(named name: String) {
        var entry = unsafe passwd()
        var found: UnsafeMutablePointer<passwd>?
        var text = [CChar](repeating: 0, count: 16 << 10)
        let result = unsafe getpwnam_r(name, &entry, &text, text.count, &found)
        guard unsafe result == 0 && found != nil else { return nil }
        self.name = name
        userID = unsafe entry.pw_uid
        groupID = unsafe entry.pw_gid
    }

    /// The login name of the user who started this process; its number where it has no name.
    public static var currentName: String {
        var entry = unsafe passwd()
        var found: UnsafeMutablePointer<passwd>?
        var text = [CChar](repeating: 0, count: 16 << 10)
        let result = unsafe getpwuid_r(getuid(), &entry, &text, text.count, &found)
        guard unsafe result == 0 && found != nil, let name = unsafe entry.pw_name else {
            return "uid-\(getuid())"
        }
        return unsafe String(cString: name)
    }

    /// Whether this process runs as root.
    public static var isRoot: Bool { geteuid() == 0 }
}
