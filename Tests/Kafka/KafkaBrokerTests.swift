import EventLog
import Schemas
import System
import TestSupport
import Testing

/// What librdkafka's mock does not know, against a broker of another make: users, TLS, topics made and
/// described.
@Suite("On a broker with users and TLS") struct KafkaBrokerTests {
    private static let password = "ge,heim=1"

    private func makeLog(
        _ broker: StandInBroker, _ properties: [String], isWatched: Bool = true,
        replication: Int32 = -1
    ) throws -> KafkaLog {
        var settings = try KafkaLogSettings(
            brokers: broker.brokers,
            properties: (["broker.address.family=v4", "reconnect.backoff.max.ms=200"] + properties)
                .map { (text) throws(EventLogError) in try KafkaLogSettings.Property(text) })
        settings.isWatched = isWatched
        settings.replication = replication
        return try KafkaLog(settings)
    }

    private func withFolder(_ body: (String) throws -> Void) throws {
        let folder = try FileSystem.makeTemporaryDirectory("/tmp/heartline-kafka-")
        defer { FileSystem.removeTree(folder) }
        try body(folder)
    }

    private func sasl(_ mechanism: String, _ password: String = password) -> [String] {
        [
            "security.protocol=sasl_plaintext", "sasl.mechanism=\(mechanism)",
            "sasl.username=heartline", "sasl.password=\(password)",
        ]
    }

    @Test(
        "A user is let in with the right password, and told what to check with a wrong one",
        arguments: ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
    func users(_ mechanism: String) throws {
        let broker = try StandInBroker([
            "--mechanism", mechanism, "--user", "heartline", Self.password, "--topic", "waves",
            "3", "",
        ])
        let log = try makeLog(broker, sasl(mechanism))
        defer { log.close() }
        #expect(try log.partitionCount(of: .waves) == 3)
        #expect(log.fault == nil)

        let refused = try makeLog(broker, sasl(mechanism, "falsch"))
        defer { refused.close() }
        try eventually("the fault is told") {
            refused.fault?.contains("connecting to Kafka at") == true
        }
        let fault = try #require(refused.fault)
        #expect(fault.contains("check sasl.mechanism, sasl.username and sasl.password"), "\(fault)")
        #expect(!fault.contains("falsch"), "\(fault)")
    }

    @Test("What is asked once is told at once when it is refused") func refusedAtOnce() throws {
        let broker = try StandInBroker(["--user", "heartline", Self.password])
        let log = try makeLog(broker, sasl("PLAIN", "falsch"), isWatched: false)
        defer { log.close() }
        let error = #expect(throws: EventLogError.self) {
            try log.createTopics([TopicSettings(.waves, partitions: 1)])
        }
        #expect(error?.kind == .unavailable)
        #expect(error?.reason.contains("check sasl.mechanism") == true, "\(error!)")
        let unwanted = try makeLog(broker, sasl("SCRAM-SHA-256"), isWatched: false)
        defer { unwanted.close() }
        let mechanism = #expect(throws: EventLogError.self) {
            try unwanted.createTopics([TopicSettings(.waves, partitions: 1)])
        }
        #expect(mechanism?.reason.contains("check sasl.mechanism") == true, "\(mechanism!)")
    }

    @Test("A certificate that is trusted is taken, and one that is not is told") func tls() throws {
        try withFolder { folder in
            let files = try StandInBroker.makeCertificate(in: folder)
            let other = try StandInBroker.makeCertificate(in: folder, "other")
            let broker = try StandInBroker([
                "--tls", files.certificate, files.key, "--user", "heartline", Self.password,
                "--topic", "waves", "3", "",
            ])
            let user = sasl("PLAIN").dropFirst() + ["security.protocol=sasl_ssl"]
            let log = try makeLog(broker, user + ["ssl.ca.location=\(files.certificate)"])
            defer { log.close() }
            #expect(try log.partitionCount(of: .waves) == 3)

            let untrusting = try makeLog(broker, user + ["ssl.ca.location=\(other.certificate)"])
            defer { untrusting.close() }
            try eventually("the fault is told") {
                untrusting.fault?.contains("connecting to Kafka at") == true
            }
            let fault = try #require(untrusting.fault)
            #expect(fault.contains("ertificate"), "\(fault)")
            #expect(fault.contains("check security.protocol, ssl.ca.location"), "\(fault)")

            // Without TLS to a port that has it.
            let plain = try makeLog(broker, [])
            defer { plain.close() }
            try eventually("the fault is told") {
                plain.fault?.contains("connecting to Kafka at") == true
            }
            let words = try #require(plain.fault)
            #expect(words.contains("security.protocol"), "\(words)")
        }
    }

    @Test("TLS to a port without it, and a user where none is asked for, are told") func noTLS()
        throws
    {
        let broker = try StandInBroker()
        let log = try makeLog(broker, ["security.protocol=ssl"])
        defer { log.close() }
        try eventually("the fault is told") {
            log.fault?.contains("connecting to Kafka at") == true
        }
        let fault = try #require(log.fault)
        #expect(fault.contains("check security.protocol, ssl.ca.location"), "\(fault)")
    }

    @Test("Copies that the cluster cannot make are told in the broker's words") func replication()
        throws
    {
        let broker = try StandInBroker(["--brokers", "1"])
        let log = try makeLog(broker, [], isWatched: false, replication: 3)
        defer { log.close() }
        let error = #expect(throws: EventLogError.self) {
            try log.createTopics([TopicSettings(.waves, partitions: 1)])
        }
        #expect(error?.kind == .configuration)
        #expect(error?.reason.contains("topic waves: Unable to replicate") == true, "\(error!)")
    }

    @Test("What a user may not do is told with what to allow") func permissions() throws {
        let broker = try StandInBroker(["--deny", "create", "--deny", "describe-configs"])
        let log = try makeLog(broker, [], isWatched: false)
        defer { log.close() }
        let creating = #expect(throws: EventLogError.self) {
            try log.createTopics([TopicSettings(.waves, partitions: 1)])
        }
        #expect(creating?.reason.contains("let this user create topics") == true, "\(creating!)")
        let other = try StandInBroker(["--deny", "describe-configs", "--topic", "waves", "1", ""])
        let describing = try makeLog(other, [], isWatched: false)
        defer { describing.close() }
        let error = #expect(throws: EventLogError.self) {
            _ = try describing.differences(from: [TopicSettings(.waves, partitions: 1)])
        }
        #expect(error?.reason.contains("let this user") == true, "\(error!)")
    }

    @Test("No client asks a broker to make a topic by the way") func autoCreation() throws {
        let broker = try StandInBroker(["--topic", "waves", "1", ""])
        let log = try makeLog(broker, [])
        defer { log.close() }
        #expect(try log.partitionCount(of: .waves) == 1)
        #expect(try log.partitionCount(of: .messages) == nil)
        let waker = Waker()
        #expect(throws: EventLogError.self) {
            _ = try log.makeConsumer(of: .messages, group: "g", waker: waker)
        }
        let consumer = try log.makeConsumer(of: .waves, group: "g", waker: waker)
        _ = try consumer.pollCopies()
        let producer = try log.makeProducer(ProducerSettings())
        let receipts = ReceiptCollector()
        var batch = RecordBatch(.messages)
        batch.append(0, "k", "1")
        _ = producer.send(batch, receipt: DeliveryReceipt(receipts, token: 1))
        guard case .failed(let error) = try receipts.outcome(of: 1) else {
            Issue.record("there is no such topic")
            return
        }
        #expect(error.reason.contains("heartline topics create"))
        producer.close()
        #expect(try !broker.wasAskedToCreateByTheWay())
    }
}
