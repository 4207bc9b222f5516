public import Curl

/// What a simulated fleet has seen so far.
public struct FleetReport: Sendable {
    public var agents = 0
    public var elapsed: Duration = .zero
    /// Agents by condition, at the time of the report.
    public var conditions: [AgentCondition: Int] = [:]
    /// Requests that were started; retries count.
    public var requests = 0
    /// Requests on their way.
    public var inFlight = 0
    /// Requests that wait for a place among those on their way.
    public var waiting = 0
    /// Answers to heartbeats by HTTP status.
    public var statuses: [Int: Int] = [:]
    /// Answers to provisionings by HTTP status.
    public var provisioningStatuses: [Int: Int] = [:]
    /// Requests without an answer, by what went wrong.
    public var errors: [CurlError.Kind: Int] = [:]
    /// The words of the last of them.
    public var lastError: CurlError?
    /// 200s that were not the contract's answer.
    public var unreadableAnswers = 0
    /// 200s to heartbeats that are of another device, or in which a field of the contract is missing.
    public var faultyAnswers = 0
    public var connectionsOpened = 0
    /// From the start of a heartbeat's request to its answer.
    public var latency = LatencyHistogram()
    /// The same of provisionings.
    public var provisioningLatency = LatencyHistogram()
    /// From when an agent wanted to send to the start of its request: what the simulator itself is
    /// behind, so that a slow server cannot hide by slowing its clients down.
    public var delay = LatencyHistogram()
    public var counts = FleetCounts()

    public init() {}

    /// One line for a terminal.
    public var progressLine: String {
        let states = AgentCondition.allCases.compactMap { condition in
            conditions[condition].flatMap { $0 == 0 ? nil : "\(condition.name) \($0)" }
        }
        var line = "\(Self.clock(elapsed))  \(states.joined(separator: ", "))"
        line += "  |  \(requests) requests"
        if !statuses.isEmpty { line += ": " + Self.list(statuses) }
        if !provisioningStatuses.isEmpty {
            line += "; provisioning " + Self.list(provisioningStatuses)
        }
        let failed = errors.values.reduce(0, +)
        if failed > 0 { line += ", \(failed) unanswered" }
        if latency.count > 0 {
            line += "  |  p50 \(Self.time(latency.percentileMicroseconds(0.5)))"
            line += " p99 \(Self.time(latency.percentileMicroseconds(0.99)))"
        }
        return line
    }

    /// Several lines, for the end.
    public var summary: String {
        let seconds =
            Double(elapsed.components.seconds) + Double(elapsed.components.attoseconds) / 1e18
        let rate = seconds > 0 ? Int((Double(requests) / seconds).rounded()) : 0
        var lines = [
            "\(agents) \(agents == 1 ? "agent" : "agents") for \(Self.clock(elapsed)): \(requests) requests (\(rate)/s)"
                + " over \(connectionsOpened) connections"
        ]
        if !provisioningStatuses.isEmpty || counts.provisioningsFailed > 0 {
            lines.append(
                "provisioned: \(counts.provisioned), tries that failed:"
                    + " \(counts.provisioningsFailed), answers: "
                    + (provisioningStatuses.isEmpty ? "none" : Self.list(provisioningStatuses)))
        }
        lines.append("answers: " + (statuses.isEmpty ? "none" : Self.list(statuses)))
        if !errors.isEmpty {
            let kinds = errors.sorted { $0.key.rawValue < $1.key.rawValue }
                .map { "\($0.key.rawValue) \($0.value)" }
            lines.append("no answer: " + kinds.joined(separator: ", "))
        }
        if let lastError { lines.append("last of them: \(lastError)") }
        if unreadableAnswers > 0 { lines.append("unreadable answers: \(unreadableAnswers)") }
        if faultyAnswers > 0 {
            lines.append("answers that break the contract: \(faultyAnswers)")
        }
        for (name, histogram) in [
            ("provisioning", provisioningLatency), ("latency", latency), ("delay", delay),
        ] where histogram.count > 0 {
            let parts = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)].map {
                "\($0.0) \(Self.time(histogram.percentileMicroseconds($0.1)))"
            }
            lines.append(
                "\(name): \(parts.joined(separator: ", ")), max \(Self.time(histogram.maximumMicroseconds))"
            )
        }
        lines.append(
            "configuration changes: \(counts.configurationChanges), tunnel rebuilds: \(counts.tunnelRebuilds),"
                + " heartbeats given up: \(counts.heartbeatsFailed), malformed on purpose:"
                + " \(counts.malformedRequests), agents that gave up: \(counts.userNotices)")
        return lines.joined(separator: "\n")
    }

    private static func list(_ statuses: [Int: Int]) -> String {
        statuses.sorted { $0.key < $1.key }.map { "\($0.key) × \($0.value)" }
            .joined(separator: ", ")
    }

    private static func clock(_ duration: Duration) -> String {
        let seconds = duration.components.seconds
        func two(_ value: Int64) -> String { value < 10 ? "0\(value)" : "\(value)" }
        let hours = seconds / 3_600
        return (hours > 0 ? "\(hours):" : "") + "\(two(seconds / 60 % 60)):\(two(seconds % 60))"
    }

    private static func time(_ microseconds: UInt64) -> String {
        switch microseconds {
        case ..<1_000: return "\(microseconds) µs"
        case ..<10_000: return "\(microseconds / 1_000).\(microseconds % 1_000 / 100) ms"
        case ..<10_000_000: return "\(microseconds / 1_000) ms"
        default: return "\(microseconds / 1_000_000) s"
        }
    }
}
