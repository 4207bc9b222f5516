import Bytes
import EventLog
import Schemas
import System

/// Fills a log with the heartbeats of a fleet, round by round.
final class BenchFeed {
    private let producer: any EventProducer
    private let devices: Int
    private let partitions: Int32
    private var round = 0

    init(_ producer: any EventProducer, devices: Int, partitions: Int32) {
        self.producer = producer
        self.devices = devices
        self.partitions = partitions
    }

    /// Whether nobody says "recovering" in the next round.
    var isNextRoundCalm: Bool { round % 2 == 0 }

    /// Appends a heartbeat of every device, 30 s after the round before, with beacons every 5 s.
    /// - Parameter changing: devices of 1,000 whose state changes with this record.
    func append(changing: Int) throws {
        var value = ByteBuffer()
        var key = ByteBuffer()
        var batch = RecordBatch(.heartbeats)
        var lastBeacon: Int64 = -1
        for device in 0..<devices {
            let at = Int64(round) * 30_000 + Int64(device) * 30_000 / Int64(devices)
            let time = EventTime(milliseconds: BenchRecords.start + at)
            if at / 5_000 != lastBeacon {
                lastBeacon = at / 5_000
                appendBeacons(at, to: &batch)
            }
            let heartbeat = BenchRecords.heartbeat(
                device: device, round: round, changing: changing, time)
            key.removeAll()
            key.append(heartbeat.device)
            value.removeAll()
            value.append(heartbeat)
            batch.append(
                partition: Partitioner.partition(of: key.span, count: partitions),
                timestamp: time, key: key.span, value: value.span)
            if batch.count >= 2_000 || device == devices - 1 {
                try send(batch)
                batch = RecordBatch(.heartbeats)
            }
        }
        try flush()
        round += 1
    }

    /// Appends a beacon of the next round's beginning.
    func appendBeacons() throws {
        var batch = RecordBatch(.heartbeats)
        appendBeacons(Int64(round) * 30_000, to: &batch)
        try send(batch)
        try flush()
    }

    private func appendBeacons(_ at: Int64, to batch: inout RecordBatch) {
        var value = ByteBuffer()
        value.append(
            Beacon(
                frontEnd: InlineText("bench"), origin: EventOrigin(boot: 1, counter: UInt64(at)),
                monotonicMilliseconds: at + 1))
        let key = ByteBuffer()
        for partition in 0..<partitions {
            batch.append(
                partition: partition, timestamp: EventTime(milliseconds: BenchRecords.start + at),
                key: key.span, value: value.span)
        }
    }

    private func send(_ batch: RecordBatch) throws {
        let pause = Waker()
        while true {
            switch producer.send(batch, receipt: nil) {
            case .accepted: return
            case .queueFull: pause.wait(milliseconds: 1)
            case .closed: throw Failure("filling the log: the producer is closed")
            }
        }
    }

    private func flush() throws {
        guard producer.flush(milliseconds: 120_000) else {
            throw Failure("filling the log: it does not store what was sent")
        }
    }
}
