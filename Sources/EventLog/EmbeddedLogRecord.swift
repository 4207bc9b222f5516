internal import Bytes
internal import KeyValue
internal import Schemas

// What the embedded log writes to its files. Numbers are little endian. Each environment has:
//
// - `metadata`: keys are text.
//   - `format`: version of all this (4 bytes).
//   - `topic/<topic>`: see `TopicRow`.
//   - `partition/<topic>/<n>`: see `PartitionHead`.
// - `<topic>/<n>`: offset (LMDB integer key) → record, see `RecordHead`.
// - `<topic>/<n>/keys`, of compacted topics: key → offset of its one record (8 bytes).
// - `<topic>/<n>/tombstones`, of compacted topics: offset (integer key) → timestamp (8), key.

enum EmbeddedFormat {
    static let version: UInt32 = 1
    static let metadata = "metadata"
    static let versionKey = ByteBuffer("format".utf8)

    static func topicKey(_ topic: Topic) -> ByteBuffer {
        ByteBuffer("topic/\(topic.rawValue)".utf8)
    }
    static func partitionKey(_ place: TopicPartition) -> ByteBuffer {
        ByteBuffer("partition/\(place)".utf8)
    }
    static func recordsName(_ place: TopicPartition) -> String { place.description }
    static func keysName(_ place: TopicPartition) -> String { "\(place)/keys" }
    static func tombstonesName(_ place: TopicPartition) -> String { "\(place)/tombstones" }

    /// LMDB's own limit (`mdb_env_get_maxkeysize`), which compacted topics inherit for their keys.
    static let longestKey = 511
}

/// The fixed part of a stored record: timestamp (8 bytes), key size (4), value size (4; -1 a
/// tombstone), headers size (4). Key, value and headers follow.
///
/// It is what `RecordBatch` holds behind the partition, so a record is stored as one run of bytes.
struct RecordHead {
    static let sizeBytes = 20

    let timestamp: EventTime
    let keySize: Int
    let valueSize: Int
    let headersSize: Int
    let isTombstone: Bool

    /// Reads the record that begins at `offset`; `nil` if it does not lie within `bytes`.
    init?(_ bytes: Span<UInt8>, at offset: Int) {
        guard bytes.count - offset >= Self.sizeBytes else { return nil }
        timestamp = EventTime(milliseconds: bytes.littleEndian(at: offset))
        // -1 says that there is none.
        keySize = max(0, Int(bytes.littleEndian(at: offset + 8, as: Int32.self)))
        let value = Int(bytes.littleEndian(at: offset + 12, as: Int32.self))
        isTombstone = value < 0
        valueSize = max(0, value)
        headersSize = max(0, Int(bytes.littleEndian(at: offset + 16, as: Int32.self)))
        guard bytes.count - offset >= Self.sizeBytes + contentBytes else { return nil }
    }

    /// Bytes of key, value and headers: what counts for retention.
    var contentBytes: Int { keySize + valueSize + headersSize }

    @_lifetime(copy record)
    func key(in record: Span<UInt8>) -> Span<UInt8> {
        record.extracting(Self.sizeBytes..<Self.sizeBytes + keySize)
    }

    @_lifetime(copy record)
    func value(in record: Span<UInt8>) -> Span<UInt8> {
        let start = Self.sizeBytes + keySize
        return record.extracting(start..<start + valueSize)
    }

    @_lifetime(copy record)
    func headers(in record: Span<UInt8>) -> Span<UInt8> {
        let start = Self.sizeBytes + keySize + valueSize
        return record.extracting(start..<start + headersSize)
    }
}

/// What is stored of a topic: partitions (4 bytes), retention in milliseconds (8; -1 compacted),
/// retention in bytes (8).
struct TopicRow: Equatable {
    static let sizeBytes = 20

    var partitions: Int32
    var retentionMilliseconds: Int64?
    var retentionBytes: Int64

    init(_ settings: TopicSettings) {
        partitions = settings.partitions
        retentionMilliseconds = settings.retentionMilliseconds
        retentionBytes = settings.retentionBytes
    }

    init?(_ bytes: Span<UInt8>) {
        guard bytes.count >= Self.sizeBytes else { return nil }
        partitions = bytes.littleEndian(at: 0)
        let retention = bytes.littleEndian(at: 4, as: Int64.self)
        retentionMilliseconds = retention < 0 ? nil : retention
        retentionBytes = bytes.littleEndian(at: 12)
    }

    var bytes: ByteBuffer {
        var buffer = ByteBuffer()
        buffer.appendLittleEndian(partitions)
        buffer.appendLittleEndian(retentionMilliseconds ?? -1)
        buffer.appendLittleEndian(retentionBytes)
        return buffer
    }
}

/// What is stored of a partition beside its records, 8 bytes each: the first offset that may still
/// be there, the next one, bytes of content, and the timestamp of the first record.
///
/// Offsets stand here because they must not go back when retention empties the partition.
struct PartitionHead: Equatable {
    static let sizeBytes = 32

    var earliest: Int64 = 0
    var next: Int64 = 0
    var contentBytes: Int64 = 0
    /// Of the first record; meaningless while there is none. Unused in compacted topics.
    var oldest = EventTime(milliseconds: 0)

    init() {}

    init?(_ bytes: Span<UInt8>) {
        guard bytes.count >= Self.sizeBytes else { return nil }
        earliest = bytes.littleEndian(at: 0)
        next = bytes.littleEndian(at: 8)
        contentBytes = bytes.littleEndian(at: 16)
        oldest = EventTime(milliseconds: bytes.littleEndian(at: 24))
    }

    var isEmpty: Bool { earliest == next }
    var range: OffsetRange { OffsetRange(earliest: earliest, next: next) }

    func encode(into buffer: inout ByteBuffer) {
        buffer.removeAll()
        buffer.appendLittleEndian(earliest)
        buffer.appendLittleEndian(next)
        buffer.appendLittleEndian(contentBytes)
        buffer.appendLittleEndian(oldest.milliseconds)
    }
}

extension EventLogError {
    init(
        _ operation: Operation, _ error: KeyValueError, place: TopicPartition? = nil
    ) {
        let (kind, advice): (Kind, String) =
            switch error.kind {
            case .full: (.storage, "; free disk space, lower the retention or raise the map size")
            // LMDB also says EIO when the disk takes only a part of what it is given.
            case .damaged: (.storage, "; check the disk and the room on it, then restart")
            case .unusable:
                (.configuration, "; check that the directory exists and is ours to write")
            case .busy: (.unavailable, "; it is tried again")
            }
        self.init(operation, kind, place: place, "\(error)\(advice)")
    }

    /// A row of the log's own that does not read as one.
    static func damaged(
        _ operation: Operation, _ place: TopicPartition?, _ what: String
    ) -> EventLogError {
        EventLogError(
            operation, .storage, place: place, "\(what) is damaged; restore the directory")
    }
}
