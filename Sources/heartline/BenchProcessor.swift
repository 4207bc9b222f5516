import Bytes
import Processors
import Schemas
import System

/// Measures `TunnelHealth` alone: records in memory, decoded and applied, rows drained.
enum BenchProcessor {
    struct Result {
        var nanosecondsPerRecord: Double
        var bytesPerDevice: Double
    }

    /// Heartbeats of `devices` devices in `rounds` intervals of 30 s with beacons between them; of
    /// 1,000 records `changing` change a state.
    static func measure(devices: Int, rounds: Int, changing: Int) -> Result {
        let before = Bench.anonymousBytes()
        var health = TunnelHealth(partition: 0, settings: TunnelHealthSettings())
        var effects = Effects(tables: TunnelHealth.tables)
        let decoder = HeartbeatsDecoder()
        var value = ByteBuffer()
        var offset: Int64 = 0
        var spent: UInt64 = 0
        var counted = 0
        var grown = 0
        for round in 0..<rounds {
            var index = 0
            while index < devices {
                let end = min(devices, index + 10_000)
                // Records are made outside the measurement.
                var batch = BenchRecords()
                for device in index..<end {
                    let at = Int64(round) * 30_000 + Int64(device) * 30_000 / Int64(devices)
                    batch.append(device: device, round: round, changing: changing, at: at, &value)
                }
                let started = SystemClock.processCPUNanoseconds()
                for (range, time) in batch.records {
                    let place = RecordPlace(partition: 0, offset: offset, timestamp: time)
                    if case .event(let event) = decoder.decode(batch.bytes.span.extracting(range)) {
                        health.apply(event, at: place, into: &effects)
                    }
                    offset += 1
                }
                health.drain(into: &effects)
                effects.removeAll()
                if round > 0 {
                    spent += SystemClock.processCPUNanoseconds() - started
                    counted += batch.records.count
                }
                index = end
            }
            grown = max(grown, Bench.anonymousBytes() - before)
        }
        return Result(
            nanosecondsPerRecord: Double(spent) / Double(max(counted, 1)),
            bytesPerDevice: Double(grown) / Double(devices))
    }
}

/// Heartbeats for measurements, with a beacon every 5 s of their time.
struct BenchRecords {
    /// The log deletes what is old, so the records are of now.
    static let start = SystemClock.wallMilliseconds()
    var bytes = ByteBuffer()
    var records: [(Range<Int>, EventTime)] = []

    static func device(_ index: Int) -> DeviceID {
        var z = UInt64(index) &* 0x9E37_79B9_7F4A_7C15 &+ 0x1234_5678
        z = (z ^ (z >> 30)) &* 0xBF58_476D_1CE4_E5B9
        return DeviceID(high: z ^ (z >> 27), low: z &* 0x94D0_49BB_1331_11EB)
    }

    mutating func append(
        device: Int, round: Int, changing: Int, at milliseconds: Int64, _ value: inout ByteBuffer
    ) {
        let time = EventTime(milliseconds: Self.start + milliseconds)
        let last = records.last?.1.milliseconds ?? 0
        if last == 0 || last / 5_000 != time.milliseconds / 5_000 {
            add(
                .beacon(
                    Beacon(
                        frontEnd: InlineText("bench"),
                        origin: EventOrigin(boot: 1, counter: UInt64(time.milliseconds)),
                        monotonicMilliseconds: milliseconds + 1)), time, &value)
        }
        let heartbeat = Self.heartbeat(device: device, round: round, changing: changing, time)
        add(.heartbeat(heartbeat), time, &value)
    }

    /// A healthy device's heartbeat; of 1,000 devices `changing` say "recovering" in every other round,
    /// so that each of their records changes a state.
    static func heartbeat(
        device: Int, round: Int, changing: Int, _ time: EventTime
    ) -> Heartbeat {
        var heartbeat = Heartbeat(
            device: Self.device(device), origin: EventOrigin(boot: 1, counter: UInt64(round)))
        heartbeat.status = .connected
        heartbeat.tunnelUp = true
        heartbeat.configVersion = 1
        heartbeat.lastHandshake = EventTime(milliseconds: time.milliseconds - 20_000)
        if device % 1_000 < changing, round % 2 == 1 { heartbeat.status = .recovering }
        return heartbeat
    }

    private mutating func add(
        _ event: HeartbeatsEvent, _ time: EventTime, _ value: inout ByteBuffer
    ) {
        value.removeAll()
        value.append(event)
        let first = bytes.count
        bytes.append(value)
        records.append((first..<bytes.count, time))
    }
}
