internal import Bytes
internal import Pipeline
internal import Processors
internal import Schemas

/// What must hold when everything has come to rest.
extension Oracle {
    func judgeTheEnd(of world: World) {
        judgeRest(of: world)
        judgeStates(of: world)
        judgeAlerts(of: world)
        judgeHistory(of: world)
        judgeReceivers(of: world)
        for partition in minutes.indices { judgeMinutes(partition, of: world) }
        if let text = world.store.tables.violations.first { accuse(text, in: world) }
    }

    private func judgeRest(of world: World) {
        for partition in journal.indices {
            let next = world.store.nextOffset(of: Int32(partition)) ?? 0
            // The last beacons may be under way.
            if next + 200 < Int64(journal[partition].count) {
                accuse(
                    "partition \(partition) stands at \(next) of \(journal[partition].count)",
                    in: world)
            }
        }
        // It is told by the front-ends' stamps: where their clocks part, it ends late.
        let clocksAgree =
            world.report.faults[.clockSet] == nil
            && world.frontEnds.allSatisfy { abs($0.wallOffset) < 10_000 }
        if clocksAgree, world.store.ingestSilentAlerts.contains(where: { $0.resolved == nil }) {
            accuse("ingest-silent is open though beacons come", in: world)
        }
        var seen: [String: SimulatedLog.PublishedEvent] = [:]
        for event in world.log.published where event.topic == .alerts {
            if let first = seen[event.origin], first != event {
                accuse("event \(event.origin) was published as two different ones", in: world)
            }
            seen[event.origin] = event
        }
        if seen.count != alertEvents {
            accuse(
                "\(alertEvents) events of alerts were committed and \(seen.count) published",
                in: world)
        }
    }

    private func judgeStates(of world: World) {
        for (index, device) in world.devices.enumerated() {
            let word = lastWord(index)
            guard let known = status[index] else {
                if word != nil {
                    accuse("device \(index) has spoken and has no row", device: index, in: world)
                }
                continue
            }
            var expected: Set<String>
            if device.isSuspended {
                expected = ["suspended"]
            } else if let word {
                switch device.life {
                case .well: expected = ["healthy"]
                case .tunnelDown: expected = ["down"]
                case .stuck:
                    // How old a handshake is can only be told by the front-ends' clocks.
                    expected =
                        world.frontEnds.allSatisfy { abs($0.wallOffset) < 10_000 }
                        ? ["stale"] : ["stale", "healthy"]
                case .recovering: expected = ["recovering"]
                case .silent, .stopped:
                    // The last word of an agent that stops may have been lost on its way.
                    expected = [word.isStopped ? "stopped" : "offline"]
                }
            } else {
                expected = ["unknown"]
            }
            if !expected.contains(known.state) {
                accuse(
                    """
                    device \(index) is \(device.life.rawValue) since \(World.text(device.lifeSince)) \
                    and said to be \(known.state)
                    """, device: index, in: world)
            }
            if known.isFlapping {
                accuse("device \(index) is flapping in the calm", device: index, in: world)
            }
        }
    }

    private func judgeAlerts(of world: World) {
        for (index, ids) in open.enumerated() {
            let kinds = ids.compactMap { alerts[$0]?.kind }
            let state = status[index]?.state ?? ""
            let expected = ["offline", "stale", "down"].contains(state) ? [state] : []
            if kinds != expected {
                accuse(
                    "device \(index) is \(state) and its open alerts are \(kinds)", device: index,
                    in: world)
            }
        }
        for alert in alerts.values
        where alert.device == nil && alert.resolved == nil && alert.kind == "front-end-lost" {
            accuse("front-end-lost is open though every front-end reports", in: world)
        }
    }

    /// Ended intervals were judged as they came; here the one that holds.
    private func judgeHistory(of world: World) {
        for (index, known) in status.enumerated() {
            guard let known else { continue }
            if known.transitions != Int64(intervals[index].count) {
                accuse(
                    "device \(index) is in interval \(known.transitions) after \(intervals[index].count) others",
                    device: index, in: world)
            }
            if let last = intervals[index].last, last.ended != known.since {
                accuse(
                    "the last interval of device \(index) ends at \(World.text(last.ended)), and its state began at \(World.text(known.since))",
                    device: index, in: world)
            }
        }
    }

    /// `fleet_minutes` are the devices, by state, as of the record that ended the minute.
    private func judgeMinutes(_ partition: Int, of world: World) {
        var changes: [(origin: Int64, from: String?, to: String)] = []
        var first: [Int: Int64] = [:]
        for (offset, record) in journal[partition].enumerated() {
            if case .beacon = record.kind { continue }
            if first[record.subject] == nil { first[record.subject] = Int64(offset) }
        }
        for (index, device) in world.devices.enumerated() where device.partition == partition {
            guard let origin = first[index], let known = status[index] else { continue }
            let history = intervals[index]
            changes.append((origin, nil, history.first?.state ?? known.state))
            for (place, interval) in history.enumerated() {
                let next = place + 1 < history.count ? history[place + 1].state : known.state
                changes.append((interval.origin, interval.state, next))
            }
        }
        changes.sort { $0.origin < $1.origin }
        var counts: [String: Int64] = [:]
        var place = 0
        var row = 0
        let rows = minutes[partition]
        while row < rows.count {
            let origin = rows[row].origin
            while place < changes.count, changes[place].origin <= origin {
                if let from = changes[place].from { counts[from, default: 0] -= 1 }
                counts[changes[place].to, default: 0] += 1
                place += 1
            }
            var stored: [String: Int64] = [:]
            while row < rows.count, rows[row].origin == origin {
                stored[rows[row].state] = rows[row].devices
                row += 1
            }
            let expected = counts.filter { $0.value != 0 && $0.key != "removed" }
            if stored != expected {
                func text(_ counts: [String: Int64]) -> String {
                    counts.sorted { $0.key < $1.key }.map { "\($0.key) \($0.value)" }
                        .joined(separator: ", ")
                }
                return accuse(
                    "fleet_minutes of partition \(partition) at record \(origin): \(text(stored)) instead of \(text(expected))",
                    in: world)
            }
        }
    }
}
