internal import Alerts
internal import Schemas

/// What people were told: nothing missed, nothing twice after it was acknowledged, nothing while it was
/// silenced.
extension Oracle {
    func judgeReceivers(of world: World) {
        for receiver in world.dispatch.receivers {
            judgeOrder(receiver, in: world)
            judgeCompleteness(receiver, of: world)
        }
    }

    private struct Message: Hashable {
        var alert: DeviceID
        var event: AlertRound.Event
    }

    private func judgeOrder(_ receiver: SimulatedDispatch.Receiver, in world: World) {
        var acknowledged: Set<Message> = []
        for telling in receiver.told {
            let message = Message(alert: telling.alert, event: telling.event)
            if acknowledged.contains(message) {
                accuse(
                    "\(receiver.name) is sent \(told(message, in: world)) after it acknowledged it",
                    in: world)
            }
            if message.event == .resolved,
                !acknowledged.contains(Message(alert: message.alert, event: .firing))
            {
                accuse(
                    "\(receiver.name) is sent \(told(message, in: world)) before it fired",
                    in: world)
            }
            if telling.isAcknowledged { acknowledged.insert(message) }
        }
        var decided: Set<Message> = []
        for row in receiver.rows {
            let message = Message(alert: row.alert, event: row.event)
            if !decided.insert(message).inserted {
                accuse(
                    "\(receiver.name) is to be sent \(told(message, in: world)) twice", in: world)
            }
            if row.deliveredAt == nil {
                accuse(
                    "\(receiver.name) was never sent \(told(message, in: world))", in: world)
            }
            if row.event == .firing,
                world.dispatch.isSilenced(world.dispatch.alerts[row.alert], at: row.createdAt)
            {
                accuse("\(told(message, in: world)) is sent in spite of a silence", in: world)
            }
        }
    }

    private func told(_ message: Message, in world: World) -> String {
        let alert = world.dispatch.alerts[message.alert]
        return """
            \(alert?.kind ?? "an alert") of \(alert?.entity ?? "nobody") \
            (\(message.alert.shortened), \(message.event.rawValue))
            """
    }

    private func judgeCompleteness(
        _ receiver: SimulatedDispatch.Receiver, of world: World
    ) {
        var fired: Set<DeviceID> = []
        var resolved: Set<DeviceID> = []
        for row in receiver.rows {
            if row.event == .firing { fired.insert(row.alert) } else { resolved.insert(row.alert) }
        }
        // A dictionary's order differs in every process.
        for (id, alert) in world.dispatch.alerts.sorted(by: { $0.key < $1.key })
        where receiver.kinds?.contains(alert.kind) ?? true {
            let text = "\(alert.kind) of \(alert.entity) (\(id.shortened))"
            if fired.contains(id) {
                if alert.resolvedAt != nil, !resolved.contains(id) {
                    accuse("\(receiver.name) was never told that \(text) is over", in: world)
                }
                if alert.resolvedAt == nil, resolved.contains(id) {
                    accuse("\(receiver.name) was told that \(text) is over", in: world)
                }
            } else if mustBeTold(alert, in: world) {
                accuse(
                    """
                    \(receiver.name) was never told of \(text), open since \
                    \(World.text(alert.openedAt))
                    """, in: world)
            }
        }
    }

    /// Whether it was open for long enough, without a silence or a mass event that tells of it, while
    /// somebody dispatched.
    private func mustBeTold(_ alert: SimulatedDispatch.Alert, in world: World) -> Bool {
        let isOffline = alert.kind == AlertKind.offline.rawValue
        let settings = world.dispatch.settings
        let wait: Int64 = isOffline ? settings.groupWait + settings.massWithin + 5_000 : 5_000
        let end = alert.resolvedAt ?? world.now
        var blocked = world.dispatch.pauses
        blocked += world.dispatch.silences.filter { $0.device == nil || $0.device == alert.device }
            .map { ($0.from, $0.until + 2_000) }
        if isOffline {
            for id in world.dispatch.massEvents {
                guard let mass = world.dispatch.alerts[id] else { continue }
                blocked.append((mass.openedAt, mass.resolvedAt ?? world.now))
            }
        }
        var free = alert.openedAt
        for (from, to) in blocked.sorted(by: { $0 < $1 }) where to > free {
            if from - free >= wait { break }
            free = max(free, to)
        }
        let next = blocked.map(\.from).filter { $0 >= free }.min() ?? end
        return min(end, next) - free >= wait
    }
}
