internal import Bytes
public import Schemas

/// What somebody looks for, as ranges that an index knows.
public struct SearchTerm: Hashable, Sendable {
    /// Longest text that is looked for, in bytes of UTF-8.
    public static let maximumBytes = 256

    /// Without blanks at its ends.
    public let text: String
    /// Ids that begin with it.
    public let ids: ClosedRange<DeviceID>?
    /// Addresses that begin with it, as IPv4 addresses.
    public let addresses: ClosedRange<UInt32>?
    /// Hardware ids that begin with it, byte by byte: from the first bytes on, before the second.
    public let hardware: (from: [UInt8], before: [UInt8])?

    /// `nil` if there is nothing to look for, or too much of it.
    public init?(_ input: String) {
        let trimmed = input.drop { $0.isWhitespace }
        let end = trimmed.lastIndex { !$0.isWhitespace }
        guard let end else { return nil }
        text = String(trimmed[...end])
        guard text.utf8.count <= Self.maximumBytes else { return nil }
        ids = Self.ids(text)
        addresses = Self.addresses(text)
        hardware = Self.hardware(Array(text.utf8))
    }

    /// One digit would be a sixteenth of all devices, so two are the least.
    private static func ids(_ text: String) -> ClosedRange<DeviceID>? {
        guard text.utf8.allSatisfy({ $0 == 0x2D || Character(Unicode.Scalar($0)).isHexDigit })
        else {
            return nil
        }
        let digits = text.filter { $0 != "-" }
        guard (2...32).contains(digits.count) else { return nil }
        func id(_ filler: Character) -> DeviceID? {
            var all = Array(digits + String(repeating: filler, count: 32 - digits.count))
            for place in [20, 16, 12, 8] { all.insert("-", at: place) }
            return DeviceID(String(all))
        }
        guard let first = id("0"), let last = id("f") else { return nil }
        return first...last
    }

    /// `10.64`, `10.64.0.` and `10.64.0.7`; a first number alone names too many.
    private static func addresses(_ text: String) -> ClosedRange<UInt32>? {
        var words = text.split(separator: ".", omittingEmptySubsequences: false)
        if words.last?.isEmpty == true { words.removeLast() }
        guard (2...4).contains(words.count) else { return nil }
        var low: UInt32 = 0
        for word in words {
            guard word.utf8.allSatisfy({ (0x30...0x39).contains($0) }), word.utf8.count <= 3,
                let number = UInt8(word)
            else { return nil }
            low = low << 8 | UInt32(number)
        }
        let open = UInt32(8 * (4 - words.count))
        low <<= open
        return low...(low | (open == 0 ? 0 : UInt32.max >> (32 - open)))
    }

    private static func hardware(_ bytes: [UInt8]) -> (from: [UInt8], before: [UInt8])? {
        // UTF-8 has no byte 0xFF, so the last byte can always be counted up.
        var after = bytes
        guard let last = after.popLast(), last < 0xFF else { return nil }
        after.append(last + 1)
        return (bytes, after)
    }

    public static func == (a: SearchTerm, b: SearchTerm) -> Bool { a.text == b.text }

    public func hash(into hasher: inout Hasher) { hasher.combine(text) }
}
