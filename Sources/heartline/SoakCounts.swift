import Bytes
import EventLog
import Schemas
import System

/// What the log holds, counted from its beginning.
struct SoakCounts {
    /// By device.
    private(set) var heartbeats: [Int64]
    private(set) var waves: Int64 = 0
    private(set) var samples: Int64 = 0
    /// Of apps for updates.
    private(set) var checks: Int64 = 0
    private(set) var deadLetters: Int64 = 0

    init(_ log: EmbeddedLog, _ devices: [DeviceID]) throws {
        var places: [DeviceID: Int] = [:]
        for (index, device) in devices.enumerated() { places[device] = index }
        var beats = devices.map { _ in Int64(0) }
        let heartbeatsDecoder = HeartbeatsDecoder()
        try Self.read(.heartbeats, of: log) { value in
            guard case .event(.heartbeat(let heartbeat)) = heartbeatsDecoder.decode(value),
                let place = places[heartbeat.device]
            else { return }
            beats[place] += 1
        }
        heartbeats = beats
        var (waves, samples, letters) = (Int64(0), Int64(0), Int64(0))
        let wavesDecoder = WavesDecoder()
        try Self.read(.waves, of: log) { value in
            if case .event(.wave) = wavesDecoder.decode(value) { waves += 1 }
        }
        let telemetryDecoder = TelemetryDecoder()
        try Self.read(.telemetry, of: log) { value in
            if case .event(let event) = telemetryDecoder.decode(value) {
                samples += Int64(event.samples.count)
            }
        }
        var checks: Int64 = 0
        let updatesDecoder = UpdatesDecoder()
        try Self.read(.updates, of: log) { value in
            if case .event(let event) = updatesDecoder.decode(value), case .checked = event.kind {
                checks += 1
            }
        }
        try Self.read(.deadLetters, of: log) { _ in letters += 1 }
        (self.waves, self.samples, self.checks, deadLetters) = (waves, samples, checks, letters)
    }

    private static func read(
        _ topic: Topic, of log: EmbeddedLog, _ body: (Span<UInt8>) -> Void
    ) throws {
        guard let partitions = try log.partitionCount(of: topic) else { return }
        let consumer = try log.makeConsumer(of: topic, group: "soak", waker: Waker())
        _ = try consumer.nextAssignmentChange()
        var left: Int64 = 0
        for partition in 0..<partitions {
            let range = try log.offsets(of: TopicPartition(topic, partition))
            guard range.earliest == 0 else {
                throw Failure("counting \(topic.rawValue): the log has lost its beginning")
            }
            left += range.next
            try consumer.start(partition, at: 0)
        }
        while left > 0 {
            let count = try consumer.poll(limit: 10_000) { _, _, value in
                if !value.isTombstone { body(value.bytes) }
            }
            guard count > 0 else {
                throw Failure("counting \(topic.rawValue): \(left) records are missing")
            }
            left -= Int64(count)
        }
    }
}
