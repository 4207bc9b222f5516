import Testing
import YAML

@Suite("Reading YAML") struct YAMLParserTests {
    static func error(in text: String, limits: YAMLLimits = YAMLLimits()) -> YAMLError? {
        do throws(YAMLError) {
            _ = try YAMLNode.parse(text, limits: limits)
            return nil
        } catch { return error }
    }

    @Test("A document keeps order, kinds and places") func documentKeepsOrderAndPlaces() throws {
        let root = try #require(
            try YAMLNode.parse(
                """
                # a comment
                name: tunnel-health
                quoted: "12"
                list:
                  - { at: 0s, ünï: x }
                  - two words
                """))
        let entries = try #require(root.mapping)
        #expect(entries.map(\.key) == ["name", "quoted", "list"])
        #expect(entries[0].keyMark == YAMLMark(line: 2, column: 1))
        #expect(entries[0].value.mark == YAMLMark(line: 2, column: 7))
        #expect(entries[0].value.content == .scalar("tunnel-health", isPlain: true))
        #expect(entries[1].value.content == .scalar("12", isPlain: false))
        let items = try #require(entries[2].value.sequence)
        #expect(items[1].scalar == "two words")
        let inner = try #require(items[0].mapping)
        #expect(inner.map(\.key) == ["at", "ünï"])
        // Columns count characters, not bytes.
        #expect(inner[1].value.mark == YAMLMark(line: 5, column: 20))
    }

    @Test("A text without a document is nil", arguments: ["", "\n\n", "# only a comment\n"])
    func nothing(_ text: String) throws {
        #expect(try YAMLNode.parse(text) == nil)
    }

    struct Refused: Sendable, CustomTestStringConvertible {
        var testDescription: String
        var text: String
        var place: YAMLMark
        var reason: String

        init(_ description: String, _ text: String, _ line: Int, _ column: Int, _ reason: String) {
            testDescription = description
            self.text = text
            place = YAMLMark(line: line, column: column)
            self.reason = reason
        }
    }

    @Test(
        "What we do not take is refused with its place",
        arguments: [
            Refused("a key twice", "a: 1\nb: 2\na: 3\n", 3, 1, "stands in line 1 already"),
            Refused("an anchor", "a: &x 1\n", 1, 4, "anchors"),
            Refused("an anchor on a list", "a: &x [1]\n", 1, 4, "anchors"),
            Refused("an alias", "b: *x\n", 1, 4, "aliases"),
            Refused("a tag", "a: !!str 1\n", 1, 4, "tags"),
            Refused("a tag directive", "%TAG ! tag:x,2000:\n---\na: 1\n", 1, 1, "tag directives"),
            Refused("two documents", "a: 1\n---\nb: 2\n", 2, 1, "second document"),
            Refused("a list as a key", "? [a]\n: 1\n", 1, 3, "a key must be a text"),
            Refused("an open list", "a: [1, 2\n", 2, 1, "did not find expected"),
            Refused("a tab as indentation", "a:\n\tb: 1\n", 2, 1, "cannot start any token"),
            Refused("deep nesting", String(repeating: "[", count: 10_000), 1, 34, "deeper than 32"),
        ])
    func refuses(_ example: Refused) throws {
        let error = try #require(Self.error(in: example.text))
        #expect(error.mark == example.place)
        #expect(error.reason.contains(example.reason), "\(error.reason)")
    }

    @Test("Text that is not UTF-8 is refused with its place") func notUTF8() throws {
        let bytes: [UInt8] = Array("a: ü\nb: ".utf8) + [0xFF, 0x0A]
        do throws(YAMLError) {
            _ = try YAMLNode.parse(bytes.span)
            Issue.record("was read")
        } catch {
            #expect(error.mark == YAMLMark(line: 2, column: 4))
            #expect(error.reason.contains("UTF-8"))
        }
    }

    @Test("A text above the limit is refused before it is read") func oversized() throws {
        var limits = YAMLLimits()
        limits.sizeBytes = 100
        let error = try #require(
            Self.error(in: String(repeating: "x", count: 101), limits: limits))
        #expect(error.reason.contains("at most 100"))
    }

    @Test("Every prefix and every mutilation of a document ends in a node or an error")
    func mutilations() {
        let text = Array("a: {b: [1, \"x\\n\", 'y'], c: |\n  text\n}\nd:\n - e: f\n".utf8)
        for count in 0...text.count { _ = try? YAMLNode.parse(Array(text[..<count]).span) }
        for index in text.indices {
            for byte: UInt8 in [0, 0x22, 0x26, 0x2A, 0x3A, 0x5B, 0x7B, 0x80, 0xC3, 0xFF] {
                var copy = text
                copy[index] = byte
                _ = try? YAMLNode.parse(copy.span)
            }
        }
    }
}
