public import Bytes

/// HTML that is being written.
///
/// Markup is what stands in this program's own source (`StaticString`); all else is text and is escaped, in
/// elements and in attributes alike. No attribute that a browser would run or follow takes text: a link
/// leads to a `PagePath`. So nothing that a device, an agent or an operator wrote can become markup.
/// - SeeAlso: HTML Living Standard, section 13.2.5 (tokenization); UAX #9 and #31 for directions.
public struct HTML: Hashable, Sendable {
    public private(set) var bytes = ByteBuffer()

    public init() {}

    /// The whole as text.
    public var text: String { bytes.span.text }

    // MARK: - Elements

    /// Attributes that take text of any origin, since a browser only shows it or hands it back.
    public enum TextAttribute: String, Sendable {
        case value, title, datetime, content
        case label = "aria-label"
        /// What tells a row from others when the page is brought up to date.
        case key = "data-key"
        /// The outline of an SVG path or polygon.
        case outline = "d"
    }

    public struct Attribute: Sendable {
        fileprivate enum Value: Sendable {
            case fixed(StaticString)
            case text(String)
            case number(Int)
            case none
        }

        fileprivate var name: StaticString?
        fileprivate var textName: TextAttribute?
        fileprivate var value: Value

        /// An attribute whose value is our own.
        public static func fixed(_ name: StaticString, _ value: StaticString) -> Attribute {
            Attribute(name: name, value: .fixed(value))
        }
        public static func number(_ name: StaticString, _ value: Int) -> Attribute {
            Attribute(name: name, value: .number(value))
        }
        public static func text(_ name: TextAttribute, _ value: String) -> Attribute {
            Attribute(textName: name, value: .text(value))
        }
        /// One that is there or not, as `hidden`.
        public static func flag(_ name: StaticString) -> Attribute {
            Attribute(name: name, value: .none)
        }
        public static func id(_ value: StaticString) -> Attribute { .fixed("id", value) }
        public static func css(_ value: StaticString) -> Attribute { .fixed("class", value) }
        public static func href(_ path: PagePath) -> Attribute {
            Attribute(name: "href", value: .text(path.description))
        }
        static func part(_ name: StaticName) -> Attribute {
            Attribute(name: "id", value: .text(name.rawValue))
        }
        /// Where the page's live parts come from.
        public static func live(_ path: PagePath) -> Attribute {
            Attribute(name: "data-live", value: .text(path.description))
        }
    }

    /// Writes an element with its end.
    public mutating func element(
        _ name: StaticString, _ attributes: Attribute..., content: (inout HTML) -> Void
    ) {
        open(name, attributes)
        content(&self)
        bytes.append("</")
        bytes.append(name)
        bytes.append(">")
    }

    /// Writes an element that holds text and nothing else.
    public mutating func element(_ name: StaticString, _ attributes: Attribute..., text: String) {
        open(name, attributes)
        self.text(text)
        bytes.append("</")
        bytes.append(name)
        bytes.append(">")
    }

    /// Writes an element that has no end, as `<input>`.
    public mutating func void(_ name: StaticString, _ attributes: Attribute...) {
        open(name, attributes)
    }

    private mutating func open(_ name: StaticString, _ attributes: [Attribute]) {
        bytes.append("<")
        bytes.append(name)
        for attribute in attributes {
            bytes.append(" ")
            if let name = attribute.name { bytes.append(name) }
            if let name = attribute.textName { bytes.append(text: name.rawValue) }
            switch attribute.value {
            case .fixed(let value):
                bytes.append("=\"")
                bytes.append(value)
                bytes.append("\"")
            case .number(let value):
                bytes.append("=\"")
                bytes.append(decimal: Int64(value))
                bytes.append("\"")
            case .text(let value):
                bytes.append("=\"")
                self.text(value)
                bytes.append("\"")
            case .none: break
            }
        }
        bytes.append(">")
    }

    // MARK: - Content

    /// Markup of our own, as it stands.
    public mutating func markup(_ markup: StaticString) { bytes.append(markup) }

    /// What was written elsewhere.
    public mutating func append(_ other: HTML) { bytes.append(other.bytes) }

    /// Text; what has a meaning in HTML is escaped, and control characters become U+FFFD.
    public mutating func text(_ text: String) {
        for scalar in text.unicodeScalars { append(scalar) }
    }

    public mutating func number(_ value: Int64) { text(PageText.number(value)) }

    /// Text that somebody else wrote: kept apart from the direction of what stands around it, and with what
    /// cannot be seen (marks of direction, characters without width, control characters) shown as its code.
    ///
    /// - Parameter limit: longest text in Unicode scalars; the rest is cut off.
    public mutating func foreign(_ text: String, limit: Int = 200) {
        bytes.append("<bdi>")
        for scalar in text.unicodeScalars.prefix(limit) {
            if Self.isUnseen(scalar) {
                bytes.append("<span class=\"mark\">U+")
                let digits = String(scalar.value, radix: 16, uppercase: true)
                bytes.append(text: String(repeating: "0", count: max(0, 4 - digits.count)))
                bytes.append(text: digits)
                bytes.append("</span>")
            } else {
                append(scalar)
            }
        }
        if text.unicodeScalars.dropFirst(limit).first != nil { bytes.append("…") }
        bytes.append("</bdi>")
    }

    private static func isUnseen(_ scalar: Unicode.Scalar) -> Bool {
        switch scalar.properties.generalCategory {
        case .control, .format, .lineSeparator, .paragraphSeparator, .surrogate, .unassigned,
            .privateUse:
            return true
        default:
            // Emoji are made of the one selector of variations that is let through.
            return scalar.properties.isDefaultIgnorableCodePoint && scalar.value != 0xFE0F
        }
    }

    private mutating func append(_ scalar: Unicode.Scalar) {
        switch scalar.value {
        case 0x26: bytes.append("&amp;")
        case 0x3C: bytes.append("&lt;")
        case 0x3E: bytes.append("&gt;")
        case 0x22: bytes.append("&quot;")
        case 0x27: bytes.append("&#39;")
        case 0x09, 0x0A: bytes.append(UInt8(truncatingIfNeeded: scalar.value))
        case 0x00..<0x20, 0x7F..<0xA0: bytes.append("\u{FFFD}")
        default:
            for byte in UTF8.encode(scalar) ?? UTF8.encodedReplacementCharacter {
                bytes.append(byte)
            }
        }
    }
}
