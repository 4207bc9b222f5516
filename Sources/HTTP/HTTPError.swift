internal import Glibc

/// An operation of the server that failed: what was being done, where, and what to do.
public struct HTTPError: Error, Hashable, Sendable, CustomStringConvertible {
    public enum Operation: String, Sendable {
        case parsingAddress = "parsing the address"
        case listening = "listening on"
        case starting = "starting the server on"
    }

    public let operation: Operation
    /// The address concerned.
    public let address: String
    /// The system's `errno`; 0 if it was not asked.
    public let code: Int32
    /// What was wrong and what to do about it.
    public let reason: String

    public var description: String { "\(operation.rawValue) \(address): \(reason)" }

    init(_ operation: Operation, _ address: String, code: Int32 = 0, reason: String) {
        self.operation = operation
        self.address = address
        self.code = code
        self.reason = reason
    }

    static func listening(on address: String, code: Int32) -> HTTPError {
        let reason =
            switch code {
            case EADDRINUSE:
                "the address is in use by another process; stop that one or choose another port"
            case EADDRNOTAVAIL:
                "this machine has no such address; choose one of its own, or 0.0.0.0 for all"
            case EACCES:
                "this user may not use the port; choose one above 1023, or grant "
                    + "CAP_NET_BIND_SERVICE"
            case EMFILE, ENFILE:
                "no file descriptors are left; raise the limit (ulimit -n)"
            default: unsafe String(cString: strerror(code))
            }
        return HTTPError(.listening, address, code: code, reason: reason)
    }
}
