/// A place in a YAML text, counted from 1 as editors count. Columns count characters.
public struct YAMLMark: Hashable, Sendable, CustomStringConvertible {
    public var line: Int
    public var column: Int

    public init(line: Int, column: Int) {
        self.line = line
        self.column = column
    }

    public var description: String { "\(line):\(column)" }
}

/// A part of a YAML document with the place where it begins.
public struct YAMLNode: Hashable, Sendable {
    public enum Content: Hashable, Sendable {
        /// `isPlain`: written without quotes, so that it may mean a number, a boolean or nothing.
        case scalar(String, isPlain: Bool)
        case sequence([YAMLNode])
        case mapping([YAMLEntry])
    }

    public var content: Content
    public var mark: YAMLMark

    public init(_ content: Content, at mark: YAMLMark) {
        self.content = content
        self.mark = mark
    }

    /// What the node is, in words for an error.
    public var kind: String {
        switch content {
        case .scalar("", isPlain: true): "nothing"
        case .scalar(let text, _): "\"\(text.prefix(40))\""
        case .sequence: "a list"
        case .mapping: "a mapping"
        }
    }

    public var scalar: String? {
        if case .scalar(let text, _) = content { text } else { nil }
    }

    public var sequence: [YAMLNode]? {
        if case .sequence(let items) = content { items } else { nil }
    }

    public var mapping: [YAMLEntry]? {
        if case .mapping(let entries) = content { entries } else { nil }
    }
}

/// A key of a mapping and its value, in the order of the text. No key comes twice.
public struct YAMLEntry: Hashable, Sendable {
    public var key: String
    public var keyMark: YAMLMark
    public var value: YAMLNode

    public init(key: String, keyMark: YAMLMark, value: YAMLNode) {
        self.key = key
        self.keyMark = keyMark
        self.value = value
    }
}

/// A text that is not a YAML document as we take them: where, and what was wrong.
public struct YAMLError: Error, Hashable, Sendable, CustomStringConvertible {
    public var mark: YAMLMark
    public var reason: String

    public init(_ mark: YAMLMark, _ reason: String) {
        self.mark = mark
        self.reason = reason
    }

    public var description: String { "reading YAML: \(mark): \(reason)" }
}
