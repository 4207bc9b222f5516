internal import CRdKafka

/// A topic to be made.
public struct KafkaNewTopic: Sendable, Equatable {
    public var name: String
    public var partitions: Int32
    /// -1: what the broker takes by default.
    public var replication: Int32
    /// As the broker names them, for example `retention.ms`.
    public var settings: [String: String]

    public init(
        _ name: String, partitions: Int32, replication: Int32 = -1, settings: [String: String] = [:]
    ) {
        self.name = name
        self.partitions = partitions
        self.replication = replication
        self.settings = settings
    }
}

/// Asks a cluster about itself and makes topics.
///
/// - Thread safety: any thread. Each call waits for its answer, at most as long as it is told.
@safe public final class KafkaAdmin: Sendable {
    private let client: NativeClient

    public init(
        _ configuration: consuming KafkaConfiguration, observer: any KafkaObserver
    ) throws(KafkaError) {
        client = try configuration.makeClient(.producer, KafkaContext(observer))
    }

    /// Serves errors to the observer, for at most `milliseconds`. Nothing is reported otherwise.
    public func poll(milliseconds: Int32) { unsafe _ = rd_kafka_poll(client.handle, milliseconds) }

    /// How many partitions each topic has that this user may see.
    public func partitionCounts(milliseconds: Int32) throws(KafkaError) -> [String: Int32] {
        var found: UnsafePointer<rd_kafka_metadata>?
        try KafkaError.check(
            .readingMetadata,
            unsafe rd_kafka_metadata(client.handle, 1, nil, &found, milliseconds))
        guard let metadata = unsafe found else { return [:] }
        defer { unsafe rd_kafka_metadata_destroy(metadata) }
        var counts: [String: Int32] = [:]
        for index in 0..<Int(unsafe metadata.pointee.topic_cnt) {
            let topic = unsafe metadata.pointee.topics[index]
            guard unsafe topic.err == RD_KAFKA_RESP_ERR_NO_ERROR else { continue }
            unsafe counts[String(cString: topic.topic)] = topic.partition_cnt
        }
        return counts
    }

    public func offsets(
        of topic: String, partition: Int32, milliseconds: Int32
    ) throws(KafkaError) -> (earliest: Int64, next: Int64) {
        try queryOffsets(client, topic, partition, milliseconds)
    }

    /// - Returns: what went wrong, by topic; empty if all were made.
    public func create(
        _ topics: [KafkaNewTopic], milliseconds: Int32
    ) throws(KafkaError) -> [String: KafkaError] {
        var natives: [OpaquePointer?] = unsafe []
        defer {
            for index in unsafe natives.indices { unsafe rd_kafka_NewTopic_destroy(natives[index]) }
        }
        for topic in topics {
            var reason = [CChar](repeating: 0, count: 512)
            guard
                let native = unsafe rd_kafka_NewTopic_new(
                    topic.name, topic.partitions, topic.replication, &reason, reason.count)
            else {
                throw KafkaError(
                    .creatingTopics, RD_KAFKA_RESP_ERR__INVALID_ARG.rawValue, text(of: reason))
            }
            unsafe natives.append(native)
            for (name, value) in topic.settings {
                unsafe _ = rd_kafka_NewTopic_set_config(native, name, value)
            }
        }
        var failures: [String: KafkaError] = [:]
        unsafe try ask(.creatingTopics, RD_KAFKA_ADMIN_OP_CREATETOPICS, milliseconds) {
            options, queue in
            unsafe natives.withUnsafeMutableBufferPointer { natives in
                unsafe rd_kafka_CreateTopics(
                    client.handle, natives.baseAddress, natives.count, options, queue)
            }
        } read: { event in
            var count = 0
            guard let result = unsafe rd_kafka_event_CreateTopics_result(event),
                let results = unsafe rd_kafka_CreateTopics_result_topics(result, &count)
            else { return }
            for index in 0..<count {
                let code = unsafe rd_kafka_topic_result_error(results[index])
                guard code != RD_KAFKA_RESP_ERR_NO_ERROR else { continue }
                let words = unsafe rd_kafka_topic_result_error_string(results[index])
                    .map { unsafe String(cString: $0) }
                let name = unsafe String(cString: rd_kafka_topic_result_name(results[index]))
                failures[name] = KafkaError(.creatingTopics, code.rawValue, words)
            }
        }
        return failures
    }

    /// The settings that a topic has now, inherited ones too.
    public func settings(
        of topic: String, milliseconds: Int32
    ) throws(KafkaError) -> [String: String] {
        var natives: [OpaquePointer?] = unsafe [
            rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, topic)
        ]
        defer {
            unsafe rd_kafka_ConfigResource_destroy(natives[0])
        }
        var settings: [String: String] = [:]
        var failure: KafkaError?
        unsafe try ask(
            .describingTopics, RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS, milliseconds
        ) { options, queue in
            unsafe natives.withUnsafeMutableBufferPointer { natives in
                unsafe rd_kafka_DescribeConfigs(
                    client.handle, natives.baseAddress, natives.count, options, queue)
            }
        } read: { event in
            var count = 0
            guard let result = unsafe rd_kafka_event_DescribeConfigs_result(event),
                let results = unsafe rd_kafka_DescribeConfigs_result_resources(result, &count),
                count > 0, let first = unsafe results[0]
            else { return }
            let code = unsafe rd_kafka_ConfigResource_error(first)
            if code != RD_KAFKA_RESP_ERR_NO_ERROR {
                let words = unsafe rd_kafka_ConfigResource_error_string(first)
                    .map { unsafe String(cString: $0) }
                failure = KafkaError(.describingTopics, code.rawValue, words)
            }
            var entryCount = 0
            guard let entries = unsafe rd_kafka_ConfigResource_configs(first, &entryCount) else {
                return
            }
            for index in 0..<entryCount {
                guard let entry = unsafe entries[index],
                    let value = unsafe rd_kafka_ConfigEntry_value(entry)
                else { continue }
                unsafe settings[String(cString: rd_kafka_ConfigEntry_name(entry))] =
                    String(cString: value)
            }
        }
        if let failure { throw failure }
        return settings
    }

    /// One request of the admin interface and its answer.
    private func ask(
        _ operation: KafkaError.Operation, _ kind: rd_kafka_admin_op_t, _ milliseconds: Int32,
        send: (_ options: OpaquePointer?, _ queue: OpaquePointer?) -> Void,
        read: (_ event: OpaquePointer) -> Void
    ) throws(KafkaError) {
        let queue = unsafe rd_kafka_queue_new(client.handle)
        defer { unsafe rd_kafka_queue_destroy(queue) }
        let options = unsafe rd_kafka_AdminOptions_new(client.handle, kind)
        defer { unsafe rd_kafka_AdminOptions_destroy(options) }
        unsafe _ = rd_kafka_AdminOptions_set_request_timeout(options, milliseconds, nil, 0)
        if kind == RD_KAFKA_ADMIN_OP_CREATETOPICS {
            // Answered when the topics are there, not when they are on their way.
            unsafe _ = rd_kafka_AdminOptions_set_operation_timeout(
                options, milliseconds, nil, 0)
        }
        unsafe send(options, queue)
        // The request's own timeout ends it; this is for a lost answer.
        guard let event = unsafe rd_kafka_queue_poll(queue, milliseconds + 5_000) else {
            throw KafkaError(operation, RD_KAFKA_RESP_ERR__TIMED_OUT.rawValue)
        }
        defer { unsafe rd_kafka_event_destroy(event) }
        let code = unsafe rd_kafka_event_error(event)
        guard code == RD_KAFKA_RESP_ERR_NO_ERROR else {
            let words = unsafe rd_kafka_event_error_string(event)
                .map { unsafe String(cString: $0) }
            throw KafkaError(operation, code.rawValue, words)
        }
        unsafe read(event)
    }
}
