internal import Bytes
internal import Schemas
internal import YAML

extension PipelineCase {
    /// A sample of a device.
    struct CaseSample: Sendable {
        var device: String
        var name: String
        var value: Double
        /// How far behind receipt the device's clock says it was, in milliseconds.
        var age: Int64

        func event(_ device: DeviceID, _ origin: EventOrigin, at: Int64) -> TelemetryEvent {
            var event = TelemetryEvent(device: device, origin: origin)
            event.addSample(
                ByteBuffer(name.utf8).span, value, at: PipelineCase.start + (at - age))
            return event
        }
    }

    /// A line of an agent's log.
    struct CaseLogLine: Sendable {
        var device: String
        var level: String
        var tag: String
        var message: String

        func event(_ device: DeviceID, _ origin: EventOrigin, at: Int64) -> TelemetryEvent {
            var event = TelemetryEvent(device: device, origin: origin)
            event.addLogLine(
                level: ByteBuffer(level.utf8).span, tag: ByteBuffer(tag.utf8).span,
                ByteBuffer(message.utf8).span, at: PipelineCase.start + at)
            return event
        }
    }

    /// What must hold of a device's closed minutes and log lines. What is not said is not compared.
    struct TelemetryExpectation: Sendable {
        /// Which rows of `telemetry_minutes` are meant: those of this name, of the minute that begins
        /// then; `nil`: of any.
        var name: String?
        var minute: Int64?
        /// How many rows these are.
        var rows: Int64?
        var samples: Int64?
        var late: Int64?
        /// Names of the statistics with what they must be.
        var numbers: [String: Double] = [:]
        /// All lines of the log, as `level tag message`.
        var logs: [String]?
    }

    func compareTelemetry(
        _ expectation: Expectation, of device: DeviceID, _ tables: CaseTables,
        into differences: inout [PipelineCaseDifference]
    ) {
        func check(_ what: String, _ expected: String?, _ got: String) {
            guard let expected, expected != got else { return }
            differences.append(
                PipelineCaseDifference(
                    mark: expectation.mark, what: "\(expectation.entity): \(what)",
                    expected: expected, got: got))
        }
        let said = expectation.telemetry
        check(
            "logs", said.logs.map { $0.joined(separator: "; ") },
            tables.logLines(of: device).joined(separator: "; "))
        let rows = tables.minutes(of: device).filter {
            (said.name == nil || $0.name == said.name)
                && (said.minute == nil || $0.start - Self.start == said.minute)
        }
        check("rows", said.rows.map { "\($0)" }, "\(rows.count)")
        guard said.samples != nil || said.late != nil || !said.numbers.isEmpty else { return }
        guard let row = rows.first, rows.count == 1 else {
            check("minute", "one row", "\(rows.count) rows of telemetry_minutes")
            return
        }
        check("samples", said.samples.map { "\($0)" }, "\(row.samples)")
        check("late", said.late.map { "\($0)" }, "\(row.late)")
        let found: [(String, Double?)] = [
            ("sum", row.sum), ("min", row.min), ("max", row.max), ("last", row.last),
        ]
        for (name, value) in found {
            check(name, said.numbers[name].map { "\($0)" }, value.map { "\($0)" } ?? "null")
        }
    }
}

extension PipelineFileReader {
    private static let statistics = ["sum", "min", "max", "last"]
    static let telemetryKeys = ["name", "minute", "rows", "samples", "late", "logs"] + statistics

    mutating func sample(_ node: YAMLNode) -> PipelineCase.CaseSample? {
        guard let fields = fields(node, of: "sample", ["device", "name", "value", "age"]) else {
            return nil
        }
        for key in ["device", "name", "value"] where fields[key] == nil {
            fail(node.mark, "the sample has no \(key)")
        }
        guard let device = fields["device"].flatMap({ text($0.value, of: "device") }),
            let name = fields["name"].flatMap({ text($0.value, of: "name") }),
            let value = fields["value"].flatMap({ number($0.value, of: "value") })
        else { return nil }
        if name.utf8.count > TelemetryLimits.nameBytes, let entry = fields["name"] {
            fail(entry.value.mark, "name has more than \(TelemetryLimits.nameBytes) bytes")
            return nil
        }
        let age = fields["age"].flatMap { duration($0.value, of: "age", 0...86_400_000) } ?? 0
        return PipelineCase.CaseSample(device: device, name: name, value: value, age: age)
    }

    mutating func logLine(_ node: YAMLNode) -> PipelineCase.CaseLogLine? {
        guard let fields = fields(node, of: "log", ["device", "level", "tag", "message"]) else {
            return nil
        }
        for key in ["device", "message"] where fields[key] == nil {
            fail(node.mark, "the log line has no \(key)")
        }
        guard let device = fields["device"].flatMap({ text($0.value, of: "device") }),
            let message = fields["message"].flatMap({ text($0.value, of: "message") })
        else { return nil }
        return PipelineCase.CaseLogLine(
            device: device,
            level: fields["level"].flatMap { text($0.value, of: "level") } ?? "info",
            tag: fields["tag"].flatMap { text($0.value, of: "tag") } ?? "", message: message)
    }

    private mutating func number(_ node: YAMLNode, of what: String) -> Double? {
        guard case .scalar(let text, isPlain: true) = node.content, let value = Double(text),
            value.isFinite
        else {
            fail(node.mark, "\(what) is a number, not \(node.kind)")
            return nil
        }
        return value
    }

    mutating func telemetry(
        _ fields: [String: YAMLEntry], _ mark: YAMLMark
    ) -> PipelineCase.TelemetryExpectation {
        var said = PipelineCase.TelemetryExpectation()
        said.name = fields["name"].flatMap { text($0.value, of: "name") }
        if let entry = fields["minute"] {
            said.minute = duration(entry.value, of: "minute", 0...30 * 86_400_000)
            if let minute = said.minute, minute % 60_000 != 0 {
                fail(entry.value.mark, "minute is the begin of one, as 0s or 2m")
            }
        }
        said.rows = fields["rows"].flatMap { count($0.value, of: "rows", 0...Int64.max) }
        said.samples = fields["samples"].flatMap { count($0.value, of: "samples", 0...Int64.max) }
        said.late = fields["late"].flatMap { count($0.value, of: "late", 0...Int64.max) }
        for name in Self.statistics {
            if let entry = fields[name] { said.numbers[name] = number(entry.value, of: name) }
        }
        if let entry = fields["logs"], let items = list(entry.value, of: "logs") {
            said.logs = items.compactMap { text($0, of: "a line") }
        }
        return said
    }
}
