import Foundation
import Schemas
import Testing

/// The rules of docs/schemas.md: events of before under the code of now, and events of later too.
@Suite("Events of other versions") struct EvolutionTests {
    struct Kept: CustomTestStringConvertible, Sendable {
        var topic: Topic
        var value: String
        var line: Int
        var testDescription: String { "\(topic.rawValue), line \(line)" }
    }

    private static let file = URL(filePath: #filePath).deletingLastPathComponent()
        .appending(path: "events-v1.txt")

    /// Values as release 0.1.0 wrote them, never to be edited: a topic, a blank and the value on each
    /// line. New kinds are added at the end.
    static let kept: [Kept] = {
        let text = (try? String(contentsOf: file, encoding: .utf8)) ?? ""
        return text.split(separator: "\n").enumerated().compactMap { index, line in
            guard let blank = line.firstIndex(of: " "),
                let topic = Topic(rawValue: String(line[..<blank]))
            else { return nil }
            return Kept(
                topic: topic, value: String(line[line.index(after: blank)...]), line: index + 1)
        }
    }()

    /// The record that all others are judged by: everything that the code can write now is in the file.
    @Test("every kind of event is kept in events-v1.txt")
    func complete() throws {
        #expect(Self.kept.count > 60)
        func kinds(_ values: [String]) throws -> Set<[String]> {
            Set(
                try values.map { value in
                    let members = try JSONValue(parsing: value).members ?? [:]
                    return [members["type"]?.text ?? ""] + members.keys.sorted()
                })
        }
        for topic in Topic.allCases {
            let kept = try kinds(Self.kept.filter { $0.topic == topic }.map(\.value))
            let now = try kinds(TopicSamples.values(of: topic))
            #expect(
                now.subtracting(kept).isEmpty,
                "\(topic.rawValue) has events that are not kept: add them at the end of the file")
        }
    }

    @Test("an event of before is read with everything it says", arguments: kept)
    func old(_ kept: Kept) throws {
        guard let reading = TopicSamples.reading(kept.value, of: kept.topic) else { return }
        // Attributes are for others that read the topic.
        let before = try JSONValue(
            parsing: kept.value.replacing(",\"attributes\":{\"if\":\"wg0\"}", with: ""))
        let now = try? JSONValue(parsing: reading)
        for (name, value) in before.members ?? [:] {
            #expect(now?[name] == value, "\(name): \(reading)")
        }
    }

    @Test("members that are not known are skipped, wherever they stand", arguments: kept)
    func newMembers(_ kept: Kept) throws {
        guard let reading = TopicSamples.reading(kept.value, of: kept.topic) else { return }
        let new =
            "\"new_text\":\"x\",\"new_list\":[1,{\"v\":3}],\"new_object\":{\"type\":\"y\",\"id\":7}"
        let first = "{\(new)," + kept.value.dropFirst()
        let last = kept.value.dropLast() + ",\(new)}"
        #expect(TopicSamples.reading(first, of: kept.topic) == reading)
        #expect(TopicSamples.reading(String(last), of: kept.topic) == reading)
    }

    @Test("a kind of event that is not known is skipped, never a dead letter", arguments: kept)
    func newKinds(_ kept: Kept) throws {
        guard TopicSamples.reading(kept.value, of: kept.topic) != nil,
            let type = try JSONValue(parsing: kept.value)["type"]?.text
        else { return }
        let value = kept.value.replacing("\"type\":\"\(type)\"", with: "\"type\":\"of-tomorrow\"")
        #expect(TopicSamples.reading(value, of: kept.topic) == "skipped")
    }

    @Test("another version is never misread: it goes to the dead letters", arguments: kept)
    func newVersions(_ kept: Kept) throws {
        let value = kept.value.replacing("\"v\":1", with: "\"v\":2")
        guard let reading = TopicSamples.reading(value, of: kept.topic) else { return }
        #expect(reading == "malformed: version \"v\" 2 is not known")
    }

    /// Words that may grow: what an old reader makes of a new one.
    @Test(
        "a new word where words may be added does not refuse the event",
        arguments: [
            (Topic.heartbeats, "\"recovering\"", "\"sleeping\""),
            (.heartbeats, "\"bad-state\"", "\"bad-mood\""),
            (.updates, "\"step\":\"sign\"", "\"step\":\"notarise\""),
        ])
    func newWords(_ topic: Topic, _ old: String, _ new: String) throws {
        let kept = try #require(Self.kept.first { $0.topic == topic && $0.value.contains(old) })
        let value = kept.value.replacing(old, with: new)
        let reading = try #require(TopicSamples.reading(value, of: topic))
        #expect(!reading.hasPrefix("malformed"), "\(reading)")
    }
}
