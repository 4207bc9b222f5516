internal import Bytes
internal import KeyValue
internal import Synchronization
public import Schemas
public import System

/// The log in files of our own, on LMDB: nothing to install, several processes on one directory,
/// every acknowledged record intact after `kill -9`.
///
/// Topics that are acknowledged before they are answered and topics that are answered at once live
/// in an environment each, with a writer thread each.
///
/// Close it when done; one that is only dropped stops its threads without waiting for them.
public final class EmbeddedLog: EventLog {
    public typealias Producer = EmbeddedProducer
    public typealias Consumer = EmbeddedConsumer

    private struct State {
        var isClosed = false
        var writes = false
        var threads: [SystemThread] = []
    }

    /// The directory, as given.
    public let directory: String
    private let settings: EmbeddedLogSettings
    private let acked: EmbeddedEnvironment
    private let queued: EmbeddedEnvironment
    private let ackedWriter: EmbeddedWriter
    private let queuedWriter: EmbeddedWriter
    let watch: EmbeddedWatch
    private let state = Mutex(State())

    /// Opens the log in `directory`, which is made (mode 0700) if it is missing.
    ///
    /// - Throws: `.configuration` if the directory cannot be used or a newer release wrote it,
    ///   `.storage` if it is damaged or the disk is full.
    public init(
        directory: String, settings: EmbeddedLogSettings = EmbeddedLogSettings()
    ) throws(EventLogError) {
        guard !directory.isEmpty, settings.mapBytes >= 1 << 20, settings.commitBytes > 0,
            (1...100).contains(settings.readMilliseconds), settings.expiryMilliseconds > 0,
            settings.wakeMilliseconds > 0
        else {
            throw EventLogError(
                .opening, .configuration,
                "an embedded log needs a directory, a map of at least 1 MiB, reads of 1 to 100 ms "
                    + "and intervals above 0")
        }
        self.directory = directory
        self.settings = settings
        acked = try EmbeddedEnvironment(directory: "\(directory)/acked", settings)
        queued = try EmbeddedEnvironment(directory: "\(directory)/queued", settings)
        let doorbell: Doorbell
        do throws(DoorbellError) { doorbell = try Doorbell(path: "\(directory)/doorbell") } catch {
            throw EventLogError(
                .opening, error.isDiskFull ? .storage : .configuration,
                "\(error); check that the directory is ours to write and the disk has room")
        }
        ackedWriter = EmbeddedWriter(acked, number: 0, settings, doorbell)
        queuedWriter = EmbeddedWriter(queued, number: 1, settings, doorbell)
        watch = EmbeddedWatch(
            doorbell, [acked, queued], wakeMilliseconds: settings.wakeMilliseconds)
        let watch = self.watch
        state.withLock { $0.threads.append(SystemThread.start("log-watch") { watch.run() }) }
    }

    deinit {
        ackedWriter.stop()
        queuedWriter.stop()
        watch.stop()
    }

    /// Stores what producers have queued and ends the threads. Consumers can still poll what is
    /// there, but are not woken any more.
    public func close() {
        let threads = state.withLock { state in
            state.isClosed = true
            defer { state.threads = [] }
            return state.threads
        }
        ackedWriter.stop()
        queuedWriter.stop()
        watch.stop()
        for thread in threads { thread.join() }
    }

    var readMilliseconds: Int64 { settings.readMilliseconds }

    private func environment(of topic: Topic) -> EmbeddedEnvironment {
        switch topic.durability {
        case .acked: acked
        case .queued: queued
        }
    }

    /// Also brings the retention of topics that exist to what is asked for. What may not change
    /// besides the number of partitions is whether a topic is compacted.
    public func createTopics(_ topics: [TopicSettings]) throws(EventLogError) {
        for topic in topics { try environment(of: topic.topic).create(topic) }
    }

    public func partitionCount(of topic: Topic) throws(EventLogError) -> Int32? {
        try open(topic, .reading).map { Int32($0.places.count) }
    }

    public func offsets(of place: TopicPartition) throws(EventLogError) -> OffsetRange {
        let topic = try existing(place.topic, .reading)
        try check(place.partition, topic)
        return try environment(of: place.topic).heads(of: topic)[Int(place.partition)].range
    }

    public func makeProducer(_ settings: ProducerSettings) throws(EventLogError) -> EmbeddedProducer
    {
        let isOpen = state.withLock { state in
            guard !state.isClosed else { return false }
            if !state.writes {
                state.writes = true
                let (acked, queued) = (ackedWriter, queuedWriter)
                state.threads.append(SystemThread.start("log-acked") { acked.run() })
                state.threads.append(SystemThread.start("log-queued") { queued.run() })
            }
            return true
        }
        guard isOpen else {
            throw EventLogError(.producing, .configuration, "the log was closed; open it anew")
        }
        return EmbeddedProducer(
            self, EmbeddedProducerQueue(settings), acked: ackedWriter, queued: queuedWriter)
    }

    public func makeConsumer(
        of topic: Topic, group: String, waker: Waker
    ) throws(EventLogError) -> EmbeddedConsumer {
        let opened = try existing(topic, .assigning)
        return EmbeddedConsumer(
            self, environment(of: topic), opened, partitions: opened.places.indices.map(Int32.init),
            waker)
    }

    /// A member that is assigned only `partitions`, so that workers of a process can share a topic.
    /// Nobody checks that members do not overlap.
    public func makeConsumer(
        of topic: Topic, group: String, waker: Waker, partitions: [Int32]
    ) throws(EventLogError) -> EmbeddedConsumer {
        let opened = try existing(topic, .assigning)
        for partition in partitions { try check(partition, opened) }
        return EmbeddedConsumer(
            self, environment(of: topic), opened, partitions: partitions, waker)
    }

    private func open(
        _ topic: Topic, _ operation: EventLogError.Operation
    ) throws(EventLogError) -> EmbeddedTopic? {
        do throws(KeyValueError) { return try environment(of: topic).topic(topic) } catch {
            throw EventLogError(operation, error)
        }
    }

    private func existing(
        _ topic: Topic, _ operation: EventLogError.Operation
    ) throws(EventLogError) -> EmbeddedTopic {
        guard let opened = try open(topic, operation) else {
            throw EventLogError(
                operation, .configuration,
                "topic \(topic.rawValue) does not exist; create it first")
        }
        return opened
    }

    func check(_ partition: Int32, _ topic: EmbeddedTopic) throws(EventLogError) {
        guard partition >= 0, Int(partition) < topic.places.count else {
            throw EventLogError(
                .reading, .configuration, place: TopicPartition(topic.topic, partition),
                "the topic has \(topic.places.count) partitions")
        }
    }
}

/// What a topic of an embedded log holds.
public struct EmbeddedTopicStatus: Hashable, Sendable {
    public var topic: Topic
    /// By partition.
    public var offsets: [OffsetRange]
    /// Keys, values and headers.
    public var contentBytes: Int64
}

/// What a pass over a topic found.
public struct EmbeddedLogCount: Hashable, Sendable {
    public var records = 0
    /// Keys, values and headers.
    public var contentBytes: Int64 = 0
}

extension EmbeddedLog {
    /// The topics that exist, in the order of `Topic`.
    public func status() throws(EventLogError) -> [EmbeddedTopicStatus] {
        var result: [EmbeddedTopicStatus] = []
        for topic in Topic.allCases {
            guard let opened = try open(topic, .reading) else { continue }
            let heads = try environment(of: topic).heads(of: opened)
            result.append(
                EmbeddedTopicStatus(
                    topic: topic, offsets: heads.map(\.range),
                    contentBytes: heads.reduce(0) { $0 + $1.contentBytes }))
        }
        return result
    }

    /// Reads every record of a topic once and does nothing with them: the least that any consumer
    /// costs, beside which benchmarks print their own figures.
    public func drain(_ topic: Topic) throws(EventLogError) -> EmbeddedLogCount {
        let opened = try existing(topic, .reading)
        var count = EmbeddedLogCount()
        var reader = KeyValueReader(environment(of: topic).store)
        for place in opened.places {
            var next: UInt64 = 0
            var isAtEnd = false
            while !isAtEnd {
                isAtEnd = true
                var left = 20_000
                do throws(KeyValueError) {
                    try reader.begin()
                    defer { reader.end() }
                    try reader.scan(place.records, from: next) { offset, bytes in
                        guard left > 0 else {
                            isAtEnd = false
                            return false
                        }
                        left -= 1
                        next = offset + 1
                        count.records += 1
                        count.contentBytes += Int64(RecordHead(bytes, at: 0)?.contentBytes ?? 0)
                        return true
                    }
                } catch {
                    throw EventLogError(.reading, error)
                }
            }
        }
        return count
    }

    /// The headers of one record, as `RecordHeaders` encodes them; `nil` if it is not there.
    package func headers(
        of place: TopicPartition, at offset: Int64
    ) throws(EventLogError) -> [UInt8]? {
        let opened = try existing(place.topic, .reading)
        try check(place.partition, opened)
        var reader = KeyValueReader(environment(of: place.topic).store)
        do throws(KeyValueError) {
            try reader.begin()
            let records = opened.places[Int(place.partition)].records
            return try reader.withValue(of: UInt64(offset), in: records) { bytes in
                RecordHead(bytes, at: 0).map { $0.headers(in: bytes).array } ?? []
            }
        } catch {
            throw EventLogError(.reading, error, place: place)
        }
    }
}
