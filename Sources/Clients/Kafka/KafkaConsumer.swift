internal import CRdKafka
internal import Glibc
internal import Synchronization

/// What the group changed in a member's assignment.
public enum KafkaAssignmentChange: Sendable, Equatable {
    /// Empty: this member has its place in the group, and nothing to do.
    case assigned([Int32])
    /// The group waits until they are released.
    case revoked([Int32])
    /// Already another's.
    case lost([Int32])
}

/// The partitions of one member, as its rebalance callback and its methods keep them. All of them run
/// on the thread that polls.
struct KafkaAssignment {
    var changes: [KafkaAssignmentChange] = []
    /// Partitions that librdkafka reads for us.
    var reading: Set<Int32> = []
    /// Revoked and not yet released: the group is told once for all of them.
    var releasing: Set<Int32> = []
    /// Released, while others that were revoked with them are not.
    var released: Set<Int32> = []
    var isClosing = false
    /// The group has answered with an assignment once, be it empty.
    var wasAssigned = false
}

/// A message, lent by a consumer. Nothing of it can outlive it.
@safe public struct KafkaMessage: ~Copyable {
    private let pointer: UnsafeMutablePointer<rd_kafka_message_t>

    init(owning pointer: UnsafeMutablePointer<rd_kafka_message_t>) { unsafe self.pointer = pointer }

    deinit { unsafe rd_kafka_message_destroy(pointer) }

    public var partition: Int32 { unsafe pointer.pointee.partition }
    public var offset: Int64 { unsafe pointer.pointee.offset }

    /// Milliseconds since 1970; -1 if the record has none.
    public var timestamp: Int64 { unsafe rd_kafka_message_timestamp(pointer, nil) }

    /// Whether it is no record but an error.
    public var isError: Bool { unsafe pointer.pointee.err != RD_KAFKA_RESP_ERR_NO_ERROR }

    /// What librdkafka says instead of a record.
    public var error: KafkaError? {
        let code = unsafe pointer.pointee.err
        guard code != RD_KAFKA_RESP_ERR_NO_ERROR else { return nil }
        let words = unsafe rd_kafka_message_errstr(pointer).map { unsafe String(cString: $0) }
        return KafkaError(.polling, code.rawValue, words)
    }

    /// Lends key and value; both are empty where there is none.
    // Not generic: callers are in other modules, where a generic one would not be specialized.
    public func withBytes(
        _ body: (_ key: Span<UInt8>, _ value: Span<UInt8>, _ isTombstone: Bool) -> Void
    ) {
        let message = unsafe pointer.pointee
        let key = unsafe UnsafeRawBufferPointer(start: message.key, count: message.key_len)
        let value = unsafe UnsafeRawBufferPointer(start: message.payload, count: message.len)
        unsafe body(
            key.assumingMemoryBound(to: UInt8.self).span,
            value.assumingMemoryBound(to: UInt8.self).span, message.payload == nil)
    }

    /// Replaces `bytes` by the record's headers: (name size 2 bytes, name, value size 4 bytes, value),
    /// little endian, one after another.
    /// - Returns: `false`, and `bytes` is as before, if it has none.
    public func takeHeaders(into bytes: inout [UInt8]) -> Bool {
        var list: OpaquePointer?
        guard unsafe rd_kafka_message_headers(pointer, &list) == RD_KAFKA_RESP_ERR_NO_ERROR,
            let list = unsafe list
        else { return false }
        bytes.removeAll(keepingCapacity: true)
        var index = 0
        var name: UnsafePointer<CChar>?
        var value: UnsafeRawPointer?
        var size = 0
        while unsafe rd_kafka_header_get_all(list, index, &name, &value, &size)
            == RD_KAFKA_RESP_ERR_NO_ERROR, let text = unsafe name
        {
            index += 1
            let words = unsafe UnsafeRawBufferPointer(start: text, count: strlen(text))
            // Longer names are nobody's of ours.
            guard words.count <= Int(UInt16.max) else { continue }
            let content = unsafe UnsafeRawBufferPointer(
                start: value, count: value == nil ? 0 : size)
            unsafe withUnsafeBytes(of: UInt16(words.count).littleEndian) {
                unsafe bytes.append(contentsOf: $0)
            }
            unsafe bytes.append(contentsOf: words)
            unsafe withUnsafeBytes(of: UInt32(content.count).littleEndian) {
                unsafe bytes.append(contentsOf: $0)
            }
            unsafe bytes.append(contentsOf: content)
        }
        return true
    }
}

/// One member of a consumer group on one topic, with a queue for each partition that it reads, so that
/// no partition waits behind another.
///
/// The end of its life leaves the group, which can take seconds, and frees the handle.
/// - Thread safety: not `Sendable`. It belongs to the thread that polls it.
@safe public final class KafkaConsumer {
    private let client: NativeClient
    private let topic: String
    private let group: OpaquePointer
    /// By partition.
    private var queues: [Int32: OpaquePointer] = unsafe [:]
    private let wakeDescriptor: Int32

    /// - Parameters:
    ///   - configuration: with `group.id`, and a cooperative assignor.
    ///   - wakeDescriptor: an `eventfd`, which is written to when there is something to poll. It must
    ///     live longer than the consumer.
    public init(
        of topic: String, _ configuration: consuming KafkaConfiguration, wakeDescriptor: Int32,
        observer: any KafkaObserver
    ) throws(KafkaError) {
        let client = try configuration.makeClient(.consumer, KafkaContext(observer))
        unsafe try KafkaError.check(.subscribing, rd_kafka_poll_set_consumer(client.handle))
        guard let group = unsafe rd_kafka_queue_get_consumer(client.handle) else {
            throw KafkaError(.subscribing, RD_KAFKA_RESP_ERR__UNKNOWN_GROUP.rawValue)
        }
        self.client = client
        self.topic = topic
        self.wakeDescriptor = wakeDescriptor
        unsafe self.group = group
        unsafe wake(group, true)
        let topics = unsafe rd_kafka_topic_partition_list_new(1)
        defer { unsafe rd_kafka_topic_partition_list_destroy(topics) }
        unsafe rd_kafka_topic_partition_list_add(topics, topic, RD_KAFKA_PARTITION_UA)
        unsafe try KafkaError.check(.subscribing, rd_kafka_subscribe(client.handle, topics))
    }

    deinit {
        let revoked = client.context.assignment.withLock { assignment in
            assignment.isClosing = true
            return assignment.releasing
        }
        // The group still waits for these, and closing would wait for the group.
        try? release(revoked.sorted())
        for partition in unsafe Array(queues.keys) { unsafe dropQueue(queues[partition]!) }
        unsafe wake(group, false)
        unsafe rd_kafka_queue_destroy(group)
        let isFreed = isSafeToFree
        unsafe _ = rd_kafka_consumer_close(client.handle)
        if !isFreed { client.abandon() }
    }

    private static let abandoned = Atomic(0)

    /// Before 2.3.0 librdkafka aborts the process when a member that waits for its first assignment is
    /// destroyed (its issue 4312). Such a one leaves the group, and is left to the end of the process.
    private var isSafeToFree: Bool {
        if rd_kafka_version() >= 0x0203_0000 { return true }
        if client.context.assignment.withLock({ $0.wasAssigned }) { return true }
        // That it is not a member yet may change this moment; while there are few, no risk is taken.
        if Self.abandoned.add(1, ordering: .relaxed).newValue <= 64 { return false }
        guard let member = unsafe rd_kafka_memberid(client.handle) else { return true }
        defer { unsafe rd_kafka_mem_free(client.handle, member) }
        return unsafe member.pointee == 0
    }

    private func wake(_ queue: OpaquePointer, _ isOn: Bool) {
        // What an eventfd takes: its count goes up by one.
        var one: UInt64 = 1
        unsafe rd_kafka_queue_io_event_enable(
            queue, isOn ? wakeDescriptor : -1, &one, isOn ? MemoryLayout<UInt64>.size : 0)
    }

    private func dropQueue(_ queue: OpaquePointer) {
        unsafe wake(queue, false)
        unsafe rd_kafka_queue_destroy(queue)
    }

    // MARK: - The group

    /// Serves the group: assignment changes, and errors that concern no record. Never waits.
    /// - Returns: the oldest error, if there is one.
    public func serve() -> KafkaError? {
        for _ in 0..<100 {
            guard let pointer = unsafe rd_kafka_consumer_poll(client.handle, 0) else { return nil }
            let message = unsafe KafkaMessage(owning: pointer)
            // A record here is of a partition that was given up meanwhile.
            if let error = message.error { return error }
        }
        return nil
    }

    /// The oldest change that was not handed out yet.
    public func nextChange() -> KafkaAssignmentChange? {
        client.context.assignment.withLock { assignment in
            assignment.changes.isEmpty ? nil : assignment.changes.removeFirst()
        }
    }

    /// The error that made the consumer useless, if one did.
    public var fatalFailure: KafkaError? { client.fatalFailure }

    /// Reads partitions from these offsets on; also those that are read already.
    public func read(_ starts: [(partition: Int32, offset: Int64)]) throws(KafkaError) {
        try stopReading(starts.map(\.partition))
        let list = unsafe rd_kafka_topic_partition_list_new(Int32(starts.count))
        defer { unsafe rd_kafka_topic_partition_list_destroy(list) }
        for (partition, offset) in starts {
            try openQueue(partition)
            unsafe rd_kafka_topic_partition_list_add(list, topic, partition).pointee.offset =
                offset
        }
        unsafe try KafkaError.check(.assigning, rd_kafka_incremental_assign(client.handle, list))
        client.context.assignment.withLock { $0.reading.formUnion(starts.map(\.partition)) }
    }

    private func openQueue(_ partition: Int32) throws(KafkaError) {
        guard unsafe queues[partition] == nil else { return }
        guard let queue = unsafe rd_kafka_queue_get_partition(client.handle, topic, partition)
        else { throw KafkaError(.assigning, RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION.rawValue) }
        // To itself: its records do not go to the queue of all. Before it is assigned, so that
        // none is there already.
        unsafe rd_kafka_queue_forward(queue, nil)
        unsafe wake(queue, true)
        unsafe queues[partition] = queue
    }

    /// Reads nothing more of partitions, which stay with this member.
    public func stopReading(_ partitions: [Int32]) throws(KafkaError) {
        let stopped = client.context.assignment.withLock { assignment in
            partitions.filter { assignment.reading.remove($0) != nil }
        }
        guard !stopped.isEmpty else { return }
        try unassign(stopped)
    }

    private func unassign(_ partitions: [Int32]) throws(KafkaError) {
        let list = unsafe makeList(topic, partitions)
        defer { unsafe rd_kafka_topic_partition_list_destroy(list) }
        unsafe try KafkaError.check(.assigning, rd_kafka_incremental_unassign(client.handle, list))
    }

    /// Whether the group waits for partitions to be released. Whatever is unassigned then is the answer
    /// to the group, so partitions that are read must not be started anew before.
    public var isReleasing: Bool {
        client.context.assignment.withLock { !$0.releasing.isEmpty }
    }

    /// Gives partitions up. When all that the group revoked are released, the group goes on; what is
    /// given up besides goes with them.
    public func release(_ partitions: [Int32]) throws(KafkaError) {
        for partition in partitions {
            if let queue = unsafe queues.removeValue(forKey: partition) {
                unsafe dropQueue(queue)
            }
        }
        var atOnce: [Int32] = []
        var together: [Int32]?
        client.context.assignment.withLock { assignment in
            let wasReleasing = !assignment.releasing.isEmpty
            for partition in partitions {
                if assignment.releasing.remove(partition) != nil || wasReleasing {
                    assignment.released.insert(partition)
                } else if assignment.reading.remove(partition) != nil {
                    atOnce.append(partition)
                }
            }
            if wasReleasing, assignment.releasing.isEmpty {
                together = assignment.released.filter {
                    assignment.reading.remove($0) != nil
                }.sorted()
                assignment.released = []
            }
        }
        if !atOnce.isEmpty { try unassign(atOnce) }
        // Also if none of them was read: the group waits for the call.
        if let together { try unassign(together) }
    }

    // MARK: - Records

    /// Lends the records of a partition that are there now, until there are none or `body` says that it
    /// wants no more.
    public func take(from partition: Int32, _ body: (borrowing KafkaMessage) -> Bool) {
        guard let queue = unsafe queues[partition] else { return }
        while let pointer = unsafe rd_kafka_consume_queue(queue, 0) {
            let message = unsafe KafkaMessage(owning: pointer)
            if !body(message) { return }
        }
    }

    /// Whether something of a partition waits to be handed out.
    public func hasWaiting(_ partition: Int32) -> Bool {
        guard let queue = unsafe queues[partition] else { return false }
        return unsafe rd_kafka_queue_length(queue) > 0
    }

    /// The offsets that the last answers of the broker told; `nil` before the first one. The lower is
    /// not told with every answer.
    public func knownOffsets(of partition: Int32) -> (earliest: Int64?, next: Int64)? {
        var low: Int64 = -1
        var high: Int64 = -1
        let code = unsafe rd_kafka_get_watermark_offsets(
            client.handle, topic, partition, &low, &high)
        guard code == RD_KAFKA_RESP_ERR_NO_ERROR, high >= 0 else { return nil }
        return (low >= 0 ? low : nil, high)
    }

    /// Asks the broker for a partition's offsets, for at most `milliseconds`.
    public func offsets(
        of partition: Int32, milliseconds: Int32
    ) throws(KafkaError) -> (earliest: Int64, next: Int64) {
        try queryOffsets(client, topic, partition, milliseconds)
    }

    /// Lets the group's monitors know up to where records were processed. Nothing is waited for, and
    /// no failure told.
    public func commit(_ offsets: [(partition: Int32, next: Int64)]) {
        guard !offsets.isEmpty else { return }
        let list = unsafe rd_kafka_topic_partition_list_new(Int32(offsets.count))
        defer { unsafe rd_kafka_topic_partition_list_destroy(list) }
        for (partition, next) in offsets {
            unsafe rd_kafka_topic_partition_list_add(list, topic, partition).pointee.offset = next
        }
        unsafe _ = rd_kafka_commit(client.handle, list, 1)
    }
}

func queryOffsets(
    _ client: NativeClient, _ topic: String, _ partition: Int32, _ milliseconds: Int32
) throws(KafkaError) -> (earliest: Int64, next: Int64) {
    var low: Int64 = -1
    var high: Int64 = -1
    try KafkaError.check(
        .readingOffsets,
        unsafe rd_kafka_query_watermark_offsets(
            client.handle, topic, partition, &low, &high, milliseconds))
    return (low, high)
}

private func makeList(
    _ topic: String, _ partitions: [Int32]
) -> UnsafeMutablePointer<rd_kafka_topic_partition_list_t> {
    let list = unsafe rd_kafka_topic_partition_list_new(Int32(partitions.count))!
    for partition in partitions {
        unsafe rd_kafka_topic_partition_list_add(list, topic, partition)
    }
    return unsafe list
}

/// Called by librdkafka while the consumer is polled or closed, on that thread.
///
/// The group goes on at once when something is assigned: what is really read is decided partition by
/// partition, when it is known from where. When something is revoked it waits for `release`.
func kafkaRebalanceCallback(
    _ client: OpaquePointer?, _ code: rd_kafka_resp_err_t,
    _ list: UnsafeMutablePointer<rd_kafka_topic_partition_list_t>?,
    _ opaque: UnsafeMutableRawPointer?
) {
    guard let client = unsafe client, let context = unsafe KafkaContext.from(opaque) else { return }
    var partitions: [Int32] = []
    var topic = ""
    if let list = unsafe list {
        for index in 0..<Int(unsafe list.pointee.cnt) {
            partitions.append(unsafe list.pointee.elems[index].partition)
            unsafe topic = String(cString: list.pointee.elems[index].topic)
        }
    }
    switch code {
    case RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS:
        context.assignment.withLock { $0.wasAssigned = true }
        let none = unsafe makeList(topic, [])
        unsafe report(rd_kafka_incremental_assign(client, none), context)
        unsafe rd_kafka_topic_partition_list_destroy(none)
        // Also when there are none: this member has a place in the group.
        context.assignment.withLock { $0.changes.append(.assigned(partitions)) }
    case RD_KAFKA_RESP_ERR__REVOKE_PARTITIONS:
        let isLost = unsafe rd_kafka_assignment_lost(client) != 0
        let stopped: [Int32]? = context.assignment.withLock { assignment in
            guard isLost || assignment.isClosing else {
                assignment.releasing.formUnion(partitions)
                assignment.changes.append(.revoked(partitions))
                return nil
            }
            assignment.releasing.subtract(partitions)
            assignment.released.subtract(partitions)
            assignment.changes.append(.lost(partitions))
            return partitions.filter { assignment.reading.remove($0) != nil }
        }
        guard let stopped else { return }
        let stopping = unsafe makeList(topic, stopped)
        unsafe report(rd_kafka_incremental_unassign(client, stopping), context)
        unsafe rd_kafka_topic_partition_list_destroy(stopping)
    default:
        context.observer.kafkaReported(KafkaError(.assigning, code.rawValue))
        context.assignment.withLock { assignment in
            let lost = assignment.reading.union(assignment.releasing)
            if !lost.isEmpty { assignment.changes.append(.lost(lost.sorted())) }
            assignment.reading = []
            assignment.releasing = []
            assignment.released = []
        }
        unsafe _ = rd_kafka_assign(client, nil)
    }
}

private func report(_ error: OpaquePointer?, _ context: KafkaContext) {
    do throws(KafkaError) { unsafe try KafkaError.check(.assigning, error) } catch {
        context.observer.kafkaReported(error)
    }
}
