internal import Bytes
internal import Crypto

/// The id of an alert: derived from what it is about, so a replay makes the same one.
public enum AlertID {
    /// The first 16 bytes of SHA-256 over `"heartline-alert\n" kind "\n" entity "\n" episode`, marked
    /// as a UUID of version 8 (RFC 9562, section 5.8).
    ///
    /// - Parameters:
    ///   - kind: for example `offline`; without a line break.
    ///   - entity: a device's id in lower case, a front-end's name, or `fleet`.
    ///   - episode: how many alerts of this kind the entity had before.
    public static func make(kind: Span<UInt8>, entity: Span<UInt8>, episode: Int64) -> DeviceID {
        var text = ByteBuffer()
        text.append("heartline-alert\n")
        text.append(kind)
        text.append(UInt8(ascii: "\n"))
        text.append(entity)
        text.append(UInt8(ascii: "\n"))
        text.append(decimal: episode)
        var digest = ByteBuffer()
        digest.append(SHA256.hash(text.span))
        var words: (UInt64, UInt64) = (0, 0)
        for index in 0..<8 {
            words.0 = words.0 << 8 | UInt64(digest[index])
            words.1 = words.1 << 8 | UInt64(digest[index + 8])
        }
        return DeviceID(
            high: words.0 & 0xFFFF_FFFF_FFFF_0FFF | 0x8000,
            low: words.1 & 0x3FFF_FFFF_FFFF_FFFF | 0x8000_0000_0000_0000)
    }

    public static func make(kind: String, entity: String, episode: Int64) -> DeviceID {
        make(
            kind: ByteBuffer(kind.utf8).span, entity: ByteBuffer(entity.utf8).span,
            episode: episode)
    }
}
