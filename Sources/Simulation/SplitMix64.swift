/// A seeded generator: the same seed gives the same numbers on every machine.
/// - SeeAlso: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", 2014.
public struct SplitMix64: RandomNumberGenerator, Sendable {
    private var state: UInt64

    public init(seed: UInt64) { state = seed }

    public mutating func next() -> UInt64 {
        state &+= 0x9E37_79B9_7F4A_7C15
        var mixed = state
        mixed = (mixed ^ (mixed >> 30)) &* 0xBF58_476D_1CE4_E5B9
        mixed = (mixed ^ (mixed >> 27)) &* 0x94D0_49BB_1331_11EB
        return mixed ^ (mixed >> 31)
    }

    /// Whether something that happens `perMille` times in a thousand happens now.
    public mutating func chance(_ perMille: Int) -> Bool { below(1_000) < perMille }

    /// A number from 0 to `bound` - 1.
    public mutating func below(_ bound: Int) -> Int {
        // The bias is below 2^-40 for the bounds of tests.
        Int(next() % UInt64(bound))
    }
}
