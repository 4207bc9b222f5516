internal import Glibc

/// What a request's head says about framing: where its target is, how its body comes, what it asks.
///
/// Made by `HeadFacts.parse`, a pure function that refuses whatever two parsers could understand
/// differently; llhttp then reads the same head, and both must agree (`HeadParser`).
package struct HeadFacts: Equatable {
    /// Why a head is refused.
    package enum Refusal: Equatable, Error {
        case malformed
        case versionNotSupported
        case codingNotSupported
        case expectationFailed
        case tooManyHeaders
    }

    package var targetStart = 0
    package var targetCount = 0
    /// The path within the target: without scheme, authority and query.
    package var pathStart = 0
    package var pathCount = 0
    /// The first header line.
    var headersStart = 0
    package var minorVersion = 1
    /// -1 without `Content-Length`.
    package var contentLength = -1
    package var isChunked = false
    package var expectsContinue = false

    /// Set by llhttp.
    var method = Method.other
    var keepsAlive = false

    var hasBody: Bool { contentLength > 0 || isChunked }

    static let largestHeaderCount = 100

    /// Reads a whole head, from its request line through the blank line.
    package static func parse(_ bytes: UnsafeRawBufferPointer) throws(Refusal) -> HeadFacts {
        var facts = HeadFacts()
        var position = try unsafe facts.parseRequestLine(bytes)
        facts.headersStart = position
        var hosts = 0
        var lengths = 0
        var codings = 0
        var expectations = 0
        var headers = 0
        while true {
            let end = try unsafe endOfLine(bytes, from: position)
            if end == position { break }
            headers += 1
            guard headers <= largestHeaderCount else { throw .tooManyHeaders }
            var colon = position
            while colon < end, unsafe ByteClass.isToken(bytes[colon]) { colon += 1 }
            // Catches folded lines and space before the colon as well: neither is a token.
            guard colon > position, colon < end, unsafe bytes[colon] == 0x3A else {
                throw .malformed
            }
            let name = unsafe UnsafeRawBufferPointer(rebasing: bytes[position..<colon])
            let value = unsafe trimmed(bytes, colon + 1, end)
            guard unsafe !holdsForbidden(value) else { throw .malformed }
            switch name.count {
            case 4 where unsafe equals(name, "host"):
                hosts += 1
                guard unsafe isPlausibleHost(value) else { throw .malformed }
            case 6 where unsafe equals(name, "expect"):
                expectations += 1
                guard unsafe equals(value, "100-continue"), expectations == 1 else {
                    throw .expectationFailed
                }
                facts.expectsContinue = true
            case 14 where unsafe equals(name, "content-length"):
                lengths += 1
                guard lengths == 1, let length = unsafe decimal(value) else { throw .malformed }
                facts.contentLength = length
            case 17 where unsafe equals(name, "transfer-encoding"):
                codings += 1
                guard codings == 1 else { throw .malformed }
                guard unsafe equals(value, "chunked") else { throw .codingNotSupported }
                facts.isChunked = true
            default: break
            }
            position = end + 2
        }
        guard position + 2 == bytes.count else { throw .malformed }
        guard hosts == 1 || (hosts == 0 && facts.minorVersion == 0) else { throw .malformed }
        // Both at once is how requests are smuggled past a proxy (RFC 9112, section 6.1).
        guard lengths == 0 || codings == 0 else { throw .malformed }
        if facts.minorVersion == 0 {
            guard codings == 0 else { throw .malformed }
            facts.expectsContinue = false
        }
        return facts
    }

    /// - Returns: where the first header line starts.
    private mutating func parseRequestLine(
        _ bytes: UnsafeRawBufferPointer
    ) throws(Refusal) -> Int {
        let end = try unsafe Self.endOfLine(bytes, from: 0)
        var position = 0
        while position < end, unsafe ByteClass.isToken(bytes[position]) { position += 1 }
        guard position > 0, position < end, unsafe bytes[position] == 0x20 else {
            throw .malformed
        }
        position += 1
        targetStart = position
        // Visible ASCII only: what else a path holds comes percent-encoded.
        while position < end, unsafe bytes[position] > 0x20, unsafe bytes[position] < 0x7F {
            position += 1
        }
        targetCount = position - targetStart
        guard targetCount > 0, position < end, unsafe bytes[position] == 0x20 else {
            throw .malformed
        }
        let version = unsafe UnsafeRawBufferPointer(rebasing: bytes[(position + 1)..<end])
        guard version.count == 8, unsafe equals(version, "http/", count: 5),
            unsafe version[6] == 0x2E,
            // Upper case, as the grammar says; `equals` does not look at case.
            unsafe version[0] == 0x48 && version[1] == 0x54
        else { throw .malformed }
        guard unsafe version[5] == 0x31, unsafe version[7] == 0x31 || version[7] == 0x30 else {
            throw .versionNotSupported
        }
        minorVersion = unsafe Int(version[7] - 0x30)
        unsafe findPath(bytes)
        return end + 2
    }

    /// Finds the path in an origin-form or absolute-form target; any other target is its own path.
    private mutating func findPath(_ bytes: UnsafeRawBufferPointer) {
        var start = targetStart
        let end = targetStart + targetCount
        if unsafe bytes[start] != 0x2F {
            let target = unsafe UnsafeRawBufferPointer(rebasing: bytes[start..<end])
            let scheme =
                unsafe equals(target, "http://", count: 7)
                ? 7 : unsafe equals(target, "https://", count: 8) ? 8 : 0
            if scheme > 0 {
                start += scheme
                while start < end, unsafe bytes[start] != 0x2F, unsafe bytes[start] != 0x3F {
                    start += 1
                }
            }
        }
        var stop = start
        while stop < end, unsafe bytes[stop] != 0x3F { stop += 1 }
        pathStart = start
        pathCount = stop - start
    }

    private static func endOfLine(
        _ bytes: UnsafeRawBufferPointer, from start: Int
    ) throws(Refusal) -> Int {
        guard start < bytes.count,
            let found = unsafe memchr(bytes.baseAddress! + start, 0x0D, bytes.count - start)
        else { throw .malformed }
        let end = unsafe UnsafeRawPointer(found) - bytes.baseAddress!
        // A lone carriage return is refused: llhttp 8.1.0 takes it for a line end.
        guard end + 1 < bytes.count, unsafe bytes[end + 1] == 0x0A else { throw .malformed }
        return end
    }

    private static func holdsForbidden(_ value: UnsafeRawBufferPointer) -> Bool {
        // Without an early exit, so that the compiler makes vectors of it.
        var bad: UInt8 = 0
        for index in 0..<value.count {
            bad |= unsafe ByteClass.isForbiddenInValue(value[index]) ? 1 : 0
        }
        return bad != 0
    }

    /// Enough to keep a Host from holding a second one, a path or user information.
    private static func isPlausibleHost(_ value: UnsafeRawBufferPointer) -> Bool {
        for index in 0..<value.count {
            switch unsafe value[index] {
            case 0x21...0x2B, 0x2D...0x2E, 0x30...0x3B, 0x3D, 0x41...0x5D, 0x5F, 0x61...0x7A, 0x7E:
                continue
            default: return false
            }
        }
        return true
    }
}

/// Whether `bytes` are those of `text`, which is lower-case ASCII, in any case.
func equals(_ bytes: UnsafeRawBufferPointer, _ text: StaticString) -> Bool {
    unsafe bytes.count == text.utf8CodeUnitCount && equals(bytes, text, count: bytes.count)
}

/// Whether the first `count` bytes are those of `text`, which is lower-case ASCII, in any case.
func equals(_ bytes: UnsafeRawBufferPointer, _ text: StaticString, count: Int) -> Bool {
    guard bytes.count >= count else { return false }
    let start = unsafe text.utf8Start
    for index in 0..<count {
        var byte = unsafe bytes[index]
        if byte >= 0x41, byte <= 0x5A { byte |= 0x20 }
        if unsafe byte != start[index] { return false }
    }
    return true
}

/// Without spaces and tabs at either end.
func trimmed(_ bytes: UnsafeRawBufferPointer, _ start: Int, _ end: Int) -> UnsafeRawBufferPointer {
    var start = start
    var end = end
    while start < end, unsafe bytes[start] == 0x20 || bytes[start] == 0x09 { start += 1 }
    while end > start, unsafe bytes[end - 1] == 0x20 || bytes[end - 1] == 0x09 { end -= 1 }
    return unsafe UnsafeRawBufferPointer(rebasing: bytes[start..<end])
}

/// A number of 1 to 18 decimal digits and nothing else.
func decimal(_ bytes: UnsafeRawBufferPointer) -> Int? {
    guard bytes.count >= 1, bytes.count <= 18 else { return nil }
    var value = 0
    for index in 0..<bytes.count {
        let digit = unsafe Int(bytes[index]) - 0x30
        guard digit >= 0, digit <= 9 else { return nil }
        value = value * 10 + digit
    }
    return value
}
