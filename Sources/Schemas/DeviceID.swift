public import Bytes

/// A UUID (RFC 4122), compared by its 128 bits, so upper and lower case are the same id.
public struct DeviceID: Hashable, Comparable, Sendable, CustomStringConvertible {
    public var high: UInt64
    public var low: UInt64

    @inlinable public init(high: UInt64, low: UInt64) {
        self.high = high
        self.low = low
    }

    /// Reads the 36-character form in any case; `nil` for anything else.
    @inlinable public init?(parsing text: Span<UInt8>) {
        guard text.count == 36, text[8] == 0x2D, text[13] == 0x2D, text[18] == 0x2D,
            text[23] == 0x2D
        else { return nil }
        var words: (UInt64, UInt64) = (0, 0)
        var digits = 0
        var index = 0
        while index < 36 {
            if index == 8 || index == 13 || index == 18 || index == 23 {
                index += 1
                continue
            }
            let byte = text[index]
            let nibble: UInt8
            switch byte {
            case 0x30...0x39: nibble = byte &- 0x30
            case 0x41...0x46: nibble = byte &- 0x37
            case 0x61...0x66: nibble = byte &- 0x57
            default: return nil
            }
            if digits < 16 {
                words.0 = words.0 << 4 | UInt64(nibble)
            } else {
                words.1 = words.1 << 4 | UInt64(nibble)
            }
            digits += 1
            index += 1
        }
        high = words.0
        low = words.1
    }

    public init?(_ text: String) {
        guard let parsed = DeviceID(parsing: ByteBuffer(text.utf8).span) else { return nil }
        self = parsed
    }

    @inlinable public static func < (a: DeviceID, b: DeviceID) -> Bool {
        a.high != b.high ? a.high < b.high : a.low < b.low
    }

    /// The lower-case form with hyphens.
    public var description: String {
        var buffer = ByteBuffer()
        buffer.append(self)
        return buffer.span.text
    }

    /// The first eight digits: what logs may show.
    public var shortened: String { String(description.prefix(8)) }
}

extension ByteBuffer {
    /// Appends the 36-character lower-case form.
    public mutating func append(_ id: DeviceID) {
        append(hexadecimal: id.high >> 32, digits: 8)
        append(0x2D)
        append(hexadecimal: id.high >> 16 & 0xFFFF, digits: 4)
        append(0x2D)
        append(hexadecimal: id.high & 0xFFFF, digits: 4)
        append(0x2D)
        append(hexadecimal: id.low >> 48, digits: 4)
        append(0x2D)
        append(hexadecimal: id.low & 0xFFFF_FFFF_FFFF, digits: 12)
    }
}
