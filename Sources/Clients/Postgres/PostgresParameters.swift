public import Bytes

/// One parameter of a statement, for callers that are not in a hot loop.
public enum PostgresValue: Sendable {
    /// The server infers the type.
    case null
    case uuid(UInt64, UInt64)
    /// Microseconds since 2000-01-01T00:00:00Z.
    case timestamptz(Int64)
    /// Microseconds.
    case interval(Int64)
    case int8(Int64)
    case int4(Int32)
    case float8(Double)
    case bool(Bool)
    case text(String)
    /// An address with or without a prefix length, as people write it; the server checks it.
    case inet(String)
    /// JSON text; the server checks it.
    case jsonb(String)
    case bytea(ByteBuffer)
    case int8Array([Int64])
    case textArray([String])
    case uuidArray([(UInt64, UInt64)])
}

/// The parameters of one statement, encoded in PostgreSQL's binary formats in one buffer that can
/// be reused.
public struct PostgresParameters: Sendable {
    struct Field: Sendable {
        var type: PostgresType
        var start: Int
        /// -1 is NULL.
        var size: Int32
        var isText = false
    }

    private(set) var fields: [Field] = []
    // Starts with a byte that belongs to no parameter: an empty value needs an address as well,
    // because libpq takes a null pointer for NULL.
    private(set) var bytes = ByteBuffer([0])

    public init() {}

    public init(_ values: PostgresValue...) { self.init(values) }

    public init(_ values: [PostgresValue]) {
        for value in values { append(value) }
    }

    public var count: Int { fields.count }

    /// Forgets the parameters and keeps the capacity.
    public mutating func removeAll() {
        fields.removeAll(keepingCapacity: true)
        bytes.truncate(to: 1)
    }

    /// Appends a value that is already in the binary format of `type`.
    public mutating func append(binary value: Span<UInt8>, type: PostgresType) {
        add(type, size: value.count)
        bytes.append(value)
    }

    /// Appends a one-dimensional array of `element`.
    ///
    /// - Parameter elements: `count` elements one after another, each a 4-byte big-endian length
    ///   (-1 for NULL) and the bytes of its binary format.
    public mutating func append(arrayOf element: PostgresType, count: Int, elements: Span<UInt8>) {
        appendArrayHead(element, count: count, elementBytes: elements.count)
        bytes.append(elements)
    }

    private mutating func appendArrayHead(
        _ element: PostgresType, count: Int, elementBytes: Int
    ) {
        guard let type = element.array else {
            preconditionFailure("an array of a type whose array type is not known here")
        }
        add(type, size: 20 + elementBytes)
        bytes.appendBigEndian(Int32(1))  // dimensions
        bytes.appendBigEndian(Int32(0))  // the server looks for NULLs itself
        bytes.appendBigEndian(element.rawValue)
        bytes.appendBigEndian(Int32(count))
        bytes.appendBigEndian(Int32(1))  // lower bound
    }

    public mutating func appendNull(_ type: PostgresType = .inferred) {
        fields.append(Field(type: type, start: 0, size: -1))
    }

    public mutating func append(uuidHigh high: UInt64, low: UInt64) {
        add(.uuid, size: 16)
        bytes.appendBigEndian(high)
        bytes.appendBigEndian(low)
    }

    /// Microseconds since 2000-01-01T00:00:00Z.
    public mutating func append(timestamptz microseconds: Int64) {
        add(.timestamptz, size: 8)
        bytes.appendBigEndian(microseconds)
    }

    public mutating func append(intervalMicroseconds microseconds: Int64) {
        add(.interval, size: 16)
        bytes.appendBigEndian(microseconds)
        bytes.appendBigEndian(Int64(0))  // days, months
    }

    public mutating func append(int8 value: Int64) {
        add(.int8, size: 8)
        bytes.appendBigEndian(value)
    }

    public mutating func append(int4 value: Int32) {
        add(.int4, size: 4)
        bytes.appendBigEndian(value)
    }

    public mutating func append(float8 value: Double) {
        add(.float8, size: 8)
        bytes.appendBigEndian(value.bitPattern)
    }

    public mutating func append(bool value: Bool) {
        add(.bool, size: 1)
        bytes.append(value ? 1 : 0)
    }

    /// UTF-8. U+0000 is refused by the server (22021).
    public mutating func append(text value: Span<UInt8>) {
        add(.text, size: value.count)
        bytes.append(value)
    }

    /// U+0000 is refused by the server (22021).
    public mutating func append(text value: String) {
        add(.text, size: value.utf8.count)
        bytes.append(text: value)
    }

    public mutating func append(bytea value: Span<UInt8>) {
        add(.bytea, size: value.count)
        bytes.append(value)
    }

    /// JSON text, checked by the server.
    public mutating func append(jsonb text: Span<UInt8>) {
        add(.jsonb, size: text.count + 1)
        bytes.append(1)  // the version of the format
        bytes.append(text)
    }

    /// An address with or without a prefix length, as people write it; checked by the server.
    public mutating func append(inet text: String) {
        add(.inet, size: text.utf8.count)
        fields[fields.count - 1].isText = true
        bytes.append(text: text)
        bytes.append(0)  // libpq reads the text format up to a zero byte
    }

    public mutating func append(_ value: PostgresValue) {
        switch value {
        case .null: appendNull()
        case .uuid(let high, let low): append(uuidHigh: high, low: low)
        case .timestamptz(let microseconds): append(timestamptz: microseconds)
        case .interval(let microseconds): append(intervalMicroseconds: microseconds)
        case .int8(let value): append(int8: value)
        case .int4(let value): append(int4: value)
        case .float8(let value): append(float8: value)
        case .bool(let value): append(bool: value)
        case .text(let value): append(text: value)
        case .inet(let value): append(inet: value)
        case .jsonb(let value): append(jsonb: ByteBuffer(value.utf8).span)
        case .bytea(let value): append(bytea: value.span)
        case .int8Array(let values):
            appendArrayHead(.int8, count: values.count, elementBytes: 12 * values.count)
            for value in values {
                bytes.appendBigEndian(Int32(8))
                bytes.appendBigEndian(value)
            }
        case .textArray(let values):
            let size = values.reduce(0) { $0 + 4 + $1.utf8.count }
            appendArrayHead(.text, count: values.count, elementBytes: size)
            for value in values {
                bytes.appendBigEndian(Int32(value.utf8.count))
                bytes.append(text: value)
            }
        case .uuidArray(let values):
            appendArrayHead(.uuid, count: values.count, elementBytes: 20 * values.count)
            for (high, low) in values {
                bytes.appendBigEndian(Int32(16))
                bytes.appendBigEndian(high)
                bytes.appendBigEndian(low)
            }
        }
    }

    private mutating func add(_ type: PostgresType, size: Int) {
        fields.append(Field(type: type, start: bytes.count, size: Int32(size)))
    }
}
