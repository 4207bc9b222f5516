public import Bytes
public import Schemas

/// Sums what devices measure by device, name and minute of receipt, and keeps the lines of their logs.
///
/// A minute is that of the record's receipt, never of the device's clock. It closes, and its rows are
/// written, when a record that is `closeAfter` younger than its end has been read in the partition.
/// Samples of a minute that has closed are counted as `late` in the minute that is read then. The last
/// minutes of a partition that nothing more comes to stay open.
///
/// Memory: 84 bytes a sum, 24 a series, 40 a device, 140 a name, and 8 to 16 in each index, all of them
/// bounded by the number of sums (`sums`): 60 MB at the default of 500,000, 160 MB where every sum has a
/// device and a name of its own.
public struct TelemetryRollup: Processor {
    public typealias Settings = TelemetryRollupSettings
    public typealias Event = TelemetryEvent
    public typealias Decoder = TelemetryDecoder

    public static var source: Topic { .telemetry }
    public static var outputTopics: [Topic] { [.deadLetters] }
    public static var tables: [TableSchema] { [.telemetryMinutes, .agentLogs] }

    /// Under whose id the samples are counted for which there is no room.
    private static let nobody = DeviceID(high: 0, low: 0)

    private let partition: Int32
    private var settings: TelemetryRollupSettings
    /// The newest receipt, in milliseconds.
    private var newest = Int64.min
    /// The newest minute that has closed.
    private var closed = Int64.min
    private var sums = TelemetrySums()
    /// Samples that came after their minute had closed.
    public private(set) var lateSamples: Int64 = 0

    public init(partition: Int32, settings: TelemetryRollupSettings) {
        self.partition = partition
        self.settings = settings
    }

    public mutating func reconfigure(_ settings: TelemetryRollupSettings) {
        self.settings = settings
    }

    /// Sums of minutes that are open.
    public var sumCount: Int { sums.count }
    /// Devices that have one.
    public var deviceCount: Int { sums.deviceCount }

    // MARK: - Records

    public mutating func apply(
        _ event: TelemetryEvent, at place: RecordPlace, into effects: inout Effects
    ) {
        let stamp = place.timestamp.milliseconds
        if stamp > newest {
            newest = stamp
            let due = Self.minute(of: stamp - settings.closeAfter) - 1
            while let oldest = sums.oldestMinute, oldest <= due { close(place.offset, &effects) }
            closed = max(closed, due)
        }
        if !event.samples.isEmpty { add(event, place, &effects) }
        if effects.isDiscarding { return }
        for line in event.logLines {
            effects.rows[1].beginRow(origin: place.offset)
            effects.rows[1].put(event.device)
            effects.rows[1].put(int4: partition)
            effects.rows[1].put(place.timestamp)
            effects.rows[1].put(line.time)
            effects.rows[1].put(event.text(line.level))
            effects.rows[1].put(event.text(line.tag))
            effects.rows[1].put(event.text(line.message))
        }
    }

    /// The minute of a time in milliseconds, counted from 1970.
    private static func minute(of time: Int64) -> Int64 {
        time >= 0 ? time / 60_000 : (time - 59_999) / 60_000
    }

    private mutating func add(
        _ event: TelemetryEvent, _ place: RecordPlace, _ effects: inout Effects
    ) {
        var minute = Self.minute(of: place.timestamp.milliseconds)
        let isLate = minute <= closed
        if isLate { minute = max(Self.minute(of: newest), closed + 1) }
        // Room for all of them, at the cost of the oldest minutes.
        while Int64(sums.count + event.samples.count) > settings.sums,
            let oldest = sums.oldestMinute, oldest < minute
        {
            close(place.offset, &effects)
            closed = max(closed, oldest)
        }
        for sample in event.samples {
            let name = event.text(sample.name)
            let found = sums.find(
                event.device, name, minute, limit: settings.namesPerDevice,
                mayGrow: Int64(sums.count) < settings.sums)
            guard
                let index = found
                    ?? sums.find(Self.nobody, name, minute, limit: 0, mayGrow: true)
            else { continue }
            if isLate {
                lateSamples += 1
                sums[index].late += 1
            } else {
                sums[index].add(sample.value, at: sample.time)
            }
        }
    }

    /// Writes the rows of the oldest minute.
    private mutating func close(_ origin: Int64, _ effects: inout Effects) {
        let partition = partition
        sums.closeOldest { device, name, sum in
            if effects.isDiscarding { return }
            effects.rows[0].beginRow(origin: origin)
            effects.rows[0].put(device)
            effects.rows[0].put(int4: partition)
            effects.rows[0].put(name)
            effects.rows[0].put(EventTime(milliseconds: sum.minute * 60_000))
            effects.rows[0].put(int8: sum.samples)
            effects.rows[0].put(float8: sum.sum)
            if sum.samples > 0 {
                effects.rows[0].put(float8: sum.min)
                effects.rows[0].put(float8: sum.max)
                effects.rows[0].put(float8: sum.last)
                effects.rows[0].put(EventTime(milliseconds: sum.lastTime))
            } else {
                for _ in 0..<4 { effects.rows[0].putNull() }
            }
            effects.rows[0].put(int8: sum.late)
        }
    }

    // MARK: - Rows

    /// A row is appended when its minute closes.
    public var pendingRows: Int { 0 }

    public mutating func drain(into effects: inout Effects) {}

    // MARK: - Snapshots

    /// Not of another processor, so that a pipeline which is given another one by mistake stops.
    private static let snapshotVersion: UInt32 = 0x5452_0001

    public func snapshot(into bytes: inout ByteBuffer) {
        bytes.appendLittleEndian(Self.snapshotVersion)
        bytes.appendLittleEndian(newest)
        bytes.appendLittleEndian(closed)
        bytes.appendLittleEndian(lateSamples)
        sums.append(to: &bytes)
    }

    public init(
        restoring snapshot: Span<UInt8>, partition: Int32, settings: TelemetryRollupSettings
    ) throws(SnapshotError) {
        self.init(partition: partition, settings: settings)
        var reader = ByteReader(snapshot)
        guard let version = reader.littleEndian(UInt32.self) else { throw .damaged }
        guard version == Self.snapshotVersion else { throw .unknownVersion(version) }
        guard let newest = reader.littleEndian(Int64.self),
            let closed = reader.littleEndian(Int64.self),
            let lateSamples = reader.littleEndian(Int64.self),
            let sums = TelemetrySums(&reader, of: snapshot), reader.remaining == 0
        else { throw .damaged }
        self.newest = newest
        self.closed = closed
        self.lateSamples = lateSamples
        self.sums = sums
    }
}

extension TelemetryDecoder: EventDecoder {}
