internal import CRdKafka
internal import Synchronization

/// Messages that belong together: told once, when each was stored or has failed.
///
/// It keeps itself alive until then, so nothing is retained per message.
@safe public final class KafkaBatch: Sendable {
    private let remaining: Atomic<Int>
    /// The first failure's code; 0 if there is none.
    private let failure = Atomic<Int32>(0)
    private let done: @Sendable (KafkaError?) -> Void

    /// - Parameters:
    ///   - count: how many messages will be produced with it, at least 1.
    ///   - done: called on the thread that polls, or that produces if the last message could not
    ///     even be queued. `nil`: all are stored; otherwise the first failure.
    public init(count: Int, done: @escaping @Sendable (KafkaError?) -> Void) {
        precondition(count > 0, "a batch without messages")
        remaining = Atomic(count)
        self.done = done
        unsafe _ = Unmanaged.passRetained(self)
    }

    /// Notes the end of one of its messages.
    func settle(code: Int32) {
        if code != 0 {
            _ = failure.compareExchange(expected: 0, desired: code, ordering: .relaxed)
        }
        let left = remaining.subtract(1, ordering: .acquiringAndReleasing).newValue
        guard left == 0 else { return }
        let first = failure.load(ordering: .relaxed)
        done(first == 0 ? nil : KafkaError(.producing, first))
        unsafe Unmanaged.passUnretained(self).release()
    }
}

/// A topic as one producer knows it.
///
/// `@unchecked`: librdkafka locks inside.
@safe public final class KafkaTopic: @unchecked Sendable {
    fileprivate let handle: OpaquePointer
    /// Destroyed after the topic.
    private let client: NativeClient

    fileprivate init(_ handle: OpaquePointer, _ client: NativeClient) {
        unsafe self.handle = handle
        self.client = client
    }

    deinit { unsafe rd_kafka_topic_destroy(handle) }
}

/// Sends messages. Somebody must `poll` it, or nothing is ever told.
///
/// - Thread safety: any thread.
@safe public final class KafkaProducer: Sendable {
    private let client: NativeClient

    public init(
        _ configuration: consuming KafkaConfiguration, observer: any KafkaObserver
    ) throws(KafkaError) {
        client = try configuration.makeClient(.producer, KafkaContext(observer))
    }

    public func topic(_ name: String) throws(KafkaError) -> KafkaTopic {
        guard let handle = unsafe rd_kafka_topic_new(client.handle, name, nil) else {
            throw KafkaError(.producing, rd_kafka_last_error().rawValue)
        }
        return unsafe KafkaTopic(handle, client)
    }

    /// Queues one message and copies its bytes; never blocks. What cannot be queued counts as failed
    /// in its batch.
    ///
    /// Each call passes one message of `batch`, which lives until the last of them has been told.
    /// - Parameters:
    ///   - timestamp: milliseconds since 1970.
    ///   - hasKey: `false`: no key, whatever `key` is.
    ///   - isTombstone: no value, whatever `value` is.
    ///   - headers: (name size 2 bytes, name, value size 4 bytes, value), little endian, one after
    ///     the other.
    public func produce(
        to topic: KafkaTopic, partition: Int32, timestamp: Int64, hasKey: Bool,
        key: Span<UInt8>, isTombstone: Bool, value: Span<UInt8>, headers: Span<UInt8>,
        batch: KafkaBatch
    ) {
        let list = unsafe headers.isEmpty ? nil : makeHeaders(headers)
        let error = unsafe key.withUnsafeBufferPointer { key in
            unsafe value.withUnsafeBufferPointer { value in
                // An empty span may have no address, and to librdkafka no address is no value.
                let nothing = unsafe UnsafeRawPointer(topic.handle)
                let keyStart = unsafe key.baseAddress.map { unsafe UnsafeRawPointer($0) }
                let valueStart = unsafe value.baseAddress.map { unsafe UnsafeRawPointer($0) }
                return unsafe heartline_kafka_produce(
                    client.handle, topic.handle, partition, timestamp,
                    hasKey ? keyStart ?? nothing : nil, hasKey ? key.count : 0,
                    isTombstone ? nil : valueStart ?? nothing, isTombstone ? 0 : value.count,
                    list, Unmanaged.passUnretained(batch).toOpaque())
            }
        }
        guard let error = unsafe error else { return }
        let code = unsafe rd_kafka_error_code(error).rawValue
        unsafe rd_kafka_error_destroy(error)
        if let list = unsafe list { unsafe rd_kafka_headers_destroy(list) }
        batch.settle(code: code)
    }

    /// Serves reports and errors, for at most `milliseconds`.
    public func poll(milliseconds: Int32) { unsafe _ = rd_kafka_poll(client.handle, milliseconds) }

    /// Sends what waits without waiting for more, and serves reports, for at most `milliseconds`.
    /// - Returns: whether nothing waits any more.
    @discardableResult
    public func flush(milliseconds: Int32) -> Bool {
        unsafe rd_kafka_flush(client.handle, milliseconds) == RD_KAFKA_RESP_ERR_NO_ERROR
    }

    /// Fails all that waits, also what was sent and not answered: it may have been stored.
    public func purge() {
        unsafe _ = rd_kafka_purge(
            client.handle, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT)
    }

    /// Messages and reports that wait.
    public var waiting: Int { Int(unsafe rd_kafka_outq_len(client.handle)) }

    /// The error that made the producer useless, if one did.
    public var fatalFailure: KafkaError? { client.fatalFailure }

    /// Brings a fatal error about, for tests.
    public func failFatally() {
        unsafe _ = rd_kafka_test_fatal_error(
            client.handle, RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER, "a test")
    }

    private func makeHeaders(_ bytes: Span<UInt8>) -> OpaquePointer? {
        let list = unsafe rd_kafka_headers_new(4)
        unsafe bytes.withUnsafeBytes { bytes in
            var offset = 0
            while bytes.count - offset >= 2 {
                let nameSize = Int(
                    UInt16(
                        littleEndian: unsafe bytes.loadUnaligned(
                            fromByteOffset: offset, as: UInt16.self)))
                let name = offset + 2
                guard bytes.count - name >= nameSize + 4 else { return }
                let valueSize = Int(
                    UInt32(
                        littleEndian: unsafe bytes.loadUnaligned(
                            fromByteOffset: name + nameSize, as: UInt32.self)))
                let value = name + nameSize + 4
                guard bytes.count - value >= valueSize else { return }
                unsafe _ = rd_kafka_header_add(
                    list, bytes.baseAddress! + name, nameSize, bytes.baseAddress! + value,
                    valueSize)
                offset = value + valueSize
            }
        }
        return unsafe list
    }
}

func kafkaDeliveryCallback(
    _ client: OpaquePointer?, _ message: UnsafePointer<rd_kafka_message_t>?,
    _ opaque: UnsafeMutableRawPointer?
) {
    guard let message = unsafe message, let batch = unsafe message.pointee._private else { return }
    let code = unsafe message.pointee.err.rawValue
    unsafe Unmanaged<KafkaBatch>.fromOpaque(batch)._withUnsafeGuaranteedRef {
        $0.settle(code: code)
    }
}
