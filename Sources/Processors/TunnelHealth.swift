import Bytes
public import Schemas

/// Judges every device's tunnel from its heartbeats, and its silence on the partition's watched time.
///
/// One value holds one partition. What it decides follows from the records alone: timers fire on
/// watched time, before the record that moved it is applied, in the order (deadline, device id).
public struct TunnelHealth: Processor {
    public typealias Settings = TunnelHealthSettings
    public typealias Event = HeartbeatsEvent
    public typealias Decoder = HeartbeatsDecoder

    public static var source: Topic { .heartbeats }
    public static var outputTopics: [Topic] { [.alerts, .deadLetters] }

    let partition: Int32
    var settings: TunnelHealthSettings
    var watched: WatchedTime
    var devices = DeviceTable<DeviceSlot>()
    var wheel = TimerWheel()
    /// Slots looked at whenever watched time moves: flapping devices, and devices whose deadline
    /// came nearer than their place in the wheel.
    var listed: ContiguousArray<UInt32> = []
    /// Devices by state.
    var counts = InlineArray<9, Int64>(repeating: 0)
    /// Episodes of `front-end-lost` by front-end, and whether the last one is open.
    var frontEndAlerts: ContiguousArray<FrontEndAlert> = []
    /// The minute that is being counted, in minutes since 1970; `nil` before the first beacon.
    var minute: Int64?
    /// Heartbeats that were repeated or came after a newer one.
    public internal(set) var repeats: Int64 = 0

    /// Settings are new, or the state was just restored: the next beacon looks at who is offline by
    /// them. Needs no place in a snapshot, because a look changes nothing that a look has left.
    var mustReview = false

    // Marks that wait for `drain`; never in a snapshot.
    var marks: ContiguousArray<Mark> = []
    var markTexts = ByteBuffer()
    private var due: ContiguousArray<DueTimer> = []
    private var clockChanges: [WatchedTime.Change] = []

    struct FrontEndAlert: Sendable, Equatable {
        var name: InlineText
        var episode: UInt32
        var isOpen: Bool
    }

    /// A device whose row waits to be written.
    struct Mark: Sendable {
        var slot: UInt32
        var origin: Int64
        var text: Range<Int>
    }

    private struct DueTimer {
        var deadline: Int64
        var id: DeviceID
        var slot: UInt32
        var isFlapping: Bool
    }

    public init(partition: Int32, settings: TunnelHealthSettings) {
        self.partition = partition
        self.settings = settings
        watched = WatchedTime(
            silence: settings.frontEndSilence, expulsion: settings.frontEndExpulsion)
    }

    public mutating func reconfigure(_ settings: TunnelHealthSettings) {
        self.settings = settings
        watched = watched.with(
            silence: settings.frontEndSilence, expulsion: settings.frontEndExpulsion)
        mustReview = true
        // Deadlines may have come nearer: file every device anew.
        wheel = TimerWheel()
        for slot in 0..<devices.count {
            devices[slot].bits.remove(.isTimed)
            if let due = offlineDue(devices[slot]) { file(slot, due: due) }
        }
    }

    // MARK: - Records

    public mutating func apply(
        _ event: HeartbeatsEvent, at place: RecordPlace, into effects: inout Effects
    ) {
        switch event {
        case .heartbeat(let heartbeat): apply(heartbeat, at: place, into: &effects)
        case .beacon(let beacon): apply(beacon, at: place, into: &effects)
        case .lifecycle(let lifecycle): apply(lifecycle, at: place, into: &effects)
        }
    }

    private mutating func apply(
        _ heartbeat: Heartbeat, at place: RecordPlace, into effects: inout Effects
    ) {
        let location = watched.locate(heartbeat.origin, stamp: place.timestamp)
        let (index, isNew) = devices.slot(of: heartbeat.device)
        var slot = devices[index]
        let seen = location.time.milliseconds
        guard isNewer(heartbeat.origin, location, than: slot) else {
            repeats += 1
            return
        }
        slot.note(heartbeat.origin)
        if let known = location.position { watched.note(record: max(known, slot.position)) }
        if slot.bits.contains(.removed) { return }

        slot.position = max(location.position ?? watched.now, slot.position)
        // A correction of a front-end's clock may take it back; another front-end's small difference
        // may not.
        slot.lastSeen =
            slot.lastSeen - seen > WatchedTime.tolerated ? seen : max(slot.lastSeen, seen)
        let oldFlags = slot.flags
        slot.flags = heartbeat.flags
        if let status = heartbeat.status { slot.status = status.rawValue }
        slot.bits.remove([.saysStopped, .saysRecovering])
        if heartbeat.status == .stopped { slot.bits.insert(.saysStopped) }
        if heartbeat.status == .recovering { slot.bits.insert(.saysRecovering) }
        noteHandshake(heartbeat.lastHandshake, seen: seen, in: &slot)
        if let tunnelUp = heartbeat.tunnelUp { judge(tunnelUp: tunnelUp, seen: seen, &slot) }

        let (state, reason) = state(of: slot, isSilent: false)
        if isNew {
            begin(&slot, state, reason, at: location.time)
            counts[Int(state.rawValue)] += 1
            openStateAlert(&slot, origin: place.offset, into: &effects)
            mark(&slot, index, origin: place.offset, text: heartbeat.agentState)
        } else if state != slot.state {
            transition(
                &slot, to: state, reason, at: location.time, origin: place.offset, into: &effects)
            mark(&slot, index, origin: place.offset, text: heartbeat.agentState)
        } else if reason != slot.reason {
            // The state goes on; why it holds is another now.
            slot.reason = reason
            mark(&slot, index, origin: place.offset, text: heartbeat.agentState)
        } else if slot.flags != oldFlags || isDueForRefresh(slot) {
            mark(&slot, index, origin: place.offset, text: heartbeat.agentState)
        }
        store(slot, at: index)
    }

    /// Whether a heartbeat was taken in later than the last one of its device.
    ///
    /// One front-end counts what it takes in, so of its own the count decides: places on the watched
    /// axis can be squeezed together, and two heartbeats can come within a millisecond. Between
    /// front-ends, places decide. A count that is lower though the place is far later is no repeat: it
    /// came round, or another boot looks the same.
    private func isNewer(
        _ origin: EventOrigin, _ location: WatchedTime.Location, than slot: DeviceSlot
    ) -> Bool {
        if slot.lastSeen == 0 { return true }
        let seen = location.time.milliseconds
        let later: Int64
        if let known = location.position, !location.isFar {
            later = known - slot.position
        } else {
            later = seen - slot.lastSeen
        }
        guard let steps = slot.steps(to: origin) else { return later > 0 }
        return steps > 0 || steps < 0 && later > WatchedTime.furthest
    }

    private func isDueForRefresh(_ slot: DeviceSlot) -> Bool {
        let age = slot.lastSeen - Int64(slot.storedSeen) * 1_000
        // A correction of a front-end's clock took `lastSeen` back: what is stored is in the future.
        return age < 0 || age >= settings.refresh
    }

    /// Handshakes before the year 2000 are zero times in one disguise or another: never.
    private static let plausible: Int64 = 946_684_800_000

    private func noteHandshake(_ claimed: EventTime?, seen: Int64, in slot: inout DeviceSlot) {
        guard let claimed = claimed?.milliseconds, claimed >= Self.plausible else { return }
        let isAhead = claimed - seen > settings.clockSkewAfter
        if isAhead { slot.flags.insert(.clockSkew) }
        if slot.handshake == 0 {
            slot.handshake = claimed
        } else if claimed > slot.handshake {
            slot.handshake = claimed
            slot.advanced = Self.tenths(slot.position) + 1
        } else if claimed < slot.handshake, !isAhead,
            slot.handshake - seen > settings.clockSkewAfter
        {
            // The known one lies in the future and this one does not: the device's clock was reset.
            slot.handshake = claimed
            slot.advanced = Self.tenths(slot.position) + 1
        }
    }

    private func isFresh(_ slot: DeviceSlot, seen: Int64) -> Bool {
        guard slot.handshake != 0 else { return false }
        let age = seen - slot.handshake
        if age < settings.staleAfter, age >= -settings.clockSkewAfter { return true }
        guard slot.advanced != 0 else { return false }
        return slot.position - Int64(slot.advanced - 1) * 100 < settings.staleAfter
    }

    private func judge(tunnelUp: Bool, seen: Int64, _ slot: inout DeviceSlot) {
        let judgesAnew = slot.bits.contains(.judgesAnew)
        slot.bits.remove(.judgesAnew)
        guard tunnelUp else {
            slot.tunnel = .down
            slot.goodCount = 0
            slot.downCount = min(slot.downCount, 99) + 1
            if slot.downCount >= settings.downAfter, slot.judged != .down {
                slot.judged = .down
                slot.judgedReason = .tunnelDown
            }
            return
        }
        if slot.tunnel != .up {
            slot.tunnel = .up
            slot.upSince = Self.tenths(slot.position)
        }
        slot.downCount = 0
        let candidate: DeviceState
        let reason: StateReason
        if isFresh(slot, seen: seen) {
            (candidate, reason) = (.healthy, .handshakeFresh)
        } else if slot.handshake != 0 {
            (candidate, reason) = (.stale, .handshakeOld)
        } else if slot.position - Int64(slot.upSince) * 100 < settings.staleAfter {
            (candidate, reason) = (.unknown, .awaitingHandshake)
        } else {
            (candidate, reason) = (.stale, .neverHandshaken)
        }
        let isGood: Bool
        switch slot.judged {
        case .down: isGood = true
        case .stale: isGood = candidate == .healthy
        default:
            slot.goodCount = 0
            slot.judged = candidate
            slot.judgedReason = reason
            return
        }
        slot.goodCount = isGood ? min(slot.goodCount, 99) + 1 : 0
        if judgesAnew || Int64(slot.goodCount) >= settings.recoverAfter {
            slot.goodCount = 0
            slot.judged = candidate
            slot.judgedReason = reason
        }
    }

    /// The state table, from the top: the first that holds.
    private func state(of slot: DeviceSlot, isSilent: Bool) -> (DeviceState, StateReason) {
        if slot.bits.contains(.removed) { return (.removed, .removedByOperator) }
        if slot.bits.contains(.suspended) { return (.suspended, .suspendedByOperator) }
        if isSilent { return (.offline, .silent) }
        if slot.bits.contains(.saysStopped) { return (.stopped, .saidStopped) }
        if slot.bits.contains(.saysRecovering) { return (.recovering, .saidRecovering) }
        if slot.judged == .unknown, slot.lastSeen != 0, slot.tunnel == .unknown {
            return (.unknown, .tunnelNotSaid)
        }
        return (slot.judged, slot.judgedReason)
    }

    private mutating func apply(
        _ lifecycle: Lifecycle, at place: RecordPlace, into effects: inout Effects
    ) {
        let (index, isNew) = devices.slot(of: lifecycle.device)
        var slot = devices[index]
        let version = UInt32(clamping: lifecycle.version)
        guard isNew || version > slot.version else { return }
        slot.version = version
        let oldDue = offlineDue(slot)
        switch lifecycle.kind {
        case .provisioned:
            slot.bits.remove(.removed)
            slot.expectedInterval = UInt32(clamping: lifecycle.expectedIntervalMilliseconds ?? 0)
        case .suspended: slot.bits.insert(.suspended)
        case .resumed:
            slot.bits.remove(.suspended)
            // Silence while suspended was expected: it is counted from here.
            slot.position = max(slot.position, watched.now)
            slot.bits.insert(.judgesAnew)
        case .removed: slot.bits.insert(.removed)
        }
        let time = place.timestamp
        // Provisioned again, it stays offline, unless its own interval now allows it that silence.
        let (state, reason) = state(
            of: slot,
            isSilent: slot.state == .offline && lifecycle.kind == .provisioned
                && isSilent(slot))
        if isNew {
            begin(&slot, state, reason, at: time)
            counts[Int(state.rawValue)] += 1
        } else if state != slot.state {
            transition(&slot, to: state, reason, at: time, origin: place.offset, into: &effects)
        }
        mark(&slot, index, origin: place.offset, text: InlineText())
        store(slot, at: index)
        if let oldDue, let due = offlineDue(slot), due < oldDue { list(index) }
    }

    private mutating func apply(
        _ beacon: Beacon, at place: RecordPlace, into effects: inout Effects
    ) {
        clockChanges.removeAll(keepingCapacity: true)
        let before = watched.now
        watched.advance(beacon, stamp: place.timestamp, into: &clockChanges)
        if watched.now > before { fireTimers(from: before, origin: place.offset, into: &effects) }
        let time = watched.locate(beacon.origin, stamp: place.timestamp).time
        if mustReview { review(at: time, origin: place.offset, into: &effects) }
        for change in clockChanges { alert(change, at: time, origin: place.offset, into: &effects) }
        countMinute(time, origin: place.offset, into: &effects)
    }

    // MARK: - Timers

    /// Watched time at which silence makes the device offline; `nil` where it cannot.
    func offlineDue(_ slot: DeviceSlot) -> Int64? {
        guard let deadline = offlineDeadline(slot) else { return nil }
        return deadline + settings.jitter
    }

    private func offlineDeadline(_ slot: DeviceSlot) -> Int64? {
        switch slot.state {
        case .offline, .stopped, .suspended, .removed: return nil
        default: break
        }
        guard slot.lastSeen != 0 else { return nil }
        return max(slot.position, watched.reopened) + threshold(slot)
    }

    private func threshold(_ slot: DeviceSlot) -> Int64 {
        slot.expectedInterval == 0
            ? settings.offlineAfter : settings.missedIntervals * Int64(slot.expectedInterval)
    }

    /// Whether an offline device has been silent for as long as the settings ask. It had been when it
    /// was declared offline, and silence only grows: so this is false only under other settings.
    private func isSilent(_ slot: DeviceSlot) -> Bool {
        watched.now - slot.position >= threshold(slot)
    }

    /// After a change of settings: whoever is offline and would not be by these is what it was before,
    /// and its alert resolves. Those that hold stay open as they are.
    private mutating func review(
        at time: EventTime, origin: Int64, into effects: inout Effects
    ) {
        mustReview = false
        for index in 0..<devices.count {
            guard devices[index].state == .offline, !isSilent(devices[index]) else { continue }
            var slot = devices[index]
            let (state, reason) = state(of: slot, isSilent: false)
            transition(
                &slot, to: state, reason, at: time, origin: origin, isOrdered: true, into: &effects)
            mark(&slot, index, origin: origin, text: InlineText())
            store(slot, at: index)
        }
    }

    /// The first moment at which fewer than two transitions lie within the window.
    private func flappingEnd(_ slot: DeviceSlot) -> Int64 {
        Int64(slot.transition(age: 1) ?? 0) * 100 + settings.flappingWithin
    }

    private mutating func store(_ slot: DeviceSlot, at index: Int) {
        devices[index] = slot
        if !slot.bits.contains(.isTimed), let due = offlineDue(slot) { file(index, due: due) }
        if slot.bits.contains(.flapping) { list(index) }
    }

    mutating func file(_ index: Int, due: Int64) {
        let bucket = wheel.bucket(for: due, now: watched.now)
        devices[index].bits.insert(.isTimed)
        devices[index].nextTimed = wheel.heads[bucket]
        wheel.heads[bucket] = UInt32(index + 1)
    }

    mutating func list(_ index: Int) {
        guard !devices[index].bits.contains(.isListed) else { return }
        devices[index].bits.insert(.isListed)
        listed.append(UInt32(index))
    }

    private mutating func fireTimers(from before: Int64, origin: Int64, into effects: inout Effects)
    {
        due.removeAll(keepingCapacity: true)
        let first = before / TimerWheel.bucketMilliseconds
        let last = watched.now / TimerWheel.bucketMilliseconds
        let turns = min(last - first, Int64(TimerWheel.buckets - 1))
        for turn in 0...turns { collect(bucket: Int((first + turn) % Int64(TimerWheel.buckets))) }
        collectListed()
        due.sort { a, b in
            if a.deadline != b.deadline { return a.deadline < b.deadline }
            if a.id != b.id { return a.id < b.id }
            return !a.isFlapping && b.isFlapping
        }
        for timer in due { fire(timer, origin: origin, into: &effects) }
    }

    /// Takes what is due out of a bucket and files the rest where it belongs now.
    private mutating func collect(bucket: Int) {
        var next = wheel.heads[bucket]
        wheel.heads[bucket] = 0
        while next != 0 {
            let index = Int(next) - 1
            next = devices[index].nextTimed
            devices[index].nextTimed = 0
            devices[index].bits.remove(.isTimed)
            let slot = devices[index]
            guard let moment = offlineDue(slot) else { continue }
            if moment <= watched.now {
                due.append(
                    DueTimer(
                        deadline: moment, id: slot.id, slot: UInt32(index), isFlapping: false))
            } else {
                file(index, due: moment)
            }
        }
    }

    private mutating func collectListed() {
        var kept = 0
        for place in listed.indices {
            let index = Int(listed[place])
            let slot = devices[index]
            var stays = false
            if slot.bits.contains(.flapping) {
                let end = flappingEnd(slot)
                if end <= watched.now {
                    due.append(
                        DueTimer(deadline: end, id: slot.id, slot: UInt32(index), isFlapping: true))
                } else {
                    stays = true
                }
            }
            if slot.bits.contains(.isTimed), let moment = offlineDue(slot) {
                if moment <= watched.now {
                    due.append(
                        DueTimer(
                            deadline: moment, id: slot.id, slot: UInt32(index), isFlapping: false))
                } else if moment < watched.now + TimerWheel.horizonMilliseconds {
                    stays = true
                }
            }
            if stays {
                listed[kept] = listed[place]
                kept += 1
            } else {
                devices[index].bits.remove(.isListed)
            }
        }
        listed.removeLast(listed.count - kept)
    }

    private mutating func fire(_ timer: DueTimer, origin: Int64, into effects: inout Effects) {
        let index = Int(timer.slot)
        var slot = devices[index]
        if timer.isFlapping {
            guard slot.bits.contains(.flapping), flappingEnd(slot) <= watched.now else {
                if slot.bits.contains(.flapping) { list(index) }
                return
            }
            let time = watched.wallTime(of: timer.deadline) ?? EventTime(milliseconds: slot.since)
            endFlapping(&slot, at: time, origin: origin, into: &effects)
        } else {
            guard let deadline = offlineDeadline(slot), deadline + settings.jitter <= watched.now
            else { return }
            // Front-ends' clocks differ a little, and so do the places of what they took in: as people
            // read it, the state began no earlier than the threshold after the last word.
            let earliest = EventTime(
                milliseconds: slot.lastSeen + deadline - max(slot.position, watched.reopened))
            let time = max(watched.wallTime(of: deadline) ?? earliest, earliest)
            slot.bits.insert(.judgesAnew)
            slot.downCount = 0
            slot.goodCount = 0
            let (state, reason) = state(of: slot, isSilent: true)
            transition(&slot, to: state, reason, at: time, origin: origin, into: &effects)
        }
        mark(&slot, index, origin: origin, text: InlineText())
        store(slot, at: index)
    }

    // MARK: - Transitions

    private func begin(
        _ slot: inout DeviceSlot, _ state: DeviceState, _ reason: StateReason, at time: EventTime
    ) {
        slot.state = state
        slot.reason = reason
        slot.since = time.milliseconds
    }

    private mutating func transition(
        _ slot: inout DeviceSlot, to state: DeviceState, _ reason: StateReason, at time: EventTime,
        origin: Int64, isOrdered: Bool = false, into effects: inout Effects
    ) {
        // Two front-ends' clocks may differ a little; intervals still tile the time axis.
        let time = max(time, EventTime(milliseconds: slot.since))
        appendEnded(slot, at: time, origin: origin, into: &effects)
        counts[Int(slot.state.rawValue)] -= 1
        counts[Int(state.rawValue)] += 1
        closeStateAlert(&slot, at: time, origin: origin, into: &effects)
        let old = slot.state
        slot.transitions += 1
        begin(&slot, state, reason, at: time)
        if !isOrdered, Self.counts(old), Self.counts(state) {
            noteFlapping(&slot, at: time, origin: origin, into: &effects)
        }
        openStateAlert(&slot, origin: origin, into: &effects)
    }

    /// What an operator did (to the device or, `isOrdered`, to the settings), and the first judgement
    /// of a device, are no flapping.
    private static func counts(_ state: DeviceState) -> Bool {
        state != .suspended && state != .unknown && state != .removed
    }

    private mutating func noteFlapping(
        _ slot: inout DeviceSlot, at time: EventTime, origin: Int64, into effects: inout Effects
    ) {
        let now = Self.tenths(watched.now)
        slot.noteTransition(at: now)
        guard settings.flappingTransitions > 0, !slot.bits.contains(.flapping),
            let earliest = slot.transition(age: Int(settings.flappingTransitions) - 1),
            Int64(now - min(now, earliest)) * 100 < settings.flappingWithin
        else { return }
        slot.bits.insert(.flapping)
        slot.episodes += 1
        slot.flappingAlert = slot.episodes
        emitAlert(
            .opened, .flapping, slot, episode: slot.flappingAlert, at: time, origin: origin,
            into: &effects)
    }

    private mutating func endFlapping(
        _ slot: inout DeviceSlot, at time: EventTime, origin: Int64, into effects: inout Effects
    ) {
        slot.bits.remove(.flapping)
        if slot.flappingAlert != 0 {
            emitAlert(
                .resolved, .flapping, slot, episode: slot.flappingAlert, at: time, origin: origin,
                into: &effects)
            slot.flappingAlert = 0
        }
        openStateAlert(&slot, origin: origin, into: &effects)
    }

    static func alertKind(_ state: DeviceState) -> AlertKind? {
        switch state {
        case .offline: .offline
        case .stale: .stale
        case .down: .down
        default: nil
        }
    }

    private mutating func openStateAlert(
        _ slot: inout DeviceSlot, origin: Int64, into effects: inout Effects
    ) {
        // A flapping device has one alert for that, and none for each flip.
        guard let kind = Self.alertKind(slot.state), slot.stateAlert == 0,
            !slot.bits.contains(.flapping)
        else { return }
        slot.episodes += 1
        slot.stateAlert = slot.episodes
        emitAlert(
            .opened, kind, slot, episode: slot.stateAlert,
            at: EventTime(milliseconds: slot.since), origin: origin, into: &effects)
    }

    private mutating func closeStateAlert(
        _ slot: inout DeviceSlot, at time: EventTime, origin: Int64, into effects: inout Effects
    ) {
        guard slot.stateAlert != 0, let kind = Self.alertKind(slot.state) else { return }
        emitAlert(
            .resolved, kind, slot, episode: slot.stateAlert, at: time, origin: origin,
            into: &effects)
        slot.stateAlert = 0
    }

    private mutating func mark(
        _ slot: inout DeviceSlot, _ index: Int, origin: Int64, text: InlineText
    ) {
        slot.storedSeen = UInt32(clamping: slot.lastSeen / 1_000)
        var range = 0..<0
        if !text.isEmpty {
            let start = markTexts.count
            markTexts.append(text.span)
            range = start..<markTexts.count
        }
        if slot.mark == 0 {
            marks.append(Mark(slot: UInt32(index), origin: origin, text: range))
            slot.mark = UInt32(marks.count)
        } else if !range.isEmpty {
            marks[Int(slot.mark) - 1].text = range
        }
    }

    private static func tenths(_ position: Int64) -> UInt32 { UInt32(clamping: position / 100) }
}
