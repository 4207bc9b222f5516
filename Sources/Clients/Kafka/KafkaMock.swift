internal import CRdKafka
internal import Glibc

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
        case unknownTopic = 3
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
    /// Sockets that hold the brokers' ports.
    private let holders: [Int32]

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
        let configuration = KafkaConfiguration()
        unsafe configuration.setSocketCallback(kafkaMockSocket)
        client = try configuration.makeClient(.producer, KafkaContext(Silence()))
        guard let cluster = unsafe rd_kafka_mock_cluster_new(client.handle, brokers) else {
            throw KafkaError(.connecting, RD_KAFKA_RESP_ERR__FAIL.rawValue)
        }
        unsafe self.cluster = Cluster(cluster)
        let addresses = unsafe String(cString: rd_kafka_mock_cluster_bootstraps(cluster))
        holders = addresses.split(separator: ",").compactMap { address in
            UInt16(address.drop { $0 != ":" }.dropFirst()).flatMap { Self.hold($0) }
        }
        precondition(holders.count == Int(brokers), "a port of the mock cluster is not held")
    }

    deinit {
        unsafe rd_kafka_mock_cluster_destroy(cluster.pointer)
        for holder in holders { close(holder) }
    }

    /// What clients take as `bootstrap.servers`.
    public var brokers: String {
        unsafe String(cString: rd_kafka_mock_cluster_bootstraps(cluster.pointer))
    }

    public func createTopic(_ name: String, partitions: Int32) throws(KafkaError) {
        try KafkaError.check(
            .creatingTopics,
            unsafe rd_kafka_mock_topic_create(cluster.pointer, name, partitions, 1))
    }

    /// What the brokers say of a topic when they are asked for it; `.none`: that it is there.
    public func setTopicError(_ name: String, _ failure: Failure) {
        unsafe rd_kafka_mock_topic_set_error(
            cluster.pointer, name, rd_kafka_resp_err_t(rawValue: failure.rawValue))
    }

    /// Takes a broker down or up again; -1 is all of them.
    ///
    /// For that librdkafka closes a broker's listener and binds the port anew, and ends the process if
    /// it does not get it: another socket may have taken it in between, or a process that is just being
    /// forked may still have the listener. So the listeners share their ports, and each port is held by a
    /// socket of ours that does not listen, to which the system gives no other.
    public func setBroker(_ broker: Int32 = -1, isUp: Bool) {
        if isUp {
            unsafe _ = rd_kafka_mock_broker_set_up(cluster.pointer, broker)
        } else {
            unsafe _ = rd_kafka_mock_broker_set_down(cluster.pointer, broker)
        }
    }

    /// The brokers' ports, in the order of their numbers.
    public var ports: [UInt16] {
        brokers.split(separator: ",").compactMap { address in
            UInt16(address.drop { $0 != ":" }.dropFirst())
        }
    }

    /// - Returns: a socket bound to `port`, which does not listen; `nil` if it cannot be had.
    private static func hold(_ port: UInt16) -> Int32? {
        let holder = kafkaMockSocket(AF_INET, Int32(SOCK_STREAM.rawValue), 0, nil)
        guard holder >= 0 else { return nil }
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_port = port.bigEndian
        address.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
        let result = unsafe withUnsafePointer(to: &address) {
            unsafe $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                unsafe bind(holder, $0, socklen_t(MemoryLayout<sockaddr_in>.size))
            }
        }
        if result == 0 { return holder }
        close(holder)
        return nil
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

/// Opens the sockets of a mock cluster: other sockets of this user may be bound to the same port if they
/// ask for that one.
private func kafkaMockSocket(
    _ domain: Int32, _ type: Int32, _ protocol: Int32, _ opaque: UnsafeMutableRawPointer?
) -> Int32 {
    let result = socket(domain, type | Int32(SOCK_CLOEXEC.rawValue), `protocol`)
    guard result >= 0 else { return result }
    var one: Int32 = 1
    for option in [SO_REUSEADDR, SO_REUSEPORT] {
        unsafe setsockopt(
            result, SOL_SOCKET, option, &one, socklen_t(MemoryLayout<Int32>.size))
    }
    return result
}
