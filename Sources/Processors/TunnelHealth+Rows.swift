import Bytes
public import Schemas

/// What a device is said to be: the row of `device_status`, for tests and tools.
public struct DeviceReport: Sendable, Equatable {
    public var state: DeviceState
    public var reason: StateReason
    public var since: EventTime
    public var lastSeen: EventTime?
    public var lastHandshake: EventTime?
    public var tunnelUp: Bool?
    public var flags: HeartbeatFlags
    public var isFlapping: Bool
    /// Kinds of the alerts that are open.
    public var openAlerts: [AlertKind]
    public var transitions: Int64
}

extension TunnelHealth {
    private enum Rows {
        static let status = 0, ended = 1, minutes = 2, opened = 3, resolved = 4
    }

    public static var tables: [TableSchema] {
        [.deviceStatus, .deviceStateEnded, .fleetMinutes, .alertsOpened, .alertsResolved]
    }

    /// `nil` if the partition never heard of the device.
    public func report(on device: DeviceID) -> DeviceReport? {
        devices.find(device).map { Self.report(devices[$0]) }
    }

    /// Devices that the partition knows, removed ones included.
    public var deviceCount: Int { devices.count }

    /// Devices in a state now.
    public func count(_ state: DeviceState) -> Int64 { counts[Int(state.rawValue)] }

    /// Removed ones are in none.
    public var devicesByState: [(state: DeviceState, count: Int64)] {
        DeviceState.allCases.filter { $0 != .removed }.map { ($0, count($0)) }
    }

    /// Watched time in milliseconds, and whether a front-end holds it.
    public var watchedTime: (milliseconds: Int64, isHeld: Bool) { (watched.now, watched.isHeld) }

    private static func report(_ slot: DeviceSlot) -> DeviceReport {
        var alerts: [AlertKind] = []
        if slot.stateAlert != 0 {
            switch slot.state {
            case .offline: alerts.append(.offline)
            case .stale: alerts.append(.stale)
            case .down: alerts.append(.down)
            default: break
            }
        }
        if slot.flappingAlert != 0 { alerts.append(.flapping) }
        return DeviceReport(
            state: slot.state, reason: slot.reason, since: EventTime(milliseconds: slot.since),
            lastSeen: time(slot.lastSeen), lastHandshake: time(slot.handshake),
            tunnelUp: slot.tunnel == .unknown ? nil : slot.tunnel == .up, flags: slot.flags,
            isFlapping: slot.bits.contains(.flapping), openAlerts: alerts,
            transitions: Int64(slot.transitions))
    }

    private static func time(_ milliseconds: Int64) -> EventTime? {
        milliseconds == 0 ? nil : EventTime(milliseconds: milliseconds)
    }

    // MARK: - Rows

    public var pendingRows: Int { marks.count }

    public mutating func drain(into effects: inout Effects) {
        for mark in marks { devices[Int(mark.slot)].mark = 0 }
        if !effects.isDiscarding {
            var order = ContiguousArray<(id: DeviceID, mark: Int)>()
            order.reserveCapacity(marks.count)
            for (index, mark) in marks.enumerated() {
                order.append((devices[Int(mark.slot)].id, index))
            }
            order.sort { $0.id < $1.id }
            for (_, index) in order {
                let mark = marks[index]
                append(
                    devices[Int(mark.slot)], markTexts.span.extracting(mark.text), mark.origin,
                    to: &effects.rows[Rows.status])
            }
            effects.rows[Rows.opened].sortByUUID()
            effects.rows[Rows.resolved].sortByUUID()
        }
        // A storm's capacity is not kept for the calm after it.
        marks.removeAll(keepingCapacity: marks.capacity <= 65_536)
        markTexts.removeAll()
    }

    private func append(
        _ slot: DeviceSlot, _ text: Span<UInt8>, _ origin: Int64, to rows: inout RowBuffer
    ) {
        rows.beginRow(origin: origin)
        rows.put(slot.id)
        rows.put(int4: partition)
        rows.put(slot.state.name)
        rows.put(slot.reason.name)
        rows.put(EventTime(milliseconds: slot.since))
        rows.put(Self.time(slot.lastSeen))
        rows.put(Self.time(slot.handshake))
        rows.put(slot.tunnel == .unknown ? nil : slot.tunnel == .up)
        if let status = AgentStatus(rawValue: slot.status) {
            rows.put(status.name)
        } else {
            rows.putNull()
        }
        if text.isEmpty { rows.putNull() } else { rows.put(text) }
        if slot.flags.isEmpty {
            rows.put(jsonb: Self.noFlags.span)
        } else {
            var flags = ByteBuffer()
            flags.append(slot.flags)
            rows.put(jsonb: flags.span)
        }
        rows.put(slot.bits.contains(.flapping))
        rows.put(int8: Int64(slot.transitions))
    }

    private static let noFlags = ByteBuffer("[]".utf8)

    func appendEnded(
        _ slot: DeviceSlot, at time: EventTime, origin: Int64, into effects: inout Effects
    ) {
        if effects.isDiscarding { return }
        effects.rows[Rows.ended].beginRow(origin: origin)
        effects.rows[Rows.ended].put(slot.id)
        effects.rows[Rows.ended].put(int4: partition)
        effects.rows[Rows.ended].put(int8: Int64(slot.transitions))
        effects.rows[Rows.ended].put(slot.state.name)
        effects.rows[Rows.ended].put(slot.reason.name)
        effects.rows[Rows.ended].put(EventTime(milliseconds: slot.since))
        effects.rows[Rows.ended].put(time)
    }

    /// When the first record of a later minute is read, the devices by state are the ones of the
    /// minute before. Minutes in which nothing was read are not made up.
    mutating func countMinute(_ time: EventTime, origin: Int64, into effects: inout Effects) {
        let current = time.milliseconds / 60_000
        guard let counted = minute else {
            minute = current
            return
        }
        guard current > counted else { return }
        minute = current
        if effects.isDiscarding { return }
        for state in Self.statesByName where counts[Int(state.rawValue)] != 0 {
            effects.rows[Rows.minutes].beginRow(origin: origin)
            effects.rows[Rows.minutes].put(EventTime(milliseconds: counted * 60_000))
            effects.rows[Rows.minutes].put(int4: partition)
            effects.rows[Rows.minutes].put(state.name)
            effects.rows[Rows.minutes].put(int8: counts[Int(state.rawValue)])
        }
    }

    private static let statesByName = DeviceState.allCases.filter { $0 != .removed }
        .sorted { "\($0)" < "\($1)" }

    // MARK: - Alerts

    enum AlertStep { case opened, resolved }

    func emitAlert(
        _ step: AlertStep, _ kind: AlertKind, _ slot: DeviceSlot, episode: UInt32,
        at time: EventTime, origin: Int64, into effects: inout Effects
    ) {
        if effects.isDiscarding {
            effects.nextSequence += 1
            return
        }
        var entity = ByteBuffer()
        entity.append(slot.id)
        emit(
            step, kind, entity: entity.span, device: slot.id, episode: Int64(episode),
            reason: kind == .flapping ? "flapping" : slot.reason.name, at: time, origin: origin,
            into: &effects)
    }

    private func emit(
        _ step: AlertStep, _ kind: AlertKind, entity: Span<UInt8>, device: DeviceID?,
        episode: Int64, reason: StaticString, at time: EventTime, origin: Int64,
        into effects: inout Effects
    ) {
        let id = AlertID.make(kind: kind, entity: entity, episode: episode)
        switch step {
        case .opened where !effects.isDiscarding:
            effects.rows[Rows.opened].beginRow(origin: origin)
            effects.rows[Rows.opened].put(id)
            effects.rows[Rows.opened].put(ByteBuffer(kind.rawValue.utf8).span)
            effects.rows[Rows.opened].put(entity)
            if let device {
                effects.rows[Rows.opened].put(device)
            } else {
                effects.rows[Rows.opened].putNull()
            }
            effects.rows[Rows.opened].put(int8: episode)
            effects.rows[Rows.opened].put(int4: partition)
            effects.rows[Rows.opened].put(reason)
            effects.rows[Rows.opened].put(time)
        case .resolved where !effects.isDiscarding:
            effects.rows[Rows.resolved].beginRow(origin: origin)
            effects.rows[Rows.resolved].put(id)
            effects.rows[Rows.resolved].put(time)
        default: break
        }
        let key = device == nil ? ByteBuffer("fleet".utf8) : ByteBuffer(copying: entity)
        effects.emit(to: .alerts, key: key.span, at: time, origin: origin) { value in
            value.append(
                alert: id, kind: kind, isOpen: step == .opened, entity: entity, reason: reason,
                at: time)
        }
    }

    /// Every partition sees the same front-ends and numbers their losses alike, so all of them raise
    /// the same alert; the table keeps one.
    mutating func alert(
        _ change: WatchedTime.Change, at time: EventTime, origin: Int64, into effects: inout Effects
    ) {
        switch change {
        case .lost(let name):
            let index: Int
            if let known = frontEndAlerts.firstIndex(where: { $0.name == name }) {
                index = known
            } else {
                if frontEndAlerts.count >= WatchedTime.remembered {
                    frontEndAlerts.removeFirst()
                }
                frontEndAlerts.append(FrontEndAlert(name: name, episode: 0, isOpen: false))
                index = frontEndAlerts.count - 1
            }
            frontEndAlerts[index].episode += 1
            frontEndAlerts[index].isOpen = true
            emit(
                .opened, .frontEndLost, entity: name.span, device: nil,
                episode: Int64(frontEndAlerts[index].episode), reason: "lossy-or-silent", at: time,
                origin: origin, into: &effects)
        case .returned(let name):
            guard let index = frontEndAlerts.firstIndex(where: { $0.name == name && $0.isOpen })
            else { return }
            frontEndAlerts[index].isOpen = false
            emit(
                .resolved, .frontEndLost, entity: name.span, device: nil,
                episode: Int64(frontEndAlerts[index].episode), reason: "reports-again", at: time,
                origin: origin, into: &effects)
        }
    }
}
