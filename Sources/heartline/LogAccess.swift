import EventLog
import Foundation
import Schemas
import System

/// The log that the options name: a Kafka cluster with `--brokers`, otherwise the embedded one of the
/// data directory.
enum LogAccess {
    static let brokers = Option.text(
        "brokers", "LIST",
        "Kafka brokers, host:port with commas between them; without it the log is the one under --data"
    )
    static let kafkaConfig = Option(
        name: "kafka-config", kind: .text("NAME=VALUE"), defaultValue: nil,
        help: "a property of librdkafka, as security.protocol=sasl_ssl; several times",
        repeats: true)
    static let kafkaConfigFile = Option.path(
        "kafka-config-file", "FILE",
        "the same, one a line, for what should not stand on a command line; # begins a comment")

    static let options = [brokers, kafkaConfig, kafkaConfigFile]

    /// `nil`: the embedded log.
    static func kafkaSettings(_ arguments: Arguments) throws -> KafkaLogSettings? {
        guard let brokers = arguments.optionalText("brokers") else {
            for name in ["kafka-config", "kafka-config-file"] where arguments.given.contains(name) {
                throw UsageError("--\(name) needs --brokers")
            }
            return nil
        }
        do throws(EventLogError) {
            var properties: [KafkaLogSettings.Property] = []
            for line in try fileLines(arguments) { properties.append(try .init(line)) }
            for text in arguments.all("kafka-config") { properties.append(try .init(text)) }
            var settings = try KafkaLogSettings(brokers: brokers, properties: properties)
            // Within the ten seconds that an orderly end may take.
            settings.closeMilliseconds = 1_000
            return settings
        } catch {
            throw UsageError(error.reason)
        }
    }

    private static func fileLines(_ arguments: Arguments) throws(EventLogError) -> [String] {
        guard let path = arguments.optionalText("kafka-config-file") else { return [] }
        guard let text = try? String(contentsOfFile: path, encoding: .utf8) else {
            throw EventLogError(
                .opening, .configuration, "--kafka-config-file \(path) cannot be read")
        }
        return text.split(whereSeparator: \.isNewline).map {
            $0.trimmingCharacters(in: .whitespaces)
        }.filter { !$0.isEmpty && !$0.hasPrefix("#") }
    }

    static func folder(in data: String) -> String { "\(data)/log" }

    /// The log, for looking at; `nil` if there is none on this machine.
    static func openIfThere(_ arguments: Arguments) throws -> OpenLog? {
        if var settings = try kafkaSettings(arguments) {
            // Asked once a partition; who looks does not want to wait long for a cluster that is away.
            settings.requestMilliseconds = 2_000
            settings.isWatched = false
            return .kafka(try KafkaLog(settings))
        }
        let folder = folder(in: arguments.text("data"))
        guard FileSystem.isDirectory(folder) else { return nil }
        return .embedded(try EmbeddedLog(directory: folder))
    }
}

/// One of the two logs.
enum OpenLog {
    case embedded(EmbeddedLog)
    case kafka(KafkaLog)

    var log: any EventLog {
        switch self {
        case .embedded(let log): log
        case .kafka(let log): log
        }
    }

    /// Why it cannot be used now; `nil` if it can.
    var fault: String? {
        switch self {
        case .embedded: nil
        case .kafka(let log): log.fault
        }
    }

    func close() {
        switch self {
        case .embedded(let log): log.close()
        case .kafka(let log): log.close()
        }
    }
}
