internal import CRdKafka
internal import Glibc
internal import Synchronization

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
    /// What holds the ports of brokers that are down, by broker.
    private let holders = Mutex<[Int32: Int32]>([:])

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

    deinit {
        unsafe rd_kafka_mock_cluster_destroy(cluster.pointer)
        holders.withLock { for holder in $0.values { close(holder) } }
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
    /// librdkafka ends the process if it does not get the broker's port back, so the port of a broker
    /// that is down is held: no other socket is given it by the system, and nobody listens on it.
    public func setBroker(_ broker: Int32 = -1, isUp: Bool) {
        for (number, port) in ports where broker == -1 || broker == number {
            if isUp {
                // A process that was being forked may have the listener for another moment.
                var tries = 0
                while !hold(port, of: number), tries < 3_000 {
                    usleep(10_000)
                    tries += 1
                }
                unsafe _ = rd_kafka_mock_broker_set_up(cluster.pointer, number)
                holders.withLock {
                    if let holder = $0.removeValue(forKey: number) { close(holder) }
                }
            } else {
                unsafe _ = rd_kafka_mock_broker_set_down(cluster.pointer, number)
                _ = hold(port, of: number)
            }
        }
    }

    /// By broker; they are numbered from 1 on.
    private var ports: [(number: Int32, port: UInt16)] {
        brokers.split(separator: ",").enumerated().compactMap { index, address in
            UInt16(address.drop { $0 != ":" }.dropFirst()).map { (Int32(index + 1), $0) }
        }
    }

    /// Binds a socket to a port without listening. Beside it another socket can bind that port only if
    /// it asks for that one and, as the mock does, for sharing.
    /// - Returns: whether it is held.
    private func hold(_ port: UInt16, of broker: Int32) -> Bool {
        holders.withLock { holders in
            if holders[broker] != nil { return true }
            let holder = socket(
                AF_INET, Int32(SOCK_STREAM.rawValue) | Int32(SOCK_CLOEXEC.rawValue), 0)
            guard holder >= 0 else { return false }
            var one: Int32 = 1
            unsafe setsockopt(
                holder, SOL_SOCKET, SO_REUSEADDR, &one, socklen_t(MemoryLayout<Int32>.size))
            var address = sockaddr_in()
            address.sin_family = sa_family_t(AF_INET)
            address.sin_port = port.bigEndian
            address.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
            let result = unsafe withUnsafePointer(to: &address) {
                unsafe $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                    unsafe bind(holder, $0, socklen_t(MemoryLayout<sockaddr_in>.size))
                }
            }
            guard result == 0 else {
                close(holder)
                return false
            }
            holders[broker] = holder
            return true
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
