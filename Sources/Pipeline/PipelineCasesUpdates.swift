internal import Bytes
internal import Schemas
internal import YAML

extension PipelineCase {
    /// Something that an app or an installation of it said.
    struct CaseUpdate: Sendable {
        enum Said: Sendable {
            case checked(current: String?, latest: String?, isAvailable: Bool, confirmed: String?)
            case attempt(String, UpdatesEvent.Action, release: String?, UpdatesEvent.Stage)
            case cloned
            case clock
        }

        var installation: String
        var said: Said

        /// The source of all installations of cases.
        static let source = "gh:owner/repo"

        var entities: [Expectation.Entity] {
            switch said {
            case .checked(let current, let latest, _, _):
                [.installation(installation)]
                    + [current, latest].compactMap { $0 }.map { .release($0) }
            case .attempt(let attempt, _, let release, _):
                [.installation(installation), .attempt(attempt)]
                    + [release].compactMap { $0 }.map { .release($0) }
            case .cloned: [.installation(installation)]
            case .clock: []
            }
        }

        func event(_ origin: EventOrigin, _ id: (String) -> DeviceID) -> UpdatesEvent {
            let kind: UpdatesEvent.Kind =
                switch said {
                case .checked(let current, let latest, let isAvailable, let confirmed):
                    .checked(
                        UpdatesEvent.Check(
                            channel: "latest", current: current, latest: latest,
                            isAvailable: isAvailable, confirmed: confirmed.map(id)))
                case .attempt(let attempt, let action, let release, let stage):
                    .attempt(
                        UpdatesEvent.Attempt(
                            id: id(attempt), action: action, release: release, stage: stage))
                case .cloned: .cloned
                case .clock: .clock
                }
            return UpdatesEvent(
                origin: origin,
                installation: said.isClock ? DeviceID(high: 0, low: 0) : id(installation),
                source: Self.source, kind: kind)
        }
    }

    func compareUpdates(
        _ expectation: Expectation, _ tables: CaseTables, id: (String) -> DeviceID,
        into differences: inout [PipelineCaseDifference]
    ) {
        func differ(_ what: String, _ expected: String, _ got: String) {
            differences.append(
                PipelineCaseDifference(
                    mark: expectation.mark, what: "\(expectation.entity): \(what)",
                    expected: expected, got: got))
        }
        let found: (schema: TableSchema, row: [String: String]?)
        switch expectation.entity {
        case .installation(let name):
            let key = CaseTables.bytes(of: id(name))
            found = (
                .installations,
                tables.columns(of: .installations) { $0("installation_id") == key }
            )
        case .attempt(let name):
            let key = CaseTables.bytes(of: id(name))
            found = (
                .updateAttempts, tables.columns(of: .updateAttempts) { $0("attempt_id") == key }
            )
        case .release(let name):
            let key = Array(name.utf8)
            found = (.rollout, tables.columns(of: .rollout) { $0("release") == key })
        case .device, .frontEnd, .account, .pair: return
        }
        guard let row = found.row else {
            return differ("row", "one", "no row in \(found.schema.name)")
        }
        for (column, expected) in expectation.columns.sorted(by: { $0.key < $1.key }) {
            var got = row[column] ?? "no such column"
            let isTime = found.schema.columns.contains {
                $0.name == column && $0.type == .timestamptz
            }
            if isTime, let time = Int64(got) {
                got = DurationText.text(milliseconds: time - Self.start.milliseconds)
            }
            if got != expected { differ(column, expected, got) }
        }
    }
}

extension PipelineCase.CaseUpdate.Said {
    fileprivate var isClock: Bool { if case .clock = self { true } else { false } }
}

extension PipelineFileReader {
    static let updateActions = [
        "checked", "progress", "selection", "result", "error", "lost", "disconnected", "cloned",
        "clock",
    ]

    mutating func update(_ action: String, _ node: YAMLNode) -> PipelineCase.CaseUpdate? {
        if action == "clock" {
            guard bool(node, of: "clock") == true else { return nil }
            return PipelineCase.CaseUpdate(installation: "", said: .clock)
        }
        let keys =
            switch action {
            case "checked": ["installation", "current", "latest", "available", "confirmed"]
            case "cloned": ["installation"]
            case "progress": ["installation", "attempt", "action", "release", "step"]
            case "selection": ["installation", "attempt", "action", "release", "key"]
            case "result": ["installation", "attempt", "action", "release", "warnings"]
            case "error", "lost": ["installation", "attempt", "action", "release", "message"]
            default: ["installation", "attempt", "action", "release"]
            }
        guard let fields = fields(node, of: action, keys) else { return nil }
        func value(_ key: String, _ reader: inout PipelineFileReader) -> String? {
            fields[key].flatMap { reader.text($0.value, of: key) }
        }
        guard let installation = value("installation", &self) else {
            if fields["installation"] == nil { fail(node.mark, "the step names no installation") }
            return nil
        }
        if action == "cloned" {
            return PipelineCase.CaseUpdate(installation: installation, said: .cloned)
        }
        if action == "checked" {
            let isAvailable = fields["available"].flatMap { bool($0.value, of: "available") }
            return PipelineCase.CaseUpdate(
                installation: installation,
                said: .checked(
                    current: value("current", &self), latest: value("latest", &self),
                    isAvailable: isAvailable ?? false, confirmed: value("confirmed", &self)))
        }
        guard let attempt = value("attempt", &self) else {
            if fields["attempt"] == nil { fail(node.mark, "the step names no attempt") }
            return nil
        }
        var kind = UpdatesEvent.Action.install
        if let entry = fields["action"], let name = text(entry.value, of: "action") {
            let known = UpdatesEvent.Action.allCases.map(\.rawValue)
            guard let read = UpdatesEvent.Action(rawValue: name) else {
                fail(entry.value.mark, "unknown action \"\(name)\"\(hint(name, known))")
                return nil
            }
            kind = read
        }
        guard let stage = stage(action, node, fields) else { return nil }
        return PipelineCase.CaseUpdate(
            installation: installation,
            said: .attempt(attempt, kind, release: value("release", &self), stage))
    }

    private mutating func stage(
        _ action: String, _ node: YAMLNode, _ fields: [String: YAMLEntry]
    ) -> UpdatesEvent.Stage? {
        switch action {
        case "progress":
            guard let entry = fields["step"], let name = text(entry.value, of: "step") else {
                if fields["step"] == nil { fail(node.mark, "progress has no step") }
                return nil
            }
            let known = UpdatesEvent.Step.allCases.map { DeviceStateNames.text($0.text) }
            guard let index = known.firstIndex(of: name) else {
                fail(entry.value.mark, "unknown step \"\(name)\"\(hint(name, known))")
                return nil
            }
            return .step(UpdatesEvent.Step.allCases[index])
        case "selection":
            return .selection(
                key: fields["key"].flatMap { text($0.value, of: "key") } ?? "asset")
        case "result":
            return .result(
                warnings: fields["warnings"].flatMap {
                    count($0.value, of: "warnings", 0...1_000)
                } ?? 0)
        case "error":
            return .error(
                fields["message"].flatMap { text($0.value, of: "message") } ?? "it failed")
        case "lost":
            return .lost(
                fields["message"].flatMap { text($0.value, of: "message") } ?? "it was lost")
        default: return .disconnected
        }
    }

    /// An expectation about one row: columns and what must stand in them, times as in the case.
    mutating func updateExpectation(
        _ node: YAMLNode, known: Set<PipelineCase.Expectation.Entity>?
    ) -> PipelineCase.Expectation? {
        guard let entries = node.mapping else {
            fail(node.mark, "an expectation is a mapping, not \(node.kind)")
            return nil
        }
        let kinds = ["installation", "attempt", "release"]
        guard let named = entries.first(where: { kinds.contains($0.key) }),
            let name = text(named.value, of: named.key)
        else {
            fail(node.mark, "the expectation names no installation, attempt or release")
            return nil
        }
        let entity: PipelineCase.Expectation.Entity
        let schema: TableSchema
        switch named.key {
        case "installation": (entity, schema) = (.installation(name), .installations)
        case "attempt": (entity, schema) = (.attempt(name), .updateAttempts)
        default: (entity, schema) = (.release(name), .rollout)
        }
        if let known, !known.contains(entity) {
            fail(node.mark, "nothing is given of \(name)")
            return nil
        }
        var expectation = PipelineCase.Expectation(entity: entity, mark: node.mark)
        let columns = schema.columns.map(\.name)
        for entry in entries where entry.key != named.key {
            guard columns.contains(entry.key) else {
                fail(
                    entry.keyMark,
                    "unknown column \"\(entry.key)\" of \(schema.name)\(hint(entry.key, columns))")
                continue
            }
            if let value = text(entry.value, of: entry.key) {
                expectation.columns[entry.key] = value
            }
        }
        if expectation.columns.isEmpty { fail(node.mark, "nothing is expected of \(name)") }
        return expectation
    }
}
