internal import Bytes
internal import Crypto
internal import Foundation
internal import HTTP
internal import Page
internal import Synchronization

/// What operators show to be let in: a bearer token (RFC 6750).
public struct AdminToken: Sendable, CustomStringConvertible {
    /// Shorter ones can be guessed.
    public static let minimumBytes = 32
    /// SHA-256: what is compared has one size, and the token itself is not kept.
    let digest: [UInt8]

    /// - Throws: `SecretError` for one that is too short or cannot stand in a header.
    public init(_ text: String) throws(SecretError) {
        try self.init(text, named: SecretFiles.adminTokenName)
    }

    /// - Parameter name: of the secret, for the error.
    init(_ text: String, named name: String) throws(SecretError) {
        guard text.utf8.count >= Self.minimumBytes,
            text.utf8.allSatisfy({ $0 > 0x20 && $0 < 0x7F })
        else {
            throw SecretError(
                name: name,
                reason: "it is not \(Self.minimumBytes) or more visible ASCII characters",
                remedy: SecretFiles.adminTokenRemedy)
        }
        digest = Self.digest(text)
    }

    static func digest(_ text: some StringProtocol) -> [UInt8] {
        let bytes = ByteBuffer(text.utf8)
        return SHA256.hash(bytes.span).bytes
    }

    public var description: String { "AdminToken(hidden)" }

    /// What a link to the page carries to sign somebody in, once.
    ///
    /// Unit: milliseconds since 1970.
    /// - Throws: `CryptoError` where there are no random numbers.
    public func loginCode(now: Int64) throws -> String {
        LoginCode(madeAt: now, number: try Random.integer()).text(key: digest)
    }
}

/// Lets operators in by their token, and tells those who try others to stop.
///
/// The right token is always let in: a token is too long to be guessed, and a script with an old one
/// must not lock out the operator beside it on the same machine.
final class AdminGuard: Sendable {
    enum Verdict: Equatable {
        case letIn
        /// No token, or a wrong one.
        case refused
        /// The address has shown too many wrong ones; the seconds until it may try again.
        case tooMany(seconds: Int64)
    }

    /// Wrong tokens of one address a minute; further ones are answered 429.
    static let failuresPerMinute = 10
    private static let windowMilliseconds: Int64 = 60_000
    /// Addresses that are counted one by one; all others share one count.
    private static let maximumAddresses = 1_024

    private struct Failures {
        var start: Int64 = .min
        var counts: [ClientAddress: Int] = [:]
        var others = 0
    }

    private let tokens: [AdminToken]
    private let failures = Mutex(Failures())

    /// - Parameter tokens: each lets in.
    init(_ tokens: [AdminToken]) { self.tokens = tokens }

    /// - Parameters:
    ///   - authorization: the header.
    ///   - now: monotonic milliseconds.
    func judge(_ authorization: String?, _ address: ClientAddress, now: Int64) -> Verdict {
        if let authorization, isRight(authorization) { return .letIn }
        return failures.withLock { failures in
            if now - Self.windowMilliseconds >= failures.start {
                failures = Failures(start: now)
            }
            let isKnown =
                failures.counts[address] != nil
                || failures.counts.count < Self.maximumAddresses
            let count = (isKnown ? failures.counts[address] ?? 0 : failures.others) + 1
            if isKnown { failures.counts[address] = count } else { failures.others = count }
            guard count > Self.failuresPerMinute else { return .refused }
            let left = failures.start + Self.windowMilliseconds - now
            return .tooMany(seconds: max(1, (left + 999) / 1_000))
        }
    }

    private func isRight(_ authorization: String) -> Bool {
        let words = authorization.split(separator: " ")
        guard words.count == 2, words[0].lowercased() == "bearer" else { return false }
        let shown = AdminToken.digest(words[1])
        var isRight = false
        // All of them, so that the time does not tell which one it was.
        for token in tokens {
            let wanted = token.digest
            if equalInConstantTime(wanted.span, shown.span) { isRight = true }
        }
        return isRight
    }
}
