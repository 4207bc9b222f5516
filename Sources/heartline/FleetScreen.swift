import Schemas

/// A fleet's status as text for people.
enum FleetScreen {
    private static let width = 40

    private static func color(_ state: String) -> String {
        switch state {
        case "healthy": "32"
        case "stale", "recovering": "33"
        case "down", "offline": "31"
        default: "90"
        }
    }

    /// - Parameters:
    ///   - colors: for a terminal.
    ///   - isBrief: a line a pipeline, and the partitions that lag; otherwise a line a partition.
    ///   - drawing: of a state, beside its count; without it a bar.
    static func text(
        _ status: FleetStatus, since earlier: FleetStatus?, colors: Bool, isBrief: Bool = false,
        drawing: ((String) -> String)? = nil
    ) -> String {
        let known = status.states.values.reduce(0, +)
        var text = "devices  \(status.registered) in the registry, \(known) judged\n"
        for state in FleetStatus.states {
            let count = status.states[state] ?? 0
            guard count > 0 || drawing?(state).contains(where: { $0 != " " }) == true else {
                continue
            }
            let filled = Int((Double(count) / Double(max(1, known)) * Double(width)).rounded())
            let bar = drawing?(state) ?? String(repeating: "█", count: max(1, filled))
            text += "  " + pad(state, 11) + right("\(count)", 9) + "  "
            text += colors ? "\u{1B}[\(color(state))m\(bar)\u{1B}[0m\n" : bar + "\n"
        }
        text += "\nalerts   "
        if status.alerts.isEmpty { text += "none open\n" }
        for (index, alert) in status.alerts.enumerated() {
            let age = age(status.now - alert.oldest)
            text +=
                "\(index == 0 ? "" : "         ")\(alert.count) \(alert.kind), the oldest for \(age)\n"
        }
        if !status.changes.isEmpty {
            text += "\nlatest   "
            for (index, change) in status.changes.enumerated() {
                let age = age(status.now - change.at)
                text += "\(index == 0 ? "" : "         ")\(change.device.shortened)  "
                text += "\(change.from) → \(change.to) (\(change.reason)) \(age) ago\n"
            }
        }
        text += "\n" + (isBrief ? pipelines(status) : partitions(status))
        if status.partitions.isEmpty { text += "no pipeline has stored anything yet\n" }
        if let stored = status.storedPerSecond(since: earlier) {
            text += "\nrecords  "
            if let read = status.recordsPerSecond(since: earlier) { text += "\(rate(read)) in, " }
            text += "\(rate(stored)) stored"
            if status.outbox > 0 { text += ", \(status.outbox) events to be published" }
            text += "\n"
        }
        return text
    }

    private static func partitions(_ status: FleetStatus) -> String {
        var text = pad("pipeline", 20) + right("partition", 10) + right("committed", 14)
        text += right("lag", 10) + "  last commit  owner\n"
        for partition in status.partitions {
            text += pad(partition.pipeline, 20) + right("\(partition.partition)", 10)
            text += right("\(partition.committed)", 14)
            text += right(partition.lag.map { "\($0)" } ?? "?", 10)
            text +=
                "  " + pad("\(age(status.now - partition.updatedAt)) ago", 13)
                + "\(partition.owner)\n"
        }
        return text
    }

    /// The same where there is no room for it: sums, and the partition that lags most.
    private static func pipelines(_ status: FleetStatus) -> String {
        var text = pad("pipeline", 20) + right("partitions", 10) + right("committed", 14)
        text += right("lag", 10) + "  most in\n"
        var names: [String] = []
        for partition in status.partitions where !names.contains(partition.pipeline) {
            names.append(partition.pipeline)
        }
        for name in names {
            let all = status.partitions.filter { $0.pipeline == name }
            let lags = all.compactMap { entry in entry.lag.map { (entry.partition, $0) } }
            text += pad(name, 20) + right("\(all.count)", 10)
            text += right("\(all.reduce(0) { $0 + $1.committed })", 14)
            text += right(lags.isEmpty ? "?" : "\(lags.reduce(0) { $0 + $1.1 })", 10)
            if let most = lags.max(by: { $0.1 < $1.1 }), most.1 > 0 {
                text += "  \(most.0): \(most.1)"
            }
            text += "\n"
        }
        return text
    }

    /// A number over time, each sample as high as its part of the greatest.
    static func sparkline(_ samples: [Int64]) -> String {
        let steps = Array("▁▂▃▄▅▆▇█")
        let greatest = max(1, samples.max() ?? 1)
        return String(
            samples.map { sample in
                sample == 0 ? " " : steps[Int(sample * Int64(steps.count - 1) / greatest)]
            })
    }

    /// One line, for where no terminal is: states, and why, but for the healthy ones.
    static func line(_ status: FleetStatus) -> String {
        let parts = FleetStatus.states.compactMap { state -> String? in
            guard let count = status.states[state], count > 0 else { return nil }
            let causes = causes(of: state, in: status)
            return "\(state) \(count)" + (causes.isEmpty ? "" : " (\(causes))")
        }
        let open = status.alerts.map(\.count).reduce(0, +)
        return (parts.isEmpty ? "no device judged yet" : parts.joined(separator: ", "))
            + "; \(open) \(open == 1 ? "alert" : "alerts") open"
    }

    /// `silent`, or `silent 3, front-end 1` where there are several; empty for states that are as they
    /// should be.
    static func causes(of state: String, in status: FleetStatus) -> String {
        guard state != "healthy", state != "unknown", let reasons = status.reasons[state] else {
            return ""
        }
        if reasons.count == 1 { return reasons[0].reason }
        return reasons.prefix(3).map { "\($0.reason) \($0.count)" }.joined(separator: ", ")
    }

    static func rate(_ perSecond: Double) -> String {
        perSecond < 10 ? "\(Double(Int(perSecond * 10)) / 10)/s" : "\(Int(perSecond.rounded()))/s"
    }

    /// The largest two units of a length of time, to the second.
    static func age(_ milliseconds: Int64) -> String {
        let seconds = max(0, milliseconds / 1_000)
        if seconds < 60 { return "\(seconds)s" }
        if seconds < 3_600 { return "\(seconds / 60)m \(seconds % 60)s" }
        if seconds < 86_400 { return "\(seconds / 3_600)h \(seconds % 3_600 / 60)m" }
        return "\(seconds / 86_400)d \(seconds % 86_400 / 3_600)h"
    }

    static func pad(_ text: String, _ width: Int) -> String {
        text + String(repeating: " ", count: max(1, width - text.count))
    }

    static func right(_ text: String, _ width: Int) -> String {
        String(repeating: " ", count: max(1, width - text.count)) + text
    }
}
