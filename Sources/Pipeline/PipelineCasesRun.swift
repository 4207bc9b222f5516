internal import Bytes
internal import Processors
internal import Schemas
public import YAML

/// How a case went.
public struct PipelineCaseResult: Sendable {
    public var name: String
    public var mark: YAMLMark
    /// What differed, with its place; empty if the case holds.
    public var differences: [PipelineCaseDifference]
}

/// Something that was expected and is otherwise.
public struct PipelineCaseDifference: Sendable, Hashable {
    /// The expectation.
    public var mark: YAMLMark
    /// For example `d1: state`.
    public var what: String
    public var expected: String
    public var got: String
}

/// The names of all device states.
enum DeviceStateNames {
    static let all = DeviceState.allCases.map { text($0.name) }

    static func text(_ name: StaticString) -> String {
        var buffer = ByteBuffer()
        buffer.append(name)
        return buffer.span.text
    }
}

extension PipelineFile {
    /// Runs the file's cases through the processor itself, with the file's settings. What is compared
    /// is what the tables would hold.
    public func runCases() -> [PipelineCaseResult] {
        switch processor {
        case .tunnelHealth(let settings):
            cases.map { $0.run(TunnelHealth(partition: 0, settings: settings)) { $0.event($1) } }
        case .configHash(let settings):
            cases.map { $0.run(ConfigHash(partition: 0, settings: settings)) { $0.change($1) } }
        case .configDelivery(let settings):
            cases.map { $0.run(ConfigDelivery(partition: 0, settings: settings)) { $0.event($1) } }
        case .mutualWaves(let settings):
            cases.map {
                $0.run(MutualWaves(partition: 0, settings: settings)) {
                    $0.people.wavesEvent($1)
                }
            }
        case .encounters(let settings):
            cases.map {
                $0.run(Encounters(partition: 0, settings: settings)) { $0.people.encounter($1) }
            }
        case .messages(let settings):
            cases.map {
                $0.run(Messages(partition: 0, settings: settings)) { $0.people.message($1) }
            }
        case .updateRollout(let settings):
            cases.map { $0.run(UpdateRollout(partition: 0, settings: settings)) { $0.update($1) } }
        case .telemetryRollup(let settings):
            cases.map {
                $0.run(TelemetryRollup(partition: 0, settings: settings)) { $0.telemetry($1) }
            }
        }
    }
}

extension PipelineCase {
    /// - Parameter read: what a record is to the processor; `nil` if nothing.
    fileprivate func run<P: Processor>(
        _ processor: consuming P, _ read: (inout Players, Record) -> P.Event?
    ) -> PipelineCaseResult {
        var processor = processor
        var effects = Effects(tables: P.tables)
        var tables = CaseTables()
        var players = Players()
        for (offset, record) in records.enumerated() {
            let place = RecordPlace(
                partition: 0, offset: Int64(offset), timestamp: Self.start + record.at)
            guard let event = read(&players, record) else { continue }
            processor.apply(event, at: place, into: &effects)
            processor.drain(into: &effects)
            tables.apply(effects.rows)
            tables.apply(effects.outbox)
            effects.removeAll()
        }
        var differences: [PipelineCaseDifference] = []
        for expectation in expectations {
            switch expectation.entity {
            case .account, .pair:
                compareProximity(expectation, players.people, tables, into: &differences)
            case .installation, .attempt, .release:
                compareUpdates(expectation, tables, id: { players.device($0) }, into: &differences)
            case .device, .frontEnd:
                if P.self == TunnelHealth.self {
                    compare(expectation, tables, players, into: &differences)
                } else if P.self == TelemetryRollup.self {
                    compareTelemetry(
                        expectation, of: players.device("\(expectation.entity)"), tables,
                        into: &differences)
                } else {
                    compareConfiguration(
                        expectation, of: players.device("\(expectation.entity)"), tables,
                        from: P.tables[0].name, into: &differences)
                }
            }
        }
        return PipelineCaseResult(name: name, mark: mark, differences: differences)
    }

    private func compare(
        _ expectation: Expectation, _ tables: CaseTables, _ players: Players,
        into differences: inout [PipelineCaseDifference]
    ) {
        func check(_ what: String, _ expected: String?, _ got: String) {
            guard let expected, expected != got else { return }
            differences.append(
                PipelineCaseDifference(
                    mark: expectation.mark, what: "\(expectation.entity): \(what)",
                    expected: expected, got: got))
        }
        let entity: String
        switch expectation.entity {
        case .account, .pair, .installation, .attempt, .release: return
        case .frontEnd(let name): entity = name
        case .device(let name):
            let id = players.device(name)
            entity = "\(id)"
            guard let status = tables.status(of: id) else {
                check("state", expectation.state ?? "known", "no row in device_status")
                return
            }
            check("state", expectation.state, status.state)
            check(
                "at", expectation.at.map { DurationText.text(milliseconds: $0) },
                DurationText.text(milliseconds: status.since - Self.start))
            check("reason", expectation.reason, status.reason)
            check("flapping", expectation.isFlapping.map { "\($0)" }, "\(status.isFlapping)")
            check(
                "history", expectation.history?.joined(separator: ", "),
                (tables.endedStates(of: id) + [status.state]).joined(separator: ", "))
        }
        check(
            "alerts", expectation.alerts.map { $0.isEmpty ? "none" : $0.joined(separator: ", ") },
            {
                let open = tables.openAlerts(on: entity)
                return open.isEmpty ? "none" : open.joined(separator: ", ")
            }())
    }
}

/// Gives the names of a case ids, and makes events of its records.
private struct Players {
    var people = PipelineCase.People()
    private var devices: [String: DeviceID] = [:]
    private var frontEnds: [String: (boot: UInt64, counter: UInt64)] = [:]
    private var versions: [DeviceID: Int64] = [:]
    private var changes: [DeviceID: ConfigChange] = [:]

    func device(_ name: String) -> DeviceID { devices[name] ?? DeviceID(high: 0, low: 0) }

    private mutating func meet(_ name: String) -> DeviceID {
        if let known = devices[name] { return known }
        let id = PipelineCase.deviceID(name, index: devices.count)
        devices[name] = id
        return id
    }

    private mutating func origin(_ frontEnd: String) -> EventOrigin {
        var player = frontEnds[frontEnd] ?? (UInt64(frontEnds.count + 1), 0)
        player.counter += 1
        frontEnds[frontEnd] = player
        return EventOrigin(boot: player.boot, counter: player.counter)
    }

    mutating func change(_ record: PipelineCase.Record) -> ConfigChange? {
        guard case .change(let said) = record.action else { return nil }
        let device = meet(said.device)
        let change = said.event(device, after: changes[device])
        changes[device] = change
        return change
    }

    mutating func telemetry(_ record: PipelineCase.Record) -> TelemetryEvent? {
        switch record.action {
        case .sample(let said): said.event(meet(said.device), origin("front-end"), at: record.at)
        case .logLine(let said): said.event(meet(said.device), origin("front-end"), at: record.at)
        default: nil
        }
    }

    mutating func event(_ record: PipelineCase.Record) -> HeartbeatsEvent? {
        switch record.action {
        case .heartbeat(let said):
            var heartbeat = Heartbeat(device: meet(said.device), origin: origin(said.frontEnd))
            heartbeat.tunnelUp = said.tunnelUp
            heartbeat.status = said.status
            switch said.handshake {
            case .age(let age): heartbeat.lastHandshake = PipelineCase.start + (record.at - age)
            case .time(let time): heartbeat.lastHandshake = time
            case nil: break
            }
            if let state = said.state { heartbeat.agentState = InlineText(state) }
            heartbeat.configVersion = said.configVersion ?? 0
            // What an operator does next makes a newer version than any that was answered.
            versions[heartbeat.device] = max(
                versions[heartbeat.device] ?? 0, heartbeat.configVersion)
            return .heartbeat(heartbeat)
        case .beacon(let frontEnd, let isLossy, let isLeaving):
            return .beacon(
                Beacon(
                    frontEnd: InlineText(frontEnd), origin: origin(frontEnd),
                    monotonicMilliseconds: record.at, isLossy: isLossy, isLeaving: isLeaving))
        case .lifecycle(let kind, let name, let interval):
            let device = meet(name)
            versions[device, default: 0] += 1
            return .lifecycle(
                Lifecycle(
                    device: device, kind: kind, version: versions[device] ?? 1,
                    expectedIntervalMilliseconds: interval))
        case .change, .update, .sample, .logLine, .wave, .block, .encounter, .message: return nil
        }
    }

    mutating func update(_ record: PipelineCase.Record) -> UpdatesEvent? {
        guard case .update(let said) = record.action else { return nil }
        return said.event(origin("updates")) { meet($0) }
    }
}
