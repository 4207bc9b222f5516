import Bytes
import JSON
import Testing

@Suite("Walking through JSON") struct JSONNodeTests {
    private static func parser(_ text: String) throws -> JSONParser {
        let parser = JSONParser(JSONFields(["a"]))
        let bytes = ByteBuffer(text.utf8)
        try parser.parse(bytes.span)
        return parser
    }

    @Test("Members and elements of any depth are found, and read as what they are")
    func walk() throws {
        let parser = try Self.parser(
            """
            {"a":{"b":[1,-2.5,"text",null,true,{"c":"d"},[]]},"n":18446744073709551615}
            """)
        let root = parser.root
        var seen: [String] = []
        if let a = root.member("a"), let b = a.member("b") {
            b.forEach { item in
                if let whole = item.integer {
                    seen.append("integer \(whole)")
                } else if let number = item.number {
                    seen.append("number \(number)")
                } else if let text = item.bytes {
                    seen.append("text \(text.text)")
                } else if let truth = item.bool {
                    seen.append("bool \(truth)")
                } else if let member = item.member("c"), let text = member.bytes {
                    seen.append("object \(text.text)")
                } else {
                    seen.append("\(item.kind)")
                }
            }
        }
        #expect(
            seen == [
                "integer 1", "number -2.5", "text text", "null", "bool true", "object d", "array",
            ])
        let big = root.member("n")
        #expect(big?.number == Double(UInt64.max))
        #expect(big?.integer == nil)
    }

    @Test("What is not there has neither members nor elements")
    func absent() throws {
        let parser = try Self.parser("{\"a\":[],\"b\":{},\"c\":1}")
        let root = parser.root
        var count = 0
        for name in ["a", "b", "c"] as [StaticString] {
            guard let node = root.member(name) else {
                Issue.record("\(name)")
                continue
            }
            node.forEach { _ in count += 1 }
            let has = node.member("x") != nil
            #expect(!has)
        }
        #expect(count == 0)
        let has = root.member("d") != nil
        #expect(!has)
    }

    @Test("An object is lent as JSON without blanks")
    func object() throws {
        let parser = try Self.parser("{\"a\": { \"x\" : [ 1 , \"\\n\" ] } }")
        #expect(parser.withObject(0) { $0.text } == "{\"x\":[1,\"\\n\"]}")
        let other = try Self.parser("{\"a\":[]}")
        #expect(other.withObject(0) { $0.text } == nil)
    }

    @Test(
        "Numbers are written so that they read as the same",
        arguments: [
            0.0, 1, -1, 0.1, 1.0 / 3, Double.leastNonzeroMagnitude, 1.7976931348623157e308,
            9_007_199_254_740_992, 1e21,
            -123.456,
        ])
    func numbers(_ value: Double) throws {
        var text = ByteBuffer()
        text.append("{\"a\":")
        text.append(jsonNumber: value)
        text.append("}")
        let parser = try Self.parser(text.span.text)
        #expect(parser.number(0) == value, "\(text.span.text)")
    }
}
