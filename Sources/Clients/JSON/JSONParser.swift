internal import Bytes
internal import CSimdjson

/// Why a document was refused.
public enum JSONError: Error, Hashable, Sendable, CustomStringConvertible {
    /// Not JSON (RFC 8259), truncated, or invalid UTF-8.
    case syntax
    case tooDeep
    case tooLarge
    /// One object holds the same key twice.
    case duplicateKey
    case notAnObject
    case outOfMemory

    public var description: String {
        switch self {
        case .syntax: "not JSON"
        case .tooDeep: "JSON nested too deeply"
        case .tooLarge: "JSON too large"
        case .duplicateKey: "JSON with a repeated key"
        case .notAnObject: "JSON that is not an object"
        case .outOfMemory: "no memory to parse JSON"
        }
    }
}

/// The names of the fields that a parse hands out, by index. Made once, used for every document.
@safe public final class JSONFields: Sendable {
    @usableFromInline let count: Int
    nonisolated(unsafe) let names: UnsafeMutablePointer<heartline_json_name>

    public init(_ fields: [StaticString]) {
        count = fields.count
        unsafe names = .allocate(capacity: max(fields.count, 1))
        for (index, field) in fields.enumerated() {
            unsafe names[index] = heartline_json_name(
                bytes: UnsafeRawPointer(field.utf8Start).assumingMemoryBound(to: CChar.self),
                length: field.utf8CodeUnitCount)
        }
    }

    deinit { unsafe names.deallocate() }
}

/// What a field holds.
public enum JSONKind: Int32, Sendable {
    case absent, null, `false`, `true`, integer, number, string, array, object
}

/// Parses one object at a time and hands out chosen fields of it.
///
/// All of the document is validated: syntax, UTF-8, depth, and keys that stand twice in an object
/// at any depth. Unknown fields are ignored.
/// - Thread safety: not `Sendable`; one for each thread.
@safe public struct JSONParser: ~Copyable {
    let parser: OpaquePointer
    private let fields: JSONFields
    private let values: UnsafeMutablePointer<heartline_json_value>

    /// - Parameters:
    ///   - maximumBytes: larger documents are refused.
    ///   - maximumDepth: nesting of arrays and objects that is still accepted.
    public init(_ fields: JSONFields, maximumBytes: Int = 1 << 20, maximumDepth: Int = 32) {
        guard let parser = unsafe heartline_json_new(maximumBytes, maximumDepth) else {
            preconditionFailure("no memory for a JSON parser")
        }
        unsafe self.parser = parser
        self.fields = fields
        unsafe values = .allocate(capacity: max(fields.count, 1))
        unsafe values.initialize(repeating: heartline_json_value(), count: max(fields.count, 1))
    }

    deinit {
        unsafe heartline_json_free(parser)
        unsafe values.deallocate()
    }

    /// Parses `document`; the fields are readable until the next parse.
    public func parse(_ document: Span<UInt8>) throws(JSONError) {
        let result = unsafe document.withUnsafeBufferPointer { bytes in
            unsafe heartline_json_parse(
                parser, bytes.baseAddress, bytes.count, fields.names, values, fields.count)
        }
        switch UInt32(bitPattern: result) {
        case HEARTLINE_JSON_OK.rawValue: return
        case HEARTLINE_JSON_TOO_DEEP.rawValue: throw .tooDeep
        case HEARTLINE_JSON_TOO_LARGE.rawValue: throw .tooLarge
        case HEARTLINE_JSON_DUPLICATE.rawValue: throw .duplicateKey
        case HEARTLINE_JSON_NOT_OBJECT.rawValue: throw .notAnObject
        case HEARTLINE_JSON_NO_MEMORY.rawValue: throw .outOfMemory
        default: throw .syntax
        }
    }

    public func kind(_ field: Int) -> JSONKind {
        unsafe JSONKind(rawValue: value(field).type) ?? .absent
    }

    /// `nil` unless the field is `true` or `false`.
    public func bool(_ field: Int) -> Bool? {
        switch kind(field) {
        case .true: true
        case .false: false
        default: nil
        }
    }

    /// `nil` unless the field is a whole number that `Int64` holds.
    public func integer(_ field: Int) -> Int64? {
        unsafe kind(field) == .integer ? value(field).integer : nil
    }

    /// `nil` unless the field is a number.
    public func number(_ field: Int) -> Double? {
        switch kind(field) {
        case .integer, .number: unsafe value(field).number
        default: nil
        }
    }

    /// Elements of an array or members of an object; 0 for anything else.
    public func count(_ field: Int) -> Int {
        switch kind(field) {
        case .array, .object: unsafe value(field).length
        default: 0
        }
    }

    /// The unescaped bytes of a string, until the next parse; `nil` if the field is not one.
    ///
    /// Not generic, so a caller in another module pays no more than a call.
    @_lifetime(borrow self)
    public func bytes(_ field: Int) -> Span<UInt8>? {
        guard kind(field) == .string else { return nil }
        let value = unsafe value(field)
        let raw = unsafe UnsafeRawBufferPointer(start: value.text, count: value.length)
        let span = unsafe raw.assumingMemoryBound(to: UInt8.self).span
        return unsafe _overrideLifetime(span, borrowing: self)
    }

    /// Lends the unescaped bytes of a string; `nil` if the field is not one.
    public func withString<Result>(_ field: Int, _ body: (Span<UInt8>) -> Result) -> Result? {
        guard kind(field) == .string else { return nil }
        return unsafe Self.lend(value(field), body)
    }

    /// The string's text, copied; `nil` if the field is not a string.
    public func string(_ field: Int) -> String? { withString(field) { $0.text } }

    /// Lends a string of an array; `nil` if the field is no array or the element no string.
    public func withString<Result>(
        _ field: Int, element: Int, _ body: (Span<UInt8>) -> Result
    ) -> Result? {
        guard kind(field) == .array else { return nil }
        var item = unsafe heartline_json_value()
        guard
            unsafe heartline_json_element(parser, fields.names + field, element, &item) == 0,
            unsafe JSONKind(rawValue: item.type) == .string
        else { return nil }
        return unsafe Self.lend(item, body)
    }

    /// Lends an object of an array as JSON text of its own, for another parser to read, until the
    /// next call; `nil` if the field is no array or the element no object.
    public func withObject<Result>(
        _ field: Int, element: Int, _ body: (Span<UInt8>) -> Result
    ) -> Result? {
        guard kind(field) == .array else { return nil }
        var item = unsafe heartline_json_value()
        guard
            unsafe heartline_json_element_object(parser, fields.names + field, element, &item)
                == 0,
            unsafe JSONKind(rawValue: item.type) == .object
        else { return nil }
        return unsafe Self.lend(item, body)
    }

    func name(_ field: Int) -> UnsafeMutablePointer<heartline_json_name> {
        precondition(field >= 0 && field < fields.count)
        return unsafe fields.names + field
    }

    private func value(_ field: Int) -> heartline_json_value {
        precondition(field >= 0 && field < fields.count)
        return unsafe values[field]
    }

    static func lend<Result>(
        _ value: heartline_json_value, _ body: (Span<UInt8>) -> Result
    ) -> Result {
        let bytes = unsafe UnsafeRawBufferPointer(start: value.text, count: value.length)
        return unsafe body(bytes.assumingMemoryBound(to: UInt8.self).span)
    }
}
