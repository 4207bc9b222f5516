internal import Bytes
internal import Schemas

/// Tokens as they are kept in memory: most clients make UUIDs, which are 16 bytes instead of 36.
enum CompactToken {
    private static let plain: UInt8 = 0
    private static let lowerUUID: UInt8 = 1
    private static let upperUUID: UInt8 = 2

    /// Appends a token in its shortest form.
    /// - Returns: which form; `decode` needs it.
    static func encode(_ token: Span<UInt8>, into bytes: inout ByteBuffer) -> UInt8 {
        guard token.count == 36, let id = DeviceID(parsing: token) else {
            bytes.append(token)
            return plain
        }
        var hasLower = false
        var hasUpper = false
        for index in 0..<36 {
            if token[index] >= UInt8(ascii: "a") {
                hasLower = true
            } else if token[index] >= UInt8(ascii: "A") {
                hasUpper = true
            }
        }
        // A token is kept as it is, to the letter.
        if hasLower && hasUpper {
            bytes.append(token)
            return plain
        }
        bytes.appendBigEndian(id.high)
        bytes.appendBigEndian(id.low)
        return hasUpper ? upperUUID : lowerUUID
    }

    /// Appends the token that `encode` was given.
    static func decode(_ kept: ByteBuffer, form: UInt8, into bytes: inout ByteBuffer) {
        guard form != plain, kept.count == 16 else { return bytes.append(kept) }
        let id = DeviceID(
            high: kept.span.littleEndianWord(at: 0).byteSwapped,
            low: kept.span.littleEndianWord(at: 8).byteSwapped)
        let start = bytes.count
        bytes.append(id)
        guard form == upperUUID else { return }
        for index in start..<bytes.count where bytes[index] >= UInt8(ascii: "a") {
            bytes[index] &= ~0x20
        }
    }
}
