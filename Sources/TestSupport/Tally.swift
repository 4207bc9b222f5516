public import Bytes
public import Processors
public import Schemas
public import Simulation

/// A small processor for tests of the runtime: it uses every way to have an effect, and its state
/// shows whether each record was applied exactly once and in order.
///
/// A record's value is `key value`, two decimal numbers; `!…` cannot be decoded and `#…` is skipped.
public struct Tally: Processor {
    public struct Settings: Sendable, Equatable {
        /// Every how many records of a key an event is published. At least 1.
        public var publishEvery: Int64

        public init(publishEvery: Int64 = 3) { self.publishEvery = publishEvery }

        /// As it stands in a `ProcessorSettings`.
        public init?(text: String) {
            guard let value = Int64(text), value > 0 else { return nil }
            publishEvery = value
        }
    }

    public struct Event: Sendable, Equatable {
        public var key: Int64
        public var value: Int64
    }

    public final class Decoder: EventDecoder {
        public init() {}

        public func decode(_ value: Span<UInt8>) -> Decoded<Event> {
            guard value.count > 0, value[0] != UInt8(ascii: "#") else { return .skipped }
            let parts = value.text.split(separator: " ").map { Int64($0) }
            guard parts.count == 2, let key = parts[0], let number = parts[1] else {
                return .malformed("not two numbers")
            }
            return .event(Event(key: key, value: number))
        }
    }

    public static let now = TableSchema(
        "tally_now",
        [
            .init("key", .int8), .init("partition", .int4), .init("count", .int8),
            .init("sum", .int8), .init("big", .int8, keepsOldWhenNull: true),
        ], key: [0], mode: .upsert)
    public static let steps = TableSchema(
        "tally_steps",
        [.init("partition", .int4), .init("position", .int8), .init("chain", .int8)],
        key: [], mode: .append)
    public static let opened = TableSchema(
        "tally_episodes",
        [.init("id", .int8), .init("partition", .int4), .init("opened", .int8)],
        key: [0], mode: .insertNew)
    public static let closed = TableSchema(
        "tally_episodes", [.init("id", .int8), .init("closed", .int8)], key: [0], mode: .update)

    /// SQL that makes the tables.
    public static let createTables = """
        CREATE TABLE heartline.tally_now (
            key int8 PRIMARY KEY, partition int4, count int8, sum int8, big int8);
        CREATE TABLE heartline.tally_steps (partition int4, position int8, chain int8);
        CREATE TABLE heartline.tally_episodes (
            id int8 PRIMARY KEY, partition int4, opened int8, closed int8)
        """

    public static var tables: [TableSchema] { [now, steps, opened, closed] }
    public static var outputTopics: [Topic] { [.alerts, .deadLetters] }
    public static var source: Topic { .heartbeats }

    private struct Entry: Sendable, Equatable {
        var count: Int64 = 0
        var sum: Int64 = 0
        var big: Int64?
        var isMarked = false
        var origin: Int64 = 0
    }

    private let partition: Int32
    private var settings: Settings
    /// Depends on every record and their order.
    public private(set) var chain: Int64 = 17
    private var episodes: Int64 = 0
    private var isOpen = false
    private var entries: [Int64: Entry] = [:]
    public private(set) var pendingRows = 0

    public init(partition: Int32, settings: Settings) {
        self.partition = partition
        self.settings = settings
    }

    /// Keys are made distinct by partition, as entities are.
    private func id(_ number: Int64) -> Int64 { Int64(partition) << 32 | number }

    public mutating func apply(_ event: Event, at place: RecordPlace, into effects: inout Effects) {
        chain = chain &* 31 &+ event.value &+ place.offset
        var entry = entries[event.key] ?? Entry()
        entry.count += 1
        entry.sum += event.value
        if event.value >= 90 { entry.big = event.value }
        if !entry.isMarked { pendingRows += 1 }
        entry.isMarked = true
        entry.origin = place.offset
        entries[event.key] = entry
        if event.value % 4 == 0, !effects.isDiscarding {
            effects.rows[1].beginRow(origin: place.offset)
            effects.rows[1].put(int4: partition)
            effects.rows[1].put(int8: place.offset)
            effects.rows[1].put(int8: chain)
        }
        if event.value >= 80, !isOpen {
            isOpen = true
            episodes += 1
            if !effects.isDiscarding {
                effects.rows[2].beginRow(origin: place.offset)
                effects.rows[2].put(int8: id(episodes))
                effects.rows[2].put(int4: partition)
                effects.rows[2].put(int8: place.offset)
            }
        } else if event.value < 20, isOpen {
            isOpen = false
            if !effects.isDiscarding {
                effects.rows[3].beginRow(origin: place.offset)
                effects.rows[3].put(int8: id(episodes))
                effects.rows[3].put(int8: place.offset)
            }
        }
        if entry.count % settings.publishEvery == 0 {
            let key = ByteBuffer("\(id(event.key))".utf8)
            let sum = entry.sum
            let chain = chain
            effects.emit(to: .alerts, key: key.span, at: place.timestamp, origin: place.offset) {
                $0.append(text: "\(sum) \(chain)")
            }
        }
    }

    public mutating func drain(into effects: inout Effects) {
        for (key, entry) in entries.sorted(by: { $0.key < $1.key }) where entry.isMarked {
            entries[key]?.isMarked = false
            if effects.isDiscarding { continue }
            effects.rows[0].beginRow(origin: entry.origin)
            effects.rows[0].put(int8: id(key))
            effects.rows[0].put(int4: partition)
            effects.rows[0].put(int8: entry.count)
            effects.rows[0].put(int8: entry.sum)
            if let big = entry.big {
                effects.rows[0].put(int8: big)
            } else {
                effects.rows[0].putNull()
            }
        }
        pendingRows = 0
    }

    public mutating func reconfigure(_ settings: Settings) { self.settings = settings }

    public func snapshot(into bytes: inout ByteBuffer) {
        bytes.appendBigEndian(UInt32(1))
        bytes.appendBigEndian(chain)
        bytes.appendBigEndian(episodes)
        bytes.append(isOpen ? 1 : 0)
        bytes.appendBigEndian(UInt32(entries.count))
        for (key, entry) in entries.sorted(by: { $0.key < $1.key }) {
            bytes.appendBigEndian(key)
            bytes.appendBigEndian(entry.count)
            bytes.appendBigEndian(entry.sum)
            bytes.appendBigEndian(entry.big ?? -1)
        }
    }

    public init(
        restoring snapshot: Span<UInt8>, partition: Int32, settings: Settings
    ) throws(SnapshotError) {
        self.init(partition: partition, settings: settings)
        var reader = ByteReader(snapshot)
        guard let version = reader.bigEndian(UInt32.self) else { throw .damaged }
        guard version == 1 else { throw .unknownVersion(version) }
        guard let chain = reader.bigEndian(Int64.self), let episodes = reader.bigEndian(Int64.self),
            let open = reader.bigEndian(UInt8.self), let count = reader.bigEndian(UInt32.self)
        else { throw .damaged }
        self.chain = chain
        self.episodes = episodes
        isOpen = open == 1
        for _ in 0..<count {
            guard let key = reader.bigEndian(Int64.self), let total = reader.bigEndian(Int64.self),
                let sum = reader.bigEndian(Int64.self), let big = reader.bigEndian(Int64.self)
            else { throw .damaged }
            entries[key] = Entry(count: total, sum: sum, big: big < 0 ? nil : big)
        }
    }
}

extension Tally {
    /// Seeded records for `partitions` partitions, about one in thirty unreadable or unknown, some
    /// repeated at once or later.
    public static func records(
        partitions: Int, count: Int, using random: inout SplitMix64
    ) -> [[SimulatedRecord]] {
        (0..<partitions).map { _ in
            var list: [SimulatedRecord] = []
            for index in 0..<count {
                if !list.isEmpty, random.chance(40) {
                    list.append(list[random.below(list.count)])
                    continue
                }
                let key = random.below(8)
                let text =
                    switch random.below(60) {
                    case 0: "!broken \(index)"
                    case 1: "#later"
                    default: "\(key) \(random.below(100))"
                    }
                list.append(
                    SimulatedRecord(
                        key: ByteBuffer("\(key)".utf8), value: ByteBuffer(text.utf8),
                        timestamp: EventTime(milliseconds: Int64(index) * 100)))
            }
            return list
        }
    }
}
