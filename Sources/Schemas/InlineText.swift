internal import Bytes

/// Up to 120 bytes of UTF-8 inside the value itself, so that an event with text allocates nothing.
public struct InlineText: Sendable, Equatable, CustomStringConvertible {
    public static let capacity = 120

    @usableFromInline var storage = InlineArray<120, UInt8>(repeating: 0)
    public private(set) var count: UInt8 = 0

    public init() {}

    /// Keeps the longest prefix that fits and does not cut a character; U+0000 becomes U+FFFD.
    public init(_ bytes: Span<UInt8>) {
        var used = 0
        var index = 0
        while index < bytes.count {
            let lead = bytes[index]
            if lead == 0 {
                guard used + 3 <= Self.capacity else { break }
                storage[used] = 0xEF
                storage[used + 1] = 0xBF
                storage[used + 2] = 0xBD
                used += 3
                index += 1
                continue
            }
            let size = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4
            guard index + size <= bytes.count, used + size <= Self.capacity else { break }
            for step in 0..<size { storage[used + step] = bytes[index + step] }
            used += size
            index += size
        }
        count = UInt8(used)
    }

    public init(_ text: String) { self.init(ByteBuffer(text.utf8).span) }

    public var isEmpty: Bool { count == 0 }

    public var span: Span<UInt8> {
        @_lifetime(borrow self) get { storage.span.extracting(0..<Int(count)) }
    }

    public static func == (a: InlineText, b: InlineText) -> Bool {
        guard a.count == b.count else { return false }
        for index in 0..<Int(a.count) where a.storage[index] != b.storage[index] { return false }
        return true
    }

    public var description: String { span.text }
}
