/// Which faults a fleet has, and for how long.
///
/// Written `KIND=SHARE[:DURATION[/PERIOD]]`, several separated by commas:
/// `silent=5%:60s,tunnel-down=3%,stale=2:45s/5m`. SHARE is a percentage of the agents (a fraction is
/// rounded, but never to none) or a number of agents. Each chosen agent has the fault for DURATION, once in
/// every PERIOD (default: four times the duration); without a duration, from soon after the start
/// until the end. An agent has one kind of fault at most.
public struct FaultPlan: Hashable, Sendable {
    public enum Share: Hashable, Sendable {
        /// 0...100.
        case percent(Double)
        case agents(Int)

        func count(of agents: Int) -> Int {
            switch self {
            case .agents(let count): return min(count, agents)
            case .percent(let percent):
                guard percent > 0, agents > 0 else { return 0 }
                return min(agents, max(1, Int((Double(agents) * percent / 100).rounded())))
            }
        }
    }

    public struct Entry: Hashable, Sendable {
        public var fault: Fault
        public var share: Share
        /// `nil`: until the end.
        public var durationMilliseconds: Int64?
        /// At least the duration.
        public var periodMilliseconds: Int64

        public init(
            _ fault: Fault, share: Share, durationMilliseconds: Int64? = nil,
            periodMilliseconds: Int64? = nil
        ) {
            self.fault = fault
            self.share = share
            self.durationMilliseconds = durationMilliseconds
            self.periodMilliseconds = periodMilliseconds ?? 4 * (durationMilliseconds ?? 0)
        }
    }

    public var entries: [Entry]

    public init(_ entries: [Entry] = []) { self.entries = entries }

    /// - Throws: `FaultPlanError`, which names the part that is wrong.
    public init(parsing text: String) throws(FaultPlanError) {
        entries = []
        var percent = 0.0
        for part in text.split(separator: ",", omittingEmptySubsequences: false) {
            let part = part.trimmed
            let entry = try Self.entry(part)
            if entries.contains(where: { $0.fault == entry.fault }) {
                throw FaultPlanError(part, "`\(entry.fault.name)` stands there twice")
            }
            if case .percent(let share) = entry.share { percent += share }
            guard percent <= 100 else {
                throw FaultPlanError(
                    part, "the shares up to here are \(Self.short(percent)) %, more than all agents"
                )
            }
            entries.append(entry)
        }
    }

    private static func entry(_ part: Substring) throws(FaultPlanError) -> Entry {
        guard !part.isEmpty else {
            throw FaultPlanError(part, "nothing stands there; write KIND=SHARE[:DURATION[/PERIOD]]")
        }
        guard let equals = part.firstIndex(of: "=") else {
            throw FaultPlanError(part, "no share; write `\(part)=5%` or `\(part)=5%:60s`")
        }
        let name = part[..<equals].trimmed
        guard let fault = Fault(named: name) else {
            let known = Fault.allCases.map(\.name).joined(separator: ", ")
            throw FaultPlanError(part, "no fault `\(name)`; known are \(known)")
        }
        let rest = part[part.index(after: equals)...]
        let pieces = rest.split(separator: ":", omittingEmptySubsequences: false)
        let share = try self.share(pieces[0].trimmed, in: part)
        guard pieces.count > 1 else { return Entry(fault, share: share) }
        guard pieces.count == 2 else {
            throw FaultPlanError(part, "more than one `:`; write KIND=SHARE[:DURATION[/PERIOD]]")
        }
        let times = pieces[1].split(separator: "/", omittingEmptySubsequences: false)
        guard times.count <= 2 else {
            throw FaultPlanError(part, "more than one `/`; write KIND=SHARE[:DURATION[/PERIOD]]")
        }
        let duration = try milliseconds(times[0].trimmed, in: part)
        guard times.count == 2 else {
            return Entry(fault, share: share, durationMilliseconds: duration)
        }
        let period = try milliseconds(times[1].trimmed, in: part)
        guard period >= duration else {
            throw FaultPlanError(part, "the period is shorter than the fault itself")
        }
        return Entry(
            fault, share: share, durationMilliseconds: duration, periodMilliseconds: period)
    }

    private static func share(
        _ text: Substring, in part: Substring
    ) throws(FaultPlanError) -> Share {
        if text.hasSuffix("%") {
            let digits = text.dropLast().trimmed
            guard isDecimal(digits), let percent = Double(digits), percent <= 100 else {
                throw FaultPlanError(part, "`\(text)` is no share from 0% to 100%")
            }
            return .percent(percent)
        }
        guard isDecimal(text), let count = Int(text) else {
            throw FaultPlanError(
                part, "`\(text)` is no share; write a percentage (5%) or a number of agents (12)")
        }
        return .agents(count)
    }

    /// 1 ms to 365 days.
    private static func milliseconds(
        _ text: Substring, in part: Substring
    ) throws(FaultPlanError) -> Int64 {
        let units: [(suffix: String, milliseconds: Double)] = [
            ("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000),
        ]
        for unit in units where text.hasSuffix(unit.suffix) {
            let digits = text.dropLast(unit.suffix.count)
            guard isDecimal(digits), let number = Double(digits) else { break }
            let milliseconds = number * unit.milliseconds
            guard milliseconds >= 1, milliseconds <= 365 * 86_400_000 else { break }
            return Int64(milliseconds.rounded())
        }
        throw FaultPlanError(
            part, "`\(text)` is no duration; write a number with ms, s, m, h or d (60s)")
    }

    /// Digits with at most one point: `Double` alone would take `inf`, `1e9` and `0x1p3` too.
    private static func isDecimal(_ text: Substring) -> Bool {
        !text.isEmpty && text.utf8.allSatisfy { $0 == 0x2E || ($0 >= 0x30 && $0 <= 0x39) }
    }

    private static func short(_ number: Double) -> String {
        number == number.rounded() ? String(Int(number)) : String(number)
    }
}

/// A fault plan that cannot be read.
public struct FaultPlanError: Error, Hashable, Sendable, CustomStringConvertible {
    /// The part between two commas.
    public let part: String
    public let reason: String

    init(_ part: Substring, _ reason: String) {
        self.part = String(part)
        self.reason = reason
    }

    public var description: String { "reading the faults, at `\(part)`: \(reason)" }
}

extension Substring {
    fileprivate var trimmed: Substring {
        var text = self
        while text.first == " " { text.removeFirst() }
        while text.last == " " { text.removeLast() }
        return text
    }
}
