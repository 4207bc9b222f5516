public import Bytes
internal import Crypto
internal import JSON

/// A dead letter as it is read back from topic `dead-letters`.
public struct DeadLetterContent: Sendable {
    /// What could not be processed.
    public enum Subject: Sendable {
        /// A record that could not be decoded, as its front-end wrote it; `value` is `nil` for a
        /// tombstone.
        case record(key: ByteBuffer, value: ByteBuffer?)
        /// A row that the database rejected: a `COPY … BINARY` tuple of the table.
        case row(table: String, tuple: ByteBuffer)
    }

    public var letter: DeadLetter
    public var subject: Subject

    public init(letter: DeadLetter, subject: Subject) {
        self.letter = letter
        self.subject = subject
    }
}

/// Reads records of topic `dead-letters`. One for each thread.
public final class DeadLetterDecoder {
    private let parser: JSONParser

    private static let fields = JSONFields([
        "v", "topic", "partition", "offset", "reason", "key_base64", "value_base64", "table",
        "row_base64",
    ])

    private enum Field {
        static let v = 0, topic = 1, partition = 2, offset = 3, reason = 4, key = 5, value = 6
        static let table = 7, row = 8
    }

    // A record may be a mebibyte, and Base64 makes four bytes of three.
    public init() { parser = JSONParser(Self.fields, maximumBytes: 16 << 20) }

    public func decode(_ value: Span<UInt8>) -> Decoded<DeadLetterContent> {
        do throws(JSONError) { try parser.parse(value) } catch { return .malformed("\(error)") }
        return Self.read(parser)
    }

    private static func read(_ parser: borrowing JSONParser) -> Decoded<DeadLetterContent> {
        guard parser.integer(Field.v) == 1 else { return .malformed("version \"v\" is not 1") }
        guard let name = parser.string(Field.topic), let topic = Topic(rawValue: name) else {
            return .malformed("\"topic\" is not a topic")
        }
        guard let partition = parser.integer(Field.partition).flatMap(Int32.init(exactly:)),
            partition >= 0, let offset = parser.integer(Field.offset), offset >= 0
        else { return .malformed("\"partition\" and \"offset\" are not a place") }
        guard let reason = parser.string(Field.reason) else { return .malformed("no \"reason\"") }
        let letter = DeadLetter(topic: topic, partition: partition, offset: offset, reason: reason)
        if let table = parser.string(Field.table) {
            guard let row = bytes(parser, Field.row) else {
                return .malformed("\"row_base64\" is not Base64")
            }
            return .event(
                DeadLetterContent(letter: letter, subject: .row(table: table, tuple: row)))
        }
        guard let key = bytes(parser, Field.key) else {
            return .malformed("\"key_base64\" is not Base64")
        }
        var value: ByteBuffer?
        if parser.kind(Field.value) != .absent {
            value = bytes(parser, Field.value)
            if value == nil { return .malformed("\"value_base64\" is not Base64") }
        }
        return .event(
            DeadLetterContent(letter: letter, subject: .record(key: key, value: value)))
    }

    private static func bytes(_ parser: borrowing JSONParser, _ field: Int) -> ByteBuffer? {
        parser.withString(field) { text in Base64.decode(text).map { ByteBuffer($0) } } ?? nil
    }
}
