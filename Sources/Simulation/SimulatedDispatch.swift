internal import Alerts
internal import Schemas

/// The tables of alerts and deliveries of the simulated database, the dispatcher's decisions, which
/// are production's, and receivers that are down now and then. Times are the world's.
///
/// What stands in the tables survives every crash; what a dispatcher knows besides does not, and is
/// read from them anew.
struct SimulatedDispatch {
    struct Alert {
        var kind: String
        var device: DeviceID?
        /// What orders its messages: the device, or whatever else it is about.
        var entity: String
        var openedAt: Int64
        var resolvedAt: Int64?
    }

    /// A row of `alert_dispatch`.
    struct Decision {
        var state: AlertDispatch.State
        var group: DeviceID?
        var seenAt: Int64
        var decidedAt: Int64
    }

    /// A row of `alert_deliveries`.
    struct Delivery {
        var alert: DeviceID
        var entity: String
        var event: AlertRound.Event
        var attempts = 0
        var createdAt: Int64
        var notBefore: Int64
        var deliveredAt: Int64?
    }

    /// What a receiver was sent: it answered, or its answer was lost on its way.
    struct Telling {
        var time: Int64
        var alert: DeviceID
        var event: AlertRound.Event
        var isAcknowledged: Bool
    }

    struct Receiver {
        var name: String
        /// `nil`: all.
        var kinds: Set<String>?
        var isDown = false
        var rows: [Delivery] = []
        /// Rows before it are delivered.
        var firstWaiting = 0
        var wasFailing = false
        var told: [Telling] = []
    }

    struct Silence {
        var device: DeviceID?
        var from: Int64
        var until: Int64
    }

    private(set) var alerts: [DeviceID: Alert] = [:]
    /// Table `alert_news`.
    private var news: [DeviceID] = []
    private(set) var decisions: [DeviceID: Decision] = [:]
    private var massEpisode: Int64 = 0
    private(set) var massEvents: [DeviceID] = []
    var receivers: [Receiver]
    var silences: [Silence] = []
    let settings: AlertDispatchSettings
    /// What the process with the lease knows; `nil`: nobody has it, or it has to read the tables.
    private var dispatch: AlertDispatch?
    /// Before this nobody takes the lease.
    private var leaseNotBefore: Int64 = 0
    /// When nobody dispatched, or the tables could not be reached: from, to.
    private(set) var pauses: [(from: Int64, to: Int64)] = []
    private var lastRound: Int64 = 0

    init(massMinimum: Int64) {
        var settings = AlertDispatchSettings()
        settings.massMinimum = massMinimum
        self.settings = settings
        receivers = [
            Receiver(name: "everything"),
            Receiver(
                name: "offline-only",
                kinds: [AlertKind.offline.rawValue, AlertKind.massOffline.rawValue]),
        ]
    }

    // MARK: - Table alerts

    mutating func opened(
        _ id: DeviceID, kind: String, device: DeviceID?, entity: String, at now: Int64
    ) {
        guard alerts[id] == nil else { return }
        alerts[id] = Alert(kind: kind, device: device, entity: entity, openedAt: now)
        news.append(id)
    }

    mutating func resolved(_ id: DeviceID, at now: Int64) {
        guard alerts[id] != nil, alerts[id]?.resolvedAt == nil else { return }
        alerts[id]?.resolvedAt = now
        news.append(id)
    }

    // MARK: - The dispatcher

    /// Its process is gone; another one takes the lease later.
    mutating func crash(until time: Int64) {
        dispatch = nil
        leaseNotBefore = max(leaseNotBefore, time)
    }

    func holdingSilences(at now: Int64) -> AlertSilences {
        var holding = AlertSilences()
        for silence in silences where silence.from <= now && now < silence.until {
            holding.add(kind: nil, device: silence.device)
        }
        return holding
    }

    func isSilenced(_ alert: Alert?, at time: Int64) -> Bool {
        guard let alert else { return false }
        return holdingSilences(at: time).match(kind: alert.kind, device: alert.device)
    }

    /// One transaction, as the dispatcher makes it of what the tables hold.
    /// - Parameters:
    ///   - isRolledBack: the session is lost before its end.
    ///   - onlineDevices: devices that report, as `device_status` has them.
    mutating func round(
        at now: Int64, isDatabaseDown: Bool, isRolledBack: Bool, onlineDevices: () -> Int64
    ) {
        if now - lastRound > 2_500 { pauses.append((lastRound, now)) }
        guard !isDatabaseDown, now >= leaseNotBefore else {
            dispatch = nil
            return
        }
        var (next, found) = dispatch.map { ($0, []) } ?? restore()
        found += news.map { id in
            AlertDispatch.News(
                id: id, kind: alerts[id]?.kind ?? "", device: alerts[id]?.device,
                isOpen: alerts[id]?.resolvedAt == nil)
        }
        var round = AlertRound()
        let silences = holdingSilences(at: now)
        next.take(found, silences: silences, at: now, into: &round)
        next.decide(
            onlineDevices: next.wantsDeviceCount ? onlineDevices() : nil, silences: silences,
            at: now,
            into: &round)
        guard !isRolledBack else {
            dispatch = nil
            return
        }
        news.removeAll()
        write(round, at: now)
        dispatch = next
        lastRound = now
    }

    private func restore() -> (AlertDispatch, [AlertDispatch.News]) {
        var entries: [DeviceID: AlertDispatch.Entry] = [:]
        var found: [AlertDispatch.News] = []
        var mass: AlertDispatch.MassEvent?
        for (id, decision) in decisions where decision.state != .ended {
            guard let alert = alerts[id] else { continue }
            entries[id] = AlertDispatch.Entry(
                kind: alert.kind, device: alert.device, state: decision.state,
                group: decision.group, seenAt: decision.seenAt, decidedAt: decision.decidedAt)
            if alert.resolvedAt != nil {
                found.append(.init(id: id, kind: alert.kind, device: alert.device, isOpen: false))
            }
            if alert.kind == AlertKind.massOffline.rawValue {
                let members = decisions.values.filter { $0.group == id }
                mass = AlertDispatch.MassEvent(
                    id: id, members: Int64(members.count),
                    ended: Int64(members.count { $0.state == .ended }))
            }
        }
        for (id, alert) in alerts where alert.resolvedAt == nil && decisions[id] == nil {
            found.append(.init(id: id, kind: alert.kind, device: alert.device, isOpen: true))
        }
        return (
            AlertDispatch(
                restoring: entries, mass: mass, nextEpisode: massEpisode, settings: settings), found
        )
    }

    private mutating func write(_ round: AlertRound, at now: Int64) {
        if let opened = round.opened {
            massEpisode = opened.episode + 1
            massEvents.append(opened.id)
            alerts[opened.id] = Alert(
                kind: AlertKind.massOffline.rawValue, entity: "fleet", openedAt: now)
        }
        if let resolved = round.resolved { alerts[resolved]?.resolvedAt = now }
        for (id, change) in round.changes {
            if change.state == .ended {
                decisions[id]?.state = .ended
                decisions[id]?.decidedAt = now
            } else {
                decisions[id] = Decision(
                    state: change.state, group: change.group,
                    seenAt: decisions[id]?.seenAt ?? now, decidedAt: now)
            }
        }
        for message in round.messages {
            guard let alert = alerts[message.id] else { continue }
            for index in receivers.indices {
                let takes =
                    switch message.event {
                    case .firing: receivers[index].kinds?.contains(alert.kind) ?? true
                    // Whoever was sent that it fires.
                    case .resolved:
                        receivers[index].rows.contains {
                            $0.alert == message.id && $0.event == .firing
                        }
                    }
                guard takes else { continue }
                receivers[index].rows.append(
                    Delivery(
                        alert: message.id, entity: alert.entity, event: message.event,
                        createdAt: now, notBefore: now))
            }
        }
    }

    // MARK: - Receivers

    /// Sends what is due: of each entity the oldest that waits.
    /// - Parameters:
    ///   - losesAnswer: whether the receiver took it and its answer does not arrive.
    mutating func deliver(at now: Int64, isDatabaseDown: Bool, losesAnswer: () -> Bool) {
        guard !isDatabaseDown else { return }
        for index in receivers.indices { deliver(to: index, at: now, losesAnswer) }
    }

    private mutating func deliver(to index: Int, at now: Int64, _ losesAnswer: () -> Bool) {
        var busy: Set<String> = []
        var recovers = false
        for row in receivers[index].firstWaiting..<receivers[index].rows.count {
            let delivery = receivers[index].rows[row]
            guard delivery.deliveredAt == nil, busy.insert(delivery.entity).inserted,
                delivery.notBefore <= now
            else { continue }
            let isDown = receivers[index].isDown
            let isLost = !isDown && losesAnswer()
            if !isDown {
                receivers[index].told.append(
                    Telling(
                        time: now, alert: delivery.alert, event: delivery.event,
                        isAcknowledged: !isLost))
            }
            if isDown || isLost {
                receivers[index].rows[row].attempts += 1
                receivers[index].rows[row].notBefore =
                    now + min(300_000, 1_000 << Int64(min(delivery.attempts, 9)))
                receivers[index].wasFailing = true
            } else {
                receivers[index].rows[row].deliveredAt = now
                recovers = recovers || receivers[index].wasFailing
            }
        }
        if recovers {
            receivers[index].wasFailing = false
            for row in receivers[index].firstWaiting..<receivers[index].rows.count {
                receivers[index].rows[row].notBefore = now
            }
        }
        while receivers[index].firstWaiting < receivers[index].rows.count,
            receivers[index].rows[receivers[index].firstWaiting].deliveredAt != nil
        { receivers[index].firstWaiting += 1 }
    }

    var isEverythingDelivered: Bool {
        receivers.allSatisfy { $0.firstWaiting == $0.rows.count }
    }
}
