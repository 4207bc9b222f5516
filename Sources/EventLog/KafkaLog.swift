internal import Kafka
public import Schemas
internal import Synchronization
public import System

/// The log on an Apache Kafka cluster, through librdkafka: many front-ends and workers, on as many
/// machines.
///
/// It can be made while the cluster is away; `fault` tells when it answers. Close it when done.
public final class KafkaLog: EventLog {
    public typealias Producer = KafkaLogProducer
    public typealias Consumer = KafkaLogConsumer

    public let settings: KafkaLogSettings
    private let admin: KafkaAdmin
    let health: KafkaHealth
    private let watch: KafkaWatch
    private let makeTopics:
        (@Sendable (_ topics: [(name: String, partitions: Int32)]) throws -> Void)?
    private let thread = Mutex<SystemThread?>(nil)

    /// - Throws: `.configuration` if librdkafka does not take the settings. That no broker answers is
    ///   no error here.
    public convenience init(_ settings: KafkaLogSettings) throws(EventLogError) {
        try self.init(settings, makeTopics: nil)
    }

    /// - Parameter makeTopics: makes topics where the brokers have no admin interface, as those that
    ///   tests use.
    public init(
        _ settings: KafkaLogSettings,
        makeTopics: (@Sendable (_ topics: [(name: String, partitions: Int32)]) throws -> Void)?
    ) throws(EventLogError) {
        self.settings = settings
        self.makeTopics = makeTopics
        let health = KafkaHealth(brokers: settings.brokers, isQuiet: !settings.isWatched)
        self.health = health
        let configuration = try settings.makeAdmin()
        do throws(KafkaError) {
            admin = try KafkaAdmin(configuration, observer: health)
        } catch {
            throw EventLogError(.opening, .configuration, "\(error.reason); see --kafka-config")
        }
        watch = KafkaWatch(admin, health)
        guard settings.isWatched else { return }
        let watch = watch
        thread.withLock { $0 = SystemThread.start("kafka-watch") { watch.run() } }
    }

    deinit { watch.stop() }

    /// Lets the watch end, without waiting for it.
    public func beginClosing() { watch.stop() }

    /// Ends the watch; producers and consumers are closed by themselves.
    public func close() {
        watch.stop()
        let running = thread.withLock { thread in
            defer { thread = nil }
            return thread
        }
        running?.join()
    }

    /// Why the cluster cannot be used now, for people; `nil` if it answers.
    public var fault: String? { health.fault }

    // MARK: - Topics

    /// Retention and the like of topics that exist stay as they are: `differences` tells them.
    public func createTopics(_ topics: [TopicSettings]) throws(EventLogError) {
        var counts = try askCounts(.creatingTopics)
        var missing: [TopicSettings] = []
        for topic in topics where try !isThere(topic, counts) { missing.append(topic) }
        guard !missing.isEmpty else { return }
        try make(missing)
        // A broker may learn of a topic later than the one that made it.
        let end = SystemClock.monotonicMilliseconds() + settings.requestMilliseconds
        let pause = Waker()
        while true {
            counts = try askCounts(.creatingTopics)
            var hidden: Topic?
            for topic in missing where try !isThere(topic, counts) { hidden = topic.topic }
            guard let hidden else { return }
            guard SystemClock.monotonicMilliseconds() < end else {
                throw EventLogError(
                    .creatingTopics, .unavailable,
                    "topic \(hidden.rawValue) was made, but the brokers do not tell of it yet; "
                        + "try again")
            }
            pause.wait(milliseconds: 50)
        }
    }

    private func isThere(
        _ topic: TopicSettings, _ counts: [String: Int32]
    ) throws(EventLogError) -> Bool {
        guard let count = counts[topic.topic.rawValue] else { return false }
        guard count == topic.partitions else {
            throw EventLogError(
                .creatingTopics, .configuration,
                "topic \(topic.topic.rawValue) has \(count) partitions and not \(topic.partitions): "
                    + "state is kept by partition, so take \(count), or brokers or a database of "
                    + "another fleet")
        }
        return true
    }

    private func make(_ topics: [TopicSettings]) throws(EventLogError) {
        if let makeTopics {
            do {
                try makeTopics(topics.map { ($0.topic.rawValue, $0.partitions) })
            } catch {
                throw EventLogError(.creatingTopics, .unavailable, "\(error)")
            }
            return
        }
        let failures: [String: KafkaError]
        do throws(KafkaError) {
            failures = try admin.create(
                topics.map { topic in
                    KafkaNewTopic(
                        topic.topic.rawValue, partitions: topic.partitions,
                        replication: settings.replication,
                        settings: topic.kafkaSettings(replication: settings.replication))
                }, milliseconds: Int32(clamping: settings.requestMilliseconds * 3))
        } catch {
            throw health.error(.creatingTopics, error)
        }
        // Another may have been quicker.
        for (name, failure) in failures.sorted(by: { $0.key < $1.key })
        where failure.kind != .topicExists {
            let advice = failure.isDenied ? "; let this user create topics" : ""
            throw EventLogError(
                .creatingTopics, failure.kind == .unavailable ? .unavailable : .configuration,
                "topic \(name): \(failure.reason) (\(failure.code))\(advice)")
        }
    }

    /// What of existing topics is not as it should be, for people.
    public func differences(from topics: [TopicSettings]) throws(EventLogError) -> [String] {
        let counts = try askCounts(.reading)
        var differences: [String] = []
        for topic in topics {
            let name = topic.topic.rawValue
            guard let count = counts[name] else {
                differences.append("\(name) does not exist")
                continue
            }
            if count != topic.partitions {
                differences.append("\(name) has \(count) partitions, not \(topic.partitions)")
            }
            let found: [String: String]
            do throws(KafkaError) {
                found = try admin.settings(
                    of: name, milliseconds: Int32(clamping: settings.requestMilliseconds))
            } catch {
                throw health.error(.reading, error)
            }
            differences += topic.differences(found).map { "\(name): \($0)" }
        }
        return differences
    }

    public func partitionCount(of topic: Topic) throws(EventLogError) -> Int32? {
        if let known = watch.knownCount(of: topic.rawValue) { return known }
        return try askCounts(.reading)[topic.rawValue]
    }

    private func askCounts(
        _ operation: EventLogError.Operation
    ) throws(EventLogError) -> [String: Int32] {
        let end = SystemClock.monotonicMilliseconds() + settings.requestMilliseconds
        var slice: Int64 = 1_000
        while true {
            let left = max(1, end - SystemClock.monotonicMilliseconds())
            do throws(KafkaError) {
                return try watch.askCounts(milliseconds: min(slice, left))
            } catch {
                // A refusal does not become better by waiting.
                guard !health.isRefused, SystemClock.monotonicMilliseconds() < end else {
                    throw health.error(operation, error)
                }
                slice *= 2
            }
        }
    }

    public func offsets(of place: TopicPartition) throws(EventLogError) -> OffsetRange {
        do throws(KafkaError) {
            let (earliest, next) = try admin.offsets(
                of: place.topic.rawValue, partition: place.partition,
                milliseconds: Int32(clamping: settings.requestMilliseconds))
            return OffsetRange(earliest: earliest, next: next)
        } catch {
            // What was the matter waits to be served.
            admin.poll(milliseconds: 0)
            throw health.error(.reading, error)
        }
    }

    // MARK: - Clients

    public func makeProducer(_ settings: ProducerSettings) throws(EventLogError) -> KafkaLogProducer
    {
        try KafkaLogProducer(settings, self.settings, health, watch)
    }

    /// - Throws: `.configuration` if the topic does not exist.
    public func makeConsumer(
        of topic: Topic, group: String, waker: Waker
    ) throws(EventLogError) -> KafkaLogConsumer {
        guard let count = try partitionCount(of: topic) else {
            throw EventLogError(
                .consuming, .configuration,
                "topic \(topic.rawValue) does not exist, or this user may not see it; make the topics "
                    + "with `heartline topics create`")
        }
        return try KafkaLogConsumer(
            topic, partitions: count, group: group, waker, settings, health)
    }
}

extension TopicSettings {
    /// As brokers name them.
    func kafkaSettings(replication: Int32) -> [String: String] {
        var settings = [
            "max.message.bytes": "\(KafkaLogSettings.largestMessage)",
            "message.timestamp.type": "CreateTime",
        ]
        if let retentionMilliseconds {
            settings["cleanup.policy"] = "delete"
            settings["retention.ms"] = "\(retentionMilliseconds)"
            settings["retention.bytes"] = "\(retentionBytesPerPartition)"
            // Only whole segments are deleted.
            settings["segment.ms"] = "\(max(600_000, retentionMilliseconds / 8))"
        } else {
            settings["cleanup.policy"] = "compact"
        }
        // One copy may be away, and a record is still on two.
        if replication >= 3 { settings["min.insync.replicas"] = "2" }
        return settings
    }

    /// Kafka counts a partition where we count a topic.
    private var retentionBytesPerPartition: Int64 {
        max(1 << 20, retentionBytes / Int64(max(1, partitions)))
    }

    /// What of `found` is not as `kafkaSettings` has it.
    func differences(_ found: [String: String]) -> [String] {
        var result: [String] = []
        for (name, wanted) in kafkaSettings(replication: -1).sorted(by: { $0.key < $1.key }) {
            guard let value = found[name], value != wanted else { continue }
            switch name {
            case "segment.ms": continue
            case "max.message.bytes":
                if let number = Int(value), number >= KafkaLogSettings.largestMessage { continue }
            default: break
            }
            result.append("\(name) is \(value), not \(wanted)")
        }
        return result
    }
}
