internal import Bytes
internal import Foundation
internal import HTTP
internal import JSON
internal import Schemas

/// Reads the JSON bodies of the operators' API.
enum AdminBody {
    /// - Parameters:
    ///   - fields: that the object may have; any other is an error, since it is likely one of these
    ///     mistyped.
    ///   - mayBeEmpty: no body at all is an empty object.
    /// - Throws: `AdminFault` that says which field is wrong.
    static func decode<Value: Decodable>(
        _ body: ByteBuffer, _ fields: [String], mayBeEmpty: Bool = false
    ) throws -> Value {
        let body = body.isEmpty && mayBeEmpty ? ByteBuffer("{}".utf8) : body
        // All that JSON itself forbids, repeated keys included, of which Foundation takes the last.
        let parser = JSONParser(JSONFields([]))
        do throws(JSONError) {
            try parser.parse(body.span)
        } catch {
            switch error {
            case .notAnObject: throw AdminFault(.badRequest, "the body is not a JSON object")
            case .duplicateKey: throw AdminFault(.badRequest, "the body repeats a key")
            case .syntax, .tooDeep, .tooLarge, .outOfMemory:
                throw AdminFault(.badRequest, "invalid json")
            }
        }
        let data = Data(body.bytes)
        do {
            let keys = try JSONDecoder().decode([String: Ignored].self, from: data).keys
            if let unknown = keys.sorted().first(where: { !fields.contains($0) }) {
                throw AdminFault(
                    .badRequest,
                    "unknown field \"\(unknown.prefix(60))\"; there are: "
                        + fields.joined(separator: ", "))
            }
            return try JSONDecoder().decode(Value.self, from: data)
        } catch let error as DecodingError {
            throw AdminFault(.badRequest, message(error))
        }
    }

    private struct Ignored: Decodable {
        init(from decoder: any Decoder) {}
    }

    private static func message(_ error: DecodingError) -> String {
        switch error {
        case .keyNotFound(let key, let context):
            return "\"\(path(context.codingPath + [key]))\" is missing"
        case .typeMismatch(let type, let context), .valueNotFound(let type, let context):
            return "\"\(path(context.codingPath))\" is not \(name(type))"
        case .dataCorrupted(let context):
            // The JSON is known to be in order, so it is a number out of range or a fraction, of which
            // Foundation does not always tell where it stands.
            return context.codingPath.isEmpty
                ? "a number is not one that its field can have"
                : "\"\(path(context.codingPath))\" is not a number that this field can have"
        @unknown default: return "the body is not what this route takes"
        }
    }

    private static func path(_ keys: [any CodingKey]) -> String {
        var text = ""
        for key in keys {
            if let index = key.intValue {
                text += "[\(index)]"
            } else {
                text += (text.isEmpty ? "" : ".") + key.stringValue
            }
        }
        return text
    }

    private static func name(_ type: Any.Type) -> String {
        switch type {
        case is String.Type: "a text"
        case is Bool.Type: "true or false"
        case is any FixedWidthInteger.Type: "a whole number"
        default: "of the right type"
        }
    }
}
