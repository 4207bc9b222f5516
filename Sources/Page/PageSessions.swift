internal import Bytes
internal import Crypto
internal import Foundation
internal import Synchronization

/// Who is signed in: browsers that showed the operators' token or a link's code. In memory only, so the end of
/// the process signs everybody out.
///
/// - Thread safety: every method may be called from any thread.
public final class PageSessions: Sendable {
    /// From signing in, in milliseconds.
    public static let validMilliseconds: Int64 = 12 * 3_600_000
    /// One more ends the oldest.
    public static let limit = 64

    private struct State {
        /// By the SHA-256 of what the browser has; monotonic milliseconds of their end.
        var ends: [Digest: Int64] = [:]
        /// Codes that were used, as long as they would be valid.
        var used: [LoginCode] = []
    }

    private let state = Mutex(State())

    public init() {}

    /// Begins a session.
    /// - Returns: 64 hexadecimal digits for the browser to keep.
    public func begin(now: Int64) throws -> String {
        let random = try Random.bytes(32)
        let text = Hex.encode(random.span)
        state.withLock { state in
            state.ends = state.ends.filter { $0.value > now }
            if state.ends.count >= Self.limit,
                let oldest = state.ends.min(by: { $0.value < $1.value })?.key
            {
                state.ends[oldest] = nil
            }
            state.ends[Self.digest(text)] = now + Self.validMilliseconds
        }
        return text
    }

    /// The session of what a browser shows; `nil` if it is none that holds.
    func find(_ text: String, now: Int64) -> Digest? {
        // Looked up by digest, so that the time it takes tells nothing of the sessions there are.
        let digest = Self.digest(text)
        return holds(digest, now: now) ? digest : nil
    }

    /// Whether what a browser shows is a session that holds.
    public func holds(_ text: String, now: Int64) -> Bool { find(text, now: now) != nil }

    func holds(_ session: Digest, now: Int64) -> Bool {
        state.withLock { $0.ends[session].map { $0 > now } ?? false }
    }

    public func end(_ text: String) { state.withLock { $0.ends[Self.digest(text)] = nil } }

    /// Uses a code up.
    /// - Parameter now: milliseconds since 1970.
    /// - Returns: whether it was not used before.
    public func use(_ code: LoginCode, now: Int64) -> Bool {
        state.withLock { state in
            state.used.removeAll { now - $0.madeAt > 2 * LoginCode.validMilliseconds }
            guard !state.used.contains(code) else { return false }
            state.used.append(code)
            return true
        }
    }

    private static func digest(_ text: String) -> Digest {
        SHA256.hash(ByteBuffer(text.utf8).span)
    }
}

/// The cookies of a request.
enum Cookies {
    /// The first value of a name (RFC 6265, section 4.2).
    static func value(of name: String, in headers: [String]) -> String? {
        for header in headers {
            for pair in header.split(separator: ";") {
                let sides = pair.split(
                    separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
                guard sides.count == 2 else { continue }
                if sides[0].drop(while: { $0 == " " }) == name[...] {
                    return String(sides[1].drop { $0 == " " })
                }
            }
        }
        return nil
    }
}

/// What a form or a query says.
///
/// Text is `application/x-www-form-urlencoded` (URL Standard, section 5.1).
struct FormFields {
    private var values: [String: String] = [:]

    /// Of a name that comes twice the first counts; what is wrongly encoded is left out.
    init(_ text: String) {
        for pair in text.split(separator: "&").prefix(16) {
            let sides = pair.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
            guard let name = Self.decode(sides[0]),
                let value = Self.decode(sides.count > 1 ? sides[1] : ""), values[name] == nil
            else { continue }
            values[name] = value
        }
    }

    subscript(_ name: String) -> String? { values[name] }

    private static func decode(_ text: Substring) -> String? {
        text.replacing("+", with: " ").removingPercentEncoding
    }
}
