internal import Kafka
internal import Synchronization
internal import System

/// Whether a cluster answers, and if not, why not. Hears of every client of a log.
final class KafkaHealth: KafkaObserver {
    private struct State {
        /// The most telling of what clients reported since the cluster last answered.
        var reason: KafkaError?
        var fault: String? = "waiting for the first answer"
        var isTold = false
    }

    private let state = Mutex(State())
    private let brokers: String
    /// Writes nothing to the log: who asked is told.
    private let isQuiet: Bool

    init(brokers: String, isQuiet: Bool) {
        self.brokers = brokers
        self.isQuiet = isQuiet
    }

    /// Whether user, password or TLS were refused since the cluster last answered.
    var isRefused: Bool {
        state.withLock { $0.reason.map { Self.weight($0) >= Self.refusal } ?? false }
    }

    /// `nil`: the cluster answers. Otherwise why it does not, and what to do.
    var fault: String? { state.withLock { $0.fault } }

    func kafkaReported(_ error: KafkaError) {
        state.withLock { state in
            if let reason = state.reason, Self.weight(reason) > Self.weight(error) { return }
            state.reason = error
        }
    }

    func kafkaLogged(level: Int32, _ message: String) {
        // What matters is reported as an error as well.
        Log.debug("librdkafka", ["kafka.level": "\(level)", "kafka.message": message])
    }

    private static let refusal = 3

    private static func weight(_ error: KafkaError) -> Int {
        switch error.kind {
        case .authentication, .tls: refusal
        case .unresolved, .unauthorized: 2
        case .unavailable, .fatal: error.reason.contains("brokers are down") ? 0 : 1
        default: 0
        }
    }

    func answered() {
        let wasTold = state.withLock { state in
            defer { state = State(reason: nil, fault: nil, isTold: false) }
            return state.isTold
        }
        if wasTold, !isQuiet { Log.notice("Kafka answers", ["kafka.brokers": brokers]) }
    }

    /// The cluster did not answer a request.
    func missed(_ error: KafkaError) {
        let news: String? = state.withLock { state in
            let cause = state.reason ?? error
            let text = describe(cause)
            // The words differ from try to try; the kind is what changes for an operator.
            let isNews = !state.isTold || state.fault == nil
            state.fault = text
            state.isTold = true
            return isNews ? text : nil
        }
        if let news, !isQuiet {
            Log.warning("Kafka does not answer", ["kafka.brokers": brokers, "error": news])
        }
    }

    func describe(_ error: KafkaError) -> String {
        let advice = EventLogError.advice(error.kind).map { "; \($0)" } ?? ""
        return "connecting to Kafka at \(brokers): \(error.reason)\(advice)"
    }

    /// What to throw for a request that failed: the cause, where clients have reported one.
    func error(_ operation: EventLogError.Operation, _ error: KafkaError) -> EventLogError {
        let cause = state.withLock { $0.reason }
        guard let cause, error.kind == .unavailable, Self.weight(cause) > 0 else {
            return EventLogError(operation, error)
        }
        return EventLogError(operation, .unavailable, describe(cause))
    }
}

/// The thread that asks the cluster for its topics now and then, so that an operator is told when it
/// does not answer, and what it knows is known to all.
final class KafkaWatch: Sendable {
    private let admin: KafkaAdmin
    private let health: KafkaHealth
    private struct Known {
        var partitions: Int32
        /// Answers since in which the topic was missing.
        var absences = 0
    }

    /// Answers in a row without a topic after which it counts as gone: a broker that has just started
    /// may not know all of them.
    private static let absences = 3

    /// `nil` before the first answer.
    private let topics = Mutex<[String: Known]?>(nil)
    private let isStopping = Atomic(false)

    init(_ admin: KafkaAdmin, _ health: KafkaHealth) {
        self.admin = admin
        self.health = health
    }

    func stop() { isStopping.store(true, ordering: .releasing) }

    /// The thread's body.
    func run() {
        var next: Int64 = 0
        while !isStopping.load(ordering: .acquiring) {
            admin.poll(milliseconds: 100)
            guard SystemClock.monotonicMilliseconds() >= next else { continue }
            do throws(KafkaError) {
                _ = try askCounts(milliseconds: 2_000)
                next = SystemClock.monotonicMilliseconds() + 5_000
            } catch {
                next = SystemClock.monotonicMilliseconds() + 500
            }
        }
    }

    /// How many partitions a topic has, as was last heard; they never become fewer.
    func knownCount(of topic: String) -> Int32? { topics.withLock { $0?[topic]?.partitions } }

    /// Whether the cluster said that there is no such topic.
    func isMissing(_ topic: String) -> Bool {
        topics.withLock { topics in topics.map { $0[topic] == nil } ?? false }
    }

    @discardableResult
    func askCounts(milliseconds: Int64) throws(KafkaError) -> [String: Int32] {
        do throws(KafkaError) {
            let found = try admin.partitionCounts(milliseconds: Int32(clamping: milliseconds))
            topics.withLock { topics in
                var newest = found.mapValues { Known(partitions: $0) }
                for (name, known) in topics ?? [:] where newest[name] == nil {
                    guard known.absences + 1 < Self.absences else { continue }
                    newest[name] = Known(
                        partitions: known.partitions, absences: known.absences + 1)
                }
                topics = newest
            }
            health.answered()
            return found
        } catch {
            // What was the matter waits to be served.
            admin.poll(milliseconds: 0)
            health.missed(error)
            throw error
        }
    }
}
