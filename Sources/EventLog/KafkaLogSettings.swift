internal import Kafka
public import Schemas

/// How a cluster is reached, and what its clients are told.
public struct KafkaLogSettings: Sendable {
    /// A property of librdkafka.
    public struct Property: Sendable, Hashable {
        public var name: String
        public var value: String

        /// Reads `name=value`.
        /// - Throws: `.configuration` if it is not that, or would break what the log promises.
        public init(_ text: String) throws(EventLogError) {
            guard let split = text.firstIndex(of: "="), split != text.startIndex else {
                throw EventLogError(
                    .opening, .configuration,
                    "a Kafka property is written name=value, as sasl.username=heartline")
            }
            name = String(text[..<split])
            value = String(text[text.index(after: split)...])
            if let reason = Self.refused[name] {
                throw EventLogError(
                    .opening, .configuration, "Kafka property \(name) cannot be set: \(reason)")
            }
        }

        private static let refused: [String: String] = {
            let partitions = "Heartline chooses the partition of a record itself"
            let durable = "an acknowledged record must be on every replica in sync, once"
            let database = "where reading starts is kept in PostgreSQL"
            let groups = "groups are named after the pipelines"
            return [
                "partitioner": partitions, "partitioner_cb": partitions,
                "msg_order_cmp": partitions, "sticky.partitioning.linger.ms": partitions,
                "acks": durable, "request.required.acks": durable, "enable.idempotence": durable,
                "transactional.id": durable, "enable.gapless.guarantee": durable,
                "enable.auto.commit": database, "auto.commit.enable": database,
                "enable.auto.offset.store": database, "auto.offset.reset": database,
                "group.id": groups, "enable.partition.eof": "the end of a partition is no record",
                "partition.assignment.strategy":
                    "all members of a group must hand over cooperatively",
                "bootstrap.servers": "give --brokers", "metadata.broker.list": "give --brokers",
                "allow.auto.create.topics": "`heartline topics create` makes topics",
                "test.mock.num.brokers": "give --brokers",
            ]
        }()
    }

    /// `host:port`, or several with commas between them.
    public let brokers: String
    /// Given to every client, where it means something to it.
    public let properties: [Property]
    /// Longest wait for an answer of the cluster, in milliseconds, where something waits. Default: 10 s.
    public var requestMilliseconds: Int64 = 10_000
    /// The same on the thread that polls records: how long it may stall. Default: 2 s.
    public var offsetsMilliseconds: Int64 = 2_000
    /// Age at which a record of an acknowledged topic that could not be sent has failed, in
    /// milliseconds. Default: 5 s; what waits for it should not have given up before.
    public var ackedMilliseconds: Int64 = 5_000
    /// The same for topics that nobody waits for; until then they fill the queue. Default: 5 min.
    public var queuedMilliseconds: Int64 = 300_000
    /// Topics for whose records somebody waits. Default: those that are answered when they are stored.
    public var ackedTopics = Set(Topic.allCases.filter { $0.durability == .acked })
    /// Longest wait at the end of a producer for what is under way, in milliseconds. Default: 5 s.
    public var closeMilliseconds: Int64 = 5_000
    /// Records of queued topics wait so long for company, in milliseconds, if the producer does not
    /// ask for more. Default: 20 ms.
    public var queuedLingerMilliseconds: Int64 = 20
    /// Asks the cluster now and then and writes to the log when it does not answer. `false`: only what
    /// is asked is answered, for commands that look once.
    public var isWatched = true
    /// Copies of each partition of a topic that is made; -1: what the brokers take by default.
    public var replication: Int32 = -1

    /// - Throws: `.configuration` if `brokers` is no list of addresses.
    public init(brokers: String, properties: [Property] = []) throws(EventLogError) {
        for broker in brokers.split(separator: ",", omittingEmptySubsequences: false) {
            guard Self.isAddress(broker.drop { $0 == " " }) else {
                throw EventLogError(
                    .opening, .configuration,
                    "\"\(broker)\" is no broker's address: brokers are host:port, with commas between them"
                )
            }
        }
        self.brokers = brokers
        self.properties = properties
    }

    private static func isAddress(_ text: Substring) -> Bool {
        var host = text
        if let colon = text.lastIndex(of: ":"), !text.hasSuffix("]") {
            guard let port = UInt16(text[text.index(after: colon)...]), port > 0 else {
                return false
            }
            host = text[..<colon]
        }
        if host.hasPrefix("["), host.hasSuffix("]") {
            host = host.dropFirst().dropLast()
            return !host.isEmpty && host.allSatisfy { $0.isHexDigit || $0 == ":" || $0 == "." }
        }
        return !host.isEmpty && host.utf8.count <= 253
            && host.allSatisfy { $0.isLetter || $0.isNumber || $0 == "-" || $0 == "." || $0 == "_" }
    }

    // MARK: - Configurations

    /// Bytes of the largest record with its key and headers. Topics are made to take it.
    static let largestMessage = 2 << 20

    /// What all clients have: our defaults, then what the operator wants, then what must be.
    private func make(
        defaults: [(String, String)], fixed: [(String, String)]
    ) throws(EventLogError) -> KafkaConfiguration {
        let common = [
            ("client.id", "heartline"), ("socket.keepalive.enable", "true"),
            ("socket.nagle.disable", "true"), ("reconnect.backoff.max.ms", "2000"),
            // What a client took from a broker that had just started is mended so soon.
            ("topic.metadata.refresh.interval.ms", "30000"),
        ]
        let configuration = KafkaConfiguration()
        do throws(KafkaError) {
            for (name, value) in common + defaults { try configuration.set(name, value) }
            for property in properties { try configuration.set(property.name, property.value) }
            try configuration.set("bootstrap.servers", brokers)
            for (name, value) in fixed { try configuration.set(name, value) }
        } catch {
            throw EventLogError(.opening, .configuration, "\(error.reason); see --kafka-config")
        }
        return configuration
    }

    func makeAdmin() throws(EventLogError) -> KafkaConfiguration {
        try make(defaults: [], fixed: [("allow.auto.create.topics", "false")])
    }

    func makeProducer(
        linger: Int64, timeout: Int64
    ) throws(EventLogError) -> KafkaConfiguration {
        try make(
            defaults: [
                ("compression.type", "lz4"), ("linger.ms", "\(linger)"),
                ("message.timeout.ms", "\(timeout)"),
                ("message.max.bytes", "\(Self.largestMessage)"),
                ("topic.metadata.propagation.max.ms", "3000"),
            ],
            fixed: [
                ("enable.idempotence", "true"), ("acks", "all"),
                ("allow.auto.create.topics", "false"),
                // What may wait is counted by us, a batch at a time.
                ("queue.buffering.max.messages", "2147483647"),
                ("queue.buffering.max.kbytes", "2147483647"),
            ])
    }

    /// - Parameter partitions: of the topic. Each has a queue of its own, and all of them together
    ///   may hold about 128 MiB.
    func makeConsumer(
        group: String, partitions: Int32
    ) throws(EventLogError) -> KafkaConfiguration {
        try make(
            defaults: [
                ("queued.min.messages", "1000000"),
                ("queued.max.messages.kbytes", "\(max(1_024, 131_072 / Int(partitions)))"),
            ],
            fixed: [
                ("group.id", "heartline-\(group)"),
                ("partition.assignment.strategy", "cooperative-sticky"),
                ("enable.auto.commit", "false"), ("enable.auto.offset.store", "false"),
                ("auto.offset.reset", "error"), ("enable.partition.eof", "false"),
                ("allow.auto.create.topics", "false"),
            ])
    }
}

extension EventLogError {
    /// - Parameter hint: what to do next, where the kind alone does not say.
    init(
        _ operation: Operation, _ error: KafkaError, place: TopicPartition? = nil,
        _ hint: String? = nil
    ) {
        let kind: Kind =
            switch error.kind {
            case .unavailable, .unresolved, .authentication, .tls, .fatal, .other,
                .offsetOutOfRange:
                .unavailable
            case .unauthorized, .unknownTopic, .topicExists, .messageTooLarge, .unsupported:
                .configuration
            }
        let advice =
            hint ?? (error.isFatal && error.isDenied ? Self.idempotentWrite : nil)
            ?? Self.advice(error.kind)
        self.init(
            operation, kind, place: place,
            "Kafka says: \(error.reason) (\(error.code))\(advice.map { "; \($0)" } ?? "")")
    }

    static let idempotentWrite =
        "let this user write to Heartline's topics, and on brokers before 2.8 also IdempotentWrite "
        + "on the cluster"

    static func advice(_ kind: KafkaError.Kind) -> String? {
        switch kind {
        case .unavailable:
            "check that the brokers run, that their advertised.listeners can be reached from here, "
                + "and that security.protocol is what they expect"
        case .unresolved: "check the host names in --brokers"
        case .authentication: "check sasl.mechanism, sasl.username and sasl.password"
        case .tls: "check security.protocol, ssl.ca.location and the brokers' certificates"
        case .unauthorized: "let this user read and write Heartline's topics and groups"
        case .unknownTopic: "make the topics with `heartline topics create`"
        case .messageTooLarge: "raise the topic's max.message.bytes; `heartline topics check` tells"
        case .topicExists, .offsetOutOfRange, .unsupported, .fatal, .other: nil
        }
    }
}
