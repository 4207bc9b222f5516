public import Bytes

/// A table that a pipeline writes: its columns in the order rows are encoded.
public struct TableSchema: Hashable, Sendable {
    public enum ColumnType: String, Sendable {
        case uuid, timestamptz, int8, int4, float8, bool, text, jsonb, bytea
    }

    public struct Column: Hashable, Sendable {
        public var name: String
        public var type: ColumnType
        /// An upsert keeps the stored value where the new one is null.
        public var keepsOldWhenNull: Bool

        public init(_ name: String, _ type: ColumnType, keepsOldWhenNull: Bool = false) {
            self.name = name
            self.type = type
            self.keepsOldWhenNull = keepsOldWhenNull
        }
    }

    /// What happens to a row whose key is already in the table.
    public enum WriteMode: String, Sendable {
        /// Rows have no key: each is new.
        case append
        /// The new row replaces the old one.
        case upsert
        /// The old row stays.
        case insertNew
        /// The old row takes the values of the columns outside the key; without one nothing happens.
        case update
    }

    /// The name in schema `heartline`.
    public var name: String
    public var columns: [Column]
    /// Indexes of the key's columns; empty for `append`.
    public var key: [Int]
    public var mode: WriteMode

    public init(_ name: String, _ columns: [Column], key: [Int], mode: WriteMode) {
        self.name = name
        self.columns = columns
        self.key = key
        self.mode = mode
    }
}

/// Rows of one table, encoded as PostgreSQL's `COPY … BINARY` tuples (without header and trailer).
///
/// A field is a 4-byte length and its bytes in both COPY and binary arrays, so the sink can send
/// the same bytes either way. The caller fills every column in order and keeps keyed rows unique
/// within one buffer and sorted by key.
public struct RowBuffer: Sendable {
    public let table: TableSchema
    /// The tuples: a 2-byte column count, then each field.
    public private(set) var bytes = ByteBuffer()
    /// Where each row starts in `bytes`.
    public private(set) var starts: ContiguousArray<Int> = []
    /// The log offset that caused each row: the origin of a dead letter.
    public private(set) var origins: ContiguousArray<Int64> = []

    public init(_ table: TableSchema) { self.table = table }

    public var count: Int { starts.count }
    public var isEmpty: Bool { starts.isEmpty }

    /// Forgets the rows. A storm's memory is not kept for the calm after it: capacity above 1 MiB is
    /// given back.
    public mutating func removeAll() {
        guard bytes.count <= 1 << 20 else {
            self = RowBuffer(table)
            return
        }
        bytes.removeAll()
        starts.removeAll(keepingCapacity: true)
        origins.removeAll(keepingCapacity: true)
    }

    public mutating func beginRow(origin: Int64) {
        starts.append(bytes.count)
        origins.append(origin)
        bytes.appendBigEndian(Int16(table.columns.count))
    }

    public mutating func putNull() { bytes.appendBigEndian(Int32(-1)) }

    public mutating func put(_ id: DeviceID) {
        bytes.appendBigEndian(Int32(16))
        bytes.appendBigEndian(id.high)
        bytes.appendBigEndian(id.low)
    }

    public mutating func put(_ time: EventTime?) {
        guard let time else { return putNull() }
        bytes.appendBigEndian(Int32(8))
        bytes.appendBigEndian(time.postgresMicroseconds)
    }

    public mutating func put(int8 value: Int64) {
        bytes.appendBigEndian(Int32(8))
        bytes.appendBigEndian(value)
    }

    public mutating func put(int4 value: Int32) {
        bytes.appendBigEndian(Int32(4))
        bytes.appendBigEndian(value)
    }

    /// - Parameter value: any number, infinite ones included.
    public mutating func put(float8 value: Double) {
        bytes.appendBigEndian(Int32(8))
        bytes.appendBigEndian(value.bitPattern)
    }

    public mutating func put(_ value: Bool?) {
        guard let value else { return putNull() }
        bytes.appendBigEndian(Int32(1))
        bytes.append(value ? 1 : 0)
    }

    /// Text or bytea. Text must be UTF-8 without U+0000.
    public mutating func put(_ text: Span<UInt8>) {
        bytes.appendBigEndian(Int32(text.count))
        bytes.append(text)
    }

    public mutating func put(_ text: StaticString) {
        bytes.appendBigEndian(Int32(text.utf8CodeUnitCount))
        bytes.append(text)
    }

    /// PostgreSQL's binary `jsonb`: version 1, then the text.
    public mutating func put(jsonb text: Span<UInt8>) {
        bytes.appendBigEndian(Int32(text.count + 1))
        bytes.append(1)
        bytes.append(text)
    }

    /// Copies row `index` of a buffer of the same table.
    public mutating func appendRow(_ index: Int, of other: RowBuffer) {
        let end = index + 1 < other.count ? other.starts[index + 1] : other.bytes.count
        starts.append(bytes.count)
        origins.append(other.origins[index])
        bytes.append(other.bytes.span.extracting(other.starts[index]..<end))
    }

    /// Sorts rows whose first column is a UUID by it, so that workers which write the same rows take
    /// their locks in the same order. Rows of one UUID stay as they stand.
    public mutating func sortByUUID() { sort(thenNumber: nil) }

    /// The same for tables whose key is a UUID and a number: sorts by both, and keeps the first of
    /// rows that have the same.
    /// - Parameter column: an `int8` that is never null or negative.
    public mutating func sortByUUID(thenNumber column: Int) {
        precondition(table.columns[column].type == .int8)
        sort(thenNumber: column)
    }

    private struct SortKey {
        var id: DeviceID
        var number: Int64
        var row: Int

        func isSame(as other: SortKey) -> Bool { id == other.id && number == other.number }
    }

    private mutating func sort(thenNumber column: Int?) {
        precondition(table.columns[0].type == .uuid)
        func id(_ start: Int) -> DeviceID {
            var words: (UInt64, UInt64) = (0, 0)
            for index in 0..<8 {
                words.0 = words.0 << 8 | UInt64(bytes[start + 6 + index])
                words.1 = words.1 << 8 | UInt64(bytes[start + 14 + index])
            }
            return DeviceID(high: words.0, low: words.1)
        }
        func precedes(_ a: SortKey, _ b: SortKey) -> Bool {
            if a.id != b.id { return a.id < b.id }
            return a.number != b.number ? a.number < b.number : a.row < b.row
        }
        let isUnique = column != nil
        var order = ContiguousArray<SortKey>()
        order.reserveCapacity(count)
        var isSorted = true
        for (row, start) in starts.enumerated() {
            let number = column.map { self.number(inColumn: $0, of: start) } ?? 0
            let next = SortKey(id: id(start), number: number, row: row)
            if let last = order.last, precedes(next, last) || isUnique && next.isSame(as: last) {
                isSorted = false
            }
            order.append(next)
        }
        if isSorted { return }
        order.sort(by: precedes)
        var sorted = RowBuffer(table)
        sorted.bytes.reserveCapacity(bytes.count)
        for (index, key) in order.enumerated() {
            if isUnique, index > 0, key.isSame(as: order[index - 1]) { continue }
            sorted.appendRow(key.row, of: self)
        }
        self = sorted
    }

    private func number(inColumn column: Int, of start: Int) -> Int64 {
        func bigEndian(_ offset: Int, _ size: Int) -> Int64 {
            (0..<size).reduce(0) { $0 << 8 | Int64(bytes[offset + $1]) }
        }
        var offset = start + 2
        for _ in 0..<column {
            offset += 4 + Int(max(0, Int32(truncatingIfNeeded: bigEndian(offset, 4))))
        }
        return bigEndian(offset + 4, 8)
    }

    public mutating func append(_ other: RowBuffer) {
        let shift = bytes.count
        bytes.append(other.bytes)
        for start in other.starts { starts.append(start + shift) }
        origins.append(contentsOf: other.origins)
    }
}
