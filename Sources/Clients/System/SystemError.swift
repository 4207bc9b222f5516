internal import Glibc

/// A call of the operating system that failed: what was being done, and the system's reason.
public struct SystemError: Error, Hashable, Sendable, CustomStringConvertible {
    /// In the gerund, with the path or name: `opening /x`.
    public var act: String
    /// An `errno`.
    public var code: Int32

    public init(_ act: String, code: Int32) {
        self.act = act
        self.code = code
    }

    /// With the `errno` of the call that has just failed.
    public init(_ act: String) { self.init(act, code: errno) }

    public var isPermissionDenied: Bool { code == EACCES || code == EPERM }
    public var isMissing: Bool { code == ENOENT }

    public var description: String { unsafe "\(act): \(String(cString: strerror(code)))" }
}
