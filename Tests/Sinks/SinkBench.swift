import Bytes
import Postgres
import Schemas
import Sinks
import System
import TestSupport

/// A sink on a real PostgreSQL, with tables that use every mode.
final class SinkOnServer {
    static let kept = TableSchema(
        "sink_kept",
        [
            .init("key", .uuid), .init("name", .text), .init("last", .text, keepsOldWhenNull: true),
            .init("at", .timestamptz),
        ], key: [0], mode: .upsert)
    static let log = TableSchema(
        "sink_log", [.init("number", .int8), .init("note", .jsonb)], key: [], mode: .append)
    static let first = TableSchema(
        "sink_first", [.init("key", .int8), .init("value", .int4)], key: [0], mode: .insertNew)
    static let ended = TableSchema(
        "sink_first", [.init("key", .int8), .init("ended", .bool)], key: [0], mode: .update)
    static let tables = [kept, log, first, ended]

    let database: TestDatabase
    let sink: PostgresSink
    let waker = Waker()
    private var ticket: UInt64 = 0

    init(
        _ database: TestDatabase, copyRows: Int = 8_192, pipeline: String = "test",
        source: Topic = .heartbeats, tables: [TableSchema] = SinkOnServer.tables,
        connections: Int = 1
    ) throws {
        self.database = database
        try database.connect().run(
            """
            CREATE TABLE IF NOT EXISTS heartline.sink_kept (
                key uuid PRIMARY KEY, name text NOT NULL CHECK (name <> 'forbidden'), last text,
                at timestamptz);
            CREATE TABLE IF NOT EXISTS heartline.sink_log (number int8, note jsonb);
            CREATE TABLE IF NOT EXISTS heartline.sink_first (
                key int8 PRIMARY KEY, value int4, ended boolean)
            """)
        var settings = PostgresSink.Settings(
            address: database.url, pipeline: pipeline, source: source, tables: tables,
            owner: "tests")
        settings.copyRows = copyRows
        settings.connections = connections
        sink = PostgresSink(settings, waker: waker)
    }

    deinit { sink.close() }

    /// Sends a request without waiting for its reply.
    func send(_ action: StoreRequest.Action, partition: Int32 = 0) {
        ticket += 1
        precondition(
            sink.submit(StoreRequest(ticket: ticket, partition: partition, action: action)))
    }

    /// The next reply; `nil` after half a minute.
    func reply() -> StoreReply.Outcome? { wholeReply()?.outcome }

    func wholeReply() -> StoreReply? {
        for _ in 0..<300 {
            if let reply = sink.nextReply() { return reply }
            waker.wait(milliseconds: 100)
        }
        return nil
    }

    func ask(_ action: StoreRequest.Action, partition: Int32 = 0) -> StoreReply.Outcome? {
        send(action, partition: partition)
        return reply()
    }

    func claim(partition: Int32 = 0, start: Int64 = 0) -> PartitionClaim? {
        if case .claimed(let claim) = ask(.claim(start: start), partition: partition) {
            claim
        } else {
            nil
        }
    }

    func count(_ table: String) throws -> Int64 {
        try database.connect().execute("SELECT count(*) FROM heartline.\(table)").only().int8(0)
    }

    func query(_ sql: String) throws -> Int64 {
        try database.connect().execute(sql).only().int8(0)
    }
}

/// A commit from `expected` to `next`, filled by `write`.
func commit(
    epoch: Int64, _ expected: Int64, _ next: Int64,
    _ write: (inout PartitionCommit) -> Void = { _ in }
) -> PartitionCommit {
    var commit = PartitionCommit(tables: SinkOnServer.tables)
    commit.epoch = epoch
    commit.expectedOffset = expected
    commit.nextOffset = next
    write(&commit)
    return commit
}

extension PartitionCommit {
    mutating func keep(_ key: UInt64, _ name: String, last: String? = nil, origin: Int64 = 0) {
        rows[0].beginRow(origin: origin)
        rows[0].put(DeviceID(high: 0, low: key))
        rows[0].put(ByteBuffer(name.utf8).span)
        if let last { rows[0].put(ByteBuffer(last.utf8).span) } else { rows[0].putNull() }
        rows[0].put(EventTime(milliseconds: 1_790_000_000_000))
    }

    mutating func log(_ number: Int64, _ note: String) {
        rows[1].beginRow(origin: number)
        rows[1].put(int8: number)
        rows[1].put(jsonb: ByteBuffer(note.utf8).span)
    }

    mutating func first(_ key: Int64, _ value: Int32) {
        rows[2].beginRow(origin: 0)
        rows[2].put(int8: key)
        rows[2].put(int4: value)
    }

    mutating func ended(_ key: Int64) {
        rows[3].beginRow(origin: 0)
        rows[3].put(int8: key)
        rows[3].put(true)
    }

    mutating func event(_ sequence: Int64, _ value: String) {
        outbox.append(
            sequence: sequence, topic: .alerts, key: ByteBuffer("key".utf8).span,
            time: EventTime(milliseconds: 1_790_000_000_123), origin: 0
        ) { $0.append(text: value) }
    }
}

extension StoreReply.Outcome {
    var isCommitted: Bool { if case .committed = self { true } else { false } }
    var isFenced: Bool { if case .fenced = self { true } else { false } }
    var failure: StoreFailure? { if case .failed(let failure) = self { failure } else { nil } }
}
