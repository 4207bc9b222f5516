internal import Bytes
internal import KeyValue
internal import Schemas
internal import System

/// The spool's files: batches in the order in which they came, each durable before it counts.
///
/// One named database `batches`: number (LMDB integer key) → format (1 byte), topic's name size (1),
/// topic's name, number of records (4, little endian), the records as `RecordBatch` holds them.
final class SpoolStore: Sendable {
    struct Entry {
        var number: UInt64
        var batch: RecordBatch
        /// As the spool's limit counts it.
        var sizeBytes: Int
    }

    private static let format: UInt8 = 1

    private let environment: KeyValueEnvironment
    private let batches: KeyValueDatabase
    /// One process forwards a spool.
    private let lock: FileLock

    init(directory: String, limitBytes: Int) throws(EventLogError) {
        do throws(KeyValueError) {
            // Twice as much: pages are not full, and a commit writes new ones before it frees old.
            environment = try KeyValueEnvironment(
                directory: directory, KeyValueSettings(mapBytes: 2 * limitBytes + 64 << 20))
            batches = try environment.makeDatabase("batches", keys: .integers)
        } catch { throw EventLogError(.opening, error) }
        let taken: FileLock?
        do { taken = try FileLock.take("\(directory)/owner") } catch {
            throw EventLogError(.opening, .configuration, "\(error)")
        }
        guard let taken else {
            throw EventLogError(
                .opening, .configuration,
                "another process uses the spool \(directory); give each front-end a --data of its own"
            )
        }
        lock = taken
    }

    static func size(_ batch: RecordBatch) -> Int { batch.sizeBytes + 32 }

    /// What is there: the number that comes next, how many there are, and their bytes.
    func totals() throws(KeyValueError) -> (next: UInt64, count: Int, bytes: Int) {
        var next: UInt64 = 0
        var count = 0
        var bytes = 0
        try read(from: 0) { entry in
            next = entry.number + 1
            count += 1
            bytes += entry.sizeBytes
            return true
        }
        return (next, count, bytes)
    }

    /// Makes batches durable, numbered from `first` on.
    func append(_ list: some Sequence<RecordBatch>, from first: UInt64) throws(KeyValueError) {
        var writer = try KeyValueWriter(environment)
        var number = first
        var value = ByteBuffer()
        for batch in list {
            value.removeAll()
            value.append(Self.format)
            value.append(UInt8(batch.topic.rawValue.utf8.count))
            value.append(text: batch.topic.rawValue)
            value.appendLittleEndian(UInt32(batch.count))
            value.append(batch.bytes)
            try writer.append(number, value.span, to: batches)
            number += 1
        }
        try writer.commit()
    }

    /// The oldest batches, so many bytes of them but at least one.
    func oldest(atMost limit: Int) throws(KeyValueError) -> [Entry] {
        var found: [Entry] = []
        var bytes = 0
        try read(from: 0) { entry in
            found.append(entry)
            bytes += entry.sizeBytes
            return bytes < limit
        }
        return found
    }

    /// Forgets the batches up to and with `number`.
    func remove(through number: UInt64) throws(KeyValueError) {
        let writer = try KeyValueWriter(environment)
        try writer.trim(batches) { key, _ in key <= number }
        try writer.commit()
    }

    private func read(
        from first: UInt64, _ body: (Entry) -> Bool
    ) throws(KeyValueError) {
        var reader = KeyValueReader(environment)
        try reader.begin()
        defer { reader.end() }
        try reader.scan(batches, from: first) { number, value in
            guard let batch = Self.decode(value) else {
                // Of a later release: it stays for that one.
                Log.error(
                    "the spool holds a batch that cannot be read", ["spool.number": "\(number)"])
                return true
            }
            return body(
                Entry(number: number, batch: batch, sizeBytes: Self.size(batch)))
        }
    }

    private static func decode(_ value: Span<UInt8>) -> RecordBatch? {
        guard value.count >= 2, value[0] == format else { return nil }
        let start = 2 + Int(value[1])
        guard value.count >= start + 4,
            let topic = Topic(rawValue: value.extracting(2..<start).text)
        else { return nil }
        return RecordBatch(
            topic, count: Int(value.littleEndian(at: start, as: UInt32.self)),
            encoded: ByteBuffer(copying: value.extracting(start + 4..<value.count)))
    }
}
