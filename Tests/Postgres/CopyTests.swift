import Bytes
import Postgres
import TestSupport
import Testing

@Suite struct CopyTests {
    private let database: TestDatabase
    private let connection: PostgresConnection
    private let copy = "COPY t (id, name) FROM STDIN (FORMAT binary)"

    init() throws {
        database = try TestDatabase.make(isMigrated: false)
        connection = try database.connect()
        try connection.run("CREATE TABLE t (id int8 PRIMARY KEY, name text)")
    }

    private func append(_ id: Int64, _ name: String?, to tuples: inout ByteBuffer) {
        tuples.appendBigEndian(Int16(2))
        tuples.appendBigEndian(Int32(8))
        tuples.appendBigEndian(id)
        tuples.appendBigEndian(Int32(name?.utf8.count ?? -1))
        if let name { tuples.append(text: name) }
    }

    private func count() throws -> Int64 {
        try connection.execute("SELECT count(*) FROM t").only().int8(0)
    }

    @Test func aHundredThousandRowsGoInAndOut() throws {
        let rows = 100_000
        var tuples = ByteBuffer()
        for id in 0..<Int64(rows) {
            append(id, id % 3 == 0 ? nil : "device \(id)", to: &tuples)
        }
        #expect(try connection.copyIn(copy, tuples: tuples) == rows)
        var read = ByteBuffer()
        var calls = 0
        try connection.copyOut(
            "COPY (SELECT id, name FROM t ORDER BY id) TO STDOUT (FORMAT binary)"
        ) { row in
            read.append(row)
            calls += 1
        }
        #expect(calls == rows)
        #expect(read == tuples)
    }

    @Test func tuplesMayComeInPiecesThatCutThem() throws {
        var tuples = ByteBuffer()
        for id in Int64(0)..<1_000 { append(id, String(repeating: "y", count: 1_000), to: &tuples) }
        let rows = try connection.copyIn(copy) { (writer) throws(PostgresError) in
            var offset = 0
            while offset < tuples.count {
                let end = min(tuples.count, offset + 777)
                try writer.write(tuples.span.extracting(offset..<end))
                offset = end
            }
        }
        #expect(rows == 1_000)
    }

    @Test func aRefusedRowCopiesNothingAndLeavesTheConnectionUsable() throws {
        var tuples = ByteBuffer()
        for id in Int64(0)..<50_000 { append(id, "x", to: &tuples) }
        append(17, "again", to: &tuples)
        for _ in 0..<2 {
            let error = #expect(throws: PostgresError.self) {
                try connection.copyIn(copy, tuples: tuples)
            }
            #expect(error?.sqlState == .uniqueViolation)
            #expect(error?.operation == .copyingIn)
            let inPieces = #expect(throws: PostgresError.self) {
                try connection.copyIn(copy) { (writer) throws(PostgresError) in
                    try writer.write(tuples.span)
                }
            }
            #expect(inPieces?.sqlState == .uniqueViolation)
        }
        #expect(try count() == 0)
        append(1, "a\0b", to: &tuples)
        var bad = ByteBuffer()
        append(1, "a\0b", to: &bad)
        let error = #expect(throws: PostgresError.self) { try connection.copyIn(copy, tuples: bad) }
        #expect(error?.sqlState == .characterNotInRepertoire)
        #expect(error?.isDataError == true)
    }

    @Test func aCallerThatGivesUpCopiesNothing() throws {
        var tuples = ByteBuffer()
        append(1, "x", to: &tuples)
        let error = #expect(throws: PostgresError.self) {
            try connection.copyIn(copy) { (writer) throws(PostgresError) in
                try writer.write(tuples.span)
                throw PostgresError(.copyingIn, "", "enough")
            }
        }
        #expect(error?.message == "enough")
        #expect(connection.transactionStatus == .idle)
        #expect(try count() == 0)
    }

    @Test func aStatementThatIsNoCopyIsAnError() throws {
        for sql in ["SELECT 1", "COPY nowhere FROM STDIN", "COPY t TO STDOUT"] {
            #expect(throws: PostgresError.self) {
                try connection.copyIn(sql) { (_) throws(PostgresError) in }
            }
            if !connection.isUsable { try connection.reconnect() }
        }
        #expect(throws: PostgresError.self) { try connection.run("COPY t FROM STDIN") }
        #expect(connection.transactionStatus == .idle)
        #expect(throws: PostgresError.self) { try connection.run("COPY t TO STDOUT") }
        if !connection.isUsable { try connection.reconnect() }
        #expect(throws: PostgresError.self) { try connection.copyOut("SELECT 1") { _ in } }
        #expect(try connection.execute("SELECT 1").count == 1)
    }

    @Test func anEmptyTableIsNoRows() throws {
        var calls = 0
        try connection.copyOut("COPY t TO STDOUT (FORMAT binary)") { _ in calls += 1 }
        #expect(calls == 0)
        #expect(try connection.copyIn(copy, tuples: ByteBuffer()) == 0)
        #expect(try connection.copyIn(copy) { (_) throws(PostgresError) in } == 0)
    }

    @Test func aSessionEndedWhileCopyingIsALoss() throws {
        let other = try database.connect()
        var tuples = ByteBuffer()
        for id in Int64(0)..<1_000 { append(id, "x", to: &tuples) }
        let process = connection.backendProcessID
        let error = #expect(throws: PostgresError.self) {
            try connection.copyIn(copy) { (writer) throws(PostgresError) in
                try writer.write(tuples.span)
                try other.execute("SELECT pg_terminate_backend($1, 10000)", .int4(process))
                for _ in 0..<1_000 { try writer.write(tuples.span) }
            }
        }
        #expect(error?.isConnectionLoss == true)
        try connection.reconnect()
        #expect(try count() == 0)
        try connection.run(
            "INSERT INTO t SELECT i, repeat('z', 1000) FROM generate_series(1, 100000) i")
        let reader = try database.connect()
        let reading = reader.backendProcessID
        var seen = 0
        let lost = #expect(throws: PostgresError.self) {
            try reader.copyOut("COPY t TO STDOUT (FORMAT binary)") { _ in
                if seen == 0 {
                    _ = try? other.execute("SELECT pg_terminate_backend($1, 10000)", .int4(reading))
                }
                seen += 1
            }
        }
        #expect(lost?.isConnectionLoss == true)
    }
}
