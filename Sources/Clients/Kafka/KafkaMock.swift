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
    /// To take one down, librdkafka closes the broker's listener and binds its port anew, and ends the
    /// process if it does not get it: another socket may have been given it in between, or a process that
    /// is just being forked still has the listener. So the listener is taken away before, and the port
    /// held by a socket that shares it and does not listen.
    public func setBroker(_ broker: Int32 = -1, isUp: Bool) {
        if isUp {
            unsafe _ = rd_kafka_mock_broker_set_up(cluster.pointer, broker)
            return
        }
        var holders: [Int32?] = []
        for (index, port) in ports.enumerated() where broker == -1 || Int(broker) == index + 1 {
            holders.append(Self.takeListener(port))
        }
        unsafe _ = rd_kafka_mock_broker_set_down(cluster.pointer, broker)
        for case let holder? in holders { close(holder) }
    }

    /// The brokers' ports, in the order of their numbers.
    public var ports: [UInt16] {
        brokers.split(separator: ",").compactMap { address in
            UInt16(address.drop { $0 != ":" }.dropFirst())
        }
    }

    /// Puts a socket without use in the place of the one that listens on `port`.
    /// - Returns: a socket that holds the port, once nobody listens on it any more; `nil` if nobody did.
    private static func takeListener(_ port: UInt16) -> Int32? {
        guard let listener = listener(port) else { return nil }
        let idle = socket(AF_INET, Int32(SOCK_DGRAM.rawValue) | Int32(SOCK_CLOEXEC.rawValue), 0)
        dup2(idle, listener)
        close(idle)
        for _ in 0..<3_000 {
            if let holder = hold(port) { return holder }
            usleep(10_000)
        }
        return nil
    }

    private static func listener(_ port: UInt16) -> Int32? {
        for descriptor in Int32(3)..<4_096 {
            var isListening: Int32 = 0
            var size = socklen_t(MemoryLayout<Int32>.size)
            guard
                unsafe getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &isListening, &size) == 0,
                isListening == 1
            else { continue }
            let (result, found) = unsafe withAddress(0) {
                unsafe getsockname(descriptor, $0, &$1)
            }
            if result == 0, found == port { return descriptor }
        }
        return nil
    }

    private static func hold(_ port: UInt16) -> Int32? {
        let holder = socket(
            AF_INET, Int32(SOCK_STREAM.rawValue) | Int32(SOCK_CLOEXEC.rawValue), 0)
        var one: Int32 = 1
        unsafe setsockopt(
            holder, SOL_SOCKET, SO_REUSEADDR, &one, socklen_t(MemoryLayout<Int32>.size))
        if unsafe withAddress(port, { unsafe bind(holder, $0, $1) }).result == 0 { return holder }
        close(holder)
        return nil
    }

    /// Lends the address of a port of this machine, and tells the port that is in it afterwards.
    private static func withAddress(
        _ port: UInt16, _ body: (UnsafeMutablePointer<sockaddr>, inout socklen_t) -> Int32
    ) -> (result: Int32, port: UInt16) {
        var place = sockaddr_in()
        place.sin_family = sa_family_t(AF_INET)
        place.sin_port = port.bigEndian
        place.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
        var size = socklen_t(MemoryLayout<sockaddr_in>.size)
        let result = unsafe withUnsafeMutablePointer(to: &place) {
            unsafe $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                unsafe body($0, &size)
            }
        }
        return (result, UInt16(bigEndian: place.sin_port))
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
