internal import CSimdjson

extension JSONParser {
    /// The whole of the last document, to walk through; until the next parse.
    ///
    /// - Precondition: the last parse succeeded.
    public var root: JSONNode {
        @_lifetime(borrow self)
        get {
            let node = JSONNode(unsafe heartline_json_root(parser))
            return unsafe _overrideLifetime(node, borrowing: self)
        }
    }

    /// Lends a field's object as JSON text of its own, until the next call; `nil` if the field is no
    /// object.
    public func withObject<Result>(_ field: Int, _ body: (Span<UInt8>) -> Result) -> Result? {
        guard kind(field) == .object else { return nil }
        var item = unsafe heartline_json_value()
        guard unsafe heartline_json_field_object(parser, name(field), &item) == 0 else {
            return nil
        }
        return unsafe Self.lend(item, body)
    }
}

/// A value inside a parsed document: for documents that nest, where `JSONParser`'s fields do not reach.
///
/// Good until the parser's next parse. Reading it allocates nothing.
@safe public struct JSONNode: ~Escapable {
    private let node: heartline_json_node

    @_lifetime(immortal)
    init(_ node: heartline_json_node) { self.node = node }

    private var value: heartline_json_value {
        var value = unsafe heartline_json_value()
        unsafe heartline_json_read(node, &value)
        return unsafe value
    }

    public var kind: JSONKind { unsafe JSONKind(rawValue: value.type) ?? .absent }

    /// `nil` unless it is `true` or `false`.
    public var bool: Bool? {
        switch kind {
        case .true: true
        case .false: false
        default: nil
        }
    }

    /// `nil` unless it is a whole number that `Int64` holds.
    public var integer: Int64? {
        let value = unsafe value
        return unsafe value.type == JSONKind.integer.rawValue ? value.integer : nil
    }

    /// `nil` unless it is a number.
    public var number: Double? {
        let value = unsafe value
        switch unsafe JSONKind(rawValue: value.type) {
        case .integer, .number: return unsafe value.number
        default: return nil
        }
    }

    /// The unescaped bytes of a string; `nil` if it is not one.
    public var bytes: Span<UInt8>? {
        @_lifetime(copy self)
        get {
            let value = unsafe value
            guard unsafe value.type == JSONKind.string.rawValue else { return nil }
            let raw = unsafe UnsafeRawBufferPointer(start: value.text, count: value.length)
            let span = unsafe raw.assumingMemoryBound(to: UInt8.self).span
            return unsafe _overrideLifetime(span, copying: self)
        }
    }

    /// A member of an object; `nil` if there is none of this name, or it is no object.
    @_lifetime(copy self)
    public func member(_ name: StaticString) -> JSONNode? {
        var found = heartline_json_node()
        let isFound = unsafe heartline_json_member(
            node, UnsafeRawPointer(name.utf8Start).assumingMemoryBound(to: CChar.self),
            name.utf8CodeUnitCount, &found)
        guard isFound != 0 else { return nil }
        let member = JSONNode(found)
        return unsafe _overrideLifetime(member, copying: self)
    }

    /// Lends the elements of an array one after another; a value that is no array has none.
    public func forEach(_ body: (JSONNode) -> Void) {
        var walk = heartline_json_begin(node)
        var element = heartline_json_node()
        while unsafe heartline_json_next(&walk, &element) != 0 { body(JSONNode(element)) }
    }
}
