internal import Bytes
internal import EventLog
internal import Schemas

/// The devices' side.
extension World {
    func makeDevices(_ count: Int, isShort: Bool) {
        for index in 0..<count {
            let hasOwn = options.script == nil && random.chance(100)
            let interval: Int64 = hasOwn ? 60_000 : 30_000
            let device = SimulatedDevice(
                id: DeviceID(
                    high: random.next() & ~0xF000 | 0x4000,
                    low: random.next() & 0x3FFF_FFFF_FFFF_FFFF | 0x8000_0000_0000_0000),
                partitions: partitionCount, interval: interval, hasOwnInterval: hasOwn,
                clockOffset: options.script == nil && !hasOwn && random.chance(150)
                    ? -between(60_000, 3_600_000) : 0,
                frontEnd: random.below(frontEnds.count))
            devices.append(device)
            // Some are known by the registry before they speak, those with an interval always.
            if hasOwn || random.chance(500) {
                queue.add(.lifecycle(device: index), at: between(0, 5_000))
            }
            queue.add(.beat(device: index, turn: 0), at: 6_000 + between(0, 30_000))
            guard options.script == nil else { continue }
            queue.add(.life(device: index), at: lifeTime(isShort: isShort))
            if random.chance(60) { flappers.insert(index) }
        }
    }

    /// A bad cable: down and up again every minute or so.
    private func flap(_ index: Int) {
        change(index, to: devices[index].life == .well ? .tunnelDown : .well)
        queue.add(.life(device: index), at: now + between(62_000, 75_000))
    }

    private func lifeTime(isShort: Bool) -> Int64 {
        now + (isShort ? between(60_000, 900_000) : between(300_000, 7_200_000))
    }

    func beat(_ index: Int, _ turn: Int) {
        guard devices[index].turn == turn, devices[index].speaks else { return }
        queue.add(
            .beat(device: index, turn: turn),
            at: now + devices[index].interval + between(-500, 500))
        send(index, number: 0)
    }

    private func send(_ index: Int, number: Int) {
        // The load balancer keeps a device where it is, unless that did not answer.
        if number > 0 || random.chance(20) {
            devices[index].frontEnd = random.below(frontEnds.count)
        }
        // The last word of an agent that stops is said though it is silent afterwards.
        attempt(index, devices[index].turn, number, devices[index].frontEnd)
    }

    func attempt(_ index: Int, _ turn: Int, _ number: Int, _ target: Int) {
        guard devices[index].turn == turn,
            devices[index].speaks || devices[index].life == .stopped
        else { return }
        guard frontEnds[target].isUp else {
            retry(index, turn, number, after: between(1_000, 3_000))
            return
        }
        if devices[index].isSuspended { return }
        let heartbeat = devices[index].heartbeat(at: now)
        let saying = SimulatedDevice.Saying(
            time: now, frontEnd: target, saysStopped: heartbeat.status == .stopped,
            isUnplaced: frontEnds[target].hasJumped)
        devices[index].sayings.append(saying)
        note(device: index) { "device \(index) speaks to \(frontEnds[target].name)" }
        guard frontEnds[target].hang == nil else {
            frontEnds[target].sockets.append(
                SimulatedFrontEnd.Waiting(device: index, heartbeat: heartbeat, sentAt: now))
            retry(index, turn, number, after: 10_000)
            return
        }
        take(heartbeat, of: index, at: target)
    }

    private func retry(_ index: Int, _ turn: Int, _ number: Int, after delay: Int64) {
        guard number < 3 else { return }
        queue.add(
            .attempt(
                device: index, turn: turn, number: number + 1,
                frontEnd: random.below(frontEnds.count)), at: now + delay)
    }

    /// A front-end has read a heartbeat.
    func take(_ heartbeat: Heartbeat, of index: Int, at target: Int) {
        report.heartbeats += 1
        let device = devices[index]
        let isTaken = frontEnds[target].accept(
            heartbeat, of: index, key: device.key, partition: device.partition, at: now)
        if isTaken {
            pumpSoon(target)
        } else {
            count(.heartbeatShed)
            touchDisturbance()
            note { "\(frontEnds[target].name) sheds a heartbeat of device \(index)" }
        }
    }

    // MARK: - Their lives

    func changeLife(of index: Int) {
        guard !isCalm else { return }
        if flappers.contains(index) { return flap(index) }
        let isShort = options.duration == nil
        queue.add(.life(device: index), at: lifeTime(isShort: isShort))
        if devices[index].life == .well || random.chance(300) {
            let lives = SimulatedDevice.Life.allCases
            change(
                index, to: [.silent, .silent, lives[random.below(lives.count)]][random.below(3)])
        } else {
            change(index, to: .well)
        }
        // Some come back soon.
        if devices[index].life != .well, random.chance(600) {
            queue.add(.returnAll([index]), at: now + between(1_000, 240_000))
        }
    }

    func change(_ index: Int, to life: SimulatedDevice.Life) {
        guard devices[index].life != life else { return }
        count(.deviceFails)
        devices[index].change(to: life, at: now)
        note { "device \(index) is \(life.rawValue) from here on" }
        if devices[index].speaks {
            // An agent that starts, or learns of a change, speaks at once.
            queue.add(
                .beat(device: index, turn: devices[index].turn), at: now + between(0, 1_000))
        } else if life == .stopped {
            queue.add(
                .attempt(
                    device: index, turn: devices[index].turn, number: 0,
                    frontEnd: devices[index].frontEnd), at: now)
        }
    }

    func returnAll(_ indices: [Int]) {
        guard !isCalm else { return }
        for index in indices { change(index, to: .well) }
    }

    // MARK: - The registry

    /// The registry's outbox tells what an operator did.
    func tellLifecycle(of index: Int) {
        guard !isLogDown else {
            queue.add(.lifecycle(device: index), at: now + 1_000)
            return
        }
        let device = devices[index]
        var lifecycle = Lifecycle(
            device: device.id,
            kind: device.version == 1 ? .provisioned : device.isSuspended ? .suspended : .resumed,
            version: device.version)
        if device.hasOwnInterval { lifecycle.expectedIntervalMilliseconds = device.interval }
        var value = ByteBuffer()
        value.append(lifecycle)
        append(
            SimulatedRecord(
                key: device.key, value: value,
                timestamp: EventTime(milliseconds: Self.epoch + now)), to: device.partition,
            Oracle.Record(kind: .lifecycle, subject: index, time: now))
        ring()
    }

    func append(_ record: SimulatedRecord, to partition: Int, _ note: Oracle.Record) {
        log.append(record, to: partition)
        oracle.note(note, in: partition)
        if case .heartbeat = note.kind {
            self.note(device: note.subject) {
                """
                record \(oracle.journal[partition].count - 1) of partition \(partition): device \
                \(note.subject) as of \(Self.text(note.time)), stamped \
                \(Self.text(record.timestamp.milliseconds - Self.epoch))
                """
            }
        }
    }
}
