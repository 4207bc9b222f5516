internal import EventLog
internal import Schemas

/// The front-ends' side.
extension World {
    func makeFrontEnds(_ count: Int, isShort: Bool) {
        report.frontEnds = count
        for index in 0..<count {
            frontEnds.append(
                SimulatedFrontEnd(
                    index: index,
                    // A small queue overflows when its front-end is cut off: heartbeats are shed.
                    capacity: isShort && options.script == nil && random.chance(400)
                        ? 4 * partitionCount + random.below(30) : 100_000,
                    drift: between(-200, 200), wallDrift: between(-200, 200),
                    wallOffset: options.script == nil && random.chance(200)
                        ? between(-3_600_000, 3_600_000) : between(-1_500, 1_500)))
            startFrontEnd(index)
        }
    }

    func startFrontEnd(_ index: Int) {
        frontEnds[index].start(boot: random.next(), monotonicStart: between(0, 1 << 40))
        note { "\(frontEnds[index].name) starts" }
        // No request is taken in before the first beacon is in the queue.
        beacon(index, frontEnds[index].boot)
    }

    func beacon(_ index: Int, _ boot: UInt64) {
        guard frontEnds[index].isUp, frontEnds[index].boot == boot else { return }
        guard frontEnds[index].hang != .process else {
            queue.add(.beacon(frontEnd: index, boot: boot), at: now + 500)
            return
        }
        let (isQueued, isLossy) = frontEnds[index].writeBeacon(
            partitions: partitionCount, at: now)
        if isLossy {
            touchDisturbance()
            note { "\(frontEnds[index].name) says that it lost heartbeats" }
        }
        if isQueued { report.beacons += 1 }
        queue.add(
            .beacon(frontEnd: index, boot: boot),
            at: now + (isQueued ? Self.beaconInterval : 500))
        pumpSoon(index)
    }

    func pumpSoon(_ index: Int) {
        queue.add(
            .pump(frontEnd: index, boot: frontEnds[index].boot), at: now + between(1, 40))
    }

    /// What waits goes to the log, if the way is open.
    func pump(_ index: Int, _ boot: UInt64) {
        guard frontEnds[index].isUp, frontEnds[index].boot == boot,
            !frontEnds[index].queue.isEmpty, frontEnds[index].hang != .process,
            !frontEnds[index].isCut
        else { return }
        guard !isLogDown else {
            queue.add(.pump(frontEnd: index, boot: boot), at: now + 500)
            return
        }
        let batches = frontEnds[index].takeQueue()
        if !isCalm, faultInterval != nil, random.chance(2) {
            frontEnds[index].putBack(batches)
            loseQueue(index)
            return
        }
        for batch in batches { store(batch, of: index) }
        if !isCalm, faultInterval != nil, random.chance(5) {
            count(.acknowledgementLost)
            note { "\(batches.count) batches of \(frontEnds[index].name) will come again" }
            frontEnds[index].putBack(batches)
            queue.add(.pump(frontEnd: index, boot: boot), at: now + between(50, 8_000))
        }
        ring()
    }

    /// Everything that waits in its queue fails.
    func loseQueue(_ index: Int) {
        let batches = frontEnds[index].takeQueue()
        for batch in batches { frontEnds[index].settle(batch, isStored: false) }
        count(.batchesFail)
        touchDisturbance()
        note { "\(batches.count) batches of \(frontEnds[index].name) fail" }
    }

    private func store(_ batch: SimulatedFrontEnd.Batch, of index: Int) {
        for (partition, record, note) in batch.records { append(record, to: partition, note) }
        frontEnds[index].settle(batch, isStored: true)
    }

    func wakeFrontEnd(_ index: Int, _ boot: UInt64) {
        guard frontEnds[index].boot == boot, frontEnds[index].hang != nil else { return }
        let waiting = frontEnds[index].endHang()
        note { "\(frontEnds[index].name) goes on and reads \(waiting.count) heartbeats" }
        for item in waiting {
            guard !devices[item.device].isSuspended else { continue }
            if frontEnds[index].hasJumped {
                for place in devices[item.device].sayings.indices
                where devices[item.device].sayings[place].time == item.sentAt {
                    devices[item.device].sayings[place].isUnplaced = true
                }
            }
            take(item.heartbeat, of: item.device, at: index)
        }
        endDisturbance()
        pumpSoon(index)
    }

    func crashFrontEnd(_ index: Int) {
        if frontEnds[index].hang != nil { endDisturbance() }
        frontEnds[index].crash()
        note { "\(frontEnds[index].name) crashes" }
    }

    /// An orderly end: what is queued is flushed, then a last beacon says goodbye.
    func leaveFrontEnd(_ index: Int) {
        let isOpen = !frontEnds[index].isCut && !isLogDown
        _ = frontEnds[index].writeBeacon(partitions: partitionCount, isLeaving: true, at: now)
        if isOpen { for batch in frontEnds[index].takeQueue() { store(batch, of: index) } }
        frontEnds[index].crash()
        note { "\(frontEnds[index].name) stops\(isOpen ? "" : " with what it could not send")" }
        ring()
    }
}
