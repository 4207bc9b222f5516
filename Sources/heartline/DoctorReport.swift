/// What `heartline doctor` found: a value that is written for people or for programs.
struct DoctorReport {
    enum Outcome: String, Encodable {
        case ok, warning, failed
    }

    struct Check: Encodable {
        var check: String
        var outcome: Outcome
        var finding: String
        /// What to do; `nil` where nothing is to be done.
        var remedy: String?
    }

    private(set) var checks: [Check] = []

    var hasFailed: Bool { checks.contains { $0.outcome == .failed } }

    mutating func ok(_ check: String, _ finding: String) {
        checks.append(Check(check: check, outcome: .ok, finding: finding))
    }

    mutating func warn(_ check: String, _ finding: String, do remedy: String) {
        checks.append(Check(check: check, outcome: .warning, finding: finding, remedy: remedy))
    }

    mutating func fail(_ check: String, _ finding: String, do remedy: String) {
        checks.append(Check(check: check, outcome: .failed, finding: finding, remedy: remedy))
    }

    /// Runs a check; what it throws has failed.
    mutating func run(
        _ check: String, do remedy: String, _ body: (inout DoctorReport) throws -> Void
    ) {
        do { try body(&self) } catch { fail(check, "\(error)", do: remedy) }
    }

    /// A line a check, with what to do below those that are not as they should be.
    func text(colors: Bool) -> String {
        let width = (checks.map(\.check.count).max() ?? 0) + 2
        var text = ""
        for check in checks {
            let mark = FleetScreen.pad(check.outcome.rawValue, 9)
            text += colors ? "\u{1B}[\(Self.color(check.outcome))m\(mark)\u{1B}[0m" : mark
            text += FleetScreen.pad(check.check, width)
            text += Self.indented(check.finding, by: 9 + width) + "\n"
            if let remedy = check.remedy {
                text += String(repeating: " ", count: 9 + width)
                text += "→ " + Self.indented(remedy, by: 11 + width) + "\n"
            }
        }
        let failed = checks.count { $0.outcome == .failed }
        let warnings = checks.count { $0.outcome == .warning }
        text +=
            failed + warnings == 0
            ? "\nAll is well.\n"
            : "\n\(failed) failed, \(warnings) \(warnings == 1 ? "warning" : "warnings").\n"
        return text
    }

    func json() throws -> String {
        struct Document: Encodable {
            var healthy: Bool
            var checks: [Check]
        }
        return try JSONText.line(Document(healthy: !hasFailed, checks: checks))
    }

    private static func color(_ outcome: Outcome) -> String {
        switch outcome {
        case .ok: "32"
        case .warning: "33"
        case .failed: "31"
        }
    }

    private static func indented(_ text: String, by count: Int) -> String {
        text.split(separator: "\n").joined(
            separator: "\n" + String(repeating: " ", count: count))
    }
}
