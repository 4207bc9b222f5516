import Bytes
import JSON
import Testing

private let fields = JSONFields(["text", "number", "flag", "list", "object"])

private enum Field {
    static let text = 0, number = 1, flag = 2, list = 3, object = 4
}

private func error(_ document: some Sequence<UInt8>, maximumBytes: Int = 1 << 20) -> JSONError? {
    let parser = JSONParser(fields, maximumBytes: maximumBytes)
    do throws(JSONError) { try parser.parse(ByteBuffer(document).span) } catch { return error }
    return nil
}

@Suite("JSON: reading objects") struct JSONParserTests {
    @Test("fields are handed out by kind, and only as what they are")
    func kinds() throws {
        let parser = JSONParser(fields)
        try parser.parse(
            ByteBuffer(
                """
                {"text":"a\\u0062\\n\\ud83d\\ude00","number":-12,"flag":false,\
                "list":["x",1,"z"],"object":{"text":"inner"},"other":null}
                """.utf8
            ).span)
        #expect(parser.string(Field.text) == "ab\n😀")
        #expect(parser.integer(Field.number) == -12)
        #expect(parser.number(Field.number) == -12)
        #expect(parser.bool(Field.flag) == false)
        #expect(parser.count(Field.list) == 3)
        #expect(parser.count(Field.object) == 1)
        #expect(parser.withString(Field.list, element: 2) { $0.text } == "z")
        #expect(parser.withString(Field.list, element: 1) { $0.text } == nil)
        #expect(parser.withString(Field.list, element: 3) { $0.text } == nil)
        #expect(parser.bool(Field.text) == nil)
        #expect(parser.integer(Field.text) == nil)
        #expect(parser.string(Field.number) == nil)
        #expect(parser.kind(Field.object) == .object)

        try parser.parse(ByteBuffer("{\"number\":1.5,\"flag\":null}".utf8).span)
        #expect(parser.integer(Field.number) == nil)
        #expect(parser.number(Field.number) == 1.5)
        #expect(parser.kind(Field.flag) == .null)
        #expect(parser.kind(Field.text) == .absent)
    }

    @Test(
        "whole numbers are exact to the ends of Int64, and none beyond",
        arguments: [
            ("9223372036854775807", Int64.max), ("-9223372036854775808", Int64.min), ("0", 0),
            ("9223372036854775808", nil), ("1e3", nil), ("1.0", nil),
        ] as [(String, Int64?)])
    func integers(text: String, value: Int64?) throws {
        let parser = JSONParser(fields)
        try parser.parse(ByteBuffer("{\"number\":\(text)}".utf8).span)
        #expect(parser.integer(Field.number) == value)
    }

    @Test(
        "faults of JSON are named",
        arguments: [
            ("", .syntax), ("{", .syntax), ("{}}", .syntax), ("{} {}", .syntax),
            ("{\"a\":1,}", .syntax), ("{\"a\" 1}", .syntax), ("{\"a\":tru}", .syntax),
            ("{\"a\":\"\\x\"}", .syntax), ("{\"a\":\"\u{1}\"}", .syntax), ("{\"a\":+1}", .syntax),
            ("{\"a\":1e999}", .syntax), ("[]", .notAnObject), ("\"x\"", .notAnObject),
            ("12", .notAnObject), ("null", .notAnObject), ("{\"a\":1,\"a\":1}", .duplicateKey),
            ("{\"a\":1,\"\\u0061\":1}", .duplicateKey),
            ("{\"x\":[{\"b\":[{\"a\":1,\"a\":1}]}]}", .duplicateKey),
            ("[{\"a\":1,\"a\":1}]", .duplicateKey),
        ] as [(String, JSONError)])
    func faults(document: String, expected: JSONError) {
        let found = error(document.utf8)
        // An array with a fault inside may be refused for either.
        #expect(found == expected || (document.hasPrefix("[{") && found == .notAnObject))
    }

    @Test(
        "invalid UTF-8 is refused anywhere, unread strings included",
        arguments: [
            [0x80], [0xC0, 0xAF], [0xE0, 0x80, 0x80], [0xED, 0xA0, 0x80], [0xF5, 0x80, 0x80, 0x80],
            [0xC3],
        ] as [[UInt8]])
    func utf8(bytes: [UInt8]) {
        for frame in [("{\"other\":\"", "\"}"), ("{\"", "\":1}"), ("", "{}"), ("{}", "")] {
            #expect(error(Array(frame.0.utf8) + bytes + Array(frame.1.utf8)) == .syntax)
        }
    }

    @Test("depth and size are bounded")
    func bounds() {
        func nested(_ depth: Int) -> String {
            "{\"a\":" + String(repeating: "[", count: depth) + String(repeating: "]", count: depth)
                + "}"
        }
        #expect(error(nested(20).utf8) == nil)
        #expect(error(nested(40).utf8) == .tooDeep)
        #expect(error(nested(100_000).utf8) != nil)
        #expect(
            error("{\"a\":\"\(String(repeating: "x", count: 100))\"}".utf8, maximumBytes: 64)
                == .tooLarge)
    }

    @Test("objects with very many keys are read, and a repeat among them is found")
    func manyKeys() {
        let members = (0..<5_000).map { "\"k\($0)\":\($0)" }
        #expect(error("{\(members.joined(separator: ","))}".utf8) == nil)
        #expect(error("{\(members.joined(separator: ",")),\"k17\":0}".utf8) == .duplicateKey)
    }

    @Test("every prefix and every changed byte of a document is read or refused, never a crash")
    func mutations() {
        let document = Array(
            "{\"text\":\"a\\u00e9ü\",\"number\":-1.5e3,\"list\":[true,null,{\"k\":\"v\"}]}".utf8)
        for size in 0..<document.count { #expect(error(document.prefix(size)) != nil) }
        let parser = JSONParser(fields)
        for index in document.indices {
            for byte in UInt8.min...UInt8.max {
                var changed = document
                changed[index] = byte
                try? parser.parse(ByteBuffer(changed).span)
            }
        }
    }

    @Test("a parser reads on after a fault")
    func reuse() throws {
        let parser = JSONParser(fields)
        for _ in 0..<3 {
            #expect(throws: JSONError.self) { try parser.parse(ByteBuffer("{\"text\":".utf8).span) }
            try parser.parse(ByteBuffer("{\"text\":\"x\"}".utf8).span)
            #expect(parser.string(Field.text) == "x")
        }
    }

    @Test("an object of an array is handed out as JSON of its own")
    func objects() throws {
        let parser = JSONParser(fields)
        let inner = JSONParser(fields)
        let document = ByteBuffer(
            #"{"list":[{ "text" : "a\"\u00e9", "list":[1,{}] },7,"x",[],{"number":-5}]}"#.utf8)
        try parser.parse(document.span)
        func text(_ element: Int) -> ByteBuffer? {
            parser.withObject(Field.list, element: element) { ByteBuffer(copying: $0) }
        }
        let first = try #require(text(0))
        try inner.parse(first.span)
        #expect(inner.string(Field.text) == "a\"é")
        #expect(inner.count(Field.list) == 2)
        let last = try #require(text(4))
        try inner.parse(last.span)
        #expect(inner.integer(Field.number) == -5)
        for element in [1, 2, 3, 5, 1000] { #expect(text(element) == nil) }
        #expect(parser.withObject(Field.object, element: 0) { $0.count } == nil)
    }
}

@Suite("JSON: writing strings") struct JSONWritingTests {
    @Test("every character survives writing and reading, but U+0000, which becomes U+FFFD")
    func roundTrip() throws {
        let parser = JSONParser(fields)
        var text = ""
        for scalar in (1..<0x250).compactMap(Unicode.Scalar.init) {
            text.unicodeScalars.append(scalar)
        }
        text += "\u{2028}\u{FFFD}\u{1F600}"
        var buffer = ByteBuffer()
        buffer.append("{\"text\":")
        buffer.append(jsonString: text)
        buffer.append("}")
        try parser.parse(buffer.span)
        #expect(parser.string(Field.text) == text)

        var zero = ByteBuffer()
        zero.append(jsonString: "a\u{0}b")
        #expect(zero.span.text == "\"a\u{FFFD}b\"")
    }
}
