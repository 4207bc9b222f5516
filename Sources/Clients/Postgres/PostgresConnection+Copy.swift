public import Bytes
internal import CPostgres

/// Takes the tuples of a COPY, in pieces of any size.
public struct CopyWriter: ~Copyable {
    private let connection: PostgresConnection

    init(_ connection: PostgresConnection) { self.connection = connection }

    /// Sends a piece; waits while the server is behind.
    public func write(_ piece: Span<UInt8>) throws(PostgresError) {
        try connection.putCopy(piece)
    }
}

extension PostgresConnection {
    /// What is handed to libpq at once: large enough for few calls, small beside a batch.
    private static var pieceBytes: Int { 256 << 10 }

    // PostgreSQL manual, "COPY", "Binary Format": signature, flags, size of the extension.
    private static var header: [UInt8] {
        Array("PGCOPY\n".utf8) + [0xFF, 0x0D, 0x0A, 0x00] + [UInt8](repeating: 0, count: 8)
    }
    private static var trailer: [UInt8] { [0xFF, 0xFF] }

    /// Runs a `COPY … FROM STDIN (FORMAT binary)`.
    ///
    /// - Parameter tuples: without header and trailer; for each tuple a 2-byte number of fields,
    ///   then each field's 4-byte length (-1 for NULL) and bytes, all big endian.
    /// - Returns: the number of rows.
    @discardableResult
    public func copyIn(_ sql: String, tuples: ByteBuffer) throws(PostgresError) -> Int {
        submit(copy: sql, tuples: tuples)
        return try finish().last?.affectedRows ?? 0
    }

    /// Runs a `COPY … FROM STDIN (FORMAT binary)` whose tuples `body` writes. If `body` throws,
    /// nothing is copied.
    ///
    /// - Returns: the number of rows.
    @discardableResult
    public func copyIn(
        _ sql: String, _ body: (borrowing CopyWriter) throws(PostgresError) -> Void
    ) throws(PostgresError) -> Int {
        try startCopy(sql, .copyingIn, PGRES_COPY_IN)
        do throws(PostgresError) {
            try putCopy(PostgresConnection.header.span)
            try body(CopyWriter(self))
            try putCopy(PostgresConnection.trailer.span)
        } catch {
            if isUsable {
                _ = try? endCopy(sql, reason: "the client gave up")
            }
            throw error
        }
        return try endCopy(sql, reason: nil)
    }

    /// Runs a `COPY … TO STDOUT` and lends each row to `body`: in the binary format a 2-byte number
    /// of fields, then each field's 4-byte length (-1 for NULL) and bytes, all big endian.
    public func copyOut(
        _ sql: String, _ body: (Span<UInt8>) -> Void
    ) throws(PostgresError) {
        try startCopy(sql, .copyingOut, PGRES_COPY_OUT)
        var isFirst = true
        while true {
            var row: UnsafeMutablePointer<CChar>?
            let size = unsafe PQgetCopyData(handle, &row, 1)
            if size > 0 {
                let bytes = unsafe UnsafeRawBufferPointer(start: row, count: Int(size))
                    .assumingMemoryBound(to: UInt8.self)
                unsafe PostgresConnection.lend(bytes.span, isFirst: isFirst, body)
                unsafe PQfreemem(row)
                isFirst = false
            } else if size == 0 {
                waitForAnswer()
                if failure == nil, unsafe PQconsumeInput(handle) != 1 { lose() }
                if let failure {
                    forgetWork()
                    throw failure
                }
            } else {
                _ = try endCopy(sql, .copyingOut)
                return
            }
        }
    }

    /// Leaves out the header, which comes with the first row, and the trailer.
    private static func lend(_ bytes: Span<UInt8>, isFirst: Bool, _ body: (Span<UInt8>) -> Void) {
        var start = 0
        if isFirst, bytes.count >= 19, bytes.extracting(0..<7).equals("PGCOPY\n") {
            start = 19 + Int(bytes.bigEndian(UInt32.self, at: 15))
        }
        guard start < bytes.count else { return }
        let rest = bytes.extracting(start..<bytes.count)
        if rest.count == 2, rest[0] == 0xFF, rest[1] == 0xFF { return }
        body(rest)
    }

    // MARK: COPY that waits

    private func startCopy(
        _ sql: String, _ operation: PostgresError.Operation, _ wanted: ExecStatusType
    ) throws(PostgresError) {
        precondition(!hasOutstandingWork, "a COPY is begun before earlier results are taken")
        let subject = PostgresError.shortened(sql)
        guard isUsable else {
            throw PostgresError(
                operation, subject, "the connection is closed", isConnectionBroken: true)
        }
        guard unsafe PQsendQuery(handle, sql) == 1 else { throw lostCopy(operation, subject) }
        let result = unsafe try nextResult(operation, subject)
        let status = unsafe PQresultStatus(result)
        var error = unsafe PostgresError(operation, subject, result: result)
        unsafe PQclear(result)
        if status == wanted { return }
        if error.sqlState == nil { error.message = "the statement is not the COPY it should be" }
        if status == PGRES_COPY_IN || status == PGRES_COPY_OUT || status == PGRES_COPY_BOTH {
            // Its end may be far away, and nothing else can be said until then.
            giveUp(error.message)
            throw lostCopy(operation, subject)
        }
        while let further = unsafe try nextResult(operation, subject) { unsafe PQclear(further) }
        throw error
    }

    /// - Returns: the number of rows.
    private func endCopy(
        _ sql: String, _ operation: PostgresError.Operation = .copyingIn, reason: String? = nil
    ) throws(PostgresError) -> Int {
        let subject = PostgresError.shortened(sql)
        if operation == .copyingIn {
            while true {
                let ended = unsafe PQputCopyEnd(handle, reason)
                if ended == 1 { break }
                if ended < 0 { throw lostCopy(operation, subject) }
                try waitForRoom(subject)
            }
        }
        var rows = 0
        var first: PostgresError?
        while let result = unsafe try nextResult(operation, subject) {
            switch unsafe PQresultStatus(result) {
            case PGRES_COMMAND_OK: rows = unsafe Int(String(cString: PQcmdTuples(result))) ?? 0
            default:
                if first == nil {
                    first = unsafe PostgresError(operation, subject, result: result)
                }
            }
            unsafe PQclear(result)
        }
        if !isUsable { throw lostCopy(operation, subject, first) }
        if let first { throw first }
        return rows
    }

    fileprivate func putCopy(_ piece: Span<UInt8>) throws(PostgresError) {
        var offset = 0
        while offset < piece.count {
            let end = min(piece.count, offset + PostgresConnection.pieceBytes)
            let put = unsafe piece.extracting(offset..<end).withUnsafeBytes {
                let start = unsafe $0.baseAddress!.assumingMemoryBound(to: CChar.self)
                return unsafe PQputCopyData(handle, start, Int32($0.count))
            }
            if put < 0 { throw lostCopy(.copyingIn, "") }
            if put == 1 { offset = end }
            try waitForRoom("")
        }
    }

    /// Waits until the socket has taken what libpq holds.
    private func waitForRoom(_ subject: String) throws(PostgresError) {
        while true {
            let flushed = unsafe PQflush(handle)
            if flushed == 0 { return }
            // The server may be waiting for us to read what it says.
            if unsafe flushed < 0 || PQconsumeInput(handle) != 1 {
                throw lostCopy(.copyingIn, subject)
            }
            let ready = waitForSocket(
                socketDescriptor, orWritable: true, timeout: options.responseTimeout)
            if !ready { giveUp("the server took nothing within \(options.responseTimeout)") }
            if failure != nil { throw lostCopy(.copyingIn, subject) }
        }
    }

    private func nextResult(
        _ operation: PostgresError.Operation, _ subject: String
    ) throws(PostgresError) -> OpaquePointer? {
        while failure == nil {
            let flushed = unsafe PQflush(handle)
            hasUnsentBytes = flushed == 1
            if unsafe PQisBusy(handle) == 0 { return unsafe PQgetResult(handle) }
            waitForAnswer()
            if failure == nil, unsafe PQconsumeInput(handle) != 1 { break }
        }
        throw lostCopy(operation, subject)
    }

    /// Breaks the connection off, if that is yet to be done.
    private func lostCopy(
        _ operation: PostgresError.Operation, _ subject: String, _ reason: PostgresError? = nil
    ) -> PostgresError {
        if failure == nil {
            failure = reason
            lose()
        }
        var error = failure ?? PostgresError(operation, subject, "the connection was lost")
        error.operation = operation
        if error.subject.isEmpty { error.subject = subject }
        error.isConnectionBroken = true
        forgetWork()
        return error
    }

    // MARK: COPY that does not wait

    func beginCopy(_ tuples: ByteBuffer) {
        copySource = (tuples, 0)
        let header = PostgresConnection.header
        let put = unsafe header.withUnsafeBytes {
            let start = unsafe $0.baseAddress!.assumingMemoryBound(to: CChar.self)
            return unsafe PQputCopyData(handle, start, Int32($0.count))
        }
        if put != 1 { lose() }
    }

    /// Hands libpq as many of the tuples as the socket takes.
    /// - Returns: whether all are on their way.
    func feedCopy() -> Bool {
        while let (tuples, offset) = copySource {
            flush()
            if copySource == nil { return true }
            if hasUnsentBytes { return false }
            let end = min(tuples.count, offset + PostgresConnection.pieceBytes)
            let isLast = end == tuples.count
            let put: Int32 = unsafe tuples.withUnsafeBytes { raw in
                guard offset < end else { return 1 }
                let start = unsafe (raw.baseAddress! + offset).assumingMemoryBound(to: CChar.self)
                return unsafe PQputCopyData(handle, start, Int32(end - offset))
            }
            if put < 0 {
                lose()
                return true
            }
            if put == 0 {
                hasUnsentBytes = true
                return false
            }
            copySource?.offset = end
            if isLast {
                let ended = unsafe PostgresConnection.trailer.withUnsafeBytes {
                    let start = unsafe $0.baseAddress!.assumingMemoryBound(to: CChar.self)
                    return unsafe PQputCopyData(handle, start, 2) == 1
                        && PQputCopyEnd(handle, nil) == 1
                }
                copySource = nil
                if !ended { lose() }
                flush()
            }
        }
        return true
    }
}
