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
        /// `false`: the table has no such column; the value is there for the guard alone.
        public var isStored: Bool

        public init(
            _ name: String, _ type: ColumnType, keepsOldWhenNull: Bool = false,
            isStored: Bool = true
        ) {
            self.name = name
            self.type = type
            self.keepsOldWhenNull = keepsOldWhenNull
            self.isStored = isStored
        }
    }

    /// What must hold of other tables for a row to be written, judged by the database in the
    /// transaction that writes it. A row for which it does not hold is left out: that is not an error,
    /// and no dead letter.
    public struct Guard: Hashable, Sendable {
        /// A row of another table that must be there. It is locked (`FOR KEY SHARE`) until the commit,
        /// so that whoever deletes it waits, or was first: a foreign key never fails.
        public struct Requirement: Hashable, Sendable {
            public var table: String
            /// The column of `table` that finds the row; unique there.
            public var key: String
            /// Indexes of this table's columns whose values, each, must be found. Never null.
            public var columns: [Int]

            public init(_ table: String, _ key: String, columns: [Int]) {
                self.table = table
                self.key = key
                self.columns = columns
            }
        }

        /// A row of another table that must not be there.
        public struct Exclusion: Hashable, Sendable {
            public struct Match: Hashable, Sendable {
                /// Of the other table.
                public var name: String
                /// Index of this table's column that has the same value.
                public var column: Int

                public init(_ name: String, _ column: Int) {
                    self.name = name
                    self.column = column
                }
            }

            public var table: String
            /// What makes it the row: all of these.
            public var matches: [Match]

            public init(_ table: String, _ matches: [Match]) {
                self.table = table
                self.matches = matches
            }
        }

        public var requirements: [Requirement]
        public var exclusions: [Exclusion]

        public init(_ requirements: [Requirement], unless exclusions: [Exclusion] = []) {
            self.requirements = requirements
            self.exclusions = exclusions
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
        /// Old rows with the key go. All columns are of the key, which need not be unique.
        case delete
    }

    /// The name in schema `heartline`.
    public var name: String
    public var columns: [Column]
    /// Indexes of the key's columns; empty for `append`.
    public var key: [Int]
    public var mode: WriteMode
    /// `nil`: every row is written.
    public var onlyIf: Guard?

    public init(
        _ name: String, _ columns: [Column], key: [Int], mode: WriteMode, onlyIf: Guard? = nil
    ) {
        self.name = name
        self.columns = columns
        self.key = key
        self.mode = mode
        self.onlyIf = onlyIf
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

    mutating func reserveBytes(_ count: Int) { bytes.reserveCapacity(count) }

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

    public mutating func put(_ id: DeviceID) { putUUID(id.high, id.low) }

    public mutating func put(_ id: AccountID) { putUUID(id.high, id.low) }

    public mutating func put(_ id: ConnectionID) { putUUID(id.high, id.low) }

    public mutating func put(_ id: EncounterID) { putUUID(id.high, id.low) }

    public mutating func put(_ id: MessageID) { putUUID(id.high, id.low) }

    public mutating func put(_ id: PushID) { putUUID(id.high, id.low) }

    private mutating func putUUID(_ high: UInt64, _ low: UInt64) {
        bytes.appendBigEndian(Int32(16))
        bytes.appendBigEndian(high)
        bytes.appendBigEndian(low)
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

    /// Appends a row as another buffer held it.
    /// - Returns: `false`, and nothing is appended, if it is no tuple of as many fields as the table has
    ///   columns.
    public mutating func append(tuple: Span<UInt8>, origin: Int64) -> Bool {
        var reader = ByteReader(tuple)
        guard reader.bigEndian(Int16.self) == Int16(table.columns.count) else { return false }
        for _ in table.columns {
            guard let size = reader.bigEndian(Int32.self), size >= -1,
                reader.take(Int(max(0, size))) != nil
            else { return false }
        }
        guard reader.remaining == 0 else { return false }
        starts.append(bytes.count)
        origins.append(origin)
        bytes.append(tuple)
        return true
    }

    public mutating func append(_ other: RowBuffer) {
        let shift = bytes.count
        bytes.append(other.bytes)
        for start in other.starts { starts.append(start + shift) }
        origins.append(contentsOf: other.origins)
    }
}
