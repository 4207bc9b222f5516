internal import CRdKafka

/// A call of librdkafka that failed, or a message that it handed over instead of a record: what was
/// being done, what librdkafka said, what can be done about it.
public struct KafkaError: Error, Hashable, Sendable, CustomStringConvertible {
    public enum Operation: String, Sendable {
        case configuring, connecting, producing, subscribing, polling, assigning, committing
        case closing
        case creatingTopics = "creating topics"
        case describingTopics = "describing topics"
        case readingMetadata = "reading metadata"
        case readingOffsets = "reading offsets"
    }

    public enum Kind: Sendable {
        /// No broker, or not the right one, answers: the same call may succeed later.
        case unavailable
        /// A host name that nobody knows.
        case unresolved
        /// User, password or mechanism were refused.
        case authentication
        /// TLS could not be agreed on.
        case tls
        /// What this user may not do.
        case unauthorized
        case unknownTopic
        case topicExists
        case messageTooLarge
        /// A position that the partition does not hold.
        case offsetOutOfRange
        /// The broker, or this release of librdkafka, cannot do it.
        case unsupported
        /// This client is of no use any more; a new one may be.
        case fatal
        case other
    }

    public let operation: Operation
    /// An `rd_kafka_resp_err_t`; negative codes arose in this process, not in the broker.
    public let code: Int32
    public let reason: String
    public let isFatal: Bool

    init(_ operation: Operation, _ code: Int32, _ reason: String? = nil, isFatal: Bool = false) {
        self.operation = operation
        self.code = code
        self.reason = reason ?? Self.text(of: code)
        self.isFatal = isFatal || code == RD_KAFKA_RESP_ERR__FATAL.rawValue
    }

    public var description: String { "\(operation.rawValue): \(reason) (\(code))" }

    /// Whether the brokers refused what this user may not do, be it fatal or not.
    public var isDenied: Bool {
        [
            RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
            RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED,
            RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED,
        ].contains { $0.rawValue == code }
    }

    public var kind: Kind {
        if isFatal { return .fatal }
        // A broker that expects something else only hangs up.
        if code == RD_KAFKA_RESP_ERR__TRANSPORT.rawValue {
            if reason.contains("SSL_HANDSHAKE") { return .tls }
            if reason.contains("in state AUTH") { return .authentication }
        }
        return switch rd_kafka_resp_err_t(rawValue: code) {
        case RD_KAFKA_RESP_ERR__RESOLVE: .unresolved
        case RD_KAFKA_RESP_ERR__AUTHENTICATION, RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED,
            RD_KAFKA_RESP_ERR_UNSUPPORTED_SASL_MECHANISM:
            .authentication
        case RD_KAFKA_RESP_ERR__SSL: .tls
        case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
            RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED,
            RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED:
            .unauthorized
        case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC, RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION,
            RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
            .unknownTopic
        case RD_KAFKA_RESP_ERR_TOPIC_ALREADY_EXISTS: .topicExists
        case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE: .messageTooLarge
        case RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET, RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE,
            RD_KAFKA_RESP_ERR__NO_OFFSET:
            .offsetOutOfRange
        case RD_KAFKA_RESP_ERR__UNSUPPORTED_FEATURE, RD_KAFKA_RESP_ERR_UNSUPPORTED_VERSION:
            .unsupported
        case RD_KAFKA_RESP_ERR__TRANSPORT, RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN,
            RD_KAFKA_RESP_ERR__TIMED_OUT, RD_KAFKA_RESP_ERR__MSG_TIMED_OUT,
            RD_KAFKA_RESP_ERR__TIMED_OUT_QUEUE, RD_KAFKA_RESP_ERR__PURGE_QUEUE,
            RD_KAFKA_RESP_ERR__PURGE_INFLIGHT, RD_KAFKA_RESP_ERR__QUEUE_FULL,
            RD_KAFKA_RESP_ERR__WAIT_COORD, RD_KAFKA_RESP_ERR__DESTROY,
            RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE, RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
            RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT, RD_KAFKA_RESP_ERR_BROKER_NOT_AVAILABLE,
            RD_KAFKA_RESP_ERR_REPLICA_NOT_AVAILABLE, RD_KAFKA_RESP_ERR_NETWORK_EXCEPTION,
            RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
            RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS,
            RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE, RD_KAFKA_RESP_ERR_NOT_COORDINATOR,
            RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR, RD_KAFKA_RESP_ERR_UNKNOWN,
            RD_KAFKA_RESP_ERR_NOT_CONTROLLER, RD_KAFKA_RESP_ERR_LISTENER_NOT_FOUND,
            RD_KAFKA_RESP_ERR_FENCED_LEADER_EPOCH, RD_KAFKA_RESP_ERR_UNKNOWN_LEADER_EPOCH,
            RD_KAFKA_RESP_ERR_OFFSET_NOT_AVAILABLE, RD_KAFKA_RESP_ERR_THROTTLING_QUOTA_EXCEEDED:
            .unavailable
        default: .other
        }
    }

    /// What librdkafka says of a code.
    static func text(of code: Int32) -> String {
        unsafe String(cString: rd_kafka_err2str(rd_kafka_resp_err_t(rawValue: code)))
    }

    static func check(
        _ operation: Operation, _ code: rd_kafka_resp_err_t
    ) throws(KafkaError) {
        if code != RD_KAFKA_RESP_ERR_NO_ERROR { throw KafkaError(operation, code.rawValue) }
    }

    /// Takes over what a call of librdkafka returned.
    static func check(_ operation: Operation, _ error: OpaquePointer?) throws(KafkaError) {
        guard let error = unsafe error else { return }
        defer { unsafe rd_kafka_error_destroy(error) }
        throw unsafe KafkaError(
            operation, rd_kafka_error_code(error).rawValue,
            String(cString: rd_kafka_error_string(error)),
            isFatal: rd_kafka_error_is_fatal(error) != 0)
    }
}
