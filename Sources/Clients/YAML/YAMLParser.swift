internal import CYAML

/// Sizes above which a text is refused before memory or stack are spent on it.
public struct YAMLLimits: Sendable {
    /// Default: 1 MiB.
    public var sizeBytes = 1 << 20
    /// Lists and mappings within one another. Default: 32.
    public var depth = 32

    public init() {}
}

extension YAMLNode {
    /// Reads a text that holds exactly one YAML 1.1 document in UTF-8.
    ///
    /// Anchors, aliases, tags, several documents, keys that are not scalars and keys that come twice
    /// are errors: configuration that needs them is configuration that nobody can review.
    /// - Returns: `nil` if the text holds no document (nothing, or comments alone).
    /// - SeeAlso: libyaml, `yaml.h`, the event-based parser.
    public static func parse(
        _ bytes: Span<UInt8>, limits: YAMLLimits = YAMLLimits()
    ) throws(YAMLError) -> YAMLNode? {
        guard bytes.count <= limits.sizeBytes else {
            throw YAMLError(
                YAMLMark(line: 1, column: 1),
                "the text has \(bytes.count) bytes; at most \(limits.sizeBytes) are read")
        }
        // libyaml keeps a pointer to the text, so parsing stays within the loan.
        let result: Result<YAMLNode?, YAMLError> = unsafe bytes.withUnsafeBufferPointer { text in
            do throws(YAMLError) {
                var parser = unsafe EventParser(text, depth: limits.depth)
                return .success(try parser.document())
            } catch {
                return .failure(error)
            }
        }
        return try result.get()
    }

    /// Reads a text that holds exactly one YAML 1.1 document; see `parse(_:limits:)`.
    public static func parse(
        _ text: String, limits: YAMLLimits = YAMLLimits()
    ) throws(YAMLError) -> YAMLNode? {
        try parse(Array(text.utf8).span, limits: limits)
    }
}

/// Owns a `yaml_parser_t` and builds nodes from its events.
@safe private struct EventParser: ~Copyable {
    private let parser: UnsafeMutablePointer<yaml_parser_t>
    private let text: UnsafeBufferPointer<UInt8>
    private let maximumDepth: Int

    /// An event without what only C needs.
    private enum Event {
        case streamStart, streamEnd, documentStart, documentEnd
        case scalar(String, isPlain: Bool)
        case sequenceStart, sequenceEnd, mappingStart, mappingEnd
    }

    /// `text` must outlive the parser.
    init(_ text: UnsafeBufferPointer<UInt8>, depth: Int) {
        unsafe parser = .allocate(capacity: 1)
        unsafe self.text = text
        maximumDepth = depth
        precondition(unsafe yaml_parser_initialize(parser) == 1, "making a YAML parser: no memory")
        unsafe yaml_parser_set_encoding(parser, YAML_UTF8_ENCODING)
        unsafe yaml_parser_set_input_string(parser, text.baseAddress, text.count)
    }

    deinit {
        unsafe yaml_parser_delete(parser)
        unsafe parser.deallocate()
    }

    mutating func document() throws(YAMLError) -> YAMLNode? {
        _ = try next()  // the stream's start
        let (first, _) = try next()
        if case .streamEnd = first { return nil }
        let (event, mark) = try next()
        let root = try node(event, mark, depth: 0)
        _ = try next()  // the document's end
        let (last, end) = try next()
        guard case .streamEnd = last else {
            throw YAMLError(end, "a second document begins here; a file holds one")
        }
        return root
    }

    private mutating func node(
        _ event: Event, _ mark: YAMLMark, depth: Int
    ) throws(YAMLError) -> YAMLNode {
        guard depth <= maximumDepth else {
            throw YAMLError(mark, "nested deeper than \(maximumDepth) levels")
        }
        switch event {
        case .scalar(let text, let isPlain):
            return YAMLNode(.scalar(text, isPlain: isPlain), at: mark)
        case .sequenceStart:
            var items: [YAMLNode] = []
            while true {
                let (event, place) = try next()
                if case .sequenceEnd = event { return YAMLNode(.sequence(items), at: mark) }
                items.append(try node(event, place, depth: depth + 1))
            }
        case .mappingStart:
            var entries: [YAMLEntry] = []
            var lines: [String: Int] = [:]
            while true {
                let (event, place) = try next()
                if case .mappingEnd = event { return YAMLNode(.mapping(entries), at: mark) }
                guard case .scalar(let key, _) = event else {
                    throw YAMLError(place, "a key must be a text, not a list or a mapping")
                }
                if let line = lines.updateValue(place.line, forKey: key) {
                    throw YAMLError(place, "the key \"\(key)\" stands in line \(line) already")
                }
                let (valueEvent, valuePlace) = try next()
                entries.append(
                    YAMLEntry(
                        key: key, keyMark: place,
                        value: try node(valueEvent, valuePlace, depth: depth + 1)))
            }
        case .streamStart, .streamEnd, .documentStart, .documentEnd, .sequenceEnd, .mappingEnd:
            throw YAMLError(mark, "a value is missing")
        }
    }

    private mutating func next() throws(YAMLError) -> (Event, YAMLMark) {
        var event = unsafe yaml_event_t()
        guard unsafe yaml_parser_parse(parser, &event) == 1 else { throw failure() }
        defer { unsafe yaml_event_delete(&event) }
        let mark = unsafe Self.place(event.start_mark)
        switch unsafe event.type {
        case YAML_STREAM_START_EVENT: return (.streamStart, mark)
        case YAML_STREAM_END_EVENT: return (.streamEnd, mark)
        case YAML_DOCUMENT_START_EVENT:
            let tags = unsafe event.data.document_start.tag_directives
            if unsafe tags.start != tags.end {
                throw YAMLError(mark, "tag directives are not supported")
            }
            return (.documentStart, mark)
        case YAML_DOCUMENT_END_EVENT: return (.documentEnd, mark)
        case YAML_ALIAS_EVENT:
            throw YAMLError(mark, "aliases (*name) are not supported: write the value out")
        case YAML_SCALAR_EVENT:
            let scalar = unsafe event.data.scalar
            try unsafe refuse(anchor: scalar.anchor, tag: scalar.tag, at: mark)
            let bytes = unsafe UnsafeBufferPointer(start: scalar.value, count: scalar.length)
            return (
                .scalar(
                    unsafe String(decoding: bytes, as: UTF8.self),
                    isPlain: unsafe scalar.style == YAML_PLAIN_SCALAR_STYLE), mark
            )
        case YAML_SEQUENCE_START_EVENT:
            let start = unsafe event.data.sequence_start
            try unsafe refuse(anchor: start.anchor, tag: start.tag, at: mark)
            return (.sequenceStart, mark)
        case YAML_SEQUENCE_END_EVENT: return (.sequenceEnd, mark)
        case YAML_MAPPING_START_EVENT:
            let start = unsafe event.data.mapping_start
            try unsafe refuse(anchor: start.anchor, tag: start.tag, at: mark)
            return (.mappingStart, mark)
        case YAML_MAPPING_END_EVENT: return (.mappingEnd, mark)
        default: throw YAMLError(mark, "a value is missing")
        }
    }

    private func refuse(
        anchor: UnsafeMutablePointer<UInt8>?, tag: UnsafeMutablePointer<UInt8>?, at mark: YAMLMark
    ) throws(YAMLError) {
        if unsafe anchor != nil {
            throw YAMLError(mark, "anchors (&name) are not supported: write the value out")
        }
        if unsafe tag != nil { throw YAMLError(mark, "tags (!name) are not supported") }
    }

    private func failure() -> YAMLError {
        let problem = unsafe parser.pointee.problem.map { unsafe String(cString: $0) }
        if unsafe parser.pointee.error == YAML_READER_ERROR {
            return YAMLError(
                place(ofByte: unsafe parser.pointee.problem_offset),
                problem.map { "not UTF-8 text: \($0)" } ?? "not UTF-8 text")
        }
        var reason = problem ?? "no memory"
        if let context = unsafe parser.pointee.context {
            reason = unsafe "\(String(cString: context)): \(reason)"
        }
        return YAMLError(unsafe Self.place(parser.pointee.problem_mark), reason)
    }

    private static func place(_ mark: yaml_mark_t) -> YAMLMark {
        YAMLMark(line: mark.line + 1, column: mark.column + 1)
    }

    private func place(ofByte offset: Int) -> YAMLMark {
        var mark = YAMLMark(line: 1, column: 1)
        for index in 0..<min(offset, unsafe text.count) {
            let byte = unsafe text[index]
            if byte == 0x0A {
                mark.line += 1
                mark.column = 1
            } else if byte & 0xC0 != 0x80 {
                mark.column += 1
            }
        }
        return mark
    }
}
