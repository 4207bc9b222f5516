import Bytes
import Processors
import Schemas

/// One partition of `heartbeats` in the hands of a test: times are seconds after a fixed start.
struct Partition {
    static let start: Int64 = 1_790_000_000_000

    var health: TunnelHealth
    var effects = Effects(tables: TunnelHealth.tables)
    var offset: Int64 = 0
    var counter: UInt64 = 0
    /// A front-end's wall clock minus the truth, in seconds.
    var skew: [UInt64: Double] = [:]
    private var last: (heartbeat: Heartbeat, stamp: EventTime)?

    init(_ settings: TunnelHealthSettings = TunnelHealthSettings()) {
        health = TunnelHealth(partition: 0, settings: settings)
    }

    static func time(_ seconds: Double) -> EventTime {
        EventTime(milliseconds: start + Int64(seconds * 1_000))
    }

    mutating func apply(_ event: HeartbeatsEvent, stamp: EventTime) {
        health.apply(
            event, at: RecordPlace(partition: 0, offset: offset, timestamp: stamp),
            into: &effects)
        offset += 1
    }

    mutating func beacon(
        _ seconds: Double, from boot: UInt64 = 1, name: String? = nil, monotonic: Double? = nil,
        lossy: Bool = false, leaving: Bool = false, behind: Bool = false
    ) {
        counter += 1
        apply(
            .beacon(
                Beacon(
                    frontEnd: InlineText(name ?? "fe\(boot)"),
                    origin: EventOrigin(boot: boot, counter: counter),
                    monotonicMilliseconds: Int64((monotonic ?? seconds + 1_000) * 1_000),
                    isLossy: lossy, isLeaving: leaving, isBehind: behind)),
            stamp: Self.time(seconds + (skew[boot] ?? 0)))
    }

    /// Beacons every five seconds from `first` to `last`, both included.
    mutating func beacons(_ first: Double, _ last: Double, from boots: UInt64...) {
        let boots = boots.isEmpty ? [1] : boots
        var seconds = first
        while seconds <= last {
            for boot in boots { beacon(seconds, from: boot) }
            seconds += 5
        }
    }

    mutating func beat(
        _ device: DeviceID, _ seconds: Double, up: Bool? = true, handshake age: Double? = 10,
        claim: EventTime? = nil, status: AgentStatus? = .connected, from boot: UInt64 = 1,
        state: String = ""
    ) {
        counter += 1
        var heartbeat = Heartbeat(
            device: device, origin: EventOrigin(boot: boot, counter: counter))
        heartbeat.tunnelUp = up
        heartbeat.status = status
        heartbeat.lastHandshake = claim ?? age.map { Self.time(seconds - $0) }
        heartbeat.agentState = InlineText(state)
        last = (heartbeat, Self.time(seconds + (skew[boot] ?? 0)))
        apply(.heartbeat(heartbeat), stamp: Self.time(seconds + (skew[boot] ?? 0)))
    }

    /// The last heartbeat once more, as a front-end sends it that was not answered.
    mutating func repeatLast() {
        if let last { apply(.heartbeat(last.heartbeat), stamp: last.stamp) }
    }

    mutating func lifecycle(
        _ kind: Lifecycle.Kind, _ device: DeviceID, _ seconds: Double, version: Int64,
        interval: Int64? = nil
    ) {
        apply(
            .lifecycle(
                Lifecycle(
                    device: device, kind: kind, version: version,
                    expectedIntervalMilliseconds: interval)), stamp: Self.time(seconds))
    }

    func state(_ device: DeviceID) -> DeviceState? { health.report(on: device)?.state }

    func since(_ device: DeviceID) -> Double? {
        health.report(on: device).map {
            Double($0.since.milliseconds - Self.start) / 1_000
        }
    }

    /// Alerts as the topic saw them: `opened offline`, `resolved offline`, …
    var alerts: [String] {
        effects.outbox.entries.filter { $0.topic == .alerts }.map { entry in
            let text = effects.outbox.bytes.span.extracting(entry.value).text
            let type = text.contains("\"opened\"") ? "opened" : "resolved"
            let kind = AlertKind.allCases.first { text.contains("\"kind\":\"\($0.rawValue)\"") }
            return "\(type) \(kind?.rawValue ?? "?")"
        }
    }

    /// Ids of the alerts that were opened or resolved, in order.
    var alertIDs: [String] {
        effects.outbox.entries.filter { $0.topic == .alerts }.map { entry in
            let text = effects.outbox.bytes.span.extracting(entry.value).text
            return String(text.split(separator: "\"alert_id\":\"")[1].prefix(36))
        }
    }

    func rows(_ table: String) -> Int {
        effects.rows.first { $0.table.name == table }?.count ?? 0
    }

    var snapshot: [UInt8] {
        var copy = health
        var scratch = effects
        copy.drain(into: &scratch)
        var bytes = ByteBuffer()
        copy.snapshot(into: &bytes)
        return bytes.bytes
    }
}

let d1 = DeviceID("00000000-0000-4000-8000-000000000001")!
let d2 = DeviceID("00000000-0000-4000-8000-000000000002")!
let d3 = DeviceID("00000000-0000-4000-8000-000000000003")!
