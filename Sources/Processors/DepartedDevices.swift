internal import Bytes
internal import Schemas

/// What is kept of a device that can be removed.
protocol DepartingDevice: DeviceKeyed {
    var isRemoved: Bool { get }
}

/// Devices that were removed from the registry a short while ago: what is still on its way about them
/// must not bring them back, and after that nothing of them needs to be kept.
struct DepartedDevices: Sendable {
    /// How long a removed device is remembered, in milliseconds by the records' stamps.
    private static let memory: Int64 = 3_600_000

    private struct Entry: Sendable {
        var device: DeviceID
        var time: Int64
    }

    /// In the order of their removal, from `head` on.
    private var entries: ContiguousArray<Entry> = []
    private var head = 0

    mutating func append(_ device: DeviceID, at time: EventTime) {
        entries.append(Entry(device: device, time: time.milliseconds))
    }

    /// Frees the devices that need not be remembered any more, but for those that came back.
    mutating func forget<Slot: DepartingDevice>(
        in devices: inout DeviceTable<Slot>, at time: EventTime
    ) {
        while let device = next(at: time) {
            guard let slot = devices.find(device), devices[slot].isRemoved else { continue }
            devices.remove(device)
        }
    }

    /// Takes out the next device that need not be remembered any more.
    private mutating func next(at time: EventTime) -> DeviceID? {
        guard head < entries.count, entries[head].time + Self.memory <= time.milliseconds else {
            return nil
        }
        let device = entries[head].device
        head += 1
        if head * 2 > entries.count {
            entries.removeFirst(head)
            head = 0
        }
        return device
    }

    func append(to bytes: inout ByteBuffer) {
        bytes.appendLittleEndian(UInt32(entries.count - head))
        for entry in entries[head...] {
            bytes.appendLittleEndian(entry.device.high)
            bytes.appendLittleEndian(entry.device.low)
            bytes.appendLittleEndian(entry.time)
        }
    }

    init() {}

    /// `nil` if the bytes are not what `append(to:)` wrote.
    init?(_ reader: inout ByteReader) {
        guard let count = reader.littleEndian(UInt32.self) else { return nil }
        for _ in 0..<count {
            guard let high = reader.littleEndian(UInt64.self),
                let low = reader.littleEndian(UInt64.self),
                let time = reader.littleEndian(Int64.self)
            else { return nil }
            entries.append(Entry(device: DeviceID(high: high, low: low), time: time))
        }
    }
}
