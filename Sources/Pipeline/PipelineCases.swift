internal import Bytes
internal import Schemas
public import YAML

/// A worked case of a pipeline file: what came in, and what must be known then.
public struct PipelineCase: Sendable {
    public var name: String
    public var mark: YAMLMark
    /// In the order of the log.
    var records: [Record]
    var expectations: [Expectation]

    /// The case's zero: a fixed time, so that a case says the same every day.
    static let start = EventTime(milliseconds: 1_767_225_600_000)  // 2026-01-01T00:00:00Z

    /// A record of the log, in milliseconds of the case.
    struct Record: Sendable {
        enum Action: Sendable {
            case heartbeat(CaseHeartbeat)
            case beacon(frontEnd: String, isLossy: Bool, isLeaving: Bool)
            case lifecycle(Lifecycle.Kind, device: String, expectedInterval: Int64?)
            case change(CaseChange)
            case wave(from: String, to: String, token: String)
            case block(from: String, to: String)
            case encounter(CaseEncounter)
            case message(from: String, to: String, id: String)
            case update(CaseUpdate)
            case sample(CaseSample)
            case logLine(CaseLogLine)
        }

        var at: Int64
        var action: Action

        /// Records of one moment stand in this order: a front-end's beacon goes behind what it took.
        var rank: Int {
            switch action {
            case .lifecycle, .change, .update, .sample, .logLine, .wave, .block, .encounter,
                .message:
                0
            case .heartbeat: 1
            case .beacon: 2
            }
        }
    }

    struct CaseHeartbeat: Sendable {
        enum Handshake: Sendable {
            /// Milliseconds before the heartbeat; negative lies in the future.
            case age(Int64)
            case time(EventTime)
        }

        var device: String
        var frontEnd: String
        var tunnelUp: Bool?
        var handshake: Handshake?
        var status: AgentStatus?
        var state: String?
        var configVersion: Int64?
    }

    /// What must hold when all records were applied. What is not said is not compared.
    struct Expectation: Sendable {
        enum Entity: Hashable, Sendable {
            case device(String)
            case frontEnd(String)
            case account(String)
            case pair(String, String)
            case installation(String)
            case attempt(String)
            case release(String)
        }

        var entity: Entity
        var mark: YAMLMark
        var state: String?
        /// Since when, in milliseconds of the case.
        var at: Int64?
        var reason: String?
        var isFlapping: Bool?
        /// Kinds of the alerts that are open, sorted.
        var alerts: [String]?
        /// Every state from the first on.
        var history: [String]?
        /// Of pipelines about configurations.
        var configuration = ConfigurationExpectation()
        /// Of pipelines about people.
        var proximity = ProximityExpectation()
        /// Of pipelines about updates: columns and what must stand in them.
        var columns: [String: String] = [:]
        /// Of the pipeline about telemetry.
        var telemetry = TelemetryExpectation()
    }

    /// The id that stands behind a short name; a UUID stands for itself.
    static func deviceID(_ name: String, index: Int) -> DeviceID {
        DeviceID(name)
            ?? DeviceID(high: 0x0000_0000_0000_4000, low: 0x8000_0000_0000_0001 + UInt64(index))
    }
}

// MARK: - Reading

extension PipelineFileReader {
    /// A case that makes more records than this is an error.
    private static let maximumRecords = 100_000
    private static let time: ClosedRange<Int64> = 0...30 * 86_400_000
    private static let lifecycles: [(String, Lifecycle.Kind)] = [
        ("provisioned", .provisioned), ("suspended", .suspended), ("resumed", .resumed),
        ("removed", .removed),
    ]
    private static let states = DeviceStateNames.all

    mutating func cases(_ node: YAMLNode, of processor: PipelineFile.Kind) -> [PipelineCase] {
        guard let items = list(node, of: "tests") else { return [] }
        var cases: [PipelineCase] = []
        for item in items {
            guard let fields = fields(item, of: "a test", ["name", "given", "expect"]) else {
                continue
            }
            for key in ["name", "given", "expect"] where fields[key] == nil {
                fail(item.mark, "the test has no \(key)")
            }
            let name = fields["name"].flatMap { text($0.value, of: "name") } ?? ""
            if cases.contains(where: { $0.name == name }), let entry = fields["name"] {
                fail(entry.value.mark, "another test is named \"\(name)\" too")
            }
            let faults = errors.count
            let records = fields["given"].map { self.records($0.value, for: processor) } ?? []
            // Where steps could not be read, what they named is not known.
            let known = errors.count == faults ? Set(records.flatMap(\.entities)) : nil
            let expectations =
                fields["expect"].map { self.expectations($0.value, of: processor, known: known) }
                ?? []
            cases.append(
                PipelineCase(
                    name: name, mark: item.mark, records: records, expectations: expectations))
        }
        return cases
    }

    private mutating func records(
        _ node: YAMLNode, for processor: PipelineFile.Kind
    ) -> [PipelineCase.Record] {
        guard let items = list(node, of: "given") else { return [] }
        var records: [PipelineCase.Record] = []
        for item in items {
            records.append(contentsOf: step(item, for: processor))
            if records.count > Self.maximumRecords {
                fail(item.mark, "the test makes more than \(Self.maximumRecords) records")
                return []
            }
        }
        // Stable: what is written first of one moment and kind comes first.
        return records.enumerated().sorted { a, b in
            (a.element.at, a.element.rank, a.offset) < (b.element.at, b.element.rank, b.offset)
        }.map(\.element)
    }

    private mutating func step(
        _ node: YAMLNode, for processor: PipelineFile.Kind
    ) -> [PipelineCase.Record] {
        let actions =
            switch processor.source {
            case .configChanges: ["change"]
            case .waves: ["wave", "block"]
            case .encounters: ["encounter"]
            case .messages: ["message"]
            case .updates: Self.updateActions
            case .telemetry: ["sample", "log"]
            default: ["heartbeat", "beacon", "beacons"] + Self.lifecycles.map(\.0)
            }
        let keys = ["at", "every", "from", "until", "front_end"] + actions
        guard let fields = fields(node, of: "a step", keys) else { return [] }
        let named = actions.filter { fields[$0] != nil }
        guard named.count == 1, let action = named.first, let entry = fields[action] else {
            fail(node.mark, "a step is one of \(actions.joined(separator: ", "))")
            return []
        }
        let repeats = action == "beacons"
        let allowed: Set<String> =
            switch action {
            case "beacons": ["from", "until", "front_end"]
            case "heartbeat", "beacon": ["at", "every", "until", "front_end"]
            case "wave", "encounter": ["at", "every", "until"]
            case "sample", "log": ["at", "every", "until"]
            default: ["at"]
            }
        for key in keys where fields[key] != nil && key != action && !allowed.contains(key) {
            fail(fields[key]?.keyMark ?? node.mark, "\(key) does not go with \(action)")
        }
        let frontEnd =
            fields["front_end"].flatMap { text($0.value, of: "front_end") } ?? "front-end"
        guard let times = times(node, fields, repeats: repeats ? entry : nil) else { return [] }
        let made: PipelineCase.Record.Action?
        switch action {
        case "heartbeat": made = heartbeat(entry.value, frontEnd: frontEnd).map { .heartbeat($0) }
        case "beacons": made = .beacon(frontEnd: frontEnd, isLossy: false, isLeaving: false)
        case "beacon": made = beacon(entry.value, frontEnd: frontEnd)
        case "change": made = change(entry.value).map { .change($0) }
        case "wave": made = wave(entry.value)
        case "block": made = block(entry.value)
        case "encounter": made = encounter(entry.value)
        case "message": made = message(entry.value)
        case _ where processor.source == .updates:
            made = update(action, entry.value).map { .update($0) }
        case "sample": made = sample(entry.value).map { .sample($0) }
        case "log": made = logLine(entry.value).map { .logLine($0) }
        default:
            let kind = Self.lifecycles.first { $0.0 == action }?.1 ?? .provisioned
            made = lifecycle(kind, entry.value)
        }
        guard let made else { return [] }
        return times.map { PipelineCase.Record(at: $0, action: made) }
    }

    /// The moments of a step, in milliseconds.
    private mutating func times(
        _ node: YAMLNode, _ fields: [String: YAMLEntry], repeats entry: YAMLEntry?
    ) -> [Int64]? {
        func time(_ key: String, _ reader: inout PipelineFileReader) -> Int64?? {
            guard let entry = fields[key] else { return .some(nil) }
            guard let value = reader.duration(entry.value, of: key, Self.time) else { return nil }
            return value
        }
        guard let first = time(entry == nil ? "at" : "from", &self),
            let until = time("until", &self)
        else { return nil }
        var step: Int64?
        if let entry {
            guard let text = text(entry.value, of: "beacons") else { return nil }
            guard text.hasPrefix("every "),
                let value = DurationText.milliseconds(String(text.dropFirst(6))), value > 0
            else {
                fail(entry.value.mark, "beacons is as \"every 5s\", not \"\(text)\"")
                return nil
            }
            step = value
        } else if let every = fields["every"] {
            guard let value = duration(every.value, of: "every", 1...Self.time.upperBound) else {
                return nil
            }
            step = value
        }
        guard let start = first ?? (entry == nil ? nil : 0) else {
            fail(node.mark, "the step has no at")
            return nil
        }
        guard let step else {
            if let entry = fields["until"] { fail(entry.keyMark, "until goes with every") }
            return [start]
        }
        guard let until else {
            fail(node.mark, "the step repeats without an end: until is missing")
            return nil
        }
        guard until >= start else {
            fail(fields["until"]?.value.mark ?? node.mark, "until comes before the first time")
            return nil
        }
        guard (until - start) / step < Int64(Self.maximumRecords) else {
            fail(node.mark, "the step makes more than \(Self.maximumRecords) records")
            return nil
        }
        return Array(stride(from: start, through: until, by: Int(step)))
    }

    private mutating func heartbeat(
        _ node: YAMLNode, frontEnd: String
    ) -> PipelineCase.CaseHeartbeat? {
        let keys = [
            "device", "tunnel_up", "handshake_age", "last_handshake", "status", "state",
            "config_version",
        ]
        guard let fields = fields(node, of: "heartbeat", keys) else { return nil }
        guard let device = fields["device"].flatMap({ text($0.value, of: "device") }) else {
            if fields["device"] == nil { fail(node.mark, "the heartbeat has no device") }
            return nil
        }
        var heartbeat = PipelineCase.CaseHeartbeat(device: device, frontEnd: frontEnd)
        if let entry = fields["tunnel_up"] {
            heartbeat.tunnelUp = bool(entry.value, of: "tunnel_up")
        }
        if let entry = fields["handshake_age"], let text = text(entry.value, of: "handshake_age") {
            let isNegative = text.hasPrefix("-")
            if let age = DurationText.milliseconds(isNegative ? String(text.dropFirst()) : text) {
                heartbeat.handshake = .age(isNegative ? -age : age)
            } else {
                fail(
                    entry.value.mark,
                    "handshake_age is a time with its unit, as 10s, or -2m for the future, not \"\(text)\""
                )
            }
        }
        if let entry = fields["last_handshake"], let text = text(entry.value, of: "last_handshake")
        {
            if fields["handshake_age"] != nil {
                fail(entry.keyMark, "last_handshake and handshake_age say the same: keep one")
            }
            if let time = EventTime(parsing: ByteBuffer(text.utf8).span) {
                heartbeat.handshake = .time(time)
            } else {
                fail(
                    entry.value.mark,
                    "last_handshake is a time as 1970-01-01T00:00:00Z, not \"\(text)\"")
            }
        }
        if let entry = fields["status"], let text = text(entry.value, of: "status") {
            heartbeat.status = AgentStatus(ByteBuffer(text.utf8).span)
        }
        if let entry = fields["state"] { heartbeat.state = text(entry.value, of: "state") }
        if let entry = fields["config_version"] {
            heartbeat.configVersion = count(entry.value, of: "config_version", 0...Int64.max)
        }
        return heartbeat
    }

    private mutating func beacon(
        _ node: YAMLNode, frontEnd: String
    ) -> PipelineCase.Record.Action? {
        if node.mapping == nil {
            guard let value = bool(node, of: "beacon") else { return nil }
            if !value { fail(node.mark, "beacon is true, or a mapping with lossy or leaving") }
            return .beacon(frontEnd: frontEnd, isLossy: false, isLeaving: false)
        }
        guard let fields = fields(node, of: "beacon", ["lossy", "leaving"]) else { return nil }
        let isLossy = fields["lossy"].flatMap { bool($0.value, of: "lossy") } ?? false
        let isLeaving = fields["leaving"].flatMap { bool($0.value, of: "leaving") } ?? false
        return .beacon(frontEnd: frontEnd, isLossy: isLossy, isLeaving: isLeaving)
    }

    private mutating func lifecycle(
        _ kind: Lifecycle.Kind, _ node: YAMLNode
    ) -> PipelineCase.Record.Action? {
        let keys = kind == .provisioned ? ["device", "expected_interval"] : ["device"]
        guard let fields = fields(node, of: "\(kind)", keys) else { return nil }
        guard let device = fields["device"].flatMap({ text($0.value, of: "device") }) else {
            if fields["device"] == nil { fail(node.mark, "the step has no device") }
            return nil
        }
        let interval = fields["expected_interval"].flatMap {
            duration($0.value, of: "expected_interval", 1_000...7 * 86_400_000)
        }
        return .lifecycle(kind, device: device, expectedInterval: interval)
    }

    private mutating func expectations(
        _ node: YAMLNode, of processor: PipelineFile.Kind,
        known: Set<PipelineCase.Expectation.Entity>?
    ) -> [PipelineCase.Expectation] {
        guard let items = list(node, of: "expect") else { return [] }
        if items.isEmpty { fail(node.mark, "expect is empty: the test would prove nothing") }
        var expectations: [PipelineCase.Expectation] = []
        for item in items {
            if case .updateRollout = processor {
                if let said = updateExpectation(item, known: known) { expectations.append(said) }
                continue
            }
            let keys =
                switch processor {
                case .tunnelHealth:
                    [
                        "device", "front_end", "state", "at", "reason", "flapping", "alerts",
                        "history",
                    ]
                case .configHash, .configDelivery:
                    ["device", "at"] + Self.configurationKeys(processor)
                case .mutualWaves, .encounters, .messages:
                    ["account", "pair", "at"] + Self.proximityKeys(processor)
                case .updateRollout: [String]()
                case .telemetryRollup: ["device"] + Self.telemetryKeys
                }
            guard let fields = fields(item, of: "an expectation", keys) else { continue }
            let entity: PipelineCase.Expectation.Entity
            if let entry = fields["device"], let name = text(entry.value, of: "device") {
                entity = .device(name)
            } else if let entry = fields["front_end"], let name = text(entry.value, of: "front_end")
            {
                entity = .frontEnd(name)
                for key in ["state", "at", "reason", "flapping", "history"] {
                    if let entry = fields[key] { fail(entry.keyMark, "a front-end has no \(key)") }
                }
            } else if let person = person(fields) {
                entity = person
            } else {
                if keys.contains("account") {
                    if fields["account"] == nil, fields["pair"] == nil {
                        fail(item.mark, "the expectation names neither an account nor a pair")
                    }
                } else if fields["device"] == nil {
                    fail(item.mark, "the expectation names no device")
                }
                continue
            }
            if let known, !known.contains(entity) {
                let names = known.compactMap { (entity) -> String? in
                    switch entity {
                    case .device(let name), .account(let name): name
                    case .frontEnd, .pair, .installation, .attempt, .release: nil
                    }
                }
                fail(item.mark, "nothing is given of \(entity)\(hint("\(entity)", names.sorted()))")
                continue
            }
            var expectation = PipelineCase.Expectation(entity: entity, mark: item.mark)
            expectation.state = fields["state"].flatMap { state($0.value) }
            expectation.at = fields["at"].flatMap { duration($0.value, of: "at", Self.time) }
            expectation.reason = fields["reason"].flatMap { text($0.value, of: "reason") }
            expectation.isFlapping = fields["flapping"].flatMap { bool($0.value, of: "flapping") }
            if let entry = fields["alerts"], let items = list(entry.value, of: "alerts") {
                expectation.alerts = items.compactMap { text($0, of: "an alert") }.sorted()
            }
            if let entry = fields["history"], let items = list(entry.value, of: "history") {
                expectation.history = items.compactMap { state($0) }
            }
            switch processor {
            case .telemetryRollup: expectation.telemetry = telemetry(fields, item.mark)
            default:
                expectation.configuration = configuration(fields)
                expectation.proximity = proximity(fields)
            }
            if fields.count == 1 { fail(item.mark, "nothing is expected of \(entity)") }
            expectations.append(expectation)
        }
        return expectations
    }

    private mutating func state(_ node: YAMLNode) -> String? {
        guard let name = text(node, of: "state") else { return nil }
        if !Self.states.contains(name) {
            fail(node.mark, "unknown state \"\(name)\"\(hint(name, Self.states))")
        }
        return name
    }
}

extension PipelineCase.Record {
    fileprivate var entities: [PipelineCase.Expectation.Entity] {
        switch action {
        case .heartbeat(let heartbeat): [.device(heartbeat.device), .frontEnd(heartbeat.frontEnd)]
        case .beacon(let frontEnd, _, _): [.frontEnd(frontEnd)]
        case .lifecycle(_, let device, _): [.device(device)]
        case .change(let change): [.device(change.device)]
        case .wave(let from, let to, _), .block(let from, let to), .message(let from, let to, _):
            Self.people(from, to)
        case .encounter(let encounter): Self.people(encounter.from, encounter.to)
        case .update(let update): update.entities
        case .sample(let sample): [.device(sample.device)]
        case .logLine(let line): [.device(line.device)]
        }
    }
}

extension PipelineCase.Record {
    private static func people(_ a: String, _ b: String) -> [PipelineCase.Expectation.Entity] {
        [.account(a), .account(b), .pair(a, b), .pair(b, a)]
    }
}

extension PipelineCase.Expectation.Entity: CustomStringConvertible {
    var description: String {
        switch self {
        case .device(let name), .frontEnd(let name), .account(let name), .installation(let name),
            .attempt(let name), .release(let name):
            name
        case .pair(let a, let b): "\(a) and \(b)"
        }
    }
}
