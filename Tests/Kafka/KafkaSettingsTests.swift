import EventLog
import Kafka
import Schemas
import System
import TestSupport
import Testing

@Suite("Settings of Kafka") struct KafkaSettingsTests {
    @Test(
        "Brokers are addresses",
        arguments: ["", "a b:9092", "host:0", "host:99999", "host:x", ",", "a,,b"])
    func badBrokers(_ brokers: String) throws {
        let error = #expect(throws: EventLogError.self) {
            _ = try KafkaLogSettings(brokers: brokers)
        }
        #expect(error?.kind == .configuration)
        #expect(error?.reason.contains("brokers are host:port") == true)
    }

    @Test(
        "Brokers may have several forms",
        arguments: ["a", "a:9092", "a.b-c:1,d:2", "[::1]:9092", "10.0.0.1:9092, b:1"])
    func goodBrokers(_ brokers: String) throws { _ = try KafkaLogSettings(brokers: brokers) }

    @Test(
        "What would break a promise is refused with the reason",
        arguments: [
            "partitioner=random", "acks=1", "enable.idempotence=false", "enable.auto.commit=true",
            "auto.offset.reset=earliest", "group.id=x", "partition.assignment.strategy=range",
            "bootstrap.servers=x", "transactional.id=x",
        ])
    func refused(_ text: String) throws {
        let error = #expect(throws: EventLogError.self) { _ = try KafkaLogSettings.Property(text) }
        let name = text.prefix { $0 != "=" }
        #expect(error?.reason.hasPrefix("Kafka property \(name) cannot be set: ") == true)
    }

    @Test("What librdkafka does not know, or take, is told in its words")
    func unknown() throws {
        for (text, words) in [
            ("foo.bar=1", "foo.bar"), ("compression.type=best", "compression.codec"),
            ("security.protocol=sasl", "security.protocol"),
        ] {
            let settings = try KafkaLogSettings(
                brokers: "127.0.0.1:1", properties: [try KafkaLogSettings.Property(text)])
            let error = #expect(throws: EventLogError.self) { _ = try KafkaLog(settings) }
            #expect(error?.kind == .configuration)
            #expect(error?.reason.contains(words) == true)
            #expect(error?.reason.contains("--kafka-config") == true)
        }
    }

    /// The fault that a log tells after a while.
    private func fault(_ brokers: String, _ properties: [String]) throws -> String {
        var list = [try KafkaLogSettings.Property("reconnect.backoff.max.ms=200")]
        for text in properties { list.append(try KafkaLogSettings.Property(text)) }
        let log = try KafkaLog(try KafkaLogSettings(brokers: brokers, properties: list))
        defer { log.close() }
        var fault = ""
        try eventually("the fault is told") {
            fault = log.fault ?? ""
            return fault.contains("connecting to Kafka at")
        }
        return fault
    }

    @Test("Nobody listening, no such host, and no TLS there are told apart") func faults() throws {
        let refused = try fault("127.0.0.1:1", [])
        #expect(refused.contains("Connection refused"), "\(refused)")
        #expect(refused.contains("check that the brokers run"), "\(refused)")
        let unknown = try fault("no-such-host.invalid:9092", [])
        #expect(unknown.contains("check the host names in --brokers"), "\(unknown)")
        let mock = try MockKafka()
        let noSASL = try fault(
            mock.cluster.brokers,
            [
                "security.protocol=sasl_plaintext", "sasl.mechanism=PLAIN", "sasl.username=who",
                "sasl.password=geheim",
            ])
        #expect(noSASL.contains("check sasl.mechanism, sasl.username"), "\(noSASL)")
        #expect(!noSASL.contains("geheim"), "\(noSASL)")
        let noTLS = try fault(mock.cluster.brokers, ["security.protocol=ssl"])
        #expect(noTLS.contains("check security.protocol, ssl.ca.location"), "\(noTLS)")
    }

    @Test("Topics that exist otherwise than wanted are told with both numbers")
    func differentPartitions() throws {
        try withMock(partitions: 3) { mock, log in
            let error = #expect(throws: EventLogError.self) {
                try log.createTopics([TopicSettings(.waves, partitions: 4)])
            }
            #expect(error?.reason.contains("has 3 partitions and not 4") == true)
        }
    }
}
