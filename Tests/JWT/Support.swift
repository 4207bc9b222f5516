import Crypto

func encoded(_ bytes: [UInt8]) -> String { Base64URL.encode(bytes.span) }
func encoded(_ text: String) -> String { encoded(Array(text.utf8)) }

func decoded(_ text: String) -> [UInt8] {
    let bytes = Array(text.utf8)
    return Base64URL.decode(bytes.span)!
}

/// SplitMix64: the same numbers for the same seed.
struct SeededNumbers: RandomNumberGenerator {
    var state: UInt64

    mutating func next() -> UInt64 {
        state &+= 0x9E37_79B9_7F4A_7C15
        var z = state
        z = (z ^ z >> 30) &* 0xBF58_476D_1CE4_E5B9
        z = (z ^ z >> 27) &* 0x94D0_49BB_1331_11EB
        return z ^ z >> 31
    }
}
