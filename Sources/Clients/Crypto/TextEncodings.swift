public import Bytes

extension ByteBuffer {
    /// Appends two lower-case hexadecimal digits for each byte.
    public mutating func append(hexOf bytes: Span<UInt8>) {
        for index in 0..<bytes.count {
            let byte = bytes[index]
            append(Hex.digit(byte >> 4))
            append(Hex.digit(byte & 15))
        }
    }

    /// Appends Base64 (RFC 4648, section 4: standard alphabet, with padding).
    public mutating func append(base64Of bytes: Span<UInt8>) {
        var index = 0
        while index < bytes.count {
            let rest = bytes.count - index
            let group =
                UInt32(bytes[index]) << 16 | (rest > 1 ? UInt32(bytes[index + 1]) << 8 : 0)
                | (rest > 2 ? UInt32(bytes[index + 2]) : 0)
            append(Base64.character(group >> 18))
            append(Base64.character(group >> 12 & 63))
            append(rest > 1 ? Base64.character(group >> 6 & 63) : UInt8(ascii: "="))
            append(rest > 2 ? Base64.character(group & 63) : UInt8(ascii: "="))
            index += 3
        }
    }
}

/// Base 16 (RFC 4648, section 8), written in lower case.
public enum Hex {
    public static func encode(_ bytes: Span<UInt8>) -> String {
        var buffer = ByteBuffer()
        buffer.append(hexOf: bytes)
        return buffer.span.text
    }

    /// Reads digits in any case; `nil` for an odd number of them or any other character.
    public static func decode(_ text: Span<UInt8>) -> [UInt8]? {
        guard text.count % 2 == 0 else { return nil }
        var result: [UInt8] = []
        result.reserveCapacity(text.count / 2)
        for index in 0..<(text.count / 2) {
            guard let high = value(text[index * 2]), let low = value(text[index * 2 + 1]) else {
                return nil
            }
            result.append(high << 4 | low)
        }
        return result
    }

    static func digit(_ nibble: UInt8) -> UInt8 { nibble < 10 ? 0x30 + nibble : 0x57 + nibble }

    private static func value(_ digit: UInt8) -> UInt8? {
        switch digit {
        case 0x30...0x39: digit - 0x30
        case 0x41...0x46: digit - 0x37
        case 0x61...0x66: digit - 0x57
        default: nil
        }
    }
}

/// Base64 (RFC 4648, section 4).
public enum Base64 {
    public static func encode(_ bytes: Span<UInt8>) -> String {
        var buffer = ByteBuffer()
        buffer.append(base64Of: bytes)
        return buffer.span.text
    }

    /// Reads padded Base64; `nil` for anything else, padding bits that are not zero included.
    public static func decode(_ text: Span<UInt8>) -> [UInt8]? {
        guard text.count % 4 == 0 else { return nil }
        var result: [UInt8] = []
        result.reserveCapacity(text.count / 4 * 3)
        var index = 0
        while index < text.count {
            let isLast = index + 4 == text.count
            var padding = 0
            if isLast, text[index + 3] == UInt8(ascii: "=") {
                padding = text[index + 2] == UInt8(ascii: "=") ? 2 : 1
            }
            var group: UInt32 = 0
            for step in 0..<(4 - padding) {
                guard let bits = value(text[index + step]) else { return nil }
                group |= bits << UInt32(18 - 6 * step)
            }
            if padding == 2, group & 0xFFFF != 0 { return nil }
            if padding == 1, group & 0xFF != 0 { return nil }
            result.append(UInt8(truncatingIfNeeded: group >> 16))
            if padding < 2 { result.append(UInt8(truncatingIfNeeded: group >> 8)) }
            if padding < 1 { result.append(UInt8(truncatingIfNeeded: group)) }
            index += 4
        }
        return result
    }

    static func character(_ bits: UInt32) -> UInt8 {
        let bits = UInt8(truncatingIfNeeded: bits)
        return switch bits {
        case 0..<26: 0x41 + bits
        case 26..<52: 0x61 + bits - 26
        case 52..<62: 0x30 + bits - 52
        case 62: 0x2B
        default: 0x2F
        }
    }

    private static func value(_ character: UInt8) -> UInt32? {
        switch character {
        case 0x41...0x5A: UInt32(character - 0x41)
        case 0x61...0x7A: UInt32(character - 0x61 + 26)
        case 0x30...0x39: UInt32(character - 0x30 + 52)
        case 0x2B: 62
        case 0x2F: 63
        default: nil
        }
    }
}

/// Base64url (RFC 4648, section 5) as JOSE uses it (RFC 7515, section 2): without padding.
public enum Base64URL {
    public static func encode(_ bytes: Span<UInt8>) -> String {
        let padded = Base64.encode(bytes)
        var buffer = ByteBuffer()
        for character in padded.utf8 {
            switch character {
            case UInt8(ascii: "+"): buffer.append(UInt8(ascii: "-"))
            case UInt8(ascii: "/"): buffer.append(UInt8(ascii: "_"))
            case UInt8(ascii: "="): break
            default: buffer.append(character)
            }
        }
        return buffer.span.text
    }

    /// Reads unpadded Base64url; `nil` for anything else: padding, white space, characters of the
    /// standard alphabet, and trailing bits that are not zero, so that every value has one spelling.
    public static func decode(_ text: Span<UInt8>) -> [UInt8]? {
        guard text.count % 4 != 1 else { return nil }
        var result: [UInt8] = []
        result.reserveCapacity(text.count * 3 / 4)
        var group: UInt32 = 0
        var bits: UInt32 = 0
        for index in 0..<text.count {
            guard let value = value(text[index]) else { return nil }
            group = group << 6 | value
            bits += 6
            if bits >= 8 {
                bits -= 8
                result.append(UInt8(truncatingIfNeeded: group >> bits))
                group &= 1 << bits - 1
            }
        }
        return group == 0 ? result : nil
    }

    private static func value(_ character: UInt8) -> UInt32? {
        switch character {
        case 0x41...0x5A: UInt32(character - 0x41)
        case 0x61...0x7A: UInt32(character - 0x61 + 26)
        case 0x30...0x39: UInt32(character - 0x30 + 52)
        case 0x2D: 62
        case 0x5F: 63
        default: nil
        }
    }
}
