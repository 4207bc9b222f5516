internal import Bytes
internal import KeyValue
internal import Schemas

/// How much one commit may still delete, so that the writer's lock is never held for long.
struct ExpiryBudget {
    var records: Int
    var bytes: Int

    /// Twice what is appended, or a little when that is little.
    init(appendedRecords: Int, appendedBytes: Int) {
        records = max(2 * appendedRecords, 256)
        bytes = max(2 * appendedBytes, 1 << 20)
    }

    /// For a commit that appends nothing.
    init() {
        records = 1_024
        bytes = 4 << 20
    }

    var isSpent: Bool { records <= 0 || bytes <= 0 }

    mutating func take(_ record: RecordHead) {
        records -= 1
        bytes -= record.contentBytes
    }
}

/// One write transaction of the log: expires, appends and compacts, with the heads of the
/// partitions it touches. Nothing of it stays unless `commit` returns.
struct EmbeddedCommit: ~Copyable {
    private struct Touched {
        let topic: EmbeddedTopic
        var heads: [PartitionHead]
        var isChanged: [Bool]
    }

    private let environment: EmbeddedEnvironment
    private var transaction: KeyValueWriter
    private var touched: [Touched] = []
    private var scratch = ByteBuffer()

    init(_ environment: EmbeddedEnvironment) throws(KeyValueError) {
        self.environment = environment
        transaction = try KeyValueWriter(environment.store)
    }

    /// Writes the heads and makes everything durable.
    consuming func commit() throws(KeyValueError) {
        for entry in touched {
            for (partition, head) in entry.heads.enumerated() where entry.isChanged[partition] {
                head.encode(into: &scratch)
                let key = entry.topic.places[partition].key
                try transaction.put(key.span, scratch.span, in: environment.metadata)
            }
        }
        try transaction.commit()
    }

    /// Appends the records of an encoded batch, which must have been validated for the topic.
    mutating func append(
        _ batch: Span<UInt8>, to topic: EmbeddedTopic
    ) throws(KeyValueError) {
        let index = try touch(topic)
        var offset = 0
        while offset < batch.count {
            let partition = Int(batch.littleEndian(at: offset, as: Int32.self))
            guard let record = RecordHead(batch, at: offset + 4) else { return }
            let end = offset + 4 + RecordHead.sizeBytes + record.contentBytes
            let bytes = batch.extracting(offset + 4..<end)
            offset = end
            let place = touched[index].heads[partition].next
            if topic.isCompacted {
                try forget(record.key(in: bytes), index, partition)
                try appendCompacted(record, bytes, at: place, topic.places[partition])
            } else {
                try transaction.append(
                    UInt64(place), bytes, to: topic.places[partition].records)
                if touched[index].heads[partition].isEmpty {
                    touched[index].heads[partition].oldest = record.timestamp
                }
            }
            touched[index].heads[partition].next = place + 1
            touched[index].heads[partition].contentBytes += Int64(record.contentBytes)
            touched[index].isChanged[partition] = true
        }
    }

    private mutating func touch(_ topic: EmbeddedTopic) throws(KeyValueError) -> Int {
        if let known = touched.firstIndex(where: { $0.topic.topic == topic.topic }) { return known }
        var heads: [PartitionHead] = []
        for place in topic.places {
            let head = try transaction.withValue(of: place.key.span, in: environment.metadata) {
                PartitionHead($0)
            }
            heads.append((head ?? nil) ?? PartitionHead())
        }
        touched.append(
            Touched(
                topic: topic, heads: heads,
                isChanged: Array(repeating: false, count: heads.count)))
        return touched.count - 1
    }

    // MARK: - Compaction

    private mutating func appendCompacted(
        _ record: RecordHead, _ bytes: Span<UInt8>, at offset: Int64, _ place: EmbeddedPartition
    ) throws(KeyValueError) {
        guard let keys = place.keys, let tombstones = place.tombstones else { return }
        // No cursor is kept here: deletions in between would move it.
        try transaction.put(UInt64(offset), bytes, in: place.records)
        scratch.removeAll()
        scratch.appendLittleEndian(offset)
        try transaction.put(record.key(in: bytes), scratch.span, in: keys)
        if record.isTombstone {
            scratch.removeAll()
            scratch.appendLittleEndian(record.timestamp.milliseconds)
            scratch.append(record.key(in: bytes))
            try transaction.put(UInt64(offset), scratch.span, in: tombstones)
        }
    }

    /// Deletes the record of a key that gets a new one: one deletion for one append, so compaction
    /// never has more to do than the appends have.
    private mutating func forget(
        _ key: Span<UInt8>, _ index: Int, _ partition: Int
    ) throws(KeyValueError) {
        let place = touched[index].topic.places[partition]
        guard let keys = place.keys, let tombstones = place.tombstones,
            let offset = try transaction.withValue(
                of: key, in: keys, { $0.littleEndian(at: 0, as: UInt64.self) })
        else { return }
        let old = try transaction.withValue(of: offset, in: place.records) {
            RecordHead($0, at: 0)
        }
        guard case .some(.some(let record)) = old else { return }
        try transaction.delete(offset, from: place.records)
        if record.isTombstone { try transaction.delete(offset, from: tombstones) }
        touched[index].heads[partition].contentBytes -= Int64(record.contentBytes)
    }

    private mutating func expireTombstones(
        _ index: Int, before limit: EventTime, _ budget: inout ExpiryBudget
    ) throws(KeyValueError) {
        for partition in touched[index].heads.indices where !budget.isSpent {
            let place = touched[index].topic.places[partition]
            guard let keys = place.keys, let tombstones = place.tombstones else { return }
            var expired: [(offset: UInt64, key: ByteBuffer)] = []
            var left = budget.records
            try transaction.trim(tombstones) { offset, value in
                guard left > 0, value.count >= 8,
                    value.littleEndian(at: 0, as: Int64.self) < limit.milliseconds
                else { return false }
                left -= 1
                expired.append((offset, ByteBuffer(copying: value.extracting(8..<value.count))))
                return true
            }
            for (offset, key) in expired {
                try transaction.delete(offset, from: place.records)
                try transaction.delete(key.span, from: keys)
                touched[index].heads[partition].contentBytes -= Int64(key.count)
                touched[index].isChanged[partition] = true
            }
            budget.records = left
        }
    }

    // MARK: - Retention

    /// Deletes what the topic need not keep, as far as the budget reaches. Called before a commit
    /// appends, so what was just appended can be read at least until the next.
    mutating func expire(
        _ topic: EmbeddedTopic, now: EventTime, tombstoneMilliseconds: Int64,
        _ budget: inout ExpiryBudget
    ) throws(KeyValueError) {
        let index = try touch(topic)
        if topic.isCompacted {
            return try expireTombstones(index, before: now + -tombstoneMilliseconds, &budget)
        }
        // Read every time: another process may have changed it.
        let key = EmbeddedFormat.topicKey(topic.topic)
        let row = try transaction.withValue(of: key.span, in: environment.metadata) { TopicRow($0) }
        guard case .some(.some(let row)) = row else { return }
        if let age = row.retentionMilliseconds {
            let limit = now + -age
            for partition in touched[index].heads.indices
            where !touched[index].heads[partition].isEmpty
                && touched[index].heads[partition].oldest < limit
            {
                _ = try trim(index, partition, &budget, bytes: .max) { $0.timestamp < limit }
                if budget.isSpent { return }
            }
        }
        var excess =
            touched[index].heads.reduce(0) { $0 + $1.contentBytes } - row.retentionBytes
        while excess > 0, !budget.isSpent, let partition = oldestPartition(index) {
            // A few at a time: then another partition may have the oldest record.
            var chunk = 64
            excess -= try trim(index, partition, &budget, bytes: excess) { _ in
                chunk -= 1
                return chunk >= 0
            }
        }
    }

    /// The partition with the oldest record; among several, as bursts have them, the largest.
    private func oldestPartition(_ index: Int) -> Int? {
        let heads = touched[index].heads
        return heads.indices.filter { !heads[$0].isEmpty }.min { a, b in
            (heads[a].oldest, heads[b].contentBytes) < (heads[b].oldest, heads[a].contentBytes)
        }
    }

    /// Deletes records from the front of a partition until `bytes` are gone, the budget is spent, or
    /// `condition` does not hold.
    /// - Returns: the bytes that were deleted.
    private mutating func trim(
        _ index: Int, _ partition: Int, _ budget: inout ExpiryBudget, bytes: Int64,
        while condition: (RecordHead) -> Bool
    ) throws(KeyValueError) -> Int64 {
        var head = touched[index].heads[partition]
        var deleted: Int64 = 0
        var left = budget
        try transaction.trim(touched[index].topic.places[partition].records) { offset, value in
            head.earliest = Int64(offset)
            guard let record = RecordHead(value, at: 0) else {
                // Damaged: it cannot be counted, and it is due to go.
                guard !left.isSpent else { return false }
                left.records -= 1
                head.earliest += 1
                return true
            }
            head.oldest = record.timestamp
            guard !left.isSpent, deleted < bytes, condition(record) else { return false }
            left.take(record)
            deleted += Int64(record.contentBytes)
            head.earliest += 1
            return true
        }
        head.contentBytes -= deleted
        touched[index].heads[partition] = head
        touched[index].isChanged[partition] = true
        budget = left
        return deleted
    }
}
