import Bytes
import Postgres
import TestSupport
import Testing

@Suite struct PipelineTests {
    private let database: TestDatabase
    private let connection: PostgresConnection
    private let insert = PreparedStatement("insert", "INSERT INTO t VALUES ($1)")

    init() throws {
        database = try TestDatabase.make(isMigrated: false)
        connection = try database.connect()
        try connection.run("CREATE TABLE t (x int8 PRIMARY KEY)")
    }

    private func rows() throws -> [Int64] {
        try connection.execute("SELECT x FROM t ORDER BY x").map { try $0.int8(0) }
    }

    @Test func answersComeInOrder() throws {
        var pipeline = PostgresPipeline()
        for value in Int64(1)...3 { pipeline.append(insert, PostgresParameters(.int8(value))) }
        pipeline.append("SELECT count(*) FROM t")
        pipeline.append("UPDATE t SET x = x + 10")
        let results = try connection.run(pipeline)
        #expect(results.count == 5)
        #expect(results.map(\.affectedRows) == [1, 1, 1, 1, 3])
        #expect(try results[3].only().int8(0) == 3)
        #expect(try rows() == [11, 12, 13])
    }

    @Test func anErrorNamesItsStatementAndRollsBackTheRest() throws {
        var pipeline = PostgresPipeline()
        for value in [1, 2, 1, 3] as [Int64] {
            pipeline.append(insert, PostgresParameters(.int8(value)))
        }
        let error = #expect(throws: PostgresError.self) { try connection.run(pipeline) }
        #expect(error?.statementIndex == 2)
        #expect(error?.subject == "insert")
        #expect(error?.sqlState == .uniqueViolation)
        #expect(error?.description.contains("(statement 2 of a pipeline)") == true)
        #expect(connection.transactionStatus == .idle)
        #expect(try rows() == [])
        // Prepared before the error, and still known after it.
        try connection.execute(insert, .int8(5))
        #expect(try rows() == [5])
    }

    @Test func aStatementThatCannotBePreparedIsNamed() throws {
        let broken = PreparedStatement("broken", "INSERT INTO nowhere VALUES ($1)")
        var pipeline = PostgresPipeline()
        pipeline.append(insert, PostgresParameters(.int8(1)))
        pipeline.append(broken, PostgresParameters(.int8(1)))
        pipeline.append(PreparedStatement("after", "SELECT 1"))
        let error = #expect(throws: PostgresError.self) { try connection.run(pipeline) }
        #expect(error?.operation == .preparing)
        #expect(error?.statementIndex == 1)
        #expect(error?.sqlState == .undefinedTable)
        // What came after it was not prepared, and is now.
        #expect(try connection.execute(PreparedStatement("after", "SELECT 1")).count == 1)
        try connection.run("CREATE TABLE nowhere (x int8)")
        try connection.execute(broken, .int8(1))
    }

    @Test func aTransactionInsideFailsAsAWhole() throws {
        var pipeline = PostgresPipeline()
        pipeline.append("BEGIN")
        pipeline.append(insert, PostgresParameters(.int8(1)))
        pipeline.append("SELECT 1/0")
        pipeline.append("COMMIT")
        #expect(throws: PostgresError.self) { try connection.run(pipeline) }
        #expect(connection.transactionStatus == .failedTransaction)
        connection.rollBack()
        #expect(try rows() == [])
    }

    @Test func manyLargeStatementsDoNotChokeOnTheSocket() throws {
        // More than both socket buffers hold, in both directions.
        let text = String(repeating: "x", count: 64 << 10)
        var pipeline = PostgresPipeline()
        for _ in 0..<200 { pipeline.append("SELECT $1::text", PostgresParameters(.text(text))) }
        let results = try connection.run(pipeline)
        #expect(results.count == 200)
        #expect(try results.allSatisfy { try $0.only().text(0) == text })
    }

    @Test func workIsLookedAfterWithoutWaiting() throws {
        var pipeline = PostgresPipeline()
        pipeline.append("SELECT pg_sleep(0.2)")
        pipeline.append(insert, PostgresParameters(.int8(1)))
        connection.submit(pipeline)
        #expect(connection.hasOutstandingWork)
        var waits = 0
        while !connection.advance() {
            _ = connection.waitReadable(timeout: .seconds(5))
            waits += 1
        }
        #expect(waits > 0)
        #expect(try connection.takeResults().count == 2)
        #expect(!connection.hasOutstandingWork)

        var tuples = ByteBuffer()
        for value in Int64(2)...4 {
            tuples.appendBigEndian(Int16(1))
            tuples.appendBigEndian(Int32(8))
            tuples.appendBigEndian(value)
        }
        connection.submit(copy: "COPY t FROM STDIN (FORMAT binary)", tuples: tuples)
        while !connection.advance() { _ = connection.waitReadable(timeout: .seconds(5)) }
        #expect(try connection.takeResults().first?.affectedRows == 3)
        #expect(try rows() == [1, 2, 3, 4])
    }

    /// Sending reads as well: an answer can be there before anybody has begun to wait for it.
    @Test func whatIsAnsweredAlreadyIsNotWaitedFor() throws {
        connection.submit(simple: "SELECT 1")
        while !connection.advance() { _ = connection.waitReadable(timeout: .seconds(5)) }
        #expect(connection.waitForAnswer(orReadable: -1, timeout: .seconds(2)))
        #expect(try connection.takeResults().count == 1)
        // Nothing was submitted: nothing comes.
        #expect(!connection.waitForAnswer(orReadable: -1, timeout: .milliseconds(10)))
    }

    @Test func anEmptyPipelineIsNothing() throws {
        #expect(try connection.run(PostgresPipeline()).isEmpty)
        #expect(try connection.run("").count == 1)
    }

    @Test func aLossNamesTheStatementThatWasRunning() throws {
        var pipeline = PostgresPipeline()
        pipeline.append(insert, PostgresParameters(.int8(1)))
        pipeline.append("SELECT pg_terminate_backend(pg_backend_pid())")
        pipeline.append(insert, PostgresParameters(.int8(2)))
        let error = #expect(throws: PostgresError.self) { try connection.run(pipeline) }
        #expect(error?.isConnectionLoss == true)
        #expect(error?.statementIndex == 1)
        try connection.reconnect()
        #expect(try rows() == [])
    }
}
