internal import Bytes
internal import Pipeline
internal import Processors
internal import Schemas
internal import Sinks

/// Sees the truth of a world and what the workers made of it, and says where the two part.
///
/// What it demands is weaker than exactness only where the design is: a front-end that has been out
/// of sight for as long as it takes to be expelled may have heard devices that are called offline, and
/// where a heartbeat that was stamped between a clock's being set and the next beacon belongs is known
/// to one beacon only.
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

    /// A heartbeat as a partition's log has it, in the log's order.
    struct Heard {
        var offset: Int64
        var time: Int64
        var isStopped: Bool
    }

    private(set) var journal: [[Record]]
    /// By device; all that reached the log.
    private(set) var heard: [[Heard]]
    /// Beacons that declare no loss, by partition and front-end.
    private(set) var wells: [[[(offset: Int64, time: Int64)]]]
    private(set) var violation: WorldViolation?
    private var isTrying = false
    private(set) var alerts: [DeviceID: Alert] = [:]
    /// Open alerts of each device, in the order in which they were opened.
    var open: [[DeviceID]]
    var status: [Status?]
    var intervals: [[Interval]]
    var minutes: [[Minute]]
    /// Events of topic alerts that commits put into the outbox.
    var alertEvents = 0
    private var indices: [DeviceID: Int] = [:]

    init(devices: Int, frontEnds: Int, partitions: Int) {
        journal = Array(repeating: [], count: partitions)
        heard = Array(repeating: [], count: devices)
        wells = Array(repeating: Array(repeating: [], count: frontEnds), count: partitions)
        open = Array(repeating: [], count: devices)
        status = Array(repeating: nil, count: devices)
        intervals = Array(repeating: [], count: devices)
        minutes = Array(repeating: [], count: partitions)
    }

    /// A record was appended to a partition of the log.
    func note(_ record: Record, in partition: Int) {
        let offset = Int64(journal[partition].count)
        journal[partition].append(record)
        switch record.kind {
        case .heartbeat(let isStopped):
            heard[record.subject].append(
                Heard(offset: offset, time: record.time, isStopped: isStopped))
        case .beacon(isWell: true): wells[partition][record.subject].append((offset, record.time))
        case .beacon, .lifecycle: break
        }
    }

    /// As `device_status` has it.
    var devicesThatReport: Int64 {
        Int64(
            status.count { known in
                ["healthy", "stale", "down", "recovering"].contains(known?.state ?? "")
            })
    }

    var isAnyoneFlapping: Bool { status.contains { $0?.isFlapping == true } }

    /// Whether everything is already as it must be in the end.
    func isSatisfied(with world: World) -> Bool {
        isTrying = true
        judgeTheEnd(of: world)
        isTrying = false
        defer { violation = nil }
        return violation == nil
    }

    /// The first broken promise is the one that is told.
    func accuse(_ text: String, device: Int? = nil, in world: World) {
        guard violation == nil else { return }
        violation = WorldViolation(time: world.now, text: text, device: device)
        if isTrying { return }
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
            if kind == "front-end-lost" {
                judgeLost(row.text("entity"), partition, origin, in: world)
            }
            if alerts[id] == nil {
                world.note { "alert \(kind) opens about \(row.text("entity"))" }
                alerts[id] = Alert(kind: kind, opened: row.time("opened_at"))
                world.dispatch.opened(
                    id, kind: kind, device: nil, entity: row.text("entity"), at: world.now)
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
        world.dispatch.opened(
            id, kind: kind, device: device, entity: device.description, at: world.now)
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
            world.dispatch.resolved(id, at: world.now)
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
