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
        // Eight digits at a time; the words between hyphens are put together from two halves.
        var isHex: UInt64 = 0x8080_8080_8080_8080
        let middle = text.littleEndianWord(at: 9)
        let second = middle & 0xFFFF_FFFF | text.littleEndianWord(at: 14) << 32
        let third =
            text.littleEndianWord(at: 19) & 0xFFFF_FFFF | text.littleEndianWord(at: 24) << 32
        high = Self.digits(text.littleEndianWord(at: 0), &isHex) << 32 | Self.digits(second, &isHex)
        low =
            Self.digits(third, &isHex) << 32
            | Self.digits(text.littleEndianWord(at: 28), &isHex)
        guard isHex == 0x8080_8080_8080_8080 else { return nil }
    }

    /// The number that eight hexadecimal digits write, the first digit in the lowest byte; clears a
    /// high bit of `isHex` for each byte that is no digit.
    @inlinable static func digits(_ word: UInt64, _ isHex: inout UInt64) -> UInt64 {
        let lower = word | 0x2020_2020_2020_2020
        let isDecimal = (word &+ 0x5050_5050_5050_5050) & ~(word &+ 0x4646_4646_4646_4646)
        let isLetter = (lower &+ 0x1F1F_1F1F_1F1F_1F1F) & ~(lower &+ 0x1919_1919_1919_1919)
        isHex &= (isDecimal | isLetter) & ~word
        var value =
            (word & 0x0F0F_0F0F_0F0F_0F0F)
            &+ 9 &* ((isLetter & 0x8080_8080_8080_8080) >> 7)
        value = value.byteSwapped
        value = (value | value >> 4) & 0x00FF_00FF_00FF_00FF
        value = (value | value >> 8) & 0x0000_FFFF_0000_FFFF
        return (value | value >> 16) & 0xFFFF_FFFF
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
        let first = ByteBuffer.hexadecimal(UInt32(truncatingIfNeeded: id.high >> 32))
        let second = ByteBuffer.hexadecimal(UInt32(truncatingIfNeeded: id.high))
        let third = ByteBuffer.hexadecimal(UInt32(truncatingIfNeeded: id.low >> 32))
        let fourth = ByteBuffer.hexadecimal(UInt32(truncatingIfNeeded: id.low))
        // 8-4-4-4-12: hyphens fall between and into the words of eight digits.
        let hyphen: UInt64 = 0x2D
        appendLittleEndian(first)
        appendLittleEndian(
            hyphen | second << 8 & 0xFF_FFFF_FF00 | hyphen << 40 | (second >> 32) << 48)
        appendLittleEndian(UInt16(truncatingIfNeeded: second >> 48))
        appendLittleEndian(
            hyphen | third << 8 & 0xFF_FFFF_FF00 | hyphen << 40 | (third >> 32) << 48)
        appendLittleEndian(UInt16(truncatingIfNeeded: third >> 48))
        appendLittleEndian(fourth)
    }
}
