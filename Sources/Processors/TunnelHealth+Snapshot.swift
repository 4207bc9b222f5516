public import Bytes
internal import Schemas

extension TunnelHealth {
    private static let snapshotVersion: UInt32 = 2
    /// Without `boot` and `counter` of devices, and with less of front-ends.
    private static let olderVersion: UInt32 = 1

    /// Devices in the order in which they were first heard of, so equal states have equal bytes.
    public func snapshot(into bytes: inout ByteBuffer) {
        precondition(marks.isEmpty, "a snapshot with rows that were not drained")
        bytes.appendLittleEndian(Self.snapshotVersion)
        watched.append(to: &bytes)
        bytes.appendLittleEndian(minute ?? -1)
        bytes.appendLittleEndian(repeats)
        bytes.appendLittleEndian(UInt32(frontEndAlerts.count))
        for alert in frontEndAlerts {
            bytes.append(alert.name.count)
            bytes.append(alert.name.span)
            bytes.appendLittleEndian(alert.episode)
            bytes.append(alert.isOpen ? 1 : 0)
        }
        bytes.appendLittleEndian(UInt32(devices.count))
        bytes.reserveCapacity(bytes.count + devices.count * 112)
        for index in 0..<devices.count { Self.append(devices[index], to: &bytes) }
    }

    private static func append(_ slot: DeviceSlot, to bytes: inout ByteBuffer) {
        bytes.appendLittleEndian(slot.id.high)
        bytes.appendLittleEndian(slot.id.low)
        bytes.appendLittleEndian(slot.lastSeen)
        bytes.appendLittleEndian(slot.position)
        bytes.appendLittleEndian(slot.handshake)
        bytes.appendLittleEndian(slot.since)
        bytes.append(slot.ringCount)
        for age in (0..<Int(slot.ringCount)).reversed() {
            bytes.appendLittleEndian(slot.transition(age: age) ?? 0)
        }
        bytes.appendLittleEndian(slot.advanced)
        bytes.appendLittleEndian(slot.upSince)
        bytes.appendLittleEndian(slot.transitions)
        bytes.appendLittleEndian(slot.version)
        bytes.appendLittleEndian(slot.expectedInterval)
        bytes.appendLittleEndian(slot.storedSeen)
        bytes.appendLittleEndian(slot.episodes)
        bytes.appendLittleEndian(slot.stateAlert)
        bytes.appendLittleEndian(slot.flappingAlert)
        bytes.append(slot.state.rawValue)
        bytes.append(slot.reason.rawValue)
        bytes.append(slot.judged.rawValue)
        bytes.append(slot.judgedReason.rawValue)
        bytes.append(slot.flags.rawValue)
        bytes.append(slot.status)
        bytes.append(slot.tunnel.rawValue)
        bytes.append(slot.bits.subtracting([.isTimed, .isListed]).rawValue)
        bytes.append(slot.downCount)
        bytes.append(slot.goodCount)
        bytes.appendLittleEndian(slot.boot)
        bytes.appendLittleEndian(slot.counter)
    }

    public init(
        restoring snapshot: Span<UInt8>, partition: Int32, settings: TunnelHealthSettings
    ) throws(SnapshotError) {
        self.init(partition: partition, settings: settings)
        mustReview = true
        var reader = ByteReader(snapshot)
        guard let version = reader.littleEndian(UInt32.self) else { throw .damaged }
        guard version == Self.snapshotVersion || version == Self.olderVersion else {
            throw .unknownVersion(version)
        }
        guard
            let watched = WatchedTime(
                reading: &reader, of: snapshot, isOlder: version == Self.olderVersion,
                silence: settings.frontEndSilence,
                expulsion: settings.frontEndExpulsion),
            let minute = reader.littleEndian(Int64.self),
            let repeats = reader.littleEndian(Int64.self),
            let alertCount = reader.littleEndian(UInt32.self)
        else { throw .damaged }
        self.watched = watched
        self.minute = minute < 0 ? nil : minute
        self.repeats = repeats
        for _ in 0..<alertCount {
            guard let size = reader.littleEndian(UInt8.self), let range = reader.take(Int(size)),
                let episode = reader.littleEndian(UInt32.self),
                let isOpen = reader.littleEndian(UInt8.self)
            else { throw .damaged }
            frontEndAlerts.append(
                FrontEndAlert(
                    name: InlineText(snapshot.extracting(range)), episode: episode,
                    isOpen: isOpen == 1))
        }
        guard let deviceCount = reader.littleEndian(UInt32.self) else { throw .damaged }
        for _ in 0..<deviceCount {
            guard
                let slot = Self.readSlot(
                    &reader, hasOrigin: version == Self.snapshotVersion)
            else { throw .damaged }
            let (index, isNew) = devices.slot(of: slot.id)
            guard isNew else { throw .damaged }
            devices[index] = slot
            counts[Int(slot.state.rawValue)] += 1
            if let due = offlineDue(slot) { file(index, due: due) }
            // Deadlines that came nearer than a device's place in the wheel were filed just now.
            if slot.bits.contains(.flapping) { list(index) }
        }
        guard reader.remaining == 0 else { throw .damaged }
    }

    private static func readSlot(_ reader: inout ByteReader, hasOrigin: Bool) -> DeviceSlot? {
        guard let high = reader.littleEndian(UInt64.self),
            let low = reader.littleEndian(UInt64.self),
            let lastSeen = reader.littleEndian(Int64.self),
            let position = reader.littleEndian(Int64.self),
            let handshake = reader.littleEndian(Int64.self),
            let since = reader.littleEndian(Int64.self),
            let ringCount = reader.littleEndian(UInt8.self), ringCount <= 6
        else { return nil }
        var slot = DeviceSlot(id: DeviceID(high: high, low: low))
        slot.lastSeen = lastSeen
        slot.position = position
        slot.handshake = handshake
        slot.since = since
        for _ in 0..<ringCount {
            guard let transition = reader.littleEndian(UInt32.self) else { return nil }
            slot.noteTransition(at: transition)
        }
        guard let advanced = reader.littleEndian(UInt32.self),
            let upSince = reader.littleEndian(UInt32.self),
            let transitions = reader.littleEndian(UInt32.self),
            let version = reader.littleEndian(UInt32.self),
            let expectedInterval = reader.littleEndian(UInt32.self),
            let storedSeen = reader.littleEndian(UInt32.self),
            let episodes = reader.littleEndian(UInt32.self),
            let stateAlert = reader.littleEndian(UInt32.self),
            let flappingAlert = reader.littleEndian(UInt32.self),
            let state = reader.littleEndian(UInt8.self).flatMap(DeviceState.init),
            let reason = reader.littleEndian(UInt8.self).flatMap(StateReason.init),
            let judged = reader.littleEndian(UInt8.self).flatMap(DeviceState.init),
            let judgedReason = reader.littleEndian(UInt8.self).flatMap(StateReason.init),
            let flags = reader.littleEndian(UInt8.self),
            let status = reader.littleEndian(UInt8.self),
            let tunnel = reader.littleEndian(UInt8.self).flatMap(DeviceSlot.Tunnel.init),
            let bits = reader.littleEndian(UInt8.self),
            let downCount = reader.littleEndian(UInt8.self),
            let goodCount = reader.littleEndian(UInt8.self)
        else { return nil }
        slot.advanced = advanced
        slot.upSince = upSince
        slot.transitions = transitions
        slot.version = version
        slot.expectedInterval = expectedInterval
        slot.storedSeen = storedSeen
        slot.episodes = episodes
        slot.stateAlert = stateAlert
        slot.flappingAlert = flappingAlert
        slot.state = state
        slot.reason = reason
        slot.judged = judged
        slot.judgedReason = judgedReason
        slot.flags = HeartbeatFlags(rawValue: flags)
        slot.status = status
        slot.tunnel = tunnel
        slot.bits = DeviceSlot.Bits(rawValue: bits).subtracting([.isTimed, .isListed])
        slot.downCount = downCount
        slot.goodCount = goodCount
        if hasOrigin {
            guard let boot = reader.littleEndian(UInt32.self),
                let counter = reader.littleEndian(UInt32.self)
            else { return nil }
            slot.boot = boot
            slot.counter = counter
        }
        return slot
    }
}
