public import Bytes
public import Schemas

/// What `MutualWaves` goes by.
public struct MutualWavesSettings: Hashable, Sendable {
    /// How long a wave waits for the other's. Unit: milliseconds. Default: 24 h, a day out; at most
    /// six days, for a restart reads the waves again, and the log keeps them for seven.
    public var waveLife: Int64 = 86_400_000
    /// Unit of forgetting, in bytes, at most 65,536; tests make it small.
    package var segmentBytes = 1 << 16

    public init() {}
}

/// Finds pairs of people who waved at each other.
///
/// A wave is a directed edge that lives for a day, by the receipt stamps of the records. The record
/// that leaves both edges of a pair alive connects it: one connection, two pushes, two doorbells. What
/// comes again, in whatever order, connects nobody anew: ids follow from the pair, and an old row
/// stays. A block deletes both edges; later waves of the pair are refused.
///
/// The waves of the last day are in memory (`RecentRecords`); who connected before stands in the
/// tables alone. Commit at every poll: somebody waits for the push.
public struct MutualWaves: Processor {
    public typealias Settings = MutualWavesSettings
    public typealias Event = WavesEvent
    public typealias Decoder = WavesDecoder

    public static var source: Topic { .waves }
    public static var outputTopics: [Topic] { [.pushes, .deadLetters] }
    public static var tables: [TableSchema] { [.waves, .wavesTakenBack, .connections, .pushes] }

    private enum Table {
        static let waves = 0, takenBack = 1, connections = 2, pushes = 3
    }

    /// Lanes of a pair.
    private enum Lane {
        static let fromFirst = 0, fromSecond = 1, block = 2
    }

    private var recent: RecentRecords
    // Reused from record to record.
    private var token = ByteBuffer()
    private var kept = ByteBuffer()
    private var otherToken = ByteBuffer()
    private var text = ByteBuffer()
    /// Waves that connected a pair, and those that a block refused.
    public private(set) var matches: Int64 = 0
    public private(set) var refusals: Int64 = 0

    public init(partition: Int32, settings: MutualWavesSettings) {
        recent = RecentRecords(life: settings.waveLife, segmentBytes: settings.segmentBytes)
    }

    public mutating func reconfigure(_ settings: MutualWavesSettings) {
        recent.setLife(settings.waveLife)
    }

    /// Edges and blocks in memory, those included that are over and not yet forgotten.
    public var edgeCount: Int { recent.count }

    /// Bytes of memory of all edges.
    public var memoryBytes: Int { recent.memoryBytes }

    // MARK: - Records

    public mutating func apply(
        _ event: WavesEvent, at place: RecordPlace, into effects: inout Effects
    ) {
        recent.begin(at: place.offset, stamp: place.timestamp.milliseconds)
        switch event {
        case .wave(let wave): apply(wave, at: place, into: &effects)
        case .block(let block): apply(block, at: place, into: &effects)
        }
    }

    private mutating func apply(_ block: Block, at place: RecordPlace, into effects: inout Effects)
    {
        var found = recent.find(block.pair)
        found = recent.remove(Lane.fromFirst, of: block.pair, found)
        found = recent.remove(Lane.fromSecond, of: block.pair, found)
        text.removeAll()
        recent.put(
            Lane.block, of: block.pair, found, stamp: place.timestamp.milliseconds, tag: 0, text)
        if effects.isDiscarding { return }
        for (from, to) in [
            (block.pair.first, block.pair.second), (block.pair.second, block.pair.first),
        ] {
            effects.rows[Table.takenBack].beginRow(origin: place.offset)
            effects.rows[Table.takenBack].put(from)
            effects.rows[Table.takenBack].put(to)
        }
    }

    private mutating func apply(_ wave: Wave, at place: RecordPlace, into effects: inout Effects) {
        let pair = wave.pair
        let now = place.timestamp.milliseconds
        let found = recent.find(pair)
        // For good; after a day it is the tables that refuse what a front-end let through.
        let isRefused =
            found.has(Lane.block) && recent.isWithinLife(recent.time(Lane.block, of: found), now)
        let isFirst = wave.sender == pair.first
        let own = isFirst ? Lane.fromFirst : Lane.fromSecond
        let other = isFirst ? Lane.fromSecond : Lane.fromFirst
        var isMatch = false
        if found.has(other), !isRefused {
            let otherTime = recent.time(other, of: found)
            isMatch = recent.isWithinLife(otherTime, now)
            if isMatch, found.has(own) {
                // Connected already, and told so.
                let ownTime = recent.time(own, of: found)
                isMatch =
                    !recent.isWithinLife(ownTime, now)
                    || !recent.isWithinLife(ownTime, otherTime)
            }
            if isMatch {
                kept.removeAll()
                let form = recent.append(other, of: found, to: &kept)
                otherToken.removeAll()
                CompactToken.decode(kept, form: form, into: &otherToken)
            }
        }
        token.removeAll()
        let form = CompactToken.encode(wave.token.span, into: &token)
        // A refused one too: what is in memory must not depend on a block that a replay does not read.
        recent.put(own, of: pair, found, stamp: now, tag: form, token)
        if isRefused {
            refusals += 1
            return
        }
        if isMatch { matches += 1 }
        if !effects.isDiscarding { write(wave, at: place, into: &effects) }
        if isMatch { connect(wave, at: place, into: &effects) }
    }

    private func write(_ wave: Wave, at place: RecordPlace, into effects: inout Effects) {
        effects.rows[Table.waves].beginRow(origin: place.offset)
        effects.rows[Table.waves].put(wave.sender)
        effects.rows[Table.waves].put(wave.receiver)
        effects.rows[Table.waves].put(wave.token.span)
        effects.rows[Table.waves].put(place.timestamp)
    }

    private mutating func connect(
        _ wave: Wave, at place: RecordPlace, into effects: inout Effects
    ) {
        if !effects.isDiscarding {
            let connection = wave.pair.connection
            effects.rows[Table.connections].beginRow(origin: place.offset)
            effects.rows[Table.connections].put(connection)
            effects.rows[Table.connections].put(wave.pair.first)
            effects.rows[Table.connections].put(wave.pair.second)
            effects.rows[Table.connections].put(place.timestamp)
            push(
                to: wave.sender, about: wave.receiver, connection, waved: wave.token.span,
                at: place, into: &effects)
            let waved = otherToken
            push(
                to: wave.receiver, about: wave.sender, connection, waved: waved.span, at: place,
                into: &effects)
        }
        ring(wave.sender, at: place, into: &effects)
        ring(wave.receiver, at: place, into: &effects)
    }

    /// - Parameter token: the one that `account` waved at.
    private mutating func push(
        to account: AccountID, about peer: AccountID, _ connection: ConnectionID,
        waved token: Span<UInt8>, at place: RecordPlace, into effects: inout Effects
    ) {
        let id = PushID(mutualTo: account, of: connection)
        text.removeAll()
        text.append(mutual: id, remoteToken: token, connection: connection)
        effects.rows[Table.pushes].beginRow(origin: place.offset)
        effects.rows[Table.pushes].put(account)
        effects.rows[Table.pushes].put(id)
        effects.rows[Table.pushes].put(peer)
        effects.rows[Table.pushes].put(PushKind.mutual.name)
        effects.rows[Table.pushes].put(text.span)
        effects.rows[Table.pushes].put(place.timestamp)
    }

    private mutating func ring(
        _ account: AccountID, at place: RecordPlace, into effects: inout Effects
    ) {
        text.removeAll()
        text.append(account)
        effects.emit(to: .pushes, key: text.span, at: place.timestamp, origin: place.offset) {
            $0.append(PushesEvent(account: account))
        }
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

    /// Not of another processor, so that a pipeline which is given another one by mistake stops.
    private static let snapshotVersion: UInt32 = 0x4D57_0001

    public func snapshot(into bytes: inout ByteBuffer) {
        bytes.appendLittleEndian(Self.snapshotVersion)
        recent.snapshot(into: &bytes)
    }

    public init(
        restoring snapshot: Span<UInt8>, partition: Int32, settings: MutualWavesSettings
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

extension Wave {
    /// Whom the token belonged to at receipt.
    var receiver: AccountID { sender == pair.first ? pair.second : pair.first }
}
