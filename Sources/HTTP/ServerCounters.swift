public import Metrics
internal import Synchronization

/// What a server counts, readable from any thread; each value is up to one round of its loop old.
public final class ServerCounters: Sendable {
    let loops: [LoopCounters]

    private let routeNames: [String]

    init(loops: Int, routes: [String]) {
        routeNames = ["other"] + routes
        let count = routeNames.count
        self.loops = (0..<loops).map { _ in LoopCounters(routes: count) }
    }

    /// Connections open now, those that are only being closed included.
    public var connectionsOpen: Int { sum { $0.open.load(ordering: .relaxed) } }
    /// Connections ever accepted.
    public var connectionsAccepted: Int { sum { $0.accepted.load(ordering: .relaxed) } }
    /// Connections answered 503, or closed, because there were too many.
    public var connectionsRejected: Int { sum { $0.rejected.load(ordering: .relaxed) } }
    /// Requests handed to handlers.
    public var requests: Int { sum { $0.requests.load(ordering: .relaxed) } }
    /// Bytes of requests being received or awaiting their answer, and of answers being sent.
    public var bytesInFlight: Int { sum { $0.bytesInFlight.load(ordering: .relaxed) } }
    /// Times that accepting stopped for want of file descriptors or memory.
    public var acceptPauses: Int { sum { $0.acceptPauses.load(ordering: .relaxed) } }

    /// WebSockets open now.
    public var webSocketsOpen: Int { sum { $0.webSocketsOpen.load(ordering: .relaxed) } }
    /// WebSockets ever opened.
    public var webSocketsOpened: Int { sum { $0.webSocketsOpened.load(ordering: .relaxed) } }
    /// Whole messages that came over WebSockets; control frames are none.
    public var webSocketMessagesReceived: Int {
        sum { $0.webSocketMessagesReceived.load(ordering: .relaxed) }
    }
    /// Messages given to connections; whether a client has taken them is not known.
    public var webSocketMessagesSent: Int {
        sum { $0.webSocketMessagesSent.load(ordering: .relaxed) }
    }
    /// Bytes of the received messages, without their frames.
    public var webSocketBytesReceived: Int {
        sum { $0.webSocketBytesReceived.load(ordering: .relaxed) }
    }
    /// Bytes of the sent messages, without their frames.
    public var webSocketBytesSent: Int { sum { $0.webSocketBytesSent.load(ordering: .relaxed) } }

    /// Answers by the first digit of their status, 1 to 5; those of the server itself included.
    public func responses(statusClass: Int) -> Int {
        switch statusClass {
        case 1: sum { $0.informational.load(ordering: .relaxed) }
        case 2: sum { $0.successful.load(ordering: .relaxed) }
        case 3: sum { $0.redirected.load(ordering: .relaxed) }
        case 4: sum { $0.clientErrors.load(ordering: .relaxed) }
        case 5: sum { $0.serverErrors.load(ordering: .relaxed) }
        default: 0
        }
    }

    /// What was asked for and how it was answered; `other` is what no route was found for.
    public struct Route: Sendable {
        public var name: String
        /// By the first digit of the status, 1 to 5.
        public var answers: InlineArray<6, UInt64>
        /// From a request's being read whole to the beginning of its answer.
        public var durations: DurationCounts
    }

    /// All of them, in the order of the configuration, whether anybody asked for them or not.
    public var routes: [Route] {
        routeNames.indices.map { index in
            var route = Route(
                name: routeNames[index], answers: InlineArray(repeating: 0),
                durations: DurationCounts())
            for loop in loops {
                for digit in route.answers.indices {
                    route.answers[digit] +=
                        loop.routes[index].answers[digit].load(ordering: .relaxed)
                }
                route.durations.add(loop.routes[index].durations.counts)
            }
            return route
        }
    }

    private func sum(_ value: (LoopCounters) -> Int) -> Int {
        var total = 0
        for loop in loops { total += value(loop) }
        return total
    }
}

/// One loop's share; written by its thread only.
final class LoopCounters: Sendable {
    let routes: [RouteCounters]
    let open = Atomic(0)
    let accepted = Atomic(0)
    let rejected = Atomic(0)
    let requests = Atomic(0)
    let bytesInFlight = Atomic(0)
    let acceptPauses = Atomic(0)
    let informational = Atomic(0)
    let successful = Atomic(0)
    let redirected = Atomic(0)
    let clientErrors = Atomic(0)
    let serverErrors = Atomic(0)
    let webSocketsOpen = Atomic(0)
    let webSocketsOpened = Atomic(0)
    let webSocketMessagesReceived = Atomic(0)
    let webSocketMessagesSent = Atomic(0)
    let webSocketBytesReceived = Atomic(0)
    let webSocketBytesSent = Atomic(0)

    init(routes: Int) { self.routes = (0..<routes).map { _ in RouteCounters() } }
}

/// One route on one loop, whose thread alone writes it: so nothing is added atomically.
final class RouteCounters: Sendable {
    let answers: InlineArray<6, Atomic<UInt64>>
    let durations = SharedDurations()

    init() { answers = InlineArray { _ in Atomic(0) } }

    func count(_ status: Status) {
        let digit = min(5, status.rawValue / 100)
        answers[digit].store(
            answers[digit].load(ordering: .relaxed) &+ 1, ordering: .relaxed)
    }
}

/// What a loop counts in plain memory, published once a round.
final class LoopTally {
    struct WebSockets {
        var open = 0
        var opened = 0
        var messagesReceived = 0
        var messagesSent = 0
        var bytesReceived = 0
        var bytesSent = 0
    }

    var open = 0
    var accepted = 0
    var rejected = 0
    var requests = 0
    var bytesInFlight = 0
    var acceptPauses = 0
    var webSockets = WebSockets()
    /// By the status's first digit.
    var responses = InlineArray<6, Int>(repeating: 0)

    func publish(to counters: LoopCounters) {
        counters.open.store(open, ordering: .relaxed)
        counters.accepted.store(accepted, ordering: .relaxed)
        counters.rejected.store(rejected, ordering: .relaxed)
        counters.requests.store(requests, ordering: .relaxed)
        counters.bytesInFlight.store(bytesInFlight, ordering: .relaxed)
        counters.acceptPauses.store(acceptPauses, ordering: .relaxed)
        counters.informational.store(responses[1], ordering: .relaxed)
        counters.successful.store(responses[2], ordering: .relaxed)
        counters.redirected.store(responses[3], ordering: .relaxed)
        counters.clientErrors.store(responses[4], ordering: .relaxed)
        counters.serverErrors.store(responses[5], ordering: .relaxed)
        counters.webSocketsOpen.store(webSockets.open, ordering: .relaxed)
        counters.webSocketsOpened.store(webSockets.opened, ordering: .relaxed)
        counters.webSocketMessagesReceived.store(webSockets.messagesReceived, ordering: .relaxed)
        counters.webSocketMessagesSent.store(webSockets.messagesSent, ordering: .relaxed)
        counters.webSocketBytesReceived.store(webSockets.bytesReceived, ordering: .relaxed)
        counters.webSocketBytesSent.store(webSockets.bytesSent, ordering: .relaxed)
    }
}
