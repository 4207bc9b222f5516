import Foundation

/// Checks values against a JSON Schema, in the words that docs/asyncapi.yaml uses; any other word is a
/// fault of the schema. Stricter than the schemas themselves: a member that none of them names is a
/// fault too, so that what the code writes cannot drift away from them.
struct SchemaCheck {
    /// `properties` that were seen, as `schema.property`; what is never seen is not written any more.
    private(set) var seen: Set<String> = []
    private(set) var faults: [String] = []

    private static let annotations: Set<String> = [
        "description", "contentEncoding", "title", "$schema",
    ]

    mutating func check(_ value: JSONValue, _ schema: JSONValue, at path: String) {
        for (word, rule) in schema.members ?? [:] {
            check(value, word, rule, in: schema, at: path)
        }
        guard let members = value.members, let properties = schema["properties"]?.members else {
            return
        }
        for (name, member) in members {
            guard let property = properties[name] else {
                faults.append("\(path).\(name) is not in the schema")
                continue
            }
            seen.insert("\(path).\(name)")
            check(member, property, at: "\(path).\(name)")
        }
    }

    private mutating func check(
        _ value: JSONValue, _ word: String, _ rule: JSONValue, in schema: JSONValue,
        at path: String
    ) {
        func fail(_ what: String) { faults.append("\(path) \(what): \(value)") }
        switch word {
        case "type":
            if !Self.isOfType(value, rule.text ?? "") { fail("is no \(rule.text ?? "?")") }
        case "const": if value != rule { fail("is not \(rule)") }
        case "enum": if rule.items?.contains(value) != true { fail("is none of \(rule)") }
        case "required":
            for name in rule.items ?? [] where value[name.text ?? ""] == nil {
                fail("has no \(name)")
            }
        case "pattern":
            guard let text = value.text, let pattern = rule.text,
                text.range(of: pattern, options: .regularExpression) != nil
            else { return fail("does not match \(rule)") }
        case "minLength":
            if value.text?.utf8.count ?? 0 < rule.integer ?? 0 { fail("is too short") }
        case "maxLength":
            if value.text?.utf8.count ?? .max > rule.integer ?? 0 { fail("is too long") }
        case "minimum": if value.integer ?? .min < rule.integer ?? 0 { fail("is too small") }
        case "maximum": if value.integer ?? .max > rule.integer ?? 0 { fail("is too large") }
        case "minItems":
            if value.items?.count ?? 0 < rule.integer ?? 0 { fail("has too few items") }
        case "items":
            for item in value.items ?? [] { check(item, rule, at: "\(path)[]") }
        case "allOf": for part in rule.items ?? [] { check(value, part, at: path) }
        case "oneOf": checkOne(value, rule.items ?? [], at: path)
        case "properties": break
        case _ where Self.annotations.contains(word): break
        default: faults.append("\(path): the schema's word \(word) is not known to this check")
        }
    }

    private mutating func checkOne(_ value: JSONValue, _ schemas: [JSONValue], at path: String) {
        var fitting: [SchemaCheck] = []
        var reasons: [String] = []
        for (index, schema) in schemas.enumerated() {
            var one = SchemaCheck()
            one.check(value, schema, at: "\(path)#\(index)")
            if one.faults.isEmpty { fitting.append(one) } else { reasons += one.faults }
        }
        guard fitting.count == 1 else {
            faults.append("\(path) fits \(fitting.count) of its schemas: \(reasons)")
            return
        }
        seen.formUnion(fitting[0].seen)
    }

    private static func isOfType(_ value: JSONValue, _ type: String) -> Bool {
        switch (type, value) {
        case ("object", .object), ("array", .array), ("string", .string), ("boolean", .bool),
            ("integer", .integer), ("number", .integer), ("number", .number):
            true
        default: false
        }
    }

    /// Every property of a schema, as `seen` writes them.
    static func properties(of schema: JSONValue, at path: String) -> Set<String> {
        var all: Set<String> = []
        for (index, one) in (schema["oneOf"]?.items ?? []).enumerated() {
            all.formUnion(properties(of: one, at: "\(path)#\(index)"))
        }
        if let items = schema["items"] { all.formUnion(properties(of: items, at: "\(path)[]")) }
        for (name, property) in schema["properties"]?.members ?? [:] {
            all.insert("\(path).\(name)")
            all.formUnion(properties(of: property, at: "\(path).\(name)"))
        }
        return all
    }
}
