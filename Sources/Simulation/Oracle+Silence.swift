internal import Pipeline
internal import Processors
internal import Schemas

/// Who is silent in truth, and who is said to be.
extension Oracle {
    /// Clocks drift by 200 parts in a million, and are read in whole milliseconds.
    static let drift: Int64 = 100
    /// A heartbeat that was stamped after its front-end's clock was set stands somewhere between that
    /// front-end's beacons around it.
    static let unplaced: Int64 = 5_500
    /// Nobody is expelled sooner after its last good beacon.
    static let expulsion: Int64 = 29_000
    /// From the last disturbance until watched time runs again: what was held up comes, the beacon
    /// after it, and one more of each front-end that has to join again.
    static let recovery: Int64 = 16_000
    /// Two beacons' way to the table: a tick is between them, places differ by up to the lead, and the
    /// commit takes a second or so.
    static let lag: Int64 = 14_000
    /// From a device's word to the end of its alert.
    static let echo: Int64 = 5_000

    /// The settings that a record was judged by.
    private func settings(
        _ partition: Int, _ offset: Int64, in world: World
    ) -> TunnelHealthSettings {
        let history = world.store.settingsHistory[Int32(partition)] ?? []
        let revision = history.last { $0.offset <= offset }?.revision
        return (world.variants.first { $0.revision == revision } ?? world.variants[0]).values
    }

    private func threshold(
        _ index: Int, _ settings: TunnelHealthSettings, in world: World
    ) -> Int64 {
        let device = world.devices[index]
        return device.hasOwnInterval
            ? settings.missedIntervals * device.interval : settings.offlineAfter
    }

    /// A device was called offline by the record at `offset`: between two of its words, or since its
    /// last one, it must truly have been silent for the threshold, and nothing that it said after that
    /// may have been read before.
    func judgeOffline(_ index: Int, _ partition: Int, _ offset: Int64, in world: World) {
        let settings = settings(partition, offset, in: world)
        let threshold = threshold(index, settings, in: world) + settings.jitter
        let decided = journal[partition][Int(offset)].time
        let read = lastRead(index, before: offset)
        var end = decided
        var sought: SimulatedDevice.Saying?
        for saying in world.devices[index].sayings.reversed() where saying.time <= decided {
            if isOutOfSight(saying, partition, offset, until: decided) { continue }
            if sought == nil {
                // Silence is measured by the front-end that heard it, which may have told of more.
                end = max(end, vouched(partition, saying.frontEnd, upTo: offset))
                sought = saying
            }
            let slack = Self.drift + (saying.isUnplaced ? Self.unplaced : 0)
            if end - saying.time >= threshold - slack { return }
            if saying.time <= read { break }
            end = saying.time
        }
        guard let sought else { return }
        accuse(
            """
            device \(index) is called offline by what was known at \(World.text(decided)), and it \
            spoke to \(world.frontEnds[sought.frontEnd].name) at \(World.text(sought.time))
            """, device: index, in: world)
    }

    /// Up to when a front-end has told of all that it heard.
    private func vouched(_ partition: Int, _ frontEnd: Int, upTo offset: Int64) -> Int64 {
        wells[partition][frontEnd].last { $0.offset <= offset }?.time ?? .min
    }

    /// When the newest heartbeat was received of all that stand before `offset`.
    private func lastRead(_ index: Int, before offset: Int64) -> Int64 {
        var newest = Int64.min
        for word in heard[index].reversed() where word.offset < offset {
            newest = max(newest, word.time)
            // What is repeated comes some seconds later, not minutes.
            if newest - word.time > 120_000 { break }
        }
        return newest
    }

    /// Whether the front-end that heard it had been silent for so long that the others went on
    /// without it.
    private func isOutOfSight(
        _ saying: SimulatedDevice.Saying, _ partition: Int, _ offset: Int64, until decided: Int64
    ) -> Bool {
        var later = decided
        for beacon in wells[partition][saying.frontEnd].reversed()
        where beacon.offset <= offset && beacon.time < later {
            if later - beacon.time >= Self.expulsion { return true }
            later = beacon.time
            if later < saying.time - 60_000 { return false }
        }
        return later >= Self.expulsion
    }

    /// A front-end is said to be lost: it must have been silent, or have lost heartbeats, for as long.
    func judgeLost(_ name: String, _ partition: Int, _ offset: Int64, in world: World) {
        guard let frontEnd = world.frontEnds.first(where: { $0.name.description == name }) else {
            return accuse("front-end-lost is about \(name), which there is not", in: world)
        }
        let decided = journal[partition][Int(offset)].time
        let last = wells[partition][frontEnd.index].last { $0.offset < offset }
        guard let last, decided - last.time < Self.expulsion else { return }
        accuse(
            """
            \(name) is said to be lost by what was known at \(World.text(decided)), and it reported at \
            \(World.text(last.time))
            """, in: world)
    }

    /// The newest word of a device that reached the log; of two at one time the later one in it.
    func lastWord(_ index: Int) -> Heard? {
        var newest: Heard?
        for word in heard[index].reversed() {
            if let known = newest {
                if known.time - word.time > 120_000 { break }
                if word.time <= known.time { continue }
            }
            newest = word
        }
        return newest
    }

    /// What can be demanded at any time: late enough after the last disturbance, alerts are as the truth
    /// is.
    func look(at world: World) {
        guard world.disturbances == 0 else { return }
        let current = world.variants[world.variant].values
        for (index, device) in world.devices.enumerated() where !device.isSuspended {
            let isOpen = open[index].contains { alerts[$0]?.kind == "offline" }
            guard let last = device.sayings.last else {
                if isOpen {
                    accuse("device \(index) never spoke and is offline", device: index, in: world)
                }
                continue
            }
            if isOpen {
                let silence = world.now - last.time
                if last.time > world.lastDisturbance + Self.recovery, silence > Self.echo,
                    silence < threshold(index, current, in: world)
                {
                    accuse(
                        """
                        device \(index) has spoken at \(World.text(last.time)) and its offline alert \
                        is open
                        """, device: index, in: world)
                } else if !last.isUnplaced, world.now > world.lastDisturbance + 25_000,
                    silence > Self.echo,
                    silence < threshold(index, current, in: world) - Self.lag
                {
                    accuse(
                        """
                        device \(index) has been silent since \(World.text(last.time)), which these \
                        settings allow, and its offline alert is open
                        """, device: index, in: world)
                }
            } else if !device.speaks, let known = status[index], !known.isFlapping,
                let word = lastWord(index), !word.isStopped
            {
                let since = max(
                    last.time, device.resumedAt, world.lastDisturbance + Self.recovery)
                // The clock was set: a place may lie as far ahead as places may.
                let ahead: Int64 = last.isUnplaced ? 15_000 : 0
                if world.now > since + threshold(index, current, in: world) + Self.lag + ahead {
                    accuse(
                        """
                        device \(index) has been silent since \(World.text(last.time)) and no \
                        offline alert is open
                        """, device: index, in: world)
                }
            }
        }
    }
}
