import Foundation
import Schemas
import System
import TestSupport
import Testing

/// `heartline topics`, and what the roles say of a cluster that refuses them, against a broker with an
/// admin interface, users and TLS.
@Suite("Administration of Kafka", .realTime) struct KafkaAdministrationTests {
    private struct Site {
        let folder: TemporaryFolder
        let database: TestDatabase

        init() async throws {
            folder = try TemporaryFolder()
            database = try TestDatabase.make(isMigrated: false)
            let outcome = try await Executable.run(
                ["migrate"],
                environment: [
                    "HEARTLINE_DATABASE": database.url,
                    "SERVER_SALT": "a salt for tests, of some length",
                    "HEARTLINE_SECRET_KEY": String(repeating: "5a", count: 32),
                ])
            try #require(outcome.status == 0, "\(outcome.errors)")
        }

        func environment(
            _ broker: StandInBroker, _ properties: [String] = []
        ) throws
            -> [String: String]
        {
            [
                "SERVER_SALT": "a salt for tests, of some length",
                "HEARTLINE_SECRET_KEY": String(repeating: "5a", count: 32),
                "HEARTLINE_DATABASE": database.url, "HEARTLINE_BROKERS": broker.brokers,
                "HEARTLINE_KAFKA_CONFIG_FILE": try folder.write(
                    (["broker.address.family=v4"] + properties).joined(separator: "\n") + "\n",
                    to: "kafka.properties"),
            ]
        }
    }

    @Test("topics create makes what the topics promise, and topics check finds nothing to say")
    func creates() async throws {
        let site = try await Site()
        let broker = try StandInBroker()
        let environment = try site.environment(broker)
        let created = try await Executable.run(
            ["topics", "create", "--partitions", "24", "--replication", "3"],
            environment: environment)
        #expect(created.status == 0, "\(created.errors)")
        #expect(created.errors.isEmpty, "\(created.errors)")
        let topics = try broker.newTopics()
        let hour = 3_600_000
        let retention = [
            "alerts": 720 * hour, "config-changes": 168 * hour, "dead-letters": 720 * hour,
            "device-configs": nil, "encounters": 24 * hour, "heartbeats": 24 * hour,
            "messages": 720 * hour, "pushes": hour, "telemetry": 24 * hour, "updates": 720 * hour,
            "waves": 168 * hour,
        ]
        #expect(topics.map(\.name) == retention.keys.sorted())
        for topic in topics {
            #expect(topic.partitions == 24)
            #expect(topic.replication == 3)
            #expect(topic.settings["min.insync.replicas"] == "2")
            #expect(topic.settings["max.message.bytes"] == "2097152")
            #expect(topic.settings["message.timestamp.type"] == "CreateTime")
            let milliseconds = try #require(retention[topic.name])
            #expect(
                topic.settings["cleanup.policy"] == (milliseconds == nil ? "compact" : "delete"))
            #expect(topic.settings["retention.ms"] == milliseconds.map { "\($0)" })
            #expect(
                topic.settings["retention.bytes"]
                    == milliseconds.map { _ in "\((8 << 30) / 24)" })
        }
        #expect(try !broker.wasAskedToCreateByTheWay())

        let checked = try await Executable.run(["topics", "check"], environment: environment)
        #expect(checked.status == 0, "\(checked.output)\(checked.errors)")
        #expect(checked.output == "All 11 topics are as they should be.\n")
        // Again: nothing is left to make.
        let again = try await Executable.run(
            ["topics", "create", "--partitions", "24"], environment: environment)
        #expect(again.status == 0, "\(again.errors)")
        #expect(try broker.newTopics().count == topics.count)
    }

    @Test("topics check names each difference, and create refuses other partitions")
    func differences() async throws {
        let site = try await Site()
        let broker = try StandInBroker([
            "--topic", "waves", "2",
            "retention.ms=604800000,retention.bytes=4294967296,max.message.bytes=2097152",
            "--topic", "messages", "2",
            "retention.ms=1000,retention.bytes=4294967296,max.message.bytes=2097152",
            "--topic", "alerts", "5",
            "retention.ms=2592000000,retention.bytes=4294967296,max.message.bytes=3000000",
            "--topic", "device-configs", "2", "max.message.bytes=2097152",
            "--topic", "heartbeats", "2",
            "retention.ms=86400000,retention.bytes=4294967296,message.timestamp.type=LogAppendTime",
        ])
        let environment = try site.environment(broker)
        let checked = try await Executable.run(
            ["topics", "check", "--partitions", "2"], environment: environment)
        #expect(checked.status == 1, "\(checked.errors)")
        #expect(checked.errors.isEmpty, "\(checked.errors)")
        let lines = checked.output.split(separator: "\n").map(String.init)
        #expect(
            lines == [
                "alerts has 5 partitions, not 2",
                "config-changes does not exist",
                "dead-letters does not exist",
                "device-configs: cleanup.policy is delete, not compact",
                "encounters does not exist",
                "heartbeats: max.message.bytes is 1048588, not 2097152",
                "heartbeats: message.timestamp.type is LogAppendTime, not CreateTime",
                "messages: retention.ms is 1000, not 2592000000",
                "pushes does not exist", "telemetry does not exist", "updates does not exist",
            ])
        let created = try await Executable.run(
            ["topics", "create", "--partitions", "2"], environment: environment)
        #expect(created.status == 1)
        #expect(created.errors.contains("topic alerts has 5 partitions and not 2"))
        #expect(try broker.newTopics().isEmpty)
    }

    @Test("a refused password and a certificate that is not trusted are one error of topics create")
    func refusals() async throws {
        let site = try await Site()
        let files = try StandInBroker.makeCertificate(in: site.folder.path)
        let other = try StandInBroker.makeCertificate(in: site.folder.path, "other")
        let broker = try StandInBroker([
            "--tls", files.certificate, files.key, "--user", "heartline", "richtig",
        ])
        for (authority, password, message) in [
            (files.certificate, "falsch", "check sasl.mechanism, sasl.username and sasl.password"),
            (other.certificate, "richtig", "check security.protocol, ssl.ca.location"),
        ] {
            let outcome = try await Executable.run(
                ["topics", "create"],
                environment: try site.environment(
                    broker,
                    [
                        "security.protocol=sasl_ssl", "sasl.mechanism=PLAIN",
                        "sasl.username=heartline", "sasl.password=\(password)",
                        "ssl.ca.location=\(authority)",
                    ]))
            #expect(outcome.status == 1)
            #expect(outcome.errors.contains(message), "\(outcome.errors)")
            #expect(outcome.errors.split(separator: "\n").count == 1, "\(outcome.errors)")
            #expect(!(outcome.errors + outcome.output).contains(password), "\(outcome.errors)")
        }
    }

    @Test(
        "the roles say on /readyz why the cluster does not let them in", .timeLimit(.minutes(5)),
        arguments: ["ingest", "process"])
    func readiness(_ role: String) async throws {
        let site = try await Site()
        let broker = try StandInBroker(["--user", "heartline", "richtig"])
        let environment = try site.environment(
            broker,
            [
                "security.protocol=sasl_plaintext", "sasl.mechanism=PLAIN",
                "sasl.username=heartline", "sasl.password=falsch",
            ])
        let process = try HeartlineProcess(
            [role, "--data", "\(site.folder.path)/\(role)", "--admin", "127.0.0.1:0"]
                + (role == "ingest" ? ["--listen", "127.0.0.1:0"] : []), environment: environment)
        #expect(
            await holds(within: 60) {
                guard let answer = process.askReadiness() else { return false }
                return answer.status == 503
                    && answer.text.contains("check sasl.mechanism, sasl.username")
                    && !answer.text.contains("falsch")
            }, "\(process.errors())")
        #expect(!process.errors().contains("falsch"))
        process.send(SIGTERM)
        #expect(await process.waitForEnd() == 0, "\(process.errors())")
    }
}

extension HeartlineProcess {
    /// Asks `/readyz` of a role that waits for Kafka or runs; `nil` while it does not say where, or
    /// does not answer.
    func askReadiness() -> RawResponse? {
        guard let port = adminPort else { return nil }
        return try? RawClient(host: "127.0.0.1", port: port).request("GET", "/readyz", body: [])
    }

    /// Where heartbeats go to, as a front-end tells it when it is ready.
    var heartbeatPort: UInt16? {
        let text = output()
        guard let place = text.firstRange(of: "POST http://127.0.0.1:") else { return nil }
        return UInt16(text[place.upperBound...].prefix { $0.isNumber })
    }

    /// The operators' port, as the process tells it.
    var adminPort: UInt16? {
        guard let line = errors().split(separator: "\n").first(where: { $0.contains("admin=") }),
            let place = line.firstRange(of: "http://127.0.0.1:")
        else { return nil }
        return UInt16(line[place.upperBound...].prefix { $0.isNumber })
    }
}
