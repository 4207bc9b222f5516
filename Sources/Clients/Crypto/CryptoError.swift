internal import COpenSSL

/// A cryptographic operation that failed. Holds no keys and no plaintext.
public struct CryptoError: Error, Hashable, Sendable, CustomStringConvertible {
    public enum Operation: String, Sendable {
        case sealing, opening
        case derivingKeys = "deriving a key pair"
        case makingKeys = "making a key pair"
        case readingRandomness = "reading random bytes"
    }

    public enum Kind: Sendable, Hashable {
        /// The key has the wrong size.
        case keySize
        /// Sealed bytes that are too short, were changed, or belong to another key or context.
        case notAuthentic
        /// OpenSSL refused; no memory, or a library that lacks the algorithm.
        case library
    }

    public var operation: Operation
    public var kind: Kind
    public var reason: String

    public var description: String { "\(operation.rawValue): \(reason)" }

    init(_ operation: Operation, _ kind: Kind, _ reason: String) {
        self.operation = operation
        self.kind = kind
        self.reason = reason
    }

    /// Takes OpenSSL's queue of errors of this thread with it.
    static func library(_ operation: Operation) -> CryptoError {
        var code: UInt = 0
        while true {
            let next = ERR_get_error()
            if next == 0 { break }
            code = next
        }
        var text = [CChar](repeating: 0, count: 160)
        unsafe ERR_error_string_n(code, &text, text.count)
        let bytes = text.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }
        return CryptoError(operation, .library, String(decoding: bytes, as: UTF8.self))
    }
}
