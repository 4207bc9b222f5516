/// Lengths of time as pipeline files and options write them.
public enum DurationText {
    /// Reads a whole number with its unit (`200ms`, `30s`, `10m`, `1h`, `7d`) as milliseconds.
    /// - Returns: `nil` for anything else, a number without a unit included.
    public static func milliseconds(_ text: String) -> Int64? {
        let digits = text.prefix { $0.isASCII && $0.isNumber }
        guard !digits.isEmpty, let count = Int64(digits) else { return nil }
        let unit: Int64
        switch text.dropFirst(digits.count) {
        case "ms": unit = 1
        case "s": unit = 1_000
        case "m": unit = 60_000
        case "h": unit = 3_600_000
        case "d": unit = 86_400_000
        default: return nil
        }
        let (value, overflow) = count.multipliedReportingOverflow(by: unit)
        return overflow ? nil : value
    }

    /// Writes milliseconds with the largest unit that leaves a whole number.
    public static func text(milliseconds: Int64) -> String {
        if milliseconds == 0 { return "0s" }
        for (name, unit) in [
            ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000),
        ] as [(String, Int64)]
        where milliseconds % unit == 0 {
            return "\(milliseconds / unit)\(name)"
        }
        return "\(milliseconds)ms"
    }
}

/// Finds what someone probably meant.
public enum NearestName {
    /// The candidate with the fewest edits from `name`; `nil` if none is near (more than a third of
    /// its letters differ).
    public static func of(_ name: String, among candidates: [String]) -> String? {
        var best: (name: String, distance: Int)?
        for candidate in candidates {
            let distance = edits(Array(name.utf8), Array(candidate.utf8))
            if distance < best?.distance ?? Int.max { best = (candidate, distance) }
        }
        guard let best, best.distance <= max(1, max(name.utf8.count, best.name.utf8.count) / 3)
        else { return nil }
        return best.name
    }

    /// The optimal string alignment distance: insertions, deletions, substitutions, and swaps of
    /// neighbours.
    private static func edits(_ a: [UInt8], _ b: [UInt8]) -> Int {
        if a.isEmpty || b.isEmpty { return max(a.count, b.count) }
        var before = [Int](repeating: 0, count: b.count + 1)
        var last = Array(0...b.count)
        for i in 1...a.count {
            var row = [i] + [Int](repeating: 0, count: b.count)
            for j in 1...b.count {
                row[j] = min(
                    last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1))
                if i > 1, j > 1, a[i - 1] == b[j - 2], a[i - 2] == b[j - 1] {
                    row[j] = min(row[j], before[j - 2] + 1)
                }
            }
            before = last
            last = row
        }
        return last[b.count]
    }
}
