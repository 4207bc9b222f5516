public import Processors

/// A setting of `TunnelHealth` as files write it.
struct TunnelHealthField: Sendable {
    enum Unit: Sendable { case time, count }

    /// The mapping it stands in; empty for the processor's own.
    var group: String
    var name: String
    var path: any (WritableKeyPath<TunnelHealthSettings, Int64> & Sendable)
    var unit: Unit
    var range: ClosedRange<Int64>

    /// As messages and the canonical text write it: `flapping.within`.
    var fullName: String { group.isEmpty ? name : "\(group).\(name)" }

    private static let second: Int64 = 1_000
    private static let minute: Int64 = 60_000
    private static let day: Int64 = 86_400_000

    /// All of them, in the order of the canonical settings.
    static let all: [TunnelHealthField] = [
        .init(
            group: "", name: "stale_after", path: \.staleAfter, unit: .time, range: second...day),
        .init(
            group: "", name: "offline_after", path: \.offlineAfter, unit: .time,
            range: second...7 * day),
        .init(group: "", name: "jitter", path: \.jitter, unit: .time, range: 0...minute),
        .init(
            group: "", name: "missed_intervals", path: \.missedIntervals, unit: .count,
            range: 1...100),
        .init(
            group: "", name: "recover_after", path: \.recoverAfter, unit: .count, range: 1...100),
        .init(group: "", name: "down_after", path: \.downAfter, unit: .count, range: 1...100),
        .init(
            group: "", name: "clock_skew_after", path: \.clockSkewAfter, unit: .time,
            range: second...day),
        .init(
            group: "flapping", name: "transitions", path: \.flappingTransitions, unit: .count,
            range: 0...6),
        .init(
            group: "flapping", name: "within", path: \.flappingWithin, unit: .time,
            range: second...day),
        .init(group: "", name: "refresh", path: \.refresh, unit: .time, range: 0...day),
        .init(
            group: "beacons", name: "silence", path: \.frontEndSilence, unit: .time,
            range: second...day),
        .init(
            group: "beacons", name: "expulsion", path: \.frontEndExpulsion, unit: .time,
            range: second...day),
    ]

    static let groups = ["flapping", "beacons"]
}

extension TunnelHealthSettings {
    /// One `name milliseconds-or-count` a line, in a fixed order.
    var canonical: String {
        var text = ""
        for field in TunnelHealthField.all {
            text += "\(field.fullName) \(self[keyPath: field.path])\n"
        }
        return text
    }

    /// Reads what `canonical` wrote. A setting that the text does not have keeps its default: the
    /// text may be older than the setting.
    /// - Returns: `nil` for a setting that this release does not know, or a value out of its range.
    init?(canonical text: String) {
        self.init()
        for line in text.split(separator: "\n") {
            let words = line.split(separator: " ")
            guard words.count == 2, let value = Int64(words[1]),
                let field = TunnelHealthField.all.first(where: { $0.fullName == words[0] }),
                field.range.contains(value)
            else { return nil }
            self[keyPath: field.path] = value
        }
    }
}

extension ProcessorSettings where Values == TunnelHealthSettings {
    /// The settings with their canonical text.
    public init(_ settings: TunnelHealthSettings) {
        self.init(settings, text: settings.canonical) { TunnelHealthSettings(canonical: $0) }
    }
}

/// A setting of `TelemetryRollup` as files write it.
struct TelemetryRollupField: Sendable {
    var name: String
    var path: any (WritableKeyPath<TelemetryRollupSettings, Int64> & Sendable)
    var isTime: Bool
    var range: ClosedRange<Int64>

    /// All of them, in the order of the canonical settings.
    static let all: [TelemetryRollupField] = [
        .init(name: "close_after", path: \.closeAfter, isTime: true, range: 0...1_800_000),
        .init(name: "names_per_device", path: \.namesPerDevice, isTime: false, range: 1...10_000),
        .init(name: "sums", path: \.sums, isTime: false, range: 100...10_000_000),
    ]
}

extension TelemetryRollupSettings {
    /// One `name milliseconds-or-count` a line, in a fixed order.
    var canonical: String {
        TelemetryRollupField.all.map { "\($0.name) \(self[keyPath: $0.path])\n" }.joined()
    }

    /// Reads what `canonical` wrote; a setting that the text does not have keeps its default.
    /// - Returns: `nil` for a setting that this release does not know, or a value out of its range.
    init?(canonical text: String) {
        self.init()
        for line in text.split(separator: "\n") {
            let words = line.split(separator: " ")
            guard words.count == 2, let value = Int64(words[1]),
                let field = TelemetryRollupField.all.first(where: { $0.name == words[0] }),
                field.range.contains(value)
            else { return nil }
            self[keyPath: field.path] = value
        }
    }
}

extension ProcessorSettings where Values == TelemetryRollupSettings {
    /// The settings with their canonical text.
    public init(_ settings: TelemetryRollupSettings) {
        self.init(settings, text: settings.canonical) { TelemetryRollupSettings(canonical: $0) }
    }
}
