internal import CLMDB

/// A read transaction that is begun and ended over and over without allocating.
///
/// Between `begin` and `end` it sees one state of the environment and keeps the pages of that state
/// from being reused: keep that short. What it lends lies in the map itself; nothing is copied.
/// - Thread safety: one thread at a time, not always the same one.
@safe public struct KeyValueReader: ~Copyable {
    private let environment: KeyValueEnvironment
    private var transaction: OpaquePointer?
    private var isActive = false
    private var serial = 0
    private var cursors = ContiguousArray<NativeCursor>()

    public init(_ environment: KeyValueEnvironment) { self.environment = environment }

    deinit {
        for cursor in cursors {
            if let pointer = unsafe cursor.pointer { unsafe mdb_cursor_close(pointer) }
        }
        if let transaction = unsafe transaction { unsafe mdb_txn_abort(transaction) }
    }

    /// Sees the environment as it is now, until `end`.
    public mutating func begin() throws(KeyValueError) {
        precondition(!isActive, "a read transaction was begun twice")
        if let transaction = unsafe transaction {
            try environment.check(.reading, unsafe mdb_txn_renew(transaction))
        } else {
            try environment.check(
                .reading,
                unsafe mdb_txn_begin(
                    environment.native.pointer, nil, UInt32(MDB_RDONLY), &transaction))
        }
        serial += 1
        isActive = true
    }

    public mutating func end() {
        guard isActive else { return }
        isActive = false
        unsafe mdb_txn_reset(transaction)
    }

    /// Lends the value of `key`.
    /// - Returns: what `body` returned; `nil` if there is no such key.
    public func withValue<Result>(
        of key: Span<UInt8>, in database: KeyValueDatabase, _ body: (Span<UInt8>) -> Result
    ) throws(KeyValueError) -> Result? {
        precondition(isActive, "reading outside a transaction")
        var value = unsafe MDB_val()
        let code = unsafe get(transaction, database, key, &value)
        if code == MDB_NOTFOUND { return nil }
        try environment.check(.reading, code)
        return unsafe body(value.bytes.span)
    }

    /// Lends the value of an integer key.
    /// - Returns: what `body` returned; `nil` if there is no such key.
    public func withValue<Result>(
        of key: UInt64, in database: KeyValueDatabase, _ body: (Span<UInt8>) -> Result
    ) throws(KeyValueError) -> Result? {
        precondition(isActive, "reading outside a transaction")
        var value = unsafe MDB_val()
        let code = unsafe get(transaction, database, key, &value)
        if code == MDB_NOTFOUND { return nil }
        try environment.check(.reading, code)
        return unsafe body(value.bytes.span)
    }

    /// Lends the entries of a database with integer keys in order, from key `first` on, until
    /// `body` returns false.
    public mutating func scan(
        _ database: KeyValueDatabase, from first: UInt64,
        _ body: (_ key: UInt64, _ value: Span<UInt8>) -> Bool
    ) throws(KeyValueError) {
        precondition(isActive, "reading outside a transaction")
        let cursor = unsafe try openCursor(database)
        var start = first
        var key = unsafe MDB_val()
        var value = unsafe MDB_val()
        var code = unsafe withUnsafeMutablePointer(to: &start) { pointer in
            unsafe key = MDB_val(mv_size: 8, mv_data: pointer)
            return unsafe mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE)
        }
        while code == 0 {
            guard unsafe body(key.number, value.bytes.span) else { return }
            code = unsafe mdb_cursor_get(cursor, &key, &value, MDB_NEXT)
        }
        if code != MDB_NOTFOUND { try environment.check(.reading, code) }
    }

    private mutating func openCursor(
        _ database: KeyValueDatabase
    ) throws(KeyValueError) -> OpaquePointer {
        let index = Int(database.handle)
        while cursors.count <= index { cursors.append(NativeCursor()) }
        if let pointer = unsafe cursors[index].pointer {
            if cursors[index].serial != serial {
                try environment.check(.reading, unsafe mdb_cursor_renew(transaction, pointer))
            }
        } else {
            try environment.check(
                .reading,
                unsafe mdb_cursor_open(transaction, database.handle, &cursors[index].pointer))
        }
        cursors[index].serial = serial
        return unsafe cursors[index].pointer!
    }
}

/// A cursor that its transaction's owner opens once and closes.
@safe struct NativeCursor {
    var pointer: OpaquePointer?
    /// The `begin` of a reader for which it was last renewed.
    var serial = 0
}

extension MDB_val {
    var bytes: UnsafeBufferPointer<UInt8> {
        unsafe UnsafeRawBufferPointer(start: mv_data, count: mv_size)
            .assumingMemoryBound(to: UInt8.self)
    }

    var number: UInt64 { unsafe mv_data.loadUnaligned(as: UInt64.self) }
}

/// Runs `body` with LMDB's view of the bytes, which LMDB does not change.
func lend<Result>(_ bytes: Span<UInt8>, _ body: (inout MDB_val) -> Result) -> Result {
    unsafe bytes.withUnsafeBufferPointer { buffer in
        var value = unsafe MDB_val(
            mv_size: buffer.count, mv_data: UnsafeMutableRawPointer(mutating: buffer.baseAddress))
        return unsafe body(&value)
    }
}

/// Runs `body` with LMDB's view of an integer key.
func lend<Result>(_ number: UInt64, _ body: (inout MDB_val) -> Result) -> Result {
    var number = number
    return unsafe withUnsafeMutablePointer(to: &number) { pointer in
        var value = unsafe MDB_val(mv_size: 8, mv_data: pointer)
        return unsafe body(&value)
    }
}

func get(
    _ transaction: OpaquePointer?, _ database: KeyValueDatabase, _ key: Span<UInt8>,
    _ value: inout MDB_val
) -> Int32 {
    unsafe lend(key) { key in
        unsafe mdb_get(transaction, database.handle, &key, &value)
    }
}

func get(
    _ transaction: OpaquePointer?, _ database: KeyValueDatabase, _ key: UInt64,
    _ value: inout MDB_val
) -> Int32 {
    unsafe lend(key) { key in
        unsafe mdb_get(transaction, database.handle, &key, &value)
    }
}
