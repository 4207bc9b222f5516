internal import Alerts
internal import Schemas

/// The side of the people who are woken.
extension World {
    private static let dispatchInterval: Int64 = 1_000

    /// A look of the dispatcher's at the tables, and of the receivers' threads.
    func dispatchAlerts() {
        queue.add(.dispatch, at: now + Self.dispatchInterval)
        for (number, alert) in store.ingestSilentAlerts.enumerated() {
            let id = DeviceID(high: 0, low: UInt64(number + 1))
            dispatch.opened(
                id, kind: AlertKind.ingestSilent.rawValue, device: nil, entity: "fleet", at: now)
            if alert.resolved != nil { dispatch.resolved(id, at: now) }
        }
        let isStormy = !isCalm && faultInterval != nil
        dispatch.round(
            at: now, isDatabaseDown: isDatabaseDown, isRolledBack: isStormy && random.chance(5),
            onlineDevices: { oracle.devicesThatReport })
        dispatch.deliver(at: now, isDatabaseDown: isDatabaseDown) {
            isStormy && random.chance(50)
        }
    }

    func crashDispatcher(_ length: Int64) {
        count(.dispatcherCrash)
        note { "the dispatcher crashes; another takes over after \(Self.text(length))" }
        dispatch.crash(until: now + length)
    }

    func stopReceiver(_ index: Int, _ length: Int64) {
        guard !dispatch.receivers[index].isDown else { return }
        count(.receiverDown)
        dispatch.receivers[index].isDown = true
        note { "receiver \(dispatch.receivers[index].name) is down for \(Self.text(length))" }
        queue.add(.receiverUp(index), at: now + length)
    }

    func silence(_ device: Int?, _ length: Int64) {
        count(.silence)
        dispatch.silences.append(
            SimulatedDispatch.Silence(
                device: device.map { devices[$0].id }, from: now, until: now + length))
        note {
            "\(device.map { "device \($0)" } ?? "everything") is silenced for \(Self.text(length))"
        }
    }

    /// What the receivers took, for the report.
    func reportTellings() {
        for receiver in dispatch.receivers {
            var counts: [String: Int] = [:]
            for telling in receiver.told where telling.isAcknowledged {
                let kind = dispatch.alerts[telling.alert]?.kind ?? "unknown"
                counts["\(kind) \(telling.event.rawValue)", default: 0] += 1
            }
            report.told[receiver.name] = counts
        }
        report.massEvents = dispatch.massEvents.count
    }
}
