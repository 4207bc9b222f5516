internal import CCurl
internal import Glibc

/// A transfer that brought no answer, or a call to libcurl that failed.
public struct CurlError: Error, Hashable, Sendable, CustomStringConvertible {
    public enum Operation: String, Sendable { case configuring, starting, waiting, transferring }

    /// What went wrong, in the words that a caller branches on.
    public enum Kind: String, Sendable, CaseIterable {
        case invalidRequest
        /// The host's name was not found (DNS).
        case unresolved
        case refused
        case unreachable
        case timeout
        /// The TLS handshake, or the check of the server's certificate.
        case tls
        /// The server closed the connection before its answer was whole.
        case disconnected
        /// Not HTTP, or not the HTTP that was announced.
        case badAnswer
        case answerTooLarge
        /// As many transfers run as were allowed.
        case tooMany
        case outOfMemory
        case other
    }

    public let operation: Operation
    public let kind: Kind
    /// A `CURLcode` (or a `CURLMcode` when `operation` is `waiting`); 0 where libcurl was not asked.
    public let code: Int32
    /// libcurl's words. They can name host and port, never headers or bodies.
    public let reason: String

    public init(_ operation: Operation, _ kind: Kind, code: Int32 = 0, reason: String) {
        self.operation = operation
        self.kind = kind
        self.code = code
        self.reason = reason
    }

    public var description: String {
        "\(operation.rawValue) an HTTP request: \(reason)" + (code == 0 ? "" : " (curl \(code))")
    }

    /// - Parameter systemError: `errno` of the last connection attempt; 0 if there was none.
    static func kind(of code: CURLcode, systemError: Int) -> Kind {
        switch code {
        case CURLE_URL_MALFORMAT: .invalidRequest
        case CURLE_COULDNT_RESOLVE_HOST, CURLE_COULDNT_RESOLVE_PROXY: .unresolved
        case CURLE_COULDNT_CONNECT:
            systemError == 0 || systemError == Int(ECONNREFUSED) ? .refused : .unreachable
        case CURLE_OPERATION_TIMEDOUT: .timeout
        case CURLE_SSL_CONNECT_ERROR, CURLE_PEER_FAILED_VERIFICATION, CURLE_SSL_CACERT_BADFILE,
            CURLE_SSL_CERTPROBLEM, CURLE_SSL_CIPHER, CURLE_SSL_ISSUER_ERROR,
            CURLE_SSL_INVALIDCERTSTATUS, CURLE_SSL_PINNEDPUBKEYNOTMATCH, CURLE_SSL_CLIENTCERT,
            CURLE_SSL_CRL_BADFILE, CURLE_SSL_ENGINE_INITFAILED, CURLE_USE_SSL_FAILED:
            .tls
        case CURLE_GOT_NOTHING, CURLE_SEND_ERROR, CURLE_RECV_ERROR, CURLE_PARTIAL_FILE:
            .disconnected
        // The scheme of our own URL was checked, so an unsupported protocol is the server's: no HTTP
        // status line, or a redirect elsewhere.
        case CURLE_WEIRD_SERVER_REPLY, CURLE_BAD_CONTENT_ENCODING, CURLE_TOO_MANY_REDIRECTS,
            CURLE_UNSUPPORTED_PROTOCOL:
            .badAnswer
        case CURLE_WRITE_ERROR: .answerTooLarge
        case CURLE_OUT_OF_MEMORY: .outOfMemory
        default: .other
        }
    }
}
