internal import CPostgres

/// What one statement answered: its rows, or how many rows it changed.
///
/// - Thread safety: not `Sendable`; it may outlive its connection.
@safe public final class PostgresResult: RandomAccessCollection {
    private let pointer: OpaquePointer
    /// The statement it answers, for errors.
    let subject: String

    public let startIndex = 0
    /// The number of rows.
    public let endIndex: Int
    public let columnCount: Int

    /// Takes the result over and clears it at its end.
    init(owning pointer: OpaquePointer, subject: String) {
        unsafe self.pointer = unsafe pointer
        self.subject = subject
        endIndex = Int(unsafe PQntuples(pointer))
        columnCount = Int(unsafe PQnfields(pointer))
    }

    deinit { unsafe PQclear(pointer) }

    public subscript(index: Int) -> PostgresRow {
        precondition(index >= 0 && index < endIndex, "a row that the result does not have")
        return PostgresRow(result: self, index: index)
    }

    public var columnNames: [String] {
        (0..<columnCount).map { unsafe String(cString: PQfname(pointer, Int32($0))) }
    }

    public func type(ofColumn column: Int) -> PostgresType {
        PostgresType(rawValue: unsafe PQftype(pointer, Int32(column)))
    }

    /// Rows that an INSERT, UPDATE, DELETE, MERGE, SELECT or COPY was about; 0 for other statements.
    public var affectedRows: Int {
        Int(unsafe String(cString: PQcmdTuples(pointer))) ?? 0
    }

    /// What the statement was and did, for example `INSERT 0 5`.
    public var commandTag: String { unsafe String(cString: PQcmdStatus(pointer)) }

    /// The only row of the result.
    /// - Throws: if there is none, or more than one.
    public func only() throws(PostgresError) -> PostgresRow {
        guard count == 1 else {
            throw PostgresError(.reading, subject, "\(count) rows where one was expected")
        }
        return self[0]
    }

    func isNull(_ row: Int, _ column: Int) -> Bool {
        unsafe PQgetisnull(pointer, Int32(row), Int32(column)) != 0
    }

    /// Lends the bytes of a field, `nil` for NULL, once its type and format are as they should be.
    func withField<Result>(
        _ row: Int, _ column: Int, _ accepts: (PostgresType) -> Bool, wanted: StaticString,
        allowsTextFormat: Bool = false, _ body: (Span<UInt8>) -> Result?
    ) throws(PostgresError) -> Result? {
        guard column >= 0, column < columnCount else {
            throw PostgresError(
                .reading, subject, "column \(column) of \(columnCount) was asked for")
        }
        let isBinary = unsafe PQfformat(pointer, Int32(column)) == 1
        let type = type(ofColumn: column)
        guard isBinary ? accepts(type) : allowsTextFormat else {
            let format = isBinary ? "" : " in the text format"
            throw mismatch(row, column, "has type \(type.rawValue)\(format)", wanted)
        }
        if isNull(row, column) { return nil }
        let size = Int(unsafe PQgetlength(pointer, Int32(row), Int32(column)))
        let start = unsafe UnsafeRawPointer(PQgetvalue(pointer, Int32(row), Int32(column)))
        let bytes = unsafe UnsafeRawBufferPointer(start: start, count: size)
            .assumingMemoryBound(to: UInt8.self)
        guard let value = unsafe body(bytes.span) else {
            throw mismatch(row, column, "has a value of \(size) bytes", wanted)
        }
        return value
    }

    func mismatch(
        _ row: Int, _ column: Int, _ what: String, _ wanted: StaticString
    ) -> PostgresError {
        let name = unsafe PQfname(pointer, Int32(column)).map { unsafe String(cString: $0) } ?? "?"
        return PostgresError(
            .reading, subject, "row \(row), column \(name): \(what), where \(wanted) was expected")
    }
}
