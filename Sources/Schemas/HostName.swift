/// One spelling for hosts, addresses, endpoints and prefixes that mean the same.
enum HostName {
    /// - Returns: an IPv4 or IPv6 address as RFC 5952 writes it, a name in lower case without the
    ///   final dot; what is neither, only trimmed and in lower case.
    static func canonical(_ text: String) -> String {
        var text = trimmed(text).asciiLowercased
        if text.hasPrefix("["), text.hasSuffix("]") { text = String(text.dropFirst().dropLast()) }
        if let address = IPAddress(text) { return address.description }
        if text.count > 1, text.hasSuffix(".") { text.removeLast() }
        return text
    }

    /// `host:port`, an IPv6 host in brackets, the port without leading zeros.
    static func canonical(endpoint: String) -> String {
        let text = trimmed(endpoint)
        guard let colon = text.lastIndex(of: ":"),
            let port = UInt16(text[text.index(after: colon)...])
        else { return canonical(text) }
        let host = text[..<colon]
        // A bare IPv6 address has colons of its own and no port.
        if host.contains(":"), !host.hasSuffix("]") { return canonical(text) }
        let name = canonical(String(host))
        return name.contains(":") ? "[\(name)]:\(port)" : "\(name):\(port)"
    }

    /// `address/bits` with the host bits cleared, as WireGuard reads it; a missing length is the
    /// address's own.
    static func canonical(prefix: String) -> String {
        let text = trimmed(prefix)
        let parts = text.split(separator: "/", omittingEmptySubsequences: false)
        guard parts.count <= 2, let address = IPAddress(trimmed(String(parts[0])).asciiLowercased)
        else { return text.asciiLowercased }
        guard parts.count == 2 else { return "\(address)/\(address.bits)" }
        guard let length = Int(trimmed(String(parts[1]))), length >= 0, length <= address.bits
        else { return text.asciiLowercased }
        return "\(address.masked(to: length))/\(length)"
    }

    static func list(_ text: String) -> [String] {
        text.split(separator: ",").map { trimmed(String($0)) }.filter { !$0.isEmpty }
    }

    static func trimmed(_ text: String) -> String {
        let isSpace: (Character) -> Bool = { $0 == " " || $0 == "\t" || $0 == "\n" || $0 == "\r" }
        let rest = text.drop(while: isSpace)
        guard let last = rest.lastIndex(where: { !isSpace($0) }) else { return "" }
        return String(rest[...last])
    }
}

/// An IPv4 or IPv6 address.
struct IPAddress: Equatable, CustomStringConvertible {
    /// 2 groups of 16 bits for IPv4, 8 for IPv6.
    private var groups: [UInt16]

    var bits: Int { groups.count * 16 }

    /// Reads dotted quads without leading zeros (which some read as octal), and RFC 4291's forms.
    init?(_ text: String) {
        if let groups = Self.quad(text) {
            self.groups = groups
            return
        }
        guard text.contains(":") else { return nil }
        if let gap = text.firstRange(of: "::") {
            guard let head = Self.parts(text[..<gap.lowerBound], mayEndInQuad: false),
                let tail = Self.parts(text[gap.upperBound...], mayEndInQuad: true),
                head.count + tail.count <= 7
            else { return nil }
            let zeros = [UInt16](repeating: 0, count: 8 - head.count - tail.count)
            groups = head + zeros + tail
        } else {
            guard let all = Self.parts(text[...], mayEndInQuad: true), all.count == 8 else {
                return nil
            }
            groups = all
        }
    }

    private static func parts(_ text: Substring, mayEndInQuad: Bool) -> [UInt16]? {
        if text.isEmpty { return [] }
        var result: [UInt16] = []
        let pieces = text.split(separator: ":", omittingEmptySubsequences: false)
        for (index, piece) in pieces.enumerated() {
            if mayEndInQuad, index == pieces.count - 1, let quad = quad(String(piece)) {
                result += quad
                continue
            }
            guard piece.count >= 1, piece.count <= 4, piece.allSatisfy({ $0.isHexDigit }),
                let value = UInt16(piece, radix: 16)
            else { return nil }
            result.append(value)
        }
        return result
    }

    private static func quad(_ text: String) -> [UInt16]? {
        let pieces = text.split(separator: ".", omittingEmptySubsequences: false)
        guard pieces.count == 4 else { return nil }
        var bytes: [UInt16] = []
        for piece in pieces {
            guard piece.count >= 1, piece.count <= 3, piece.utf8.allSatisfy({ $0 & 0xF0 == 0x30 }),
                piece.count == 1 || !piece.hasPrefix("0"), let byte = UInt8(piece)
            else { return nil }
            bytes.append(UInt16(byte))
        }
        return [bytes[0] << 8 | bytes[1], bytes[2] << 8 | bytes[3]]
    }

    func masked(to length: Int) -> IPAddress {
        var result = self
        for index in groups.indices {
            let kept = min(max(length - index * 16, 0), 16)
            result.groups[index] &= kept == 0 ? 0 : UInt16.max << UInt16(16 - kept)
        }
        return result
    }

    var description: String {
        if groups.count == 2 {
            return "\(groups[0] >> 8).\(groups[0] & 255).\(groups[1] >> 8).\(groups[1] & 255)"
        }
        // RFC 5952: the first of the longest runs of two and more zero groups becomes "::".
        var best = 0..<0
        var start = 0
        while start < 8 {
            var end = start
            while end < 8, groups[end] == 0 { end += 1 }
            if end - start > max(best.count, 1) { best = start..<end }
            start = max(end, start + 1)
        }
        let text: ([UInt16]) -> String = {
            $0.map { String($0, radix: 16) }.joined(separator: ":")
        }
        if best.isEmpty { return text(groups) }
        return text(Array(groups[..<best.lowerBound])) + "::"
            + text(Array(groups[best.upperBound...]))
    }
}

extension String {
    /// Letters of ASCII in lower case and all others as they are: the same in every language and
    /// version of Unicode.
    var asciiLowercased: String {
        String(
            decoding: utf8.map { $0 >= 0x41 && $0 <= 0x5A ? $0 | 0x20 : $0 }, as: UTF8.self)
    }
}
