internal import Bytes
internal import Crypto

/// What a link to sign in carries: good once, and for ten minutes.
///
/// It is signed under the digest of the operators' token, so whoever can read the token can make one without
/// asking anybody, and nobody else can. The token itself does not follow from it.
public struct LoginCode: Hashable, Sendable {
    /// From when it was made, in milliseconds.
    public static let validMilliseconds: Int64 = 600_000
    /// Clocks of one machine agree, but for the order of two readings.
    private static let toleratedMilliseconds: Int64 = 1_000

    /// Milliseconds since 1970.
    public let madeAt: Int64
    /// Tells it from others.
    public let number: UInt64

    /// - Parameter number: random.
    public init(madeAt: Int64, number: UInt64) {
        self.madeAt = madeAt
        self.number = number
    }

    /// 64 hexadecimal digits.
    public func text(key: [UInt8]) -> String {
        Hex.encode(content.span) + Hex.encode(Array(signature(key).prefix(16)).span)
    }

    /// Reads one that was signed under `key`; `nil` for anything else.
    public init?(_ text: String, key: [UInt8]) {
        let digits = ByteBuffer(text.utf8)
        guard digits.count == 64, let bytes = Hex.decode(digits.span) else { return nil }
        func word(_ range: Range<Int>) -> UInt64 { bytes[range].reduce(0) { $0 << 8 | UInt64($1) } }
        madeAt = Int64(bitPattern: word(0..<8))
        number = word(8..<16)
        let (shown, wanted) = (Array(bytes[16...]), Array(signature(key).prefix(16)))
        guard equalInConstantTime(wanted.span, shown.span) else { return nil }
    }

    /// - Parameters:
    ///   - now: milliseconds since 1970.
    ///   - start: when whoever is asked began; older ones may have been used before.
    public func isValid(now: Int64, since start: Int64) -> Bool {
        let age = now &- madeAt
        return madeAt >= start - Self.toleratedMilliseconds && age >= -Self.toleratedMilliseconds
            && age <= Self.validMilliseconds
    }

    private var content: ByteBuffer {
        var content = ByteBuffer()
        content.appendBigEndian(UInt64(bitPattern: madeAt))
        content.appendBigEndian(number)
        return content
    }

    private func signature(_ key: [UInt8]) -> [UInt8] {
        var message = ByteBuffer("heartline login code\n".utf8)
        message.append(content)
        return HMACSHA256.authenticate(message.span, key: key.span).bytes
    }
}
