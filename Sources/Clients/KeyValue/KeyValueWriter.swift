internal import CLMDB

/// The write transaction: one in all processes at a time. The end of its scope without `commit`
/// undoes all of it.
///
/// After an error nothing more can be written with it: drop it.
/// - Thread safety: belongs to the thread that began it.
@safe public struct KeyValueWriter: ~Copyable {
    private let environment: KeyValueEnvironment
    private var transaction: OpaquePointer?
    /// By database: what appends goes in order, so a cursor finds its page at once.
    private var cursors = ContiguousArray<NativeCursor>()

    /// Waits for the writer before.
    public init(_ environment: KeyValueEnvironment) throws(KeyValueError) {
        self.environment = environment
        unsafe transaction = nil
        try environment.check(
            .writing, unsafe mdb_txn_begin(environment.native.pointer, nil, 0, &transaction))
    }

    deinit {
        for cursor in cursors {
            if let pointer = unsafe cursor.pointer { unsafe mdb_cursor_close(pointer) }
        }
        if let transaction = unsafe transaction { unsafe mdb_txn_abort(transaction) }
    }

    /// Makes everything durable, or undoes it and throws.
    public consuming func commit() throws(KeyValueError) {
        // LMDB frees the cursors that are left, so they must be closed by us before.
        for cursor in cursors {
            if let pointer = unsafe cursor.pointer { unsafe mdb_cursor_close(pointer) }
        }
        cursors.removeAll()
        let ending = unsafe transaction
        unsafe transaction = nil
        try environment.check(.committing, unsafe mdb_txn_commit(ending))
    }

    /// Adds an entry behind all others of a database with integer keys.
    public mutating func append(
        _ key: UInt64, _ value: Span<UInt8>, to database: KeyValueDatabase
    ) throws(KeyValueError) {
        let cursor = unsafe try openCursor(database)
        let code = unsafe lend(key) { key in
            unsafe lend(value) { value in
                unsafe mdb_cursor_put(cursor, &key, &value, UInt32(MDB_APPEND))
            }
        }
        try environment.check(.writing, code)
    }

    public func put(
        _ key: Span<UInt8>, _ value: Span<UInt8>, in database: KeyValueDatabase
    ) throws(KeyValueError) {
        let code = unsafe lend(key) { key in
            unsafe lend(value) { value in
                unsafe mdb_put(transaction, database.handle, &key, &value, 0)
            }
        }
        try environment.check(.writing, code)
    }

    public func put(
        _ key: UInt64, _ value: Span<UInt8>, in database: KeyValueDatabase
    ) throws(KeyValueError) {
        let code = unsafe lend(key) { key in
            unsafe lend(value) { value in
                unsafe mdb_put(transaction, database.handle, &key, &value, 0)
            }
        }
        try environment.check(.writing, code)
    }

    /// Lends the value of `key`.
    /// - Returns: what `body` returned; `nil` if there is no such key.
    public func withValue<Result>(
        of key: Span<UInt8>, in database: KeyValueDatabase, _ body: (Span<UInt8>) -> Result
    ) throws(KeyValueError) -> Result? {
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
        var value = unsafe MDB_val()
        let code = unsafe get(transaction, database, key, &value)
        if code == MDB_NOTFOUND { return nil }
        try environment.check(.reading, code)
        return unsafe body(value.bytes.span)
    }

    /// - Returns: whether there was such a key.
    @discardableResult
    public func delete(
        _ key: Span<UInt8>, from database: KeyValueDatabase
    ) throws(KeyValueError) -> Bool {
        let code = unsafe lend(key) { key in
            unsafe mdb_del(transaction, database.handle, &key, nil)
        }
        if code == MDB_NOTFOUND { return false }
        try environment.check(.writing, code)
        return true
    }

    /// - Returns: whether there was such a key.
    @discardableResult
    public func delete(
        _ key: UInt64, from database: KeyValueDatabase
    ) throws(KeyValueError) -> Bool {
        let code = unsafe lend(key) { key in
            unsafe mdb_del(transaction, database.handle, &key, nil)
        }
        if code == MDB_NOTFOUND { return false }
        try environment.check(.writing, code)
        return true
    }

    /// Deletes entries of a database with integer keys from the first on, as long as `body` returns
    /// true; the entry for which it returns false stays.
    public func trim(
        _ database: KeyValueDatabase, while body: (_ key: UInt64, _ value: Span<UInt8>) -> Bool
    ) throws(KeyValueError) {
        var cursor: OpaquePointer?
        try environment.check(
            .writing, unsafe mdb_cursor_open(transaction, database.handle, &cursor))
        defer { unsafe mdb_cursor_close(cursor) }
        var key = unsafe MDB_val()
        var value = unsafe MDB_val()
        var code = unsafe mdb_cursor_get(cursor, &key, &value, MDB_FIRST)
        while code == 0 {
            guard unsafe body(key.number, value.bytes.span) else { return }
            try environment.check(.writing, unsafe mdb_cursor_del(cursor, 0))
            code = unsafe mdb_cursor_get(cursor, &key, &value, MDB_FIRST)
        }
        if code != MDB_NOTFOUND { try environment.check(.reading, code) }
    }

    private mutating func openCursor(
        _ database: KeyValueDatabase
    ) throws(KeyValueError) -> OpaquePointer {
        let index = Int(database.handle)
        while cursors.count <= index { cursors.append(NativeCursor()) }
        if unsafe cursors[index].pointer == nil {
            try environment.check(
                .writing,
                unsafe mdb_cursor_open(transaction, database.handle, &cursors[index].pointer))
        }
        return unsafe cursors[index].pointer!
    }
}
