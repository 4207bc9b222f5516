internal import COpenSSL
internal import Glibc

/// A step of preparing TLS that failed: what was being done, to which file, and why.
public struct TLSError: Error, Hashable, Sendable, CustomStringConvertible {
    public enum Operation: String, Sendable {
        case readingCertificate = "reading the certificate chain"
        case readingKey = "reading the private key"
        case matchingKey = "matching the private key to the certificate"
        case readingClientAuthority = "reading the authority for client certificates"
        case makingContext = "preparing TLS"
        case makingSession = "opening a TLS session"
    }

    public let operation: Operation
    /// The file concerned; empty if none is. Never its contents.
    public let file: String
    /// What was wrong and what to do about it.
    public let reason: String

    public var description: String {
        file.isEmpty
            ? "\(operation.rawValue): \(reason)" : "\(operation.rawValue) \(file): \(reason)"
    }

    init(_ operation: Operation, file: String = "", reason: String) {
        self.operation = operation
        self.file = file
        self.reason = reason
    }

    /// Takes this thread's oldest OpenSSL error, and clears the rest.
    static func takeReason() -> String {
        let code = ERR_get_error()
        defer { ERR_clear_error() }
        guard code != 0 else { return "OpenSSL names no reason" }
        if let text = unsafe ERR_reason_error_string(code) { return unsafe String(cString: text) }
        return "OpenSSL error \(code)"
    }

    /// Throws if this process cannot read `file`, with a clearer reason than OpenSSL's.
    static func checkReadable(
        _ operation: Operation, _ file: String
    ) throws(TLSError) {
        let descriptor = unsafe open(file, O_RDONLY | O_CLOEXEC)
        guard descriptor < 0 else {
            close(descriptor)
            return
        }
        let reason =
            switch errno {
            case ENOENT: "there is no such file; check the path"
            case EACCES: "this user may not read it; grant it to the user that runs the server"
            default: unsafe String(cString: strerror(errno))
            }
        throw TLSError(operation, file: file, reason: reason)
    }
}
