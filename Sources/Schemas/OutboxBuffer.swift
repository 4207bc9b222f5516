public import Bytes

/// Events for topics that follow from a commit, in the order of their sequence.
public struct OutboxBuffer: Sendable {
    public struct Entry: Sendable {
        public var sequence: Int64
        public var topic: Topic
        public var time: EventTime
        /// The log offset that caused the event.
        public var origin: Int64
        /// Where the key and the value stand in `bytes`.
        public var key: Range<Int>
        public var value: Range<Int>
        /// The key has no value any more; `value` is empty.
        public var isTombstone = false
    }

    public private(set) var entries: ContiguousArray<Entry> = []
    public private(set) var bytes = ByteBuffer()

    public init() {}

    public var count: Int { entries.count }
    public var isEmpty: Bool { entries.isEmpty }

    public mutating func append(
        sequence: Int64, topic: Topic, key: Span<UInt8>, time: EventTime, origin: Int64,
        _ write: (inout ByteBuffer) -> Void
    ) {
        let keyStart = bytes.count
        bytes.append(key)
        let valueStart = bytes.count
        write(&bytes)
        entries.append(
            Entry(
                sequence: sequence, topic: topic, time: time, origin: origin,
                key: keyStart..<valueStart, value: valueStart..<bytes.count))
    }

    /// Appends a tombstone: what a compacted topic knew of `key` is over.
    public mutating func append(
        tombstone key: Span<UInt8>, sequence: Int64, topic: Topic, time: EventTime, origin: Int64
    ) {
        append(sequence: sequence, topic: topic, key: key, time: time, origin: origin) { _ in }
        entries[entries.count - 1].isTombstone = true
    }

    /// Copies an entry of another buffer, whose sequence must come after those here.
    public mutating func append(_ entry: Entry, of other: OutboxBuffer) {
        let keyStart = bytes.count
        bytes.append(other.bytes.span.extracting(entry.key))
        let valueStart = bytes.count
        bytes.append(other.bytes.span.extracting(entry.value))
        var copy = entry
        copy.key = keyStart..<valueStart
        copy.value = valueStart..<bytes.count
        entries.append(copy)
    }

    /// Appends the entries of `other`, whose sequences must come after those here.
    public mutating func append(_ other: OutboxBuffer) {
        let shift = bytes.count
        bytes.append(other.bytes)
        for entry in other.entries {
            var moved = entry
            moved.key = (entry.key.lowerBound + shift)..<(entry.key.upperBound + shift)
            moved.value = (entry.value.lowerBound + shift)..<(entry.value.upperBound + shift)
            entries.append(moved)
        }
    }

    /// The entries from `sequence` on.
    public func suffix(from sequence: Int64) -> OutboxBuffer {
        if isEmpty || entries[0].sequence >= sequence { return self }
        var rest = OutboxBuffer()
        for entry in entries where entry.sequence >= sequence { rest.append(entry, of: self) }
        return rest
    }

    /// Drops the events for some topics; their sequences stay taken.
    public mutating func removeAll(for topics: Set<Topic>) {
        if topics.isEmpty { return }
        entries.removeAll { topics.contains($0.topic) }
    }

    /// Forgets the entries; capacity above 1 MiB is given back.
    public mutating func removeAll() {
        guard bytes.count <= 1 << 20 else {
            self = OutboxBuffer()
            return
        }
        entries.removeAll(keepingCapacity: true)
        bytes.removeAll()
    }
}
