import Foundation
import Schemas
import Testing
import YAML

/// docs/asyncapi.yaml against what the code writes, in both directions.
@Suite("docs/asyncapi.yaml") struct TopicSchemaTests {
    private static let root = URL(filePath: #filePath).deletingLastPathComponent()
        .appending(path: "../..").standardizedFileURL

    static func document() throws -> JSONValue {
        let file = root.appending(path: "docs/asyncapi.yaml")
        return JSONValue(try YAMLNode.parse(String(contentsOf: file, encoding: .utf8))!)
    }

    /// With every reference replaced by what it names.
    private static func resolved(_ value: JSONValue, _ document: JSONValue) throws -> JSONValue {
        switch value {
        case .array(let items): return .array(try items.map { try resolved($0, document) })
        case .object(let members):
            if let reference = members["$ref"]?.text {
                var target: JSONValue? = document
                for part in reference.split(separator: "/").dropFirst() {
                    target = target?[String(part)]
                }
                return try resolved(try #require(target, "\(reference)"), document)
            }
            return .object(try members.mapValues { try resolved($0, document) })
        default: return value
        }
    }

    static func schema(of topic: Topic) throws -> JSONValue {
        let document = try document()
        let message = try #require(
            document["channels"]?[topic.rawValue]?["messages"]?[topic.rawValue])
        return try #require(try resolved(message, document)["payload"])
    }

    @Test("every topic of the code is a channel, and every channel a topic")
    func topics() throws {
        let document = try Self.document()
        let channels = try #require(document["channels"]?.members)
        #expect(Set(channels.keys) == Set(Topic.allCases.map(\.rawValue)))
        for (name, channel) in channels {
            #expect(channel["address"]?.text == name)
            #expect(channel["description"]?.text?.hasPrefix("Key - ") == true)
            let topic = try #require(Topic(rawValue: name))
            let kept =
                switch topic.retentionMilliseconds {
                case nil: "The newest of each key is kept"
                case 3_600_000: "Kept for an hour"
                case 86_400_000: "Kept for 24 hours"
                case .some(let time): "Kept for \(time / 86_400_000) days"
                }
            #expect(channel["description"]?.text?.contains(kept) == true, "\(name): \(kept)")
        }
        let read = (document["operations"]?.members ?? [:]).values.compactMap {
            $0["channel"]?["$ref"]?.text
        }
        #expect(Set(read) == Set(channels.keys.map { "#/channels/\($0)" }))
    }

    @Test("what the code writes is as the schema says", arguments: Topic.allCases)
    func written(_ topic: Topic) throws {
        let schema = try Self.schema(of: topic)
        var check = SchemaCheck()
        for value in TopicSamples.values(of: topic) {
            check.check(try JSONValue(parsing: value), schema, at: topic.rawValue)
        }
        #expect(check.faults.isEmpty, "\(check.faults.joined(separator: "\n"))")
        let never = SchemaCheck.properties(of: schema, at: topic.rawValue).subtracting(check.seen)
        #expect(
            never.isEmpty,
            "no sample has these: they are not written any more, or the samples lack them")
    }

    @Test("what a schema forbids is found")
    func forbidden() throws {
        let schema = try Self.schema(of: .heartbeats)
        let heartbeat = TopicSamples.values(of: .heartbeats)[1]
        for (old, new) in [
            ("\"v\":1", "\"v\":2"), ("heartbeat", "unknown"),
            ("\"tunnel_up\":false", "\"tunnel_up\":0"),
            ("\"recovering\"", "\"walking\""), ("\"config_version\":7", "\"config_version\":0"),
            ("f47ac10b", "F47AC10B"), ("\"status\"", "\"statuz\""),
        ] {
            var check = SchemaCheck()
            let value = heartbeat.replacing(old, with: new)
            #expect(value != heartbeat)
            check.check(try JSONValue(parsing: value), schema, at: "heartbeats")
            #expect(!check.faults.isEmpty, "\(old)")
        }
    }

    /// A file a topic, for programs that check values one by one.
    @Test(
        "docs/schemas is made from it: HEARTLINE_WRITE_DOCS=1 makes it anew",
        arguments: Topic.allCases)
    func files(_ topic: Topic) throws {
        var members = try #require(try Self.schema(of: topic).members)
        members["$schema"] = .string("https://json-schema.org/draft/2020-12/schema")
        members["title"] = .string("Value of a record of topic \(topic.rawValue)")
        let text = try JSONValue.object(members).written()
        let file = Self.root.appending(path: "docs/schemas/\(topic.rawValue).schema.json")
        if ProcessInfo.processInfo.environment["HEARTLINE_WRITE_DOCS"] == "1" {
            try FileManager.default.createDirectory(
                at: file.deletingLastPathComponent(), withIntermediateDirectories: true)
            try text.write(to: file, atomically: true, encoding: .utf8)
        }
        let found = try? String(contentsOf: file, encoding: .utf8)
        #expect(
            found == text,
            "\(file.path) is stale: HEARTLINE_WRITE_DOCS=1 swift test --filter TopicSchemaTests writes it"
        )
    }
}
