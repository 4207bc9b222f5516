public import Bytes
public import Schemas

/// `ConfigHash` has nothing to set.
public struct ConfigHashSettings: Hashable, Sendable {
    public init() {}
}

/// Follows every change of a device's configuration: computes its hashes, keeps each version as a row
/// of `config_versions`, and rings the bell that makes front-ends read it anew.
///
/// The registry rings the same bell itself when it makes the change, so that one holds while no
/// pipeline runs. Versions only grow: a change that is repeated, or older than what is known, has no
/// effect.
public struct ConfigHash: Processor {
    public typealias Settings = ConfigHashSettings
    public typealias Event = ConfigChange
    public typealias Decoder = ConfigChangesDecoder

    public static var source: Topic { .configChanges }
    public static var outputTopics: [Topic] { [.deviceConfigs, .deadLetters] }
    public static var tables: [TableSchema] { [.configVersions] }

    /// 48 bytes a device.
    private struct Slot: DepartingDevice {
        var id: DeviceID
        /// 0: none yet.
        var version: Int64 = 0
        var hashes = ConfigurationHashes.Prefixes(config: 0, forwards: 0)
        var isSuspended = false
        var isRemoved = false

        init(id: DeviceID) { self.id = id }
    }

    private let partition: Int32
    private var devices = DeviceTable<Slot>()
    private var departed = DepartedDevices()
    /// Changes that were repeated or came after a newer one.
    public private(set) var repeats: Int64 = 0

    public init(partition: Int32, settings: ConfigHashSettings) { self.partition = partition }

    public mutating func reconfigure(_ settings: ConfigHashSettings) {}

    /// Devices that are kept, removed ones included for an hour.
    public var deviceCount: Int { devices.count }

    /// The newest version of a device; `nil` if none is known, or it was removed.
    public func version(of device: DeviceID) -> Int64? {
        devices.find(device).flatMap { devices[$0].isRemoved ? nil : devices[$0].version }
    }

    // MARK: - Records

    public mutating func apply(
        _ change: ConfigChange, at place: RecordPlace, into effects: inout Effects
    ) {
        departed.forget(in: &devices, at: place.timestamp)
        let (index, isNew) = devices.slot(of: change.device)
        var slot = devices[index]
        guard change.version > slot.version else {
            repeats += 1
            return
        }
        let hashes = change.hashes
        // Before its first version a device has neither settings nor forwards.
        let isFirst = isNew || slot.isRemoved
        let before = isFirst ? .none : slot.hashes
        let wasSuspended = !isFirst && slot.isSuspended
        let now = hashes.prefixes
        var changed: ConfigurationHashes.Parts = []
        if now.config != before.config { changed.insert(.config) }
        if now.forwards != before.forwards { changed.insert(.forwards) }
        if change.isSuspended != wasSuspended { changed.insert(.suspended) }

        slot.version = change.version
        slot.hashes = now
        slot.isSuspended = change.isSuspended
        slot.isRemoved = change.kind == .removed
        devices[index] = slot
        if slot.isRemoved { departed.append(slot.id, at: place.timestamp) }

        append(change, hashes, changed, at: place, to: &effects)
        ring(change, hashes, at: place, into: &effects)
    }

    private func append(
        _ change: ConfigChange, _ hashes: ConfigurationHashes,
        _ changed: ConfigurationHashes.Parts, at place: RecordPlace, to effects: inout Effects
    ) {
        if effects.isDiscarding { return }
        var parts = ByteBuffer()
        parts.append(changed)
        effects.rows[0].beginRow(origin: place.offset)
        effects.rows[0].put(change.device)
        effects.rows[0].put(int4: partition)
        effects.rows[0].put(int8: change.version)
        effects.rows[0].put(change.kind.text)
        effects.rows[0].put(jsonb: parts.span)
        effects.rows[0].put(hashes)
        effects.rows[0].put(change.isSuspended)
        effects.rows[0].put(place.timestamp)
        effects.rows[0].put(ByteBuffer(change.actor.utf8).span)
        if let requestID = change.requestID {
            effects.rows[0].put(ByteBuffer(requestID.utf8).span)
        } else {
            effects.rows[0].putNull()
        }
    }

    private func ring(
        _ change: ConfigChange, _ hashes: ConfigurationHashes, at place: RecordPlace,
        into effects: inout Effects
    ) {
        var key = ByteBuffer()
        key.append(change.device)
        if change.kind == .removed {
            effects.emit(
                tombstoneTo: .deviceConfigs, key: key.span, at: place.timestamp,
                origin: place.offset)
        } else {
            effects.emit(
                to: .deviceConfigs, key: key.span, at: place.timestamp, origin: place.offset
            ) {
                $0.append(
                    bellOf: change.device, version: change.version, hashes,
                    isSuspended: change.isSuspended)
            }
        }
    }

    // MARK: - Rows

    /// Every change is a row of its own.
    public var pendingRows: Int { 0 }

    public mutating func drain(into effects: inout Effects) {
        effects.rows[0].sortByUUID(thenNumber: 2)
    }

    // MARK: - Snapshots

    /// Not of another processor, so that a pipeline which is given another one by mistake stops.
    private static let snapshotVersion: UInt32 = 0x4348_0001

    public func snapshot(into bytes: inout ByteBuffer) {
        bytes.appendLittleEndian(Self.snapshotVersion)
        bytes.appendLittleEndian(repeats)
        departed.append(to: &bytes)
        bytes.appendLittleEndian(UInt32(devices.count))
        bytes.reserveCapacity(bytes.count + devices.count * 41)
        for index in 0..<devices.count {
            let slot = devices[index]
            bytes.appendLittleEndian(slot.id.high)
            bytes.appendLittleEndian(slot.id.low)
            bytes.appendLittleEndian(slot.version)
            bytes.appendLittleEndian(slot.hashes.config)
            bytes.appendLittleEndian(slot.hashes.forwards)
            bytes.append((slot.isSuspended ? 1 : 0) | (slot.isRemoved ? 2 : 0))
        }
    }

    public init(
        restoring snapshot: Span<UInt8>, partition: Int32, settings: ConfigHashSettings
    ) throws(SnapshotError) {
        self.init(partition: partition, settings: settings)
        var reader = ByteReader(snapshot)
        guard let version = reader.littleEndian(UInt32.self) else { throw .damaged }
        guard version == Self.snapshotVersion else { throw .unknownVersion(version) }
        guard let repeats = reader.littleEndian(Int64.self),
            let departed = DepartedDevices(&reader),
            let count = reader.littleEndian(UInt32.self)
        else { throw .damaged }
        self.repeats = repeats
        self.departed = departed
        for _ in 0..<count {
            guard let high = reader.littleEndian(UInt64.self),
                let low = reader.littleEndian(UInt64.self),
                let version = reader.littleEndian(Int64.self),
                let config = reader.littleEndian(UInt64.self),
                let forwards = reader.littleEndian(UInt64.self),
                let bits = reader.littleEndian(UInt8.self)
            else { throw .damaged }
            let (index, isNew) = devices.slot(of: DeviceID(high: high, low: low))
            guard isNew else { throw .damaged }
            devices[index].version = version
            devices[index].hashes = .init(config: config, forwards: forwards)
            devices[index].isSuspended = bits & 1 != 0
            devices[index].isRemoved = bits & 2 != 0
        }
        guard reader.remaining == 0 else { throw .damaged }
    }
}
