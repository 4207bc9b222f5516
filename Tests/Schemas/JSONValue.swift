import Foundation
import YAML

/// A JSON value as it is compared and written by tests.
enum JSONValue: Hashable, Codable {
    case null
    case bool(Bool)
    case integer(Int64)
    case number(Double)
    case string(String)
    case array([JSONValue])
    case object([String: JSONValue])

    init(from decoder: any Decoder) throws {
        let container = try decoder.singleValueContainer()
        if container.decodeNil() {
            self = .null
        } else if let value = try? container.decode(Bool.self) {
            self = .bool(value)
        } else if let value = try? container.decode(Int64.self) {
            self = .integer(value)
        } else if let value = try? container.decode(Double.self) {
            self = .number(value)
        } else if let value = try? container.decode(String.self) {
            self = .string(value)
        } else if let value = try? container.decode([JSONValue].self) {
            self = .array(value)
        } else {
            self = .object(try container.decode([String: JSONValue].self))
        }
    }

    func encode(to encoder: any Encoder) throws {
        var container = encoder.singleValueContainer()
        switch self {
        case .null: try container.encodeNil()
        case .bool(let value): try container.encode(value)
        case .integer(let value): try container.encode(value)
        case .number(let value): try container.encode(value)
        case .string(let value): try container.encode(value)
        case .array(let value): try container.encode(value)
        case .object(let value): try container.encode(value)
        }
    }

    init(parsing text: String) throws {
        self = try JSONDecoder().decode(JSONValue.self, from: Data(text.utf8))
    }

    /// What a YAML document says.
    init(_ node: YAMLNode) {
        switch node.content {
        case .scalar(let text, let isPlain):
            self =
                if isPlain, let number = Int64(text) {
                    .integer(number)
                } else if isPlain, text == "true" || text == "false" {
                    .bool(text == "true")
                } else {
                    .string(text)
                }
        case .sequence(let items): self = .array(items.map { JSONValue($0) })
        case .mapping(let entries):
            self = .object(
                Dictionary(uniqueKeysWithValues: entries.map { ($0.key, JSONValue($0.value)) }))
        }
    }

    subscript(_ key: String) -> JSONValue? {
        if case .object(let members) = self { members[key] } else { nil }
    }

    var text: String? { if case .string(let text) = self { text } else { nil } }
    var items: [JSONValue]? { if case .array(let items) = self { items } else { nil } }
    var members: [String: JSONValue]? {
        if case .object(let members) = self { members } else { nil }
    }
    var integer: Int64? { if case .integer(let value) = self { value } else { nil } }

    /// On several lines, members by name.
    func written() throws -> String {
        let encoder = JSONEncoder()
        encoder.outputFormatting = [.prettyPrinted, .sortedKeys, .withoutEscapingSlashes]
        return String(decoding: try encoder.encode(self), as: UTF8.self) + "\n"
    }
}
