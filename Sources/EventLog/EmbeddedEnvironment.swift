internal import Bytes
internal import KeyValue
internal import Schemas
internal import Synchronization

/// A topic whose databases are open.
struct EmbeddedTopic: Sendable {
    let topic: Topic
    /// Keeps the last record of each key instead of a span of time.
    let isCompacted: Bool
    let places: [EmbeddedPartition]
}

struct EmbeddedPartition: Sendable {
    /// Key of its `PartitionHead`.
    let key: ByteBuffer
    let records: KeyValueDatabase
    /// Of compacted topics.
    let keys: KeyValueDatabase?
    let tombstones: KeyValueDatabase?
}

/// One of the log's two environments: topics of one durability, so that those that nobody waits for
/// never hold up those that a device waits for.
final class EmbeddedEnvironment: Sendable {
    let store: KeyValueEnvironment
    let metadata: KeyValueDatabase
    private let topics = Mutex<[Topic: EmbeddedTopic]>([:])

    init(directory: String, _ settings: EmbeddedLogSettings) throws(EventLogError) {
        do throws(KeyValueError) {
            store = try KeyValueEnvironment(
                directory: directory,
                KeyValueSettings(
                    mapBytes: settings.mapBytes, maximumReaders: settings.maximumReaders))
            try store.clearDeadReaders()
            metadata = try store.makeDatabase(EmbeddedFormat.metadata, keys: .bytes)
        } catch {
            throw EventLogError(.opening, error)
        }
        try checkFormat()
    }

    private func checkFormat() throws(EventLogError) {
        var found: UInt32?
        do throws(KeyValueError) {
            found = try readFormat()
            if found == nil {
                var bytes = ByteBuffer()
                bytes.appendLittleEndian(EmbeddedFormat.version)
                let writer = try KeyValueWriter(store)
                let key = EmbeddedFormat.versionKey
                try writer.put(key.span, bytes.span, in: metadata)
                try writer.commit()
                found = EmbeddedFormat.version
            }
        } catch {
            throw EventLogError(.opening, error)
        }
        guard let found, found <= EmbeddedFormat.version else {
            throw EventLogError(
                .opening, .configuration,
                "\(store.path) was written in format \(found ?? 0), and this release reads up to "
                    + "\(EmbeddedFormat.version); use the newer release")
        }
    }

    private func readFormat() throws(KeyValueError) -> UInt32? {
        var reader = KeyValueReader(store)
        try reader.begin()
        let key = EmbeddedFormat.versionKey
        return try reader.withValue(of: key.span, in: metadata) {
            $0.count >= 4 ? $0.littleEndian(at: 0, as: UInt32.self) : UInt32.max
        }
    }

    /// The topic, if it was created by any process.
    func topic(_ topic: Topic) throws(KeyValueError) -> EmbeddedTopic? {
        if let known = topics.withLock({ $0[topic] }) { return known }
        guard let row = try row(of: topic) else { return nil }
        let opened = try open(topic, row)
        topics.withLock { $0[topic] = opened }
        return opened
    }

    /// The topics of this environment that exist.
    func allTopics() throws(KeyValueError) -> [EmbeddedTopic] {
        var found: [EmbeddedTopic] = []
        for candidate in Topic.allCases {
            if let topic = try topic(candidate) { found.append(topic) }
        }
        return found
    }

    /// What is stored of a topic now; `nil` if it does not exist.
    func row(of topic: Topic) throws(KeyValueError) -> TopicRow? {
        var reader = KeyValueReader(store)
        try reader.begin()
        let key = EmbeddedFormat.topicKey(topic)
        return try reader.withValue(of: key.span, in: metadata) { TopicRow($0) } ?? nil
    }

    /// The heads of all partitions of a topic, as of one moment.
    func heads(of topic: EmbeddedTopic) throws(EventLogError) -> [PartitionHead] {
        var heads: [PartitionHead] = []
        var reader = KeyValueReader(store)
        do throws(KeyValueError) { try reader.begin() } catch {
            throw EventLogError(.reading, error)
        }
        for partition in topic.places.indices {
            heads.append(try reader.head(of: topic, partition, in: self))
        }
        return heads
    }

    /// Makes a topic, or changes the retention of the one that exists.
    func create(_ settings: TopicSettings) throws(EventLogError) {
        let wanted = TopicRow(settings)
        guard wanted.partitions >= 1, wanted.partitions <= 256, wanted.retentionBytes > 0 else {
            throw EventLogError(
                .creatingTopics, .configuration,
                "topic \(settings.topic.rawValue): it needs 1 to 256 partitions and at least 1 byte"
            )
        }
        let mismatch: EventLogError?
        do throws(KeyValueError) {
            mismatch = try create(settings.topic, wanted)
        } catch {
            throw EventLogError(.creatingTopics, error)
        }
        if let mismatch { throw mismatch }
    }

    /// - Returns: how the topic that exists differs, if it does.
    private func create(
        _ topic: Topic, _ wanted: TopicRow
    ) throws(KeyValueError) -> EventLogError? {
        // Looked at first, so that a wrong number leaves no databases behind.
        if let mismatch = Self.mismatch(topic, try row(of: topic), wanted) { return mismatch }
        let opened = try open(topic, wanted)
        let writer = try KeyValueWriter(store)
        let key = EmbeddedFormat.topicKey(topic)
        let current = try writer.withValue(of: key.span, in: metadata) { TopicRow($0) } ?? nil
        if let mismatch = Self.mismatch(topic, current, wanted) { return mismatch }
        if current != wanted {
            try writer.put(key.span, wanted.bytes.span, in: metadata)
            if current == nil {
                var bytes = ByteBuffer()
                PartitionHead().encode(into: &bytes)
                for place in opened.places {
                    try writer.put(place.key.span, bytes.span, in: metadata)
                }
            }
            try writer.commit()
        }
        topics.withLock { $0[topic] = opened }
        return nil
    }

    private static func mismatch(
        _ topic: Topic, _ current: TopicRow?, _ wanted: TopicRow
    ) -> EventLogError? {
        guard let current else { return nil }
        if current.partitions != wanted.partitions {
            return EventLogError(
                .creatingTopics, .configuration,
                "topic \(topic.rawValue) has \(current.partitions) partitions, not "
                    + "\(wanted.partitions); the number is fixed when a topic is created")
        }
        if (current.retentionMilliseconds == nil) != (wanted.retentionMilliseconds == nil) {
            return EventLogError(
                .creatingTopics, .configuration,
                "topic \(topic.rawValue) is "
                    + "\(current.retentionMilliseconds == nil ? "" : "not ")compacted; "
                    + "that is fixed when a topic is created")
        }
        return nil
    }

    /// Opens the databases of a topic, and makes those that are missing.
    private func open(_ topic: Topic, _ row: TopicRow) throws(KeyValueError) -> EmbeddedTopic {
        let isCompacted = row.retentionMilliseconds == nil
        var places: [EmbeddedPartition] = []
        for partition in 0..<row.partitions {
            let place = TopicPartition(topic, partition)
            let records = try store.makeDatabase(
                EmbeddedFormat.recordsName(place), keys: .integers)
            var keys: KeyValueDatabase?
            var tombstones: KeyValueDatabase?
            if isCompacted {
                keys = try store.makeDatabase(EmbeddedFormat.keysName(place), keys: .bytes)
                tombstones = try store.makeDatabase(
                    EmbeddedFormat.tombstonesName(place), keys: .integers)
            }
            places.append(
                EmbeddedPartition(
                    key: EmbeddedFormat.partitionKey(place), records: records, keys: keys,
                    tombstones: tombstones))
        }
        return EmbeddedTopic(topic: topic, isCompacted: isCompacted, places: places)
    }
}

extension KeyValueReader {
    func head(
        of topic: EmbeddedTopic, _ partition: Int, in environment: EmbeddedEnvironment
    ) throws(EventLogError) -> PartitionHead {
        let place = TopicPartition(topic.topic, Int32(partition))
        let found: PartitionHead??
        do throws(KeyValueError) {
            let key = topic.places[partition].key
            found = try withValue(of: key.span, in: environment.metadata) { PartitionHead($0) }
        } catch {
            throw EventLogError(.reading, error, place: place)
        }
        guard case .some(.some(let head)) = found else {
            throw EventLogError.damaged(.reading, place, "the partition's head")
        }
        return head
    }
}
