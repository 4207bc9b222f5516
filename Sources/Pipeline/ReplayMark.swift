package import Bytes
public import EventLog
internal import Schemas

/// What a record carries that was a dead letter and is published again: for whom, and which record of
/// the same topic it repeats.
///
/// The header `replay`: pipeline, partition and offset with `/` between them. Only the pipeline that put
/// the record aside applies it; others had it at its first place.
public struct ReplayMark: Hashable, Sendable {
    public var pipeline: String
    /// Where the record stands that could not be processed.
    public var partition: Int32
    public var offset: Int64

    public init(pipeline: String, partition: Int32, offset: Int64) {
        self.pipeline = pipeline
        self.partition = partition
        self.offset = offset
    }

    /// The mark among a record's headers; `nil` if it has none, or one that is no mark.
    public init?(headers: Span<UInt8>) {
        guard let range = RecordHeaders.find("replay", in: headers) else { return nil }
        let parts = headers.extracting(range).text.split(separator: "/")
        guard parts.count == 3, let partition = Int32(parts[1]), let offset = Int64(parts[2]),
            partition >= 0, offset >= 0
        else { return nil }
        self.init(pipeline: String(parts[0]), partition: partition, offset: offset)
    }

    public var headers: RecordHeaders {
        var headers = RecordHeaders()
        let text = ByteBuffer("\(pipeline)/\(partition)/\(offset)".utf8)
        headers.append("replay", text.span)
        return headers
    }
}

/// Which records of a partition were applied as replays, so that a copy of one is not applied again.
///
/// A replay is published at least once. Copies come close together: the publisher repeats what it sent
/// last, some thousands of records at most, so the latest replays are all that need to be known. Part of
/// the partition's state: the answer depends on the log alone, however often a restart reads it again.
package struct ReplayedRecords: Sendable {
    /// Of one pipeline and topic: the pipeline's own.
    package struct Origin: Hashable, Sendable {
        package var partition: Int32
        package var offset: Int64

        package init(partition: Int32, offset: Int64) {
            self.partition = partition
            self.offset = offset
        }
    }

    /// Four batches of the publisher.
    package static let limit = 16_384

    /// The offset of the first copy of each.
    private var places: [Origin: Int64] = [:]
    /// The oldest first; the first `forgotten` are not in `places` any more.
    private var order: ContiguousArray<Origin> = []
    private var forgotten = 0

    package init() {}

    package var isEmpty: Bool { places.isEmpty }

    /// Whether the record at `offset` is the first copy of the replay of `origin`. The same record read
    /// again is the first as well.
    package mutating func isFirst(_ origin: Origin, at offset: Int64) -> Bool {
        if let known = places[origin] { return known == offset }
        places[origin] = offset
        order.append(origin)
        if places.count > Self.limit {
            places[order[forgotten]] = nil
            forgotten += 1
            if forgotten == Self.limit {
                order.removeFirst(forgotten)
                forgotten = 0
            }
        }
        return true
    }

    private static let entryBytes = 20

    /// Appends the entries, big endian: partition (4), offset (8), offset of the first copy (8).
    package func append(to bytes: inout ByteBuffer) {
        for origin in order.dropFirst(forgotten) {
            bytes.appendBigEndian(origin.partition)
            bytes.appendBigEndian(origin.offset)
            bytes.appendBigEndian(places[origin] ?? -1)
        }
    }

    /// - Returns: `nil` if the bytes are not what `append` writes.
    package init?(decoding bytes: Span<UInt8>) {
        guard bytes.count % Self.entryBytes == 0, bytes.count <= Self.limit * Self.entryBytes
        else { return nil }
        var reader = ByteReader(bytes)
        while let partition = reader.bigEndian(Int32.self),
            let offset = reader.bigEndian(Int64.self), let place = reader.bigEndian(Int64.self)
        {
            let origin = Origin(partition: partition, offset: offset)
            guard places.updateValue(place, forKey: origin) == nil else { return nil }
            order.append(origin)
        }
    }
}
