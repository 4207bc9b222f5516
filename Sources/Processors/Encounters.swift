public import Bytes
public import Schemas

/// What `Encounters` goes by.
public struct EncountersSettings: Hashable, Sendable {
    /// How far apart two reports of one encounter are at most. Unit: milliseconds. Default: 5 min, in
    /// which a client changes its token.
    public var window: Int64 = 300_000
    /// Unit of forgetting, in bytes, at most 65,536; tests make it small.
    package var segmentBytes = 1 << 16

    public init() {}
}

/// Finds encounters that both sides reported.
///
/// Each report is a row. The report that leaves both sides' reports within the window of each other
/// makes one mutual encounter; those who stay near each other and go on reporting make no other. Only
/// receipt stamps count: a phone whose clock is a day off meets people all the same. The row of a
/// mutual encounter names no account, and its time is cut to the minute.
public struct Encounters: Processor {
    public typealias Settings = EncountersSettings
    public typealias Event = Encounter
    public typealias Decoder = EncountersDecoder

    public static var source: Topic { .encounters }
    public static var outputTopics: [Topic] { [.deadLetters] }
    public static var tables: [TableSchema] { [.encounterReports, .encounters] }

    private enum Table {
        static let reports = 0, encounters = 1
    }

    private var recent: RecentRecords
    // Reused from record to record.
    private var kept = ByteBuffer()
    private var text = ByteBuffer()
    /// Reports that made an encounter mutual.
    public private(set) var matches: Int64 = 0

    public init(partition: Int32, settings: EncountersSettings) {
        recent = RecentRecords(life: settings.window, segmentBytes: settings.segmentBytes)
    }

    public mutating func reconfigure(_ settings: EncountersSettings) {
        recent.setLife(settings.window)
    }

    /// Reports in memory, those included that are over and not yet forgotten.
    public var reportCount: Int { recent.count }

    // MARK: - Records

    public mutating func apply(
        _ report: Encounter, at place: RecordPlace, into effects: inout Effects
    ) {
        recent.begin(at: place.offset, stamp: place.timestamp.milliseconds)
        let now = place.timestamp.milliseconds
        let found = recent.find(report.pair)
        let isFirst = report.reporter == report.pair.first
        let own = isFirst ? 0 : 1
        let other = isFirst ? 1 : 0
        var isMatch = false
        if found.has(other) {
            let otherTime = recent.time(other, of: found)
            isMatch = recent.isWithinLife(otherTime, now)
            if isMatch, found.has(own) {
                let ownTime = recent.time(own, of: found)
                isMatch =
                    !recent.isWithinLife(ownTime, now)
                    || !recent.isWithinLife(ownTime, otherTime)
            }
        }
        if isMatch {
            matches += 1
            kept.removeAll()
            _ = recent.append(other, of: found, to: &kept)
        }
        if !effects.isDiscarding {
            write(report, at: place, into: &effects)
            if isMatch { meet(report, at: place, into: &effects) }
        }
        text.removeAll()
        text.append(kept: report)
        recent.put(own, of: report.pair, found, stamp: now, tag: 0, text)
    }

    private func write(_ report: Encounter, at place: RecordPlace, into effects: inout Effects) {
        effects.rows[Table.reports].beginRow(origin: place.offset)
        effects.rows[Table.reports].put(report.reporter)
        effects.rows[Table.reports].put(report.id)
        effects.rows[Table.reports].put(
            report.reporter == report.pair.first ? report.pair.second : report.pair.first)
        effects.rows[Table.reports].put(int4: Int32(report.tier.rawValue))
        effects.rows[Table.reports].put(report.engine.span)
        effects.rows[Table.reports].put(cell: report.cell)
        effects.rows[Table.reports].put(place.timestamp.minute)
    }

    /// The row of a mutual encounter: from this report and the other's, in `kept`.
    private func meet(_ report: Encounter, at place: RecordPlace, into effects: inout Effects) {
        guard let half = HalfEncounter(kept.span) else {
            preconditionFailure("a report that is kept otherwise than it is read")
        }
        let isFirst = report.reporter == report.pair.first
        // The nearer of the two ways says more, and what measured it goes with it.
        let takesOther = half.tier < report.tier.rawValue
        effects.rows[Table.encounters].beginRow(origin: place.offset)
        effects.rows[Table.encounters].put(
            isFirst
                ? EncounterID(of: report.pair, report.id, half.id)
                : EncounterID(of: report.pair, half.id, report.id))
        // Which token is whose follows from the pair's order, and that is stored nowhere.
        let ownToken = report.ownToken
        if isFirst {
            effects.rows[Table.encounters].put(ownToken.span)
            effects.rows[Table.encounters].put(kept.span.extracting(half.token))
        } else {
            effects.rows[Table.encounters].put(kept.span.extracting(half.token))
            effects.rows[Table.encounters].put(ownToken.span)
        }
        effects.rows[Table.encounters].put(
            int4: Int32(takesOther ? half.tier : report.tier.rawValue))
        if takesOther {
            effects.rows[Table.encounters].put(kept.span.extracting(half.engine))
        } else {
            effects.rows[Table.encounters].put(report.engine.span)
        }
        if report.cell != nil || half.cell.isEmpty {
            effects.rows[Table.encounters].put(cell: report.cell)
        } else {
            effects.rows[Table.encounters].put(kept.span.extracting(half.cell))
        }
        effects.rows[Table.encounters].put(place.timestamp.minute)
        effects.rows[Table.encounters].put(report.pair.first)
        effects.rows[Table.encounters].put(report.pair.second)
    }

    // MARK: - Rows

    /// Every record is rows of its own.
    public var pendingRows: Int { 0 }

    public mutating func drain(into effects: inout Effects) {
        for table in effects.rows.indices { effects.rows[table].sortByKey() }
    }

    // MARK: - Snapshots

    public static var restsOnRecentRecords: Bool { true }

    public var replayOffset: Int64 { recent.firstOffset }

    private static let snapshotVersion: UInt32 = 0x454E_0001

    public func snapshot(into bytes: inout ByteBuffer) {
        bytes.appendLittleEndian(Self.snapshotVersion)
        recent.snapshot(into: &bytes)
    }

    public init(
        restoring snapshot: Span<UInt8>, partition: Int32, settings: EncountersSettings
    ) throws(SnapshotError) {
        self.init(partition: partition, settings: settings)
        var reader = ByteReader(snapshot)
        guard let version = reader.littleEndian(UInt32.self) else { throw .damaged }
        guard version == Self.snapshotVersion else { throw .unknownVersion(version) }
        guard let recent = RecentRecords(&reader, segmentBytes: settings.segmentBytes),
            reader.remaining == 0
        else { throw .damaged }
        self.recent = recent
    }
}

/// What is kept of a report until the other side's comes. Layout: id (16 bytes), tier (1), sizes of
/// token, engine and cell (1 each), and these three.
private struct HalfEncounter {
    var id: EncounterID
    var tier: UInt8
    var token: Range<Int>
    var engine: Range<Int>
    var cell: Range<Int>

    init?(_ bytes: Span<UInt8>) {
        var reader = ByteReader(bytes)
        guard let high = reader.littleEndian(UInt64.self),
            let low = reader.littleEndian(UInt64.self), let tier = reader.littleEndian(UInt8.self),
            let tokenBytes = reader.littleEndian(UInt8.self),
            let engineBytes = reader.littleEndian(UInt8.self),
            let cellBytes = reader.littleEndian(UInt8.self),
            let token = reader.take(Int(tokenBytes)), let engine = reader.take(Int(engineBytes)),
            let cell = reader.take(Int(cellBytes))
        else { return nil }
        id = EncounterID(high: high, low: low)
        self.tier = tier
        self.token = token
        self.engine = engine
        self.cell = cell
    }
}

extension ByteBuffer {
    /// Appends what `HalfEncounter` reads.
    fileprivate mutating func append(kept report: Encounter) {
        appendLittleEndian(report.id.high)
        appendLittleEndian(report.id.low)
        append(report.tier.rawValue)
        append(report.ownToken.count)
        append(report.engine.count)
        append(report.cell == nil ? 0 : UInt8(Geohash.characters))
        append(report.ownToken.span)
        append(report.engine.span)
        if let cell = report.cell { append(cell) }
    }
}

extension EventTime {
    /// Cut to the minute: when exactly two people met is nobody's business.
    fileprivate var minute: EventTime {
        let rest = milliseconds % 60_000
        return EventTime(milliseconds: milliseconds - (rest < 0 ? rest + 60_000 : rest))
    }
}

extension RowBuffer {
    fileprivate mutating func put(cell: Geohash?) {
        guard let cell else { return putNull() }
        var text = ByteBuffer()
        text.append(cell)
        put(text.span)
    }
}
