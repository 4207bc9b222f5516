public import Bytes
internal import Glibc

/// One row of a result. Each accessor checks the column's type and throws rather than guess;
/// the plain ones throw for NULL, those that begin with `optional` return `nil`.
public struct PostgresRow {
    public let result: PostgresResult
    public let index: Int

    public func isNull(_ column: Int) -> Bool {
        column >= 0 && column < result.columnCount && result.isNull(index, column)
    }

    public func optionalUUID(
        _ column: Int
    ) throws(PostgresError) -> (high: UInt64, low: UInt64)? {
        try read(column, .uuid, "a uuid") { bytes in
            guard bytes.count == 16 else { return nil }
            return (
                high: bytes.bigEndian(UInt64.self, at: 0), low: bytes.bigEndian(UInt64.self, at: 8)
            )
        }
    }

    public func uuid(_ column: Int) throws(PostgresError) -> (high: UInt64, low: UInt64) {
        guard let value = try optionalUUID(column) else { throw null(column) }
        return value
    }

    /// Microseconds since 2000-01-01T00:00:00Z; `Int64.max` and `.min` are the infinities.
    public func optionalTimestamptz(_ column: Int) throws(PostgresError) -> Int64? {
        try read(column, .timestamptz, "a timestamptz") { bytes in
            bytes.count == 8 ? bytes.bigEndian(Int64.self, at: 0) : nil
        }
    }

    public func timestamptz(_ column: Int) throws(PostgresError) -> Int64 {
        guard let value = try optionalTimestamptz(column) else { throw null(column) }
        return value
    }

    /// Microseconds; days count 24 hours.
    /// - Throws: also for an interval with months, which have no fixed length.
    public func optionalInterval(_ column: Int) throws(PostgresError) -> Int64? {
        try read(column, .interval, "an interval without months") { bytes in
            guard bytes.count == 16, bytes.bigEndian(Int32.self, at: 12) == 0 else { return nil }
            let days = Int64(bytes.bigEndian(Int32.self, at: 8)) * 86_400_000_000
            let (sum, overflow) = bytes.bigEndian(Int64.self, at: 0)
                .addingReportingOverflow(days)
            return overflow ? nil : sum
        }
    }

    /// An int8, int4, int2 or oid.
    public func optionalInt8(_ column: Int) throws(PostgresError) -> Int64? {
        let accepted: (PostgresType) -> Bool = {
            $0 == .int8 || $0 == .int4 || $0 == .int2 || $0 == .oid
        }
        let isObjectID =
            column >= 0 && column < result.columnCount && result.type(ofColumn: column) == .oid
        return try result.withField(index, column, accepted, wanted: "an integer") { bytes in
            switch bytes.count {
            case 8: bytes.bigEndian(Int64.self, at: 0)
            case 4 where isObjectID: Int64(bytes.bigEndian(UInt32.self, at: 0))
            case 4: Int64(bytes.bigEndian(Int32.self, at: 0))
            case 2: Int64(bytes.bigEndian(Int16.self, at: 0))
            default: nil
            }
        }
    }

    public func int8(_ column: Int) throws(PostgresError) -> Int64 {
        guard let value = try optionalInt8(column) else { throw null(column) }
        return value
    }

    /// An int4 or int2.
    public func optionalInt4(_ column: Int) throws(PostgresError) -> Int32? {
        let accepted: (PostgresType) -> Bool = { $0 == .int4 || $0 == .int2 }
        return try result.withField(index, column, accepted, wanted: "an int4") { bytes in
            switch bytes.count {
            case 4: bytes.bigEndian(Int32.self, at: 0)
            case 2: Int32(bytes.bigEndian(Int16.self, at: 0))
            default: nil
            }
        }
    }

    public func int4(_ column: Int) throws(PostgresError) -> Int32 {
        guard let value = try optionalInt4(column) else { throw null(column) }
        return value
    }

    public func optionalFloat8(_ column: Int) throws(PostgresError) -> Double? {
        try read(column, .float8, "a float8") { bytes in
            bytes.count == 8 ? Double(bitPattern: bytes.bigEndian(UInt64.self, at: 0)) : nil
        }
    }

    public func optionalBool(_ column: Int) throws(PostgresError) -> Bool? {
        try read(column, .bool, "a bool") { bytes in bytes.count == 1 ? bytes[0] != 0 : nil }
    }

    public func bool(_ column: Int) throws(PostgresError) -> Bool {
        guard let value = try optionalBool(column) else { throw null(column) }
        return value
    }

    /// Any of the types that are text on the wire; also what a simple query answered.
    public func optionalText(_ column: Int) throws(PostgresError) -> String? {
        let accepted: (PostgresType) -> Bool = {
            [.text, .varchar, .name, .bpchar, .char, .json, .unknown].contains($0)
        }
        return try result.withField(
            index, column, accepted, wanted: "text", allowsTextFormat: true
        ) { $0.text }
    }

    /// As `optionalText`, but as bytes.
    public func optionalTextBytes(_ column: Int) throws(PostgresError) -> ByteBuffer? {
        try read(column, .text, "text") { ByteBuffer(copying: $0) }
    }

    public func text(_ column: Int) throws(PostgresError) -> String {
        guard let value = try optionalText(column) else { throw null(column) }
        return value
    }

    /// The text of a jsonb, as the server writes it.
    public func optionalJSONB(_ column: Int) throws(PostgresError) -> String? {
        try read(column, .jsonb, "a jsonb of version 1") { bytes in
            guard !bytes.isEmpty, bytes[0] == 1 else { return nil }
            return bytes.extracting(1..<bytes.count).text
        }
    }

    public func jsonb(_ column: Int) throws(PostgresError) -> String {
        guard let value = try optionalJSONB(column) else { throw null(column) }
        return value
    }

    public func optionalBytea(_ column: Int) throws(PostgresError) -> ByteBuffer? {
        try read(column, .bytea, "a bytea") { ByteBuffer(copying: $0) }
    }

    public func bytea(_ column: Int) throws(PostgresError) -> ByteBuffer {
        guard let value = try optionalBytea(column) else { throw null(column) }
        return value
    }

    /// An inet or cidr as people write it. An inet of a whole address shows no prefix length.
    public func optionalInet(_ column: Int) throws(PostgresError) -> String? {
        try result.withField(
            index, column, { $0 == .inet || $0 == .cidr }, wanted: "an inet"
        ) { bytes in PostgresRow.address(bytes) }
    }

    public func inet(_ column: Int) throws(PostgresError) -> String {
        guard let value = try optionalInet(column) else { throw null(column) }
        return value
    }

    /// Lends the bytes of a field of any type in its binary format; `nil` is NULL.
    public func withBytes<Result>(
        _ column: Int, _ body: (Span<UInt8>?) -> Result
    ) throws(PostgresError) -> Result {
        let value = try result.withField(index, column, { _ in true }, wanted: "binary") {
            (bytes) -> Result? in body(bytes)
        }
        return value ?? body(nil)
    }

    private func read<Value>(
        _ column: Int, _ type: PostgresType, _ wanted: StaticString,
        _ body: (Span<UInt8>) -> Value?
    ) throws(PostgresError) -> Value? {
        try result.withField(index, column, { $0 == type }, wanted: wanted, body)
    }

    private func null(_ column: Int) -> PostgresError {
        result.mismatch(index, column, "is NULL", "a value")
    }

    /// Family (2 is IPv4, 3 IPv6), prefix length, whether it is a cidr, size, address.
    private static func address(_ bytes: Span<UInt8>) -> String? {
        guard bytes.count >= 4, bytes.count == 4 + Int(bytes[3]) else { return nil }
        let isIPv4 = bytes[0] == 2 && bytes[3] == 4
        guard isIPv4 || (bytes[0] == 3 && bytes[3] == 16) else { return nil }
        var text = [CChar](repeating: 0, count: 64)
        let written = unsafe bytes.extracting(4..<bytes.count).withUnsafeBytes {
            unsafe inet_ntop(isIPv4 ? AF_INET : AF_INET6, $0.baseAddress, &text, 64) != nil
        }
        guard written else { return nil }
        let digits = text.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }
        let address = String(decoding: digits, as: UTF8.self)
        let isWhole = bytes[1] == (isIPv4 ? 32 : 128)
        return isWhole && bytes[2] == 0 ? address : "\(address)/\(bytes[1])"
    }
}

extension Span where Element == UInt8 {
    /// The caller has checked that the bytes are there.
    func bigEndian<Value: FixedWidthInteger>(_ type: Value.Type, at offset: Int) -> Value {
        var value: Value = 0
        for index in 0..<MemoryLayout<Value>.size {
            value = value << 8 | Value(truncatingIfNeeded: self[offset + index])
        }
        return value
    }
}
