internal import Bytes
internal import Schemas
public import Simulation

/// Seeded records of topic `heartbeats`: a small fleet that also fails, behind two front-ends.
public struct TunnelHealthRecords {
    private static let start: Int64 = 1_790_000_000_000
    private var random: SplitMix64
    private var counter: UInt64 = 0

    public init(seed: UInt64) { random = SplitMix64(seed: seed) }

    /// Records of `partitions` partitions over `seconds` of the fleet's time.
    public mutating func make(partitions: Int, seconds: Int) -> [[SimulatedRecord]] {
        (0..<partitions).map { partition($0, seconds) }
    }

    private mutating func partition(_ number: Int, _ seconds: Int) -> [SimulatedRecord] {
        var records: [SimulatedRecord] = []
        let devices = (0..<(2 + random.below(4))).map {
            DeviceID(high: UInt64(number) << 32 | UInt64($0), low: random.next())
        }
        // A boot is new after each restart of a front-end.
        var boots: [UInt64] = [1, 2].map { UInt64(number) << 8 | $0 }
        var silentUntil = [0, 0]
        var deviceSilentUntil = devices.map { _ in 0 }
        var second = 0
        while second < seconds {
            for (index, device) in devices.enumerated() where (second + index * 7) % 30 < 5 {
                guard second >= deviceSilentUntil[index] else { continue }
                if random.chance(60) { deviceSilentUntil[index] = second + random.below(400) }
                append(heartbeat(device, second, boots[index % 2]), device, second, &records)
            }
            for front in 0..<2 where second >= silentUntil[front] {
                if random.chance(10) {
                    silentUntil[front] = second + random.below(60)
                    if random.chance(500) { boots[front] += 16 }
                }
                append(beacon(front, boots[front], second), second, &records)
            }
            if random.chance(20), let device = devices.randomElement(using: &random) {
                counter += 1
                let kind = Lifecycle.Kind.allCases[random.below(3)]
                append(
                    .lifecycle(
                        Lifecycle(device: device, kind: kind, version: Int64(counter))), device,
                    second, &records)
            }
            if random.chance(20) {
                records.append(
                    SimulatedRecord(
                        key: ByteBuffer("broken".utf8), value: ByteBuffer("{\"v\":1".utf8),
                        timestamp: Self.time(second)))
            }
            // A front-end that is told nothing sends again; a spool forwards late.
            if random.chance(60), !records.isEmpty {
                records.append(records[max(0, records.count - 1 - random.below(20))])
            }
            second += 5
        }
        return records
    }

    private mutating func heartbeat(
        _ device: DeviceID, _ second: Int, _ boot: UInt64
    ) -> HeartbeatsEvent {
        counter += 1
        var heartbeat = Heartbeat(
            device: device, origin: EventOrigin(boot: boot, counter: counter))
        heartbeat.status =
            random.chance(50) ? .recovering : random.chance(30) ? .stopped : .connected
        heartbeat.tunnelUp = random.chance(50) ? nil : !random.chance(150)
        if !random.chance(100) {
            heartbeat.lastHandshake = Self.time(
                second - random.below(random.chance(200) ? 600 : 120))
        }
        if random.chance(100) { heartbeat.agentState = InlineText("state \(random.below(3))") }
        return .heartbeat(heartbeat)
    }

    private mutating func beacon(_ front: Int, _ boot: UInt64, _ second: Int) -> HeartbeatsEvent {
        counter += 1
        return .beacon(
            Beacon(
                frontEnd: InlineText("front-\(front)"),
                origin: EventOrigin(boot: boot, counter: counter),
                monotonicMilliseconds: Int64(second) * 1_000 + 5_000_000,
                isLossy: random.chance(10)))
    }

    private mutating func append(
        _ event: HeartbeatsEvent, _ device: DeviceID, _ second: Int,
        _ records: inout [SimulatedRecord]
    ) {
        var key = ByteBuffer()
        key.append(device)
        append(event, key: key, second, &records)
    }

    private mutating func append(
        _ event: HeartbeatsEvent, _ second: Int, _ records: inout [SimulatedRecord]
    ) {
        append(event, key: ByteBuffer("front-end".utf8), second, &records)
    }

    private mutating func append(
        _ event: HeartbeatsEvent, key: ByteBuffer, _ second: Int,
        _ records: inout [SimulatedRecord]
    ) {
        var value = ByteBuffer()
        value.append(event)
        records.append(SimulatedRecord(key: key, value: value, timestamp: Self.time(second)))
    }

    private static func time(_ second: Int) -> EventTime {
        EventTime(milliseconds: start + Int64(second) * 1_000)
    }
}
