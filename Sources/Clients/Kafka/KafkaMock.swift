internal import CRdKafka

/// librdkafka's mock cluster: brokers in this process that speak the protocol and fail on demand. For
/// tests only; nothing else uses it.
///
/// In 2.0.2 it keeps 5 MiB or 100,000 batches a partition, has no admin interface and no transactions.
/// - Thread safety: any thread.
@safe public final class KafkaMock: Sendable {
    /// Requests that can be made to fail, by Kafka's protocol numbers.
    public enum Request: Int16, Sendable {
        case produce = 0
        case fetch = 1
        case listOffsets = 2
        case metadata = 3
        case offsetCommit = 8
        case findCoordinator = 10
        case joinGroup = 11
        case heartbeat = 12
        case syncGroup = 14
        case initProducerID = 22
    }

    /// What a failed request answers.
    public enum Failure: Int32, Sendable {
        case none = 0
        /// The connection is cut.
        case transport = -195
        case notLeader = 6
        case requestTimedOut = 7
        case messageTooLarge = 10
        case notEnoughReplicas = 19
        case notEnoughReplicasAfterAppend = 20
        case unknownMember = 25
        case topicAuthorization = 29
        case outOfOrderSequence = 45
    }

    private let client: NativeClient
    private let cluster: Cluster

    /// `@unchecked`: the mock cluster locks inside.
    @safe private final class Cluster: @unchecked Sendable {
        let pointer: OpaquePointer
        init(_ pointer: OpaquePointer) { unsafe self.pointer = pointer }
    }

    private final class Silence: KafkaObserver {
        func kafkaReported(_ error: KafkaError) {}
        func kafkaLogged(level: Int32, _ message: String) {}
    }

    public init(brokers: Int32 = 1) throws(KafkaError) {
        client = try KafkaConfiguration().makeClient(.producer, KafkaContext(Silence()))
        guard let cluster = unsafe rd_kafka_mock_cluster_new(client.handle, brokers) else {
            throw KafkaError(.connecting, RD_KAFKA_RESP_ERR__FAIL.rawValue)
        }
        unsafe self.cluster = Cluster(cluster)
    }

    deinit { unsafe rd_kafka_mock_cluster_destroy(cluster.pointer) }

    /// What clients take as `bootstrap.servers`.
    public var brokers: String {
        unsafe String(cString: rd_kafka_mock_cluster_bootstraps(cluster.pointer))
    }

    public func createTopic(_ name: String, partitions: Int32) throws(KafkaError) {
        try KafkaError.check(
            .creatingTopics,
            unsafe rd_kafka_mock_topic_create(cluster.pointer, name, partitions, 1))
    }

    /// Takes a broker down or up again; -1 is all of them.
    public func setBroker(_ broker: Int32 = -1, isUp: Bool) {
        if isUp {
            unsafe _ = rd_kafka_mock_broker_set_up(cluster.pointer, broker)
        } else {
            unsafe _ = rd_kafka_mock_broker_set_down(cluster.pointer, broker)
        }
    }

    /// The next requests of that kind fail, one with each failure.
    public func fail(_ request: Request, _ failures: [Failure]) {
        let codes = failures.map { rd_kafka_resp_err_t(rawValue: $0.rawValue) }
        unsafe rd_kafka_mock_push_request_errors_array(
            cluster.pointer, request.rawValue, codes.count, codes)
    }

    public func clearFailures(of request: Request) {
        unsafe rd_kafka_mock_clear_request_errors(cluster.pointer, request.rawValue)
    }

    /// The next request of that kind to a broker is done and answered so much later.
    public func delay(
        _ request: Request, broker: Int32 = 1, milliseconds: Int32, _ failure: Failure = .none
    ) {
        unsafe _ = heartline_kafka_mock_delay(
            cluster.pointer, broker, request.rawValue,
            rd_kafka_resp_err_t(rawValue: failure.rawValue), milliseconds)
    }

    /// Every answer comes so much later.
    public func setRoundTrip(milliseconds: Int32) {
        unsafe _ = rd_kafka_mock_broker_set_rtt(cluster.pointer, -1, milliseconds)
    }
}
