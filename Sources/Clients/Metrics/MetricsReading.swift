/// A page as another process wrote it, read back: for who looks at an instance from outside.
public struct MetricsReading: Sendable {
    public struct Sample: Sendable, Hashable {
        /// With the ending of a histogram's part, as `_bucket`.
        public var name: String
        public var labels: [String: String]
        public var value: Double
    }

    public private(set) var samples: [Sample] = []
    /// By the family's name: `counter`, `gauge`, `histogram`.
    public private(set) var types: [String: String] = [:]

    /// Reads what it can; a line that is none of a page's is passed over.
    public init(_ text: some StringProtocol) {
        for line in text.split(separator: "\n") {
            if line.hasPrefix("# TYPE ") {
                let words = line.split(separator: " ")
                if words.count == 4 { types[String(words[2])] = String(words[3]) }
            } else if !line.hasPrefix("#"), let sample = Self.sample(line) {
                samples.append(sample)
            }
        }
    }

    private static func sample(_ line: some StringProtocol) -> Sample? {
        var rest = line[...]
        let name = rest.prefix { $0 != "{" && $0 != " " }
        rest = rest.dropFirst(name.count)
        var labels: [String: String] = [:]
        if rest.first == "{" {
            rest = rest.dropFirst()
            while let next = rest.first, next != "}" {
                let key = rest.prefix { $0 != "=" }
                rest = rest.dropFirst(key.count + 1)
                guard rest.first == "\"" else { return nil }
                rest = rest.dropFirst()
                var value = ""
                while let character = rest.first, character != "\"" {
                    rest = rest.dropFirst()
                    guard character == "\\" else {
                        value.append(character)
                        continue
                    }
                    guard let escaped = rest.popFirst() else { return nil }
                    value.append(escaped == "n" ? "\n" : escaped)
                }
                rest = rest.dropFirst()
                labels[String(key)] = value
                if rest.first == "," { rest = rest.dropFirst() }
            }
            guard rest.first == "}" else { return nil }
            rest = rest.dropFirst()
        }
        guard let word = rest.split(separator: " ").first else { return nil }
        let value: Double? =
            switch word {
            case "+Inf": .infinity
            case "-Inf": -.infinity
            default: Double(word)
            }
        return value.map { Sample(name: String(name), labels: labels, value: $0) }
    }

    /// The sum of the samples of that name whose labels are these; `nil` if there is none.
    public func sum(_ name: String, _ labels: [String: String] = [:]) -> Double? {
        let found = samples.filter { sample in
            sample.name == name && labels.allSatisfy { sample.labels[$0.key] == $0.value }
        }
        return found.isEmpty ? nil : found.reduce(0) { $0 + $1.value }
    }

    /// The bound in seconds below which `share` (0...1) of a histogram's times lie; `nil` if it has none
    /// or they lie above all bounds.
    /// - Parameter earlier: count only what came since.
    public func quantile(
        _ share: Double, of name: String, _ labels: [String: String] = [:],
        since earlier: MetricsReading? = nil
    ) -> Double? {
        var counts: [Double: Double] = [:]
        for (reading, sign) in [(self, 1.0)] + (earlier.map { [($0, -1.0)] } ?? []) {
            for sample in reading.samples
            where sample.name == name + "_bucket"
                && labels.allSatisfy({ sample.labels[$0.key] == $0.value })
            {
                let text = sample.labels["le"] ?? ""
                guard let bound = text == "+Inf" ? .infinity : Double(text) else { continue }
                counts[bound, default: 0] += sign * sample.value
            }
        }
        let sorted = counts.sorted { $0.key < $1.key }
        guard let all = sorted.last?.value, all > 0,
            let found = sorted.first(where: { $0.value >= all * share }),
            found.key.isFinite
        else { return nil }
        return found.key
    }
}
