public import Bytes
public import Schemas

/// `ConfigDelivery` has nothing to set.
public struct ConfigDeliverySettings: Hashable, Sendable {
    public init() {}
}

/// Notes from a device's own heartbeats which version of its configuration it was answered, and since
/// when: with `config_versions`, the rollout of a configuration.
///
/// Versions only grow: a heartbeat that a front-end with an older cache answered, or that is read
/// again, changes nothing. Beacons say nothing here.
public struct ConfigDelivery: Processor {
    public typealias Settings = ConfigDeliverySettings
    public typealias Event = HeartbeatsEvent
    public typealias Decoder = HeartbeatsDecoder

    public static var source: Topic { .heartbeats }
    public static var outputTopics: [Topic] { [.deadLetters] }
    public static var tables: [TableSchema] { [.configDelivery] }

    /// 40 bytes a device.
    private struct Slot: DepartingDevice {
        var id: DeviceID
        /// The newest version that it was answered; of a removed device the version that removed it.
        var version: Int64 = 0
        /// Receipt time of the first heartbeat that was answered with it.
        var since: Int64 = 0
        var isRemoved = false

        init(id: DeviceID) { self.id = id }
    }

    private let partition: Int32
    private var devices = DeviceTable<Slot>()
    private var departed = DepartedDevices()

    public init(partition: Int32, settings: ConfigDeliverySettings) { self.partition = partition }

    public mutating func reconfigure(_ settings: ConfigDeliverySettings) {}

    /// Devices that are kept, removed ones included for an hour.
    public var deviceCount: Int { devices.count }

    /// The newest version that a device was answered, and since when; `nil` if none is known, or it
    /// was removed.
    public func delivery(to device: DeviceID) -> (version: Int64, since: EventTime)? {
        guard let index = devices.find(device), !devices[index].isRemoved else { return nil }
        return (devices[index].version, EventTime(milliseconds: devices[index].since))
    }

    // MARK: - Records

    public mutating func apply(
        _ event: HeartbeatsEvent, at place: RecordPlace, into effects: inout Effects
    ) {
        switch event {
        case .heartbeat(let heartbeat):
            // 0: the front-end did not know it.
            guard heartbeat.configVersion > 0 else { return }
            let index = devices.slot(of: heartbeat.device).slot
            guard heartbeat.configVersion > devices[index].version else { return }
            deliver(heartbeat.configVersion, to: index, at: place, into: &effects)
        case .lifecycle(let lifecycle):
            departed.forget(in: &devices, at: place.timestamp)
            if lifecycle.kind == .removed { remove(lifecycle, at: place.timestamp) }
        case .beacon: break
        }
    }

    private mutating func deliver(
        _ version: Int64, to index: Int, at place: RecordPlace, into effects: inout Effects
    ) {
        devices[index].version = version
        devices[index].since = place.timestamp.milliseconds
        devices[index].isRemoved = false
        if effects.isDiscarding { return }
        effects.rows[0].beginRow(origin: place.offset)
        effects.rows[0].put(devices[index].id)
        effects.rows[0].put(int4: partition)
        effects.rows[0].put(int8: version)
        effects.rows[0].put(place.timestamp)
    }

    private mutating func remove(_ lifecycle: Lifecycle, at time: EventTime) {
        let index = devices.slot(of: lifecycle.device).slot
        guard lifecycle.version > devices[index].version else { return }
        devices[index].version = lifecycle.version
        devices[index].since = time.milliseconds
        devices[index].isRemoved = true
        departed.append(lifecycle.device, at: time)
    }

    // MARK: - Rows

    /// Every delivery is a row of its own.
    public var pendingRows: Int { 0 }

    public mutating func drain(into effects: inout Effects) {
        effects.rows[0].sortByUUID(thenNumber: 2)
    }

    // MARK: - Snapshots

    /// Not of another processor, so that a pipeline which is given another one by mistake stops.
    private static let snapshotVersion: UInt32 = 0x4344_0001

    public func snapshot(into bytes: inout ByteBuffer) {
        bytes.appendLittleEndian(Self.snapshotVersion)
        departed.append(to: &bytes)
        bytes.appendLittleEndian(UInt32(devices.count))
        bytes.reserveCapacity(bytes.count + devices.count * 33)
        for index in 0..<devices.count {
            let slot = devices[index]
            bytes.appendLittleEndian(slot.id.high)
            bytes.appendLittleEndian(slot.id.low)
            bytes.appendLittleEndian(slot.version)
            bytes.appendLittleEndian(slot.since)
            bytes.append(slot.isRemoved ? 1 : 0)
        }
    }

    public init(
        restoring snapshot: Span<UInt8>, partition: Int32, settings: ConfigDeliverySettings
    ) throws(SnapshotError) {
        self.init(partition: partition, settings: settings)
        var reader = ByteReader(snapshot)
        guard let version = reader.littleEndian(UInt32.self) else { throw .damaged }
        guard version == Self.snapshotVersion else { throw .unknownVersion(version) }
        guard let departed = DepartedDevices(&reader), let count = reader.littleEndian(UInt32.self)
        else { throw .damaged }
        self.departed = departed
        for _ in 0..<count {
            guard let high = reader.littleEndian(UInt64.self),
                let low = reader.littleEndian(UInt64.self),
                let version = reader.littleEndian(Int64.self),
                let since = reader.littleEndian(Int64.self),
                let isRemoved = reader.littleEndian(UInt8.self)
            else { throw .damaged }
            let (index, isNew) = devices.slot(of: DeviceID(high: high, low: low))
            guard isNew else { throw .damaged }
            devices[index].version = version
            devices[index].since = since
            devices[index].isRemoved = isRemoved == 1
        }
        guard reader.remaining == 0 else { throw .damaged }
    }
}
