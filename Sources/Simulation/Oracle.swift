internal import Bytes
internal import Pipeline
internal import Processors
internal import Schemas
internal import Sinks

/// Sees the truth of a world and what the workers made of it, and says where the two part.
///
/// What it demands is weaker than exactness only where the design is: a front-end that has been out
/// of sight for as long as it takes to be expelled may have heard devices that are called offline, and
/// a heartbeat that was stamped between a clock's being set and the next beacon has no place in time.
final class Oracle {
    /// What is known of a record of the log, by its offset.
    struct Record {
        enum Kind {
            case heartbeat(isStopped: Bool)
            /// Of a front-end; well: it lost nothing.
            case beacon(isWell: Bool)
            case lifecycle
        }

        var kind: Kind
        /// The device or the front-end.
        var subject: Int
        /// When a heartbeat was received, or up to when a beacon vouches.
        var time: Int64
    }

    struct Alert {
        var kind: String
        var device: Int?
        var opened: Int64
        var resolved: Int64?
    }

    struct Interval {
        var state: String
        var started: Int64
        var ended: Int64
        /// Offset of the record that ended it.
        var origin: Int64
    }

    struct Status {
        var state: String
        var since: Int64
        var transitions: Int64
        var isFlapping: Bool
    }

    struct Minute {
        var origin: Int64
        var minute: Int64
        var state: String
        var devices: Int64
    }

    /// Positions of front-ends on the watched axis may part by this much, so silence is known to this.
    static let tolerance: Int64 = 8_000
    /// Nobody is expelled sooner after its last good beacon.
    static let expulsion: Int64 = 28_000

    var journal: [[Record]]
    private(set) var violation: WorldViolation?
    private(set) var alerts: [DeviceID: Alert] = [:]
    /// Open alerts of each device, in the order in which they were opened.
    var open: [[DeviceID]]
    var status: [Status?]
    var intervals: [[Interval]]
    var minutes: [[Minute]]
    /// Events of topic alerts that commits put into the outbox.
    var alertEvents = 0
    private var indices: [DeviceID: Int] = [:]

    init(devices: Int, partitions: Int) {
        journal = Array(repeating: [], count: partitions)
        open = Array(repeating: [], count: devices)
        status = Array(repeating: nil, count: devices)
        intervals = Array(repeating: [], count: devices)
        minutes = Array(repeating: [], count: partitions)
    }

    var isAnyoneFlapping: Bool { status.contains { $0?.isFlapping == true } }

    /// The first broken promise is the one that is told.
    func accuse(_ text: String, device: Int? = nil, in world: World) {
        guard violation == nil else { return }
        violation = WorldViolation(time: world.now, text: text, device: device)
        world.note { "BROKEN: \(text)" }
    }

    // MARK: - What the workers store

    func committed(_ partition: Int32, _ commit: PartitionCommit, in world: World) {
        if indices.isEmpty {
            for (index, device) in world.devices.enumerated() { indices[device.id] = index }
        }
        for entry in commit.outbox.entries where entry.topic == .alerts { alertEvents += 1 }
        var touched: [Int] = []
        for buffer in commit.rows {
            for index in 0..<buffer.count {
                let row = OracleRow(SimulatedTables.decode(buffer, index))
                let origin = buffer.origins[index]
                switch (buffer.table.name, buffer.table.mode) {
                case ("alerts", .insertNew):
                    opened(row, origin: origin, partition: Int(partition), &touched, in: world)
                case ("alerts", _): resolved(row, origin: origin, in: world)
                case ("device_state_ended", _): ended(row, origin: origin, in: world)
                case ("device_status", _): noteStatus(row, in: world)
                default:
                    minutes[Int(partition)].append(
                        Minute(
                            origin: origin, minute: row.number("minute"), state: row.text("state"),
                            devices: row.number("devices")))
                }
            }
        }
        for device in touched {
            for kind in Set(open[device].compactMap { alerts[$0]?.kind }).sorted()
            where open[device].count(where: { alerts[$0]?.kind == kind }) > 1 {
                accuse("device \(device) has two open alerts: \(kind)", device: device, in: world)
            }
        }
    }

    private func opened(
        _ row: OracleRow, origin: Int64, partition: Int, _ touched: inout [Int], in world: World
    ) {
        let id = row.id("alert_id")
        let kind = row.text("kind")
        guard let device = row.optionalID("device_id") else {
            // Every partition raises the loss of a front-end; the table keeps the first.
            if alerts[id] == nil {
                alerts[id] = Alert(kind: kind, opened: row.time("opened_at"))
                world.report.alertsOpened[kind, default: 0] += 1
            }
            return
        }
        guard let index = indices[device] else {
            return accuse("an alert about device \(device), which there is not", in: world)
        }
        world.note { "device \(index): alert \(kind) opens (\(id.shortened))" }
        if alerts[id] != nil {
            accuse("alert \(id) of device \(index) opens again", device: index, in: world)
        }
        alerts[id] = Alert(kind: kind, device: index, opened: row.time("opened_at"))
        world.report.alertsOpened[kind, default: 0] += 1
        open[index].append(id)
        touched.append(index)
        if kind == "offline" { judgeOffline(index, partition, origin, in: world) }
    }

    private func resolved(_ row: OracleRow, origin: Int64, in world: World) {
        let id = row.id("alert_id")
        guard let alert = alerts[id] else {
            return accuse("alert \(id) resolves and was never opened", in: world)
        }
        if let device = alert.device {
            world.note { "device \(device): alert \(alert.kind) resolves (\(id.shortened))" }
            if alert.resolved != nil {
                accuse("alert \(id) of device \(device) resolves twice", device: device, in: world)
            }
            open[device].removeAll { $0 == id }
        }
        if alert.resolved == nil {
            world.report.alertsResolved[alert.kind, default: 0] += 1
            alerts[id]?.resolved = row.time("resolved_at")
        }
    }

    private func ended(_ row: OracleRow, origin: Int64, in world: World) {
        guard let index = indices[row.id("device_id")] else { return }
        let interval = Interval(
            state: row.text("state"), started: row.time("started_at"), ended: row.time("ended_at"),
            origin: origin)
        world.note { "device \(index) was \(interval.state) until \(World.text(interval.ended))" }
        if row.number("transition") != Int64(intervals[index].count) {
            accuse(
                "interval \(row.number("transition")) of device \(index) comes after \(intervals[index].count) others",
                device: index, in: world)
        }
        if let last = intervals[index].last, last.ended != interval.started {
            accuse(
                "intervals of device \(index): one ends at \(World.text(last.ended)), the next begins at \(World.text(interval.started))",
                device: index, in: world)
        }
        if interval.ended < interval.started {
            accuse("an interval of device \(index) ends before it begins", device: index, in: world)
        }
        intervals[index].append(interval)
    }

    private func noteStatus(_ row: OracleRow, in world: World) {
        guard let index = indices[row.id("device_id")] else { return }
        let new = Status(
            state: row.text("state"), since: row.time("since"),
            transitions: row.number("transitions"), isFlapping: row.flag("flapping"))
        if let old = status[index], new.transitions < old.transitions {
            accuse("the row of device \(index) goes back in time", device: index, in: world)
        }
        status[index] = new
    }

    // MARK: - Silence

    /// The settings that a record was judged by.
    private func settings(
        _ partition: Int, _ offset: Int64, in world: World
    ) -> TunnelHealthSettings {
        let history = world.store.settingsHistory[Int32(partition)] ?? []
        let revision = history.last { $0.offset <= offset }?.revision
        return (world.variants.first { $0.revision == revision } ?? world.variants[0]).values
    }

    private func threshold(_ index: Int, _ settings: TunnelHealthSettings, in world: World) -> Int64
    {
        let device = world.devices[index]
        return device.hasOwnInterval
            ? settings.missedIntervals * device.interval : settings.offlineAfter
    }

    /// A device was called offline by the record at `offset`: had it truly been silent for so long?
    private func judgeOffline(_ index: Int, _ partition: Int, _ offset: Int64, in world: World) {
        let settings = settings(partition, offset, in: world)
        let threshold = threshold(index, settings, in: world) + settings.jitter - Self.tolerance
        let decided = journal[partition][Int(offset)].time
        let sayings = world.devices[index].sayings
        var later: SimulatedDevice.Saying?
        for saying in sayings.reversed() where saying.time <= decided {
            if decided - saying.time >= threshold { return }
            if saying.isUnplaced || isOutOfSight(saying, partition, offset, until: decided) {
                continue
            }
            if let later {
                // It was silent for that long, and spoke while that was being found out.
                if later.time - saying.time >= threshold { return }
            }
            guard later == nil, !isRead(saying, index, partition, before: offset) else {
                return accuse(
                    """
                    device \(index) is called offline by what was known at \(World.text(decided)), and \
                    it spoke to \(world.frontEnds[saying.frontEnd].name) at \(World.text(saying.time))
                    """, device: index, in: world)
            }
            later = saying
        }
        // It spoke once, a moment ago, and before that never, or unseen.
    }

    private func isRead(
        _ saying: SimulatedDevice.Saying, _ index: Int, _ partition: Int, before offset: Int64
    ) -> Bool {
        for record in journal[partition][..<Int(offset)].reversed() {
            guard case .heartbeat = record.kind, record.subject == index else { continue }
            if record.time >= saying.time { return true }
            return false
        }
        return false
    }

    /// Whether the front-end that heard it had been silent for so long that the others went on
    /// without it.
    private func isOutOfSight(
        _ saying: SimulatedDevice.Saying, _ partition: Int, _ offset: Int64, until decided: Int64
    ) -> Bool {
        var later = decided
        for record in journal[partition][...Int(offset)].reversed() {
            guard case .beacon(isWell: true) = record.kind, record.subject == saying.frontEnd,
                record.time < later
            else { continue }
            if later - record.time >= Self.expulsion { return true }
            later = record.time
            if later < saying.time - 60_000 { return false }
        }
        return later >= Self.expulsion
    }

    /// A device whose only words were lost on their way is unknown, not offline.
    private func wasHeard(_ index: Int, _ device: SimulatedDevice) -> Bool {
        journal[device.partition].contains { record in
            if case .heartbeat = record.kind { record.subject == index } else { false }
        }
    }

    /// What can be demanded at any time: late enough after the last disturbance, alerts are as the truth
    /// is.
    func look(at world: World) {
        guard world.disturbances == 0 else { return }
        let quietSince = world.lastDisturbance + 50_000
        let current = world.variants[world.variant].values
        for (index, device) in world.devices.enumerated() where !device.isSuspended {
            let isOpen = open[index].contains { alerts[$0]?.kind == "offline" }
            if device.speaks {
                let since = max(device.speaksSince, quietSince) + device.interval + 45_000
                if isOpen, world.now > since {
                    accuse(
                        "device \(index) has spoken since \(World.text(device.speaksSince)) and its offline alert is open",
                        device: index, in: world)
                }
            } else if isOpen, let last = device.sayings.last, !last.isUnplaced,
                world.now > world.lastDisturbance + 25_000,
                world.now - last.time < threshold(index, current, in: world) - Self.tolerance
            {
                accuse(
                    "device \(index) has been silent since \(World.text(last.time)), which these settings allow, and its offline alert is open",
                    device: index, in: world)
            } else if device.life == .silent, !isOpen, let last = device.sayings.last,
                let known = status[index], !known.isFlapping, known.state != "stopped",
                known.state != "suspended", known.state != "unknown" || wasHeard(index, device),
                !device.sayings.suffix(3).contains(where: \.saysStopped)
            {
                // A tick, the most that a place may lie ahead, and the time that requests take.
                let due =
                    max(last.time, device.speaksSince, quietSince)
                    + threshold(index, current, in: world) + 47_000
                if world.now > due {
                    accuse(
                        "device \(index) has been silent since \(World.text(last.time)) and no offline alert is open",
                        device: index, in: world)
                }
            }
        }
    }
}

/// A row's fields by name.
struct OracleRow {
    private let fields: SimulatedTables.Row

    init(_ fields: SimulatedTables.Row) { self.fields = fields }

    func number(_ column: String) -> Int64 {
        (fields[column] ?? []).reduce(0) { $0 << 8 | Int64($1) }
    }

    func text(_ column: String) -> String { String(decoding: fields[column] ?? [], as: UTF8.self) }

    func flag(_ column: String) -> Bool { fields[column] == [1] }

    /// As the world's time.
    func time(_ column: String) -> Int64 {
        let bits = (fields[column] ?? []).reduce(UInt64(0)) { $0 << 8 | UInt64($1) }
        return Int64(bitPattern: bits) / 1_000 + 946_684_800_000 - World.epoch
    }

    func optionalID(_ column: String) -> DeviceID? {
        guard let bytes = fields[column], bytes.count == 16 else { return nil }
        let high = bytes[..<8].reduce(UInt64(0)) { $0 << 8 | UInt64($1) }
        let low = bytes[8...].reduce(UInt64(0)) { $0 << 8 | UInt64($1) }
        return DeviceID(high: high, low: low)
    }

    func id(_ column: String) -> DeviceID { optionalID(column) ?? DeviceID(high: 0, low: 0) }
}
