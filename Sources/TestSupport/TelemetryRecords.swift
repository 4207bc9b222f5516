internal import Bytes
internal import Schemas
public import Simulation

/// Seeded records of topic `telemetry`: devices that measure, write logs, repeat themselves, invent names
/// and come late, and front-ends whose clocks differ a little.
public struct TelemetryRecords {
    private static let start: Int64 = 1_790_000_000_000
    private var random: SplitMix64
    private var counter: UInt64 = 0

    public init(seed: UInt64) { random = SplitMix64(seed: seed) }

    public mutating func make(partitions: Int, count: Int) -> [[SimulatedRecord]] {
        (0..<partitions).map { partition($0, count) }
    }

    private mutating func partition(_ number: Int, _ count: Int) -> [SimulatedRecord] {
        let devices = (0..<(2 + random.below(6))).map {
            DeviceID(high: UInt64(number) << 32 | UInt64($0), low: random.next())
        }
        var records: [SimulatedRecord] = []
        var time = Self.start
        for index in 0..<count {
            // Mostly seconds pass, sometimes minutes.
            time += Int64(random.chance(40) ? random.below(600_000) : random.below(12_000))
            if random.chance(20) {
                records.append(
                    SimulatedRecord(
                        key: ByteBuffer("broken".utf8), value: ByteBuffer("{\"v\":1 \(index)".utf8),
                        timestamp: EventTime(milliseconds: time)))
                continue
            }
            if random.chance(40), !records.isEmpty {
                records.append(records[max(0, records.count - 1 - random.below(15))])
                continue
            }
            let back = random.chance(100) ? Int64(random.below(500_000)) : 0
            let stamp = EventTime(milliseconds: time - back)
            let event = event(devices[random.below(devices.count)], stamp)
            var value = ByteBuffer()
            value.append(event)
            var key = ByteBuffer()
            key.append(event.device)
            records.append(SimulatedRecord(key: key, value: value, timestamp: stamp))
        }
        return records
    }

    private mutating func event(_ device: DeviceID, _ stamp: EventTime) -> TelemetryEvent {
        counter += 1
        var event = TelemetryEvent(
            device: device, origin: EventOrigin(boot: 1, counter: counter))
        for _ in 0..<random.below(6) {
            let name = random.chance(100) ? "odd-\(random.below(50))" : "n\(random.below(4))"
            event.addSample(
                ByteBuffer(name.utf8).span, Double(random.below(2_000)) / 16 - 30,
                at: stamp + Int64(random.below(100_000)))
        }
        if random.chance(150) {
            event.addLogLine(
                level: ByteBuffer("info".utf8).span, tag: ByteBuffer("wg".utf8).span,
                ByteBuffer("line \(counter)".utf8).span, at: stamp)
        }
        return event
    }
}
