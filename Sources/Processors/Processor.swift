public import Bytes
public import Schemas

/// The decisions of one pipeline for one partition: a value, without I/O, clock or randomness.
///
/// What comes out depends on the records alone: not on how they were cut into polls or commits, not
/// on when they were read. The shell (`Worker`) calls `apply` for every record in order, `drain` at
/// each commit, and `snapshot` now and then; after a restart it calls `init(restoring:…)` and applies
/// again what came after the snapshot, with `effects.isDiscarding` set up to the committed offset.
public protocol Processor: Sendable {
    associatedtype Settings: Sendable
    associatedtype Event: Sendable
    associatedtype Decoder: EventDecoder where Decoder.Event == Event

    /// Tables that `drain` fills, in the order in which they are written.
    static var tables: [TableSchema] { get }
    /// Topics that `effects` may hold events for.
    static var outputTopics: [Topic] { get }
    static var source: Topic { get }

    init(partition: Int32, settings: Settings)

    /// - Throws: `SnapshotError` if the bytes are not a snapshot of this version.
    init(
        restoring snapshot: Span<UInt8>, partition: Int32, settings: Settings) throws(SnapshotError)

    /// Appends the complete state, or what `replayOffset` says.
    func snapshot(into bytes: inout ByteBuffer)

    /// Whether the state follows from the latest records alone, so that a restart applies those again
    /// instead of loading a copy of it: for states that are large and short-lived.
    static var restsOnRecentRecords: Bool { get }

    /// The first offset that the state still rests on; with `restsOnRecentRecords` the snapshot is of
    /// the state before this record. Never decreases.
    var replayOffset: Int64 { get }

    mutating func apply(_ event: Event, at place: RecordPlace, into effects: inout Effects)

    /// Changed rows (what `apply` marked, not what it appended) that wait for `drain`.
    var pendingRows: Int { get }

    /// Appends the rows that are due to `effects`, unique and sorted by key, and forgets the marks.
    /// With `effects.isDiscarding` only forgets them.
    mutating func drain(into effects: inout Effects)

    /// New settings from here on.
    mutating func reconfigure(_ settings: Settings)

    /// The numbers of alerts that all partitions raise alike, by entity.
    var sharedAlerts: [String: SharedAlert] { get }

    /// The state was built anew beside the tables and is to go on from them.
    mutating func adopt(_ known: KnownAlerts)

    /// How many devices the partition knows in each state, for operators; empty for processors that
    /// keep none. Looked at about once a second, so it costs what its length costs.
    var devicesByState: [(state: DeviceState, count: Int64)] { get }

    /// Whether the event says that the way from a front-end to the log is open.
    static func isBeacon(_ event: Event) -> Bool
}

extension Processor {
    /// Topics other than `heartbeats` have no beacons.
    @inlinable public static func isBeacon(_ event: Event) -> Bool { false }

    /// Most raise no alerts.
    @inlinable public mutating func adopt(_ known: KnownAlerts) {}

    @inlinable public var sharedAlerts: [String: SharedAlert] { [:] }

    @inlinable public static var restsOnRecentRecords: Bool { false }

    @inlinable public var replayOffset: Int64 { 0 }

    @inlinable public var devicesByState: [(state: DeviceState, count: Int64)] { [] }
}

extension Processor where Event == HeartbeatsEvent {
    @inlinable public static func isBeacon(_ event: HeartbeatsEvent) -> Bool {
        if case .beacon = event { true } else { false }
    }
}

/// Turns a record of the source topic into an event. One for each worker.
public protocol EventDecoder: AnyObject {
    associatedtype Event: Sendable
    init()
    func decode(_ value: Span<UInt8>) -> Decoded<Event>
}

extension HeartbeatsDecoder: EventDecoder {}
extension ConfigChangesDecoder: EventDecoder {}
extension WavesDecoder: EventDecoder {}
extension EncountersDecoder: EventDecoder {}
extension MessagesDecoder: EventDecoder {}

public enum SnapshotError: Error, Hashable, Sendable {
    case unknownVersion(UInt32)
    case damaged
}

/// What followed from records since the last commit: rows by table and events for topics.
///
/// The worker owns one for each partition and clears it at each commit.
public struct Effects: Sendable {
    /// One for each of the processor's tables, in the same order.
    public var rows: [RowBuffer]
    public private(set) var outbox = OutboxBuffer()
    /// The sequence that the next outbox event gets. Part of the partition's state: it grows while
    /// discarding too, so that a restart numbers events as the first pass did.
    public var nextSequence: Int64
    /// Records up to the committed offset are applied again after a restart: state changes, nothing
    /// is written.
    public var isDiscarding = false

    public init(tables: [TableSchema], nextSequence: Int64 = 0) {
        rows = tables.map(RowBuffer.init)
        self.nextSequence = nextSequence
    }

    /// Appends an event for `topic`; `write` fills its value.
    public mutating func emit(
        to topic: Topic, key: Span<UInt8>, at time: EventTime, origin: Int64,
        _ write: (inout ByteBuffer) -> Void
    ) {
        defer { nextSequence += 1 }
        if isDiscarding { return }
        outbox.append(
            sequence: nextSequence, topic: topic, key: key, time: time, origin: origin, write)
    }

    /// Appends a tombstone for `topic`: its compaction forgets `key`.
    public mutating func emit(
        tombstoneTo topic: Topic, key: Span<UInt8>, at time: EventTime, origin: Int64
    ) {
        defer { nextSequence += 1 }
        if isDiscarding { return }
        outbox.append(
            tombstone: key, sequence: nextSequence, topic: topic, time: time, origin: origin)
    }

    /// Rows and events that wait for a commit.
    public var count: Int { rows.reduce(outbox.count) { $0 + $1.count } }

    public mutating func removeAll() {
        for index in rows.indices { rows[index].removeAll() }
        outbox.removeAll()
    }

    /// Gives what was gathered away, in exchange for (empty) buffers whose capacity is used next.
    public mutating func exchange(rows: inout [RowBuffer], outbox: inout OutboxBuffer) {
        swap(&self.rows, &rows)
        swap(&self.outbox, &outbox)
    }
}
