internal import Pipeline
internal import System

/// What goes wrong.
extension World {
    func injectFault() {
        guard !isCalm, let faultInterval else { return }
        queue.add(.fault, at: now + between(faultInterval / 4, faultInterval * 7 / 4))
        let longest = options.duration == nil ? 90_000 as Int64 : 240_000
        let length = random.chance(500) ? between(500, 12_000) : between(1_000, longest)
        switch random.below(19) {
        case 0, 1: disturbFrontEnd(.frontEndCrash, anyFrontEnd, length)
        case 2: disturbFrontEnd(.frontEndLeaves, anyFrontEnd, length)
        case 3, 4: disturbFrontEnd(.frontEndCut, anyFrontEnd, length)
        case 5:
            disturbFrontEnd(
                random.chance(500) ? .loopHangs : .processHangs, anyFrontEnd, length)
        case 6:
            let size = [2_000, 30_000, 3_600_000][random.below(3)] as Int64
            setClock(anyFrontEnd, by: between(-size, size))
        case 7: disturbLog(length)
        case 8: lag(random.below(partitionCount), length)
        case 9: disturbDatabase(length)
        case 10, 11: disturbWorkers(length)
        case 12: moveWorkers(starting: random.chance(400))
        case 13: if options.reloads { reload(random.below(variants.count)) }
        case 14: vanish(length)
        case 15: crashDispatcher(between(0, 30_000))
        case 16: stopReceiver(random.below(dispatch.receivers.count), length)
        case 17: silence(random.chance(200) ? nil : random.below(devices.count), length)
        default: suspendOrResume()
        }
    }

    private var anyFrontEnd: Int { random.below(frontEnds.count) }

    func disturbFrontEnd(_ fault: WorldFault, _ index: Int, _ length: Int64) {
        guard frontEnds[index].isUp else { return }
        switch fault {
        case .frontEndCut:
            guard !frontEnds[index].isCut else { return }
            frontEnds[index].isCut = true
            note { "\(frontEnds[index].name) is cut from the log for \(Self.text(length))" }
            queue.add(.joinLog(frontEnd: index), at: now + length)
        case .loopHangs, .processHangs:
            guard frontEnds[index].hang == nil else { return }
            frontEnds[index].beginHang(fault == .loopHangs ? .loop : .process, at: now)
            note { "\(frontEnds[index].name): \(fault.rawValue) for \(Self.text(length))" }
            queue.add(.wakeFrontEnd(index, boot: frontEnds[index].boot), at: now + length)
        case .frontEndLeaves:
            guard frontEnds[index].hang == nil else { return }
            leaveFrontEnd(index)
            queue.add(.startFrontEnd(index), at: now + length)
        default:
            crashFrontEnd(index)
            queue.add(.startFrontEnd(index), at: now + length)
        }
        count(fault)
        beginDisturbance()
    }

    func setClock(_ index: Int, by step: Int64) {
        frontEnds[index].setWall(by: step)
        count(.clockSet)
        touchDisturbance()
        note { "the clock of \(frontEnds[index].name) is set by \(step) ms" }
    }

    func disturbLog(_ length: Int64) {
        guard !isLogDown else { return }
        isLogDown = true
        log.setDown(true)
        count(.logOutage)
        beginDisturbance()
        note { "the log is down for \(Self.text(length))" }
        queue.add(.logUp, at: now + length)
    }

    func lag(_ partition: Int, _ length: Int64) {
        guard lagging.insert(partition).inserted else { return }
        log.setStalled(partition, true)
        count(.partitionLags)
        beginDisturbance()
        note { "partition \(partition) lags for \(Self.text(length))" }
        queue.add(.partitionUp(partition), at: now + length)
    }

    func disturbDatabase(_ length: Int64) {
        guard !isDatabaseDown else { return }
        isDatabaseDown = true
        store.setDown(true)
        count(.databaseOutage)
        beginDisturbance()
        note { "the database is down for \(Self.text(length))" }
        queue.add(.databaseUp, at: now + length)
    }

    // MARK: - Workers

    func startWorker() {
        memberCount += 1
        let consumer = log.join()
        let session = store.connect()
        let worker = WorldWorker(
            consumer: consumer, producer: SimulatedProducer(log: log), store: session,
            settings: workerSettings, processor: variants[variant], waker: Waker(), now: now)
        members.append(Member(memberCount, worker, consumer, session, wake: now))
        note { "worker \(memberCount) starts" }
        log.rebalance()
        ringAll()
    }

    func crashWorker(_ index: Int) {
        let member = members.remove(at: index)
        member.session.abandon()
        log.leave(member.consumer.member)
        if member.pausedUntil > 0 { endDisturbance() }
        note { "worker \(member.number) crashes" }
        touchDisturbance()
        // The group notices it after a while.
        queue.add(.rebalance, at: now + between(0, 10_000))
    }

    private func disturbWorkers(_ length: Int64) {
        touchDisturbance()
        guard !members.isEmpty else { return }
        let index = random.below(members.count)
        switch random.below(4) {
        case 0, 1:
            count(.workerCrash)
            crashWorker(index)
            queue.add(.startWorker, at: now + length)
        case 2:
            count(.workerStops)
            note { "worker \(members[index].number) is told to stop" }
            members[index].worker.stop()
            members[index].wake = now
            queue.add(.startWorker, at: now + length)
        default:
            guard members[index].pausedUntil == 0 else { return }
            count(.workerPauses)
            beginDisturbance()
            members[index].pausedUntil = now + length
            let number = members[index].number
            note { "worker \(number) stands still for \(Self.text(length))" }
            queue.add(.resume(member: number), at: now + length)
        }
    }

    func moveWorkers(starting isStarting: Bool) {
        touchDisturbance()
        if members.count < 3, isStarting {
            count(.workerStarts)
            startWorker()
        } else {
            count(.rebalance)
            note { "partitions are given anew" }
            log.rebalance()
            ringAll()
        }
    }

    func reload(_ number: Int) {
        variant = number
        count(.reload)
        touchDisturbance()
        note { "settings change to \"\(variants[variant].text)\" (stale and offline after, in s)" }
        for member in members { member.worker.reconfigure(variants[variant]) }
    }

    // MARK: - Devices and operators

    /// Their network breaks, and they all come back at once.
    private func vanish(_ length: Int64) {
        let share = [300, 700, 1_000][random.below(3)]
        var gone: [Int] = []
        for index in devices.indices where devices[index].life == .well {
            if random.chance(share) { gone.append(index) }
        }
        guard !gone.isEmpty else { return }
        count(.massOutage)
        note { "\(gone.count) devices vanish together for \(Self.text(length))" }
        for index in gone { change(index, to: .silent) }
        queue.add(.returnAll(gone), at: now + length)
    }

    private func suspendOrResume() {
        let index = random.below(devices.count)
        count(.suspension)
        devices[index].isSuspended.toggle()
        devices[index].version += 1
        if !devices[index].isSuspended { devices[index].resumedAt = now }
        note { "device \(index) is \(devices[index].isSuspended ? "suspended" : "resumed")" }
        tellLifecycle(of: index)
    }

    /// From here on nothing goes wrong; what goes wrong with devices stays as it is.
    func becomeCalm() {
        note { "the calm begins" }
        isCalm = true
        for index in frontEnds.indices {
            if !frontEnds[index].isUp { handle(.startFrontEnd(index)) }
            handle(.joinLog(frontEnd: index))
            handle(.wakeFrontEnd(index, boot: frontEnds[index].boot))
        }
        handle(.logUp)
        handle(.databaseUp)
        for partition in 0..<partitionCount { handle(.partitionUp(partition)) }
        for member in members { handle(.resume(member: member.number)) }
        for index in dispatch.receivers.indices { dispatch.receivers[index].isDown = false }
        log.calm()
        store.calm()
        if members.isEmpty { startWorker() }
        log.rebalance()
        ringAll()
        disturbances = 0
        lastDisturbance = now
    }
}
