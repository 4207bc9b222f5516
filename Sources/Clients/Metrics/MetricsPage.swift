public import Bytes

/// What a process tells Prometheus: families of series, written as text. A value without I/O.
///
/// The number of series is bounded: values of labels are constants, numbers, or names out of the
/// configuration, never what a device or an error said; and whatever goes wrong with that, a page has
/// at most `limit` series and tells how many it left out.
/// - SeeAlso: Prometheus, "Exposition formats", text format 0.0.4; "Metric and label naming".
public struct MetricsPage: Sendable {
    public static let contentType: StaticString = "text/plain; version=0.0.4; charset=utf-8"

    public enum Kind: String, Sendable { case counter, gauge, histogram }

    public struct Label: Sendable {
        let name: StaticString
        let value: String

        public init(_ name: StaticString, _ value: StaticString) {
            self.name = name
            self.value = value.withUTF8Buffer { unsafe String(decoding: $0, as: UTF8.self) }
        }

        public init(_ name: StaticString, _ value: some BinaryInteger) {
            self.name = name
            self.value = String(value)
        }

        /// - Parameter configured: a name of which there are only as many as somebody configured: a
        ///   pipeline, a topic, a route.
        public init(_ name: StaticString, configured: String) {
            self.name = name
            value = String(configured.prefix(128))
        }
    }

    private struct Family {
        var kind: Kind
        var help: String
        var text = ByteBuffer()
        var labels: Set<String> = []
    }

    /// Series above which no more are taken.
    public let limit: Int
    private var families: [String: Family] = [:]
    private var seriesCount = 0
    private var leftOut = 0

    public init(limit: Int = 20_000) { self.limit = limit }

    // MARK: - Writing

    /// A number that only grows while the process lives; its name ends in `_total`.
    public mutating func counter(
        _ name: StaticString, _ help: StaticString, _ value: some BinaryInteger, _ labels: Label...
    ) {
        add(name, .counter, help, "\(value)", labels)
    }

    /// A counter with a part behind the point, such as seconds.
    public mutating func counter(
        _ name: StaticString, _ help: StaticString, _ value: Double, _ labels: Label...
    ) {
        add(name, .counter, help, Self.text(value), labels)
    }

    public mutating func gauge(
        _ name: StaticString, _ help: StaticString, _ value: some BinaryInteger, _ labels: Label...
    ) {
        add(name, .gauge, help, "\(value)", labels)
    }

    public mutating func gauge(
        _ name: StaticString, _ help: StaticString, _ value: Double, _ labels: Label...
    ) {
        add(name, .gauge, help, Self.text(value), labels)
    }

    public mutating func gauge(
        _ name: StaticString, _ help: StaticString, _ value: Bool, _ labels: Label...
    ) {
        add(name, .gauge, help, value ? "1" : "0", labels)
    }

    /// A histogram in seconds; its name ends in `_seconds`.
    public mutating func histogram(
        _ name: StaticString, _ help: StaticString, _ counts: DurationCounts, _ labels: Label...
    ) {
        let bounds = DurationCounts.bounds
        guard let key = begin(name, .histogram, help, labels, series: bounds.count + 3) else {
            return
        }
        let labels = Self.text(labels)
        var text = ByteBuffer()
        var sum: UInt64 = 0
        for index in counts.buckets.indices {
            sum += counts.buckets[index]
            let bound =
                index < bounds.count ? Self.text(Double(bounds[index]) / 1e9) : "+Inf"
            let separator = labels.isEmpty ? "" : ","
            text.append(
                text: "\(key)_bucket{\(labels)\(separator)le=\"\(bound)\"} \(sum)\n")
        }
        let braces = labels.isEmpty ? "" : "{\(labels)}"
        text.append(
            text: "\(key)_sum\(braces) \(Self.text(Double(counts.sumNanoseconds) / 1e9))\n")
        text.append(text: "\(key)_count\(braces) \(sum)\n")
        families[key]?.text.append(text)
    }

    private mutating func add(
        _ name: StaticString, _ kind: Kind, _ help: StaticString, _ value: String,
        _ labels: [Label]
    ) {
        guard let key = begin(name, kind, help, labels, series: 1) else { return }
        let labels = Self.text(labels)
        families[key]?.text.append(
            text: labels.isEmpty ? "\(key) \(value)\n" : "\(key){\(labels)} \(value)\n")
    }

    /// - Returns: the family's name; `nil` if the series is not taken: there are too many, or the page
    ///   has it already. One that stands twice would cost the reader the whole page.
    private mutating func begin(
        _ name: StaticString, _ kind: Kind, _ help: StaticString, _ labels: [Label], series: Int
    ) -> String? {
        let key = name.withUTF8Buffer { unsafe String(decoding: $0, as: UTF8.self) }
        var family =
            families[key]
            ?? Family(
                kind: kind,
                help: help.withUTF8Buffer { unsafe String(decoding: $0, as: UTF8.self) })
        precondition(family.kind == kind, "a metric has two types")
        guard seriesCount + series <= limit, family.labels.insert(Self.text(labels)).inserted
        else {
            leftOut += series
            return nil
        }
        seriesCount += series
        families[key] = family
        return key
    }

    // MARK: - Text

    /// The page: families by name, each with what it is; series in the order in which they came.
    public consuming func render() -> ByteBuffer {
        // Has a place of its own: it must not be what the limit leaves out.
        families["heartline_metrics_dropped_series"] = Family(
            kind: .gauge, help: "Series that this page leaves out because it has too many.",
            text: ByteBuffer("heartline_metrics_dropped_series \(leftOut)\n".utf8))
        var page = ByteBuffer()
        for (name, family) in families.sorted(by: { $0.key < $1.key }) {
            page.append(text: "# HELP \(name) \(Self.escaped(family.help, quotes: false))\n")
            page.append(text: "# TYPE \(name) \(family.kind.rawValue)\n")
            page.append(family.text)
        }
        return page
    }

    private static func text(_ labels: [Label]) -> String {
        labels.map { label in
            let name = label.name.withUTF8Buffer { unsafe String(decoding: $0, as: UTF8.self) }
            return "\(name)=\"\(escaped(label.value, quotes: true))\""
        }.joined(separator: ",")
    }

    private static func escaped(_ text: String, quotes: Bool) -> String {
        var result = ""
        for scalar in text.unicodeScalars {
            switch scalar {
            case "\\": result += "\\\\"
            case "\n": result += "\\n"
            case "\"" where quotes: result += "\\\""
            default: result.unicodeScalars.append(scalar)
            }
        }
        return result
    }

    private static func text(_ value: Double) -> String {
        if value.isNaN { return "NaN" }
        if value.isInfinite { return value > 0 ? "+Inf" : "-Inf" }
        return value == value.rounded() && abs(value) < 1e15 ? "\(Int64(value))" : "\(value)"
    }
}
