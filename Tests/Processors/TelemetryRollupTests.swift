import Bytes
import Processors
import Schemas
import Simulation
import TestSupport
import Testing

/// One partition of `telemetry` in the hands of a test: times are seconds after a fixed minute.
private struct Rollup {
    static let start: Int64 = 1_790_000_040_000

    var rollup: TelemetryRollup
    var effects = Effects(tables: TelemetryRollup.tables)
    var tables = SimulatedTables()
    var offset: Int64 = 0

    init(_ settings: TelemetryRollupSettings = TelemetryRollupSettings()) {
        rollup = TelemetryRollup(partition: 0, settings: settings)
    }

    static func time(_ seconds: Double) -> EventTime {
        EventTime(milliseconds: start + Int64(seconds * 1_000))
    }

    mutating func apply(_ event: TelemetryEvent, at seconds: Double) {
        let place = RecordPlace(partition: 0, offset: offset, timestamp: Self.time(seconds))
        rollup.apply(event, at: place, into: &effects)
        offset += 1
        rollup.drain(into: &effects)
        tables.write(effects.rows)
        effects.removeAll()
    }

    /// - Parameter claimed: by the device's clock; `nil`: as received.
    mutating func sample(
        _ device: DeviceID, _ names: [String], _ value: Double = 1, at seconds: Double,
        claimed: Double? = nil
    ) {
        var event = TelemetryEvent(device: device, origin: EventOrigin(boot: 1, counter: 1))
        for name in names {
            event.addSample(
                ByteBuffer(name.utf8).span, value, at: Self.time(claimed ?? seconds))
        }
        apply(event, at: seconds)
    }

    mutating func sample(
        _ device: DeviceID, _ value: Double = 1, at seconds: Double, claimed: Double? = nil
    ) { sample(device, ["cpu"], value, at: seconds, claimed: claimed) }

    /// `name@minute samples sum min max last late`, sorted; with the device's last digit in front.
    var rows: [String] {
        (tables.appended["telemetry_minutes"] ?? [:]).flatMap { row, count in
            [String](repeating: Self.text(row), count: count)
        }.sorted()
    }

    private static func text(_ row: SimulatedTables.Row) -> String {
        func number(_ name: String) -> Int64? {
            row[name].map { $0.reduce(0) { $0 << 8 | Int64($1) } }
        }
        func double(_ name: String) -> String {
            number(name).map { "\(Double(bitPattern: UInt64(bitPattern: $0)))" } ?? "-"
        }
        let minute = EventTime(postgresMicroseconds: number("minute") ?? 0).milliseconds - start
        return """
            \(row["device_id"]?.last ?? 0) \(String(decoding: row["name"] ?? [], as: UTF8.self))\
            @\(minute / 60_000) \(number("samples") ?? -1) \(double("sum")) \(double("min")) \
            \(double("max")) \(double("last")) \(number("late") ?? -1)
            """
    }

    var snapshot: ByteBuffer {
        var bytes = ByteBuffer()
        rollup.snapshot(into: &bytes)
        return bytes
    }
}

@Suite("Telemetry by the minute") struct TelemetryRollupTests {
    @Test("A minute is summed once, when a record five minutes younger than its end is read")
    func minute() {
        var partition = Rollup()
        partition.sample(d1, 3, at: 0)
        partition.sample(d1, -1, at: 59.999)
        partition.sample(d1, 8, at: 60)
        #expect(partition.rows == [])
        partition.sample(d2, 1, at: 359.999)
        #expect(partition.rows == [])
        partition.sample(d2, 1, at: 360)
        #expect(partition.rows == ["1 cpu@0 2 2.0 -1.0 3.0 -1.0 0"])
        partition.sample(d2, 1, at: 420)
        #expect(partition.rows.count == 2)
        #expect(partition.rows.contains("1 cpu@1 1 8.0 8.0 8.0 8.0 0"))
    }

    @Test("Records out of order count in their own minute; the device's clock orders the last")
    func outOfOrder() {
        var partition = Rollup()
        partition.sample(d1, 1, at: 130, claimed: 5)
        partition.sample(d1, 2, at: 10, claimed: 900)
        partition.sample(d1, 4, at: 70, claimed: -100)
        partition.sample(d1, 5, at: 20, claimed: 800)
        partition.sample(d1, 6, at: 30, claimed: 900)
        partition.sample(d2, 0, at: 1_000)
        #expect(
            partition.rows == [
                "1 cpu@0 3 13.0 2.0 6.0 6.0 0", "1 cpu@1 1 4.0 4.0 4.0 4.0 0",
                "1 cpu@2 1 1.0 1.0 1.0 1.0 0",
            ])
    }

    @Test("What comes after its minute has closed is late, in the minute that is read then")
    func late() {
        var partition = Rollup()
        partition.sample(d1, 1, at: 0)
        partition.sample(d1, 2, at: 400)
        partition.sample(d1, 100, at: 59)
        partition.sample(d2, 100, at: 30)
        // Not late: minute 1 is open at 400 s.
        partition.sample(d2, 7, at: 110)
        #expect(partition.rollup.lateSamples == 2)
        partition.sample(d3, 1, at: 2_000)
        #expect(
            partition.rows == [
                "1 cpu@0 1 1.0 1.0 1.0 1.0 0", "1 cpu@6 1 2.0 2.0 2.0 2.0 1",
                "2 cpu@1 1 7.0 7.0 7.0 7.0 0", "2 cpu@6 0 0.0 - - - 1",
            ])
    }

    @Test("close_after is a setting, and zero closes with the next minute")
    func closeAfter() {
        var settings = TelemetryRollupSettings()
        settings.closeAfter = 0
        var partition = Rollup(settings)
        partition.sample(d1, 1, at: 59)
        partition.sample(d1, 1, at: 60)
        #expect(partition.rows.count == 1)
    }

    @Test("Names of a device beyond the limit are other, and each device has its own limit")
    func names() {
        var settings = TelemetryRollupSettings()
        settings.namesPerDevice = 3
        var partition = Rollup(settings)
        partition.sample(d1, ["a", "b", "c", "d", "e", "a"], 2, at: 0)
        partition.sample(d2, ["x", "y", "other"], 1, at: 1)
        // One name is known, so it is kept apart in the next minute too.
        partition.sample(d1, ["b", "z"], 1, at: 61)
        partition.sample(d3, 1, at: 1_000)
        #expect(
            partition.rows == [
                "1 a@0 2 4.0 2.0 2.0 2.0 0", "1 b@0 1 2.0 2.0 2.0 2.0 0",
                "1 b@1 1 1.0 1.0 1.0 1.0 0", "1 c@0 1 2.0 2.0 2.0 2.0 0",
                "1 other@0 2 4.0 2.0 2.0 2.0 0", "1 other@1 1 1.0 1.0 1.0 1.0 0",
                "2 other@0 1 1.0 1.0 1.0 1.0 0", "2 x@0 1 1.0 1.0 1.0 1.0 0",
                "2 y@0 1 1.0 1.0 1.0 1.0 0",
            ])
        // When its minutes are closed a device may have other names.
        partition.sample(d1, ["p", "q", "r"], 1, at: 1_001)
        partition.sample(d3, 1, at: 2_000)
        #expect(partition.rows.contains("1 r@16 1 1.0 1.0 1.0 1.0 0"))
    }

    @Test("A name a sample costs no memory beyond the limit, and none for ever")
    func nameBySample() {
        var settings = TelemetryRollupSettings()
        settings.namesPerDevice = 50
        settings.sums = 1_000
        var partition = Rollup(settings)
        var largest = 0
        for number in 0..<20_000 {
            partition.sample(d1, ["metric-\(number)"], at: Double(number) / 10)
            largest = max(largest, partition.rollup.sumCount)
        }
        #expect(largest <= 51 * 7)
        partition.sample(d2, at: 100_000)
        #expect(partition.rollup.sumCount == 1)
        #expect(partition.rollup.deviceCount == 1)
        let samples = partition.rows.reduce(0) { $0 + (Int($1.split(separator: " ")[2]) ?? 0) }
        #expect(samples == 20_000)
    }

    @Test("Beyond the limit of sums the oldest minute closes early, and what comes for it is late")
    func early() {
        var settings = TelemetryRollupSettings()
        settings.sums = 100
        var partition = Rollup(settings)
        for number in 0..<60 { partition.sample(d1, ["a\(number)"], at: 0) }
        for number in 0..<40 { partition.sample(d1, ["a\(number)"], at: 60) }
        #expect(partition.rows.isEmpty)
        partition.sample(d1, ["more"], at: 61)
        #expect(partition.rows.count == 60)
        partition.sample(d1, ["a1"], at: 1)
        #expect(partition.rollup.lateSamples == 1)
        #expect(partition.rollup.sumCount <= 100)
    }

    @Test("What one minute alone cannot hold is counted for nobody")
    func nobody() {
        var settings = TelemetryRollupSettings()
        settings.sums = 100
        settings.namesPerDevice = 1_000
        var partition = Rollup(settings)
        for number in 0..<150 { partition.sample(d1, ["a\(number)"], at: 0) }
        // What is there goes on.
        partition.sample(d1, ["a7"], at: 1)
        partition.sample(d2, at: 1_000)
        #expect(partition.rows.contains("0 other@0 50 50.0 1.0 1.0 1.0 0"))
        #expect(partition.rows.contains("1 a7@0 2 2.0 1.0 1.0 1.0 0"))
    }

    @Test("Lines of a log are rows with the time of receipt and the device's own")
    func logs() throws {
        var partition = Rollup()
        var event = TelemetryEvent(device: d1, origin: EventOrigin(boot: 1, counter: 1))
        event.addLogLine(
            level: ByteBuffer("warn".utf8).span, tag: ByteBuffer("wg".utf8).span,
            ByteBuffer("handshake timed out".utf8).span, at: Rollup.time(-50))
        partition.apply(event, at: 3)
        let row = try #require(partition.tables.appended["agent_logs"]?.first?.key)
        #expect(row["message"] == Array("handshake timed out".utf8))
        #expect(row["level"] == Array("warn".utf8))
        func time(_ name: String) -> EventTime {
            EventTime(postgresMicroseconds: (row[name] ?? []).reduce(0) { $0 << 8 | Int64($1) })
        }
        #expect(time("received_at") == Rollup.time(3))
        #expect(time("ts") == Rollup.time(-50))
        // A device that only writes logs takes no memory.
        #expect(partition.rollup.deviceCount == 0)
    }

    /// The same samples for the same seed, some of them late, with pauses and many names.
    /// - Parameter stop: called now and then.
    private static func load(
        _ settings: TelemetryRollupSettings, seed: UInt64, _ stop: (inout Rollup) throws -> Void
    ) rethrows -> Rollup {
        var random = SplitMix64(seed: seed)
        var partition = Rollup(settings)
        var seconds = 0.0
        for _ in 0..<600 {
            seconds += Double(random.below(random.chance(20) ? 400_000 : 5_000)) / 1_000
            let device = DeviceID(high: 9, low: UInt64(random.below(12)))
            let names = (0..<(1 + random.below(5))).map { _ in "n\(random.below(9))" }
            let back = random.chance(100) ? Double(random.below(700)) : 0
            partition.sample(
                device, names, Double(random.below(1_000)) / 8, at: max(0, seconds - back),
                claimed: Double(random.below(1_000)))
            if random.chance(100) { try stop(&partition) }
        }
        return partition
    }

    @Test("A restored partition goes on as the one that was not stopped", arguments: 0..<20)
    func restore(seed: UInt64) throws {
        var settings = TelemetryRollupSettings()
        settings.namesPerDevice = 4
        settings.sums = [100, 150, 500_000][Int(seed % 3)]
        let calm = Self.load(settings, seed: seed) { _ in }
        let stopped = try Self.load(settings, seed: seed) { partition in
            let bytes = partition.snapshot
            partition.rollup = try TelemetryRollup(
                restoring: bytes.span, partition: 0, settings: settings)
            #expect(partition.snapshot == bytes)
        }
        #expect(stopped.rows == calm.rows)
        #expect(stopped.snapshot == calm.snapshot)
        #expect(!calm.rows.isEmpty && calm.rollup.lateSamples > 0)
    }

    @Test("A damaged snapshot is refused, whatever byte is gone")
    func damaged() throws {
        var partition = Rollup()
        partition.sample(d1, ["a", "b"], at: 0)
        partition.sample(d2, ["a"], at: 61)
        let bytes = partition.snapshot.bytes
        func restore(_ bytes: [UInt8]) throws(SnapshotError) {
            _ = try TelemetryRollup(
                restoring: bytes.span, partition: 0, settings: TelemetryRollupSettings())
        }
        try restore(bytes)
        for end in 0..<bytes.count {
            #expect(throws: SnapshotError.damaged) { try restore(Array(bytes[..<end])) }
        }
        var other = bytes
        other[0] ^= 1
        #expect(throws: SnapshotError.unknownVersion(0x5452_0000)) { try restore(other) }
    }
}
