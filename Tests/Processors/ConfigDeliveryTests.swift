import Bytes
import Processors
import Schemas
import Testing

@Suite("Delivery of configurations") struct ConfigDeliveryTests {
    /// One partition of `heartbeats` in the hands of a test.
    struct Heartbeats {
        var processor = ConfigDelivery(partition: 2, settings: ConfigDeliverySettings())
        var effects = Effects(tables: ConfigDelivery.tables)
        var offset: Int64 = 0

        mutating func apply(_ event: HeartbeatsEvent, at seconds: Double) {
            processor.apply(
                event,
                at: RecordPlace(partition: 2, offset: offset, timestamp: Partition.time(seconds)),
                into: &effects)
            offset += 1
        }

        mutating func beat(_ device: DeviceID, _ version: Int64, at seconds: Double) {
            var heartbeat = Heartbeat(
                device: device, origin: EventOrigin(boot: 1, counter: UInt64(offset)))
            heartbeat.configVersion = version
            apply(.heartbeat(heartbeat), at: seconds)
        }

        mutating func lifecycle(
            _ kind: Lifecycle.Kind, _ device: DeviceID, _ version: Int64, at seconds: Double
        ) {
            apply(
                .lifecycle(Lifecycle(device: device, kind: kind, version: version)), at: seconds)
        }

        /// Each row: the device's last digit, the version, the second.
        mutating func rows() -> [String] {
            processor.drain(into: &effects)
            let rows = effects.rows[0]
            return (0..<rows.count).map { index in
                let fields = Fields(rows, index)
                let time = fields.number(3) / 1_000 + 946_684_800_000
                return
                    "\(fields.number(0) & 15):\(fields.number(2))@\((time - Partition.start) / 1_000)"
            }
        }

        var snapshot: ByteBuffer {
            var bytes = ByteBuffer()
            processor.snapshot(into: &bytes)
            return bytes
        }
    }

    struct Example: Sendable, CustomTestStringConvertible {
        var testDescription: String
        /// Second and version of each heartbeat of one device.
        var beats: [(Double, Int64)]
        var rows: [String]
    }

    @Test(
        "Versions that are newer than the last have a row each",
        arguments: [
            Example(
                testDescription: "the same again", beats: [(0, 1), (30, 1), (60, 1)],
                rows: ["1:1@0"]),
            Example(
                testDescription: "newer ones", beats: [(0, 1), (30, 2), (60, 4)],
                rows: ["1:1@0", "1:2@30", "1:4@60"]),
            Example(
                testDescription: "a front-end that lags",
                beats: [(0, 1), (30, 3), (60, 2), (90, 3)], rows: ["1:1@0", "1:3@30"]),
            Example(
                testDescription: "redelivered records", beats: [(0, 1), (30, 2), (0, 1), (30, 2)],
                rows: ["1:1@0", "1:2@30"]),
            Example(
                testDescription: "a version that is not known", beats: [(0, 0), (30, 5), (60, 0)],
                rows: ["1:5@30"]),
        ])
    func newer(_ example: Example) {
        var heartbeats = Heartbeats()
        for (seconds, version) in example.beats { heartbeats.beat(d1, version, at: seconds) }
        #expect(heartbeats.rows() == example.rows)
    }

    @Test("Rows are sorted by device and version")
    func sorted() {
        var heartbeats = Heartbeats()
        heartbeats.beat(d2, 1, at: 0)
        heartbeats.beat(d3, 9, at: 1)
        heartbeats.beat(d1, 1, at: 2)
        heartbeats.beat(d2, 2, at: 3)
        heartbeats.beat(d1, 3, at: 4)
        #expect(heartbeats.rows() == ["1:1@2", "1:3@4", "2:1@0", "2:2@3", "3:9@1"])
    }

    @Test("Beacons, and lifecycles other than a removal, say nothing")
    func others() {
        var heartbeats = Heartbeats()
        heartbeats.beat(d1, 1, at: 0)
        heartbeats.apply(
            .beacon(
                Beacon(
                    frontEnd: InlineText("fe"), origin: EventOrigin(boot: 1, counter: 1),
                    monotonicMilliseconds: 5)), at: 5)
        heartbeats.lifecycle(.suspended, d1, 2, at: 6)
        heartbeats.lifecycle(.resumed, d1, 3, at: 7)
        heartbeats.lifecycle(.provisioned, d2, 1, at: 7)
        #expect(heartbeats.rows() == ["1:1@0"])
        #expect(heartbeats.processor.delivery(to: d1)?.version == 1)
        #expect(heartbeats.processor.deviceCount == 1)
    }

    @Test("A removed device is forgotten after an hour; late heartbeats do not bring it back")
    func removed() {
        var heartbeats = Heartbeats()
        heartbeats.beat(d1, 3, at: 0)
        heartbeats.beat(d2, 1, at: 0)
        heartbeats.lifecycle(.removed, d1, 5, at: 10)
        heartbeats.lifecycle(.removed, d1, 5, at: 11)
        heartbeats.beat(d1, 4, at: 12)
        #expect(heartbeats.processor.delivery(to: d1) == nil)
        #expect(heartbeats.processor.deviceCount == 2)
        heartbeats.lifecycle(.suspended, d2, 2, at: 3_609)
        #expect(heartbeats.processor.deviceCount == 2)
        heartbeats.lifecycle(.resumed, d2, 3, at: 3_611)
        #expect(heartbeats.processor.deviceCount == 1)
        #expect(heartbeats.processor.delivery(to: d2)?.version == 1)
        #expect(heartbeats.rows() == ["1:3@0", "2:1@0"])
    }

    @Test("A snapshot restores everything, and damage to it is found")
    func snapshot() throws {
        var heartbeats = Heartbeats()
        for number in UInt64(0)..<3_000 {
            heartbeats.beat(DeviceID(high: number, low: ~number), Int64(number % 7), at: 1)
        }
        heartbeats.lifecycle(.removed, DeviceID(high: 3, low: ~3), 9, at: 2)
        let bytes = heartbeats.snapshot
        // Under 40 bytes a device that was answered a version.
        #expect(bytes.count < heartbeats.processor.deviceCount * 40)
        var restored = Heartbeats()
        restored.processor = try ConfigDelivery(
            restoring: bytes.span, partition: 2, settings: ConfigDeliverySettings())
        #expect(restored.snapshot == bytes)
        restored.beat(DeviceID(high: 3, low: ~3), 8, at: 3)
        restored.beat(DeviceID(high: 5, low: ~5), 5, at: 3)
        #expect(restored.effects.count == 0)
        restored.beat(DeviceID(high: 5, low: ~5), 6, at: 3)
        #expect(restored.effects.count == 1)
        for size in 0..<64 {
            #expect(throws: SnapshotError.self) {
                _ = try ConfigDelivery(
                    restoring: bytes.span.extracting(0..<(bytes.count - 1 - size)), partition: 2,
                    settings: ConfigDeliverySettings())
            }
        }
    }
}
