internal import Bytes
internal import Crypto
package import Schemas

/// What a session is known by: the SHA-256 of its token, which itself is kept nowhere.
package struct SessionID: Hashable, Sendable {
    let digest: Digest

    /// Bytes of a token's randomness.
    static let tokenBytes = 32
    /// Characters of a token: its bytes in Base64url.
    static let tokenCharacters = 43

    /// - Parameter token: as the client shows it.
    /// - Returns: `nil` for what cannot be a token, so that nobody is asked about it.
    package init?(token: Span<UInt8>) {
        guard token.count == Self.tokenCharacters else { return nil }
        for index in token.indices {
            switch token[index] {
            case 0x30...0x39, 0x41...0x5A, 0x61...0x7A, 0x2D, 0x5F: break
            default: return nil
            }
        }
        digest = SHA256.hash(token)
    }

    /// - Parameter authorization: the header `Authorization` (RFC 6750, section 2.1).
    package init?(authorization: String?) {
        guard let words = authorization?.split(separator: " "), words.count == 2,
            words[0].lowercased() == "bearer"
        else { return nil }
        let token = ByteBuffer(words[1].utf8)
        self.init(token: token.span)
    }

    init(_ digest: Digest) { self.digest = digest }

    /// - Parameter hexadecimal: 64 digits.
    init?(hexadecimal: some StringProtocol) {
        let text = ByteBuffer(hexadecimal.utf8)
        guard let bytes = Hex.decode(text.span), bytes.count == 32 else { return nil }
        digest = Digest(bytes: bytes.span)
    }

    /// A new session's token, and what it is known by.
    static func make() throws(CryptoError) -> (token: String, id: SessionID) {
        let bytes = try Random.bytes(tokenBytes)
        let token = Base64URL.encode(bytes.span)
        let text = ByteBuffer(token.utf8)
        return (token, SessionID(SHA256.hash(text.span)))
    }
}

/// Whose a session is.
package enum SessionAnswer: Hashable, Sendable {
    case account(AccountID)
    /// There is none, or it has ended: 401.
    case unauthorized
    /// The database cannot be asked: 503.
    case unavailable
}

/// Holds something open for sessions, and closes it when they end.
package protocol SessionWatcher: AnyObject, Sendable {
    /// The sessions that it holds something open for. Asked on a thread of `Sessions`, after a time in
    /// which the ends of sessions may have been missed.
    var watchedSessions: [SessionID] { get }

    /// The session is open, and until when: in milliseconds of a clock that does not go back. Told
    /// whenever the database was asked for it. Called on any thread: enqueue, and return.
    func sessionFound(_ session: SessionID, expiresAt: Int64)

    /// The session has ended: it was revoked, its account was erased, or it had expired and its row
    /// went. May be told more
    /// than once, and of sessions that are not watched. Called on any thread: enqueue, and return.
    func sessionEnded(_ session: SessionID)
}
