import Bytes
import Postgres
import TestSupport
import Testing

@Suite struct ValueTests {
    private let database: TestDatabase
    private let connection: PostgresConnection

    init() throws {
        database = try TestDatabase.make(isMigrated: false)
        connection = try database.connect()
    }

    @Test(arguments: [
        (UInt64.min, UInt64.min), (.max, .max), (0x0123_4567_89AB_CDEF, 0xFEDC_BA98_7654_3210),
    ]) func uuidsComeBack(high: UInt64, low: UInt64) throws {
        let row = try connection.execute("SELECT $1::uuid", .uuid(high, low)).only()
        #expect(try row.uuid(0) == (high, low))
    }

    @Test func uuidsAreTheOnesThatPeopleRead() throws {
        let value = PostgresValue.uuid(0x0123_4567_89AB_CDEF, 0xFEDC_BA98_7654_3210)
        let row = try connection.execute("SELECT $1::uuid::text", value).only()
        #expect(try row.text(0) == "01234567-89ab-cdef-fedc-ba9876543210")
    }

    // The ends are those of PostgreSQL: 4713 BC and 294276 AD.
    @Test(arguments: [
        0, 1, -1, 836_000_000_123_456, -211_813_488_000_000_000, 9_223_371_331_199_999_999,
        Int64.max, Int64.min,
    ]) func timestampsComeBack(microseconds: Int64) throws {
        let row = try connection.execute("SELECT $1::timestamptz", .timestamptz(microseconds))
            .only()
        #expect(try row.timestamptz(0) == microseconds)
    }

    @Test func timestampsCountFromTheYear2000() throws {
        let row = try connection.execute(
            "SELECT $1::timestamptz::text, $2::timestamptz::text", .timestamptz(1_500_000),
            .timestamptz(.max)
        ).only()
        #expect(try row.text(0) == "2000-01-01 00:00:01.5+00")
        #expect(try row.text(1) == "infinity")
    }

    @Test(arguments: [0, 1, -1, Int64.max, Int64.min]) func integersComeBack(value: Int64) throws {
        let small = Int32(truncatingIfNeeded: value)
        let row = try connection.execute("SELECT $1::int8, $2::int4", .int8(value), .int4(small))
            .only()
        #expect(try row.int8(0) == value)
        #expect(try row.int4(1) == small)
        #expect(try row.int8(1) == Int64(small))
    }

    @Test(arguments: [
        "", "a", "Zürich 🫀", "'; DROP TABLE x; --", String(repeating: "x", count: 1 << 20),
    ])
    func textComesBack(value: String) throws {
        let row = try connection.execute("SELECT $1::text", .text(value)).only()
        #expect(try row.text(0) == value)
    }

    @Test(arguments: [
        "0.0.0.0", "255.255.255.255", "10.172.21.5", "10.0.0.0/8", "::", "2001:db8::1",
        "2001:db8::/32",
    ]) func addressesComeBack(value: String) throws {
        let row = try connection.execute("SELECT $1::inet, $1::inet::text", .inet(value)).only()
        #expect(try row.inet(0) == value)
    }

    @Test func prefixesShowTheirLengthAlways() throws {
        let row = try connection.execute("SELECT '10.172.21.0/24'::cidr, '10.1.2.3/32'::cidr")
            .only()
        #expect(try row.inet(0) == "10.172.21.0/24")
        #expect(try row.inet(1) == "10.1.2.3/32")
    }

    @Test func theOtherTypesComeBack() throws {
        let bytes = ByteBuffer((0...255).map { UInt8($0) })
        let row = try connection.execute(
            "SELECT $1::bool, $2::bool, $3::jsonb, $4::bytea, $5::bytea, $6::interval, $7::float8",
            .bool(true), .bool(false), .jsonb(#"["clock-skew", {"a": null}]"#), .bytea(bytes),
            .bytea(ByteBuffer()), .interval(90_000_001), .float8(-0.1)
        ).only()
        #expect(try row.bool(0))
        #expect(try !row.bool(1))
        #expect(try row.jsonb(2) == #"["clock-skew", {"a": null}]"#)
        #expect(try row.bytea(3) == bytes)
        #expect(try row.bytea(4) == ByteBuffer())
        #expect(try row.optionalInterval(5) == 90_000_001)
        #expect(try row.optionalFloat8(6) == -0.1)
        #expect(try row.withBytes(3) { $0?.count } == 256)
    }

    @Test func nullsAreNil() throws {
        let row = try connection.execute(
            "SELECT $1::uuid, $2::timestamptz, $3::int8, $4::text, $5::inet, $6::jsonb, $7::bytea",
            parameters: PostgresParameters([PostgresValue](repeating: .null, count: 7))
        ).only()
        for column in 0..<7 { #expect(row.isNull(column)) }
        #expect(try row.optionalUUID(0) == nil)
        #expect(try row.optionalTimestamptz(1) == nil)
        #expect(try row.optionalInt8(2) == nil)
        #expect(try row.optionalText(3) == nil)
        #expect(try row.optionalInet(4) == nil)
        #expect(try row.optionalJSONB(5) == nil)
        #expect(try row.optionalBytea(6) == nil)
        #expect(try row.withBytes(6) { $0 == nil })
        #expect(throws: PostgresError.self) { try row.text(3) }
    }

    @Test func arraysOfValuesAreUnnested() throws {
        let rows = try connection.execute(
            "SELECT * FROM unnest($1::uuid[], $2::int8[], $3::text[])",
            .uuidArray([(1, 2), (3, 4)]), .int8Array([.min, .max]), .textArray(["", "ü"]))
        #expect(rows.count == 2)
        #expect(try rows[0].uuid(0) == (1, 2))
        #expect(try rows[1].int8(1) == .max)
        #expect(try rows[0].text(2) == "")
        #expect(try rows[1].text(2) == "ü")
        let none = try connection.execute("SELECT unnest($1::int8[])", .int8Array([]))
        #expect(none.isEmpty)
    }

    @Test func arraysAreTakenAsTheBytesOfTheirElements() throws {
        var elements = ByteBuffer()
        elements.appendBigEndian(Int32(8))
        elements.appendBigEndian(Int64(7))
        elements.appendBigEndian(Int32(-1))
        var parameters = PostgresParameters()
        parameters.append(arrayOf: .timestamptz, count: 2, elements: elements.span)
        let rows = try connection.execute(
            "SELECT unnest($1::timestamptz[])", parameters: parameters)
        #expect(try rows[0].timestamptz(0) == 7)
        #expect(rows[1].isNull(0))
    }

    @Test func theWrongTypeIsAnErrorAndNotAGuess() throws {
        let row = try connection.execute("SELECT 1::int8 AS number, 'x'::text, NULL::int8").only()
        let error = #expect(throws: PostgresError.self) { try row.uuid(0) }
        #expect(error?.operation == .reading)
        #expect(error?.description.contains("column number") == true)
        #expect(throws: PostgresError.self) { try row.int8(1) }
        #expect(throws: PostgresError.self) { try row.text(0) }
        #expect(throws: PostgresError.self) { try row.int4(0) }
        #expect(throws: PostgresError.self) { try row.int8(2) }
        #expect(throws: PostgresError.self) { try row.int8(3) }
        #expect(throws: PostgresError.self) { try row.int8(-1) }
        #expect(!row.isNull(17))
    }

    @Test func aSimpleQuerysRowsAreTextAndNothingElse() throws {
        let row = try connection.run("SELECT 1")[0].only()
        #expect(try row.text(0) == "1")
        #expect(throws: PostgresError.self) { try row.int8(0) }
        #expect(throws: PostgresError.self) { try row.withBytes(0) { _ in } }
    }

    @Test func textWithU0000IsRefused() throws {
        let error = #expect(throws: PostgresError.self) {
            try connection.execute("SELECT $1::text", .text("a\0b"))
        }
        #expect(error?.sqlState == .characterNotInRepertoire)
        #expect(error?.isDataError == true)
        #expect(error?.isConnectionLoss == false)
        #expect(try connection.execute("SELECT 1").count == 1)
    }

    @Test(arguments: ["nonsense", "300.1.1.1", ""]) func whatIsNoAddressIsRefused(
        value: String
    ) throws {
        let error = #expect(throws: PostgresError.self) {
            try connection.execute("SELECT $1::inet", .inet(value))
        }
        #expect(error?.sqlState == .invalidTextRepresentation)
    }
}
