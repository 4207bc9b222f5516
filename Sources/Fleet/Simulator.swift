internal import Bytes
public import Curl
internal import JSON
public import Schemas
internal import Synchronization
internal import System

/// How a fleet is simulated.
public struct SimulatorSettings: Sendable {
    /// Where the front-end is: `http://127.0.0.1:8080`. The path of heartbeats is added.
    public var url: String
    /// Of one agent. Default: the document's timers; `faster(by:)` for demonstrations.
    public var agent = AgentSettings()
    public var faults = FaultPlan()
    /// The same seed chooses the same agents for the same faults.
    public var seed: UInt64 = 1
    /// Requests on their way at once, and connections; at least 1. Further ones wait. Default: 64.
    public var maximumInFlight = 64
    /// Connect 10 s, whole request 30 s: the contract's timeouts.
    public var limits = CurlRequest.Limits()
    public var trust = CurlRequest.Trust.system
    /// `nil`: until stopped.
    public var duration: Duration?
    /// At the end, what is on its way is waited for so long, then given up. Default: 1 s.
    public var lastWait: Duration = .seconds(1)

    public init(url: String) { self.url = url }
}

/// Runs a fleet of agents against a front-end over HTTP.
public final class Simulator: Sendable {
    private let agents: [DeviceID]
    private let settings: SimulatorSettings
    private let request: CurlRequest
    private let published: Mutex<FleetReport>

    /// - Throws: `CurlError` if the URL is not of HTTP.
    public init(agents: [DeviceID], settings: SimulatorSettings) throws(CurlError) {
        precondition(settings.maximumInFlight >= 1)
        var base = Substring(settings.url)
        while base.last == "/" { base.removeLast() }
        request = try CurlRequest(
            .post, base + "/api/v1/heartbeat",
            headers: [
                ("Content-Type", "application/json"), ("User-Agent", "heartline-simulate"),
            ],
            // Between a simulated device and its server no proxy of this machine has a place.
            limits: settings.limits, trust: settings.trust, usesEnvironmentProxy: false)
        self.agents = agents
        self.settings = settings
        var report = FleetReport()
        report.agents = agents.count
        published = Mutex(report)
    }

    /// The latest report; at most a second old while the fleet runs, and complete afterwards. Any
    /// thread may ask.
    public var report: FleetReport { published.withLock { $0 } }

    /// Runs the fleet until it is asked to stop or its duration is over. Blocks the calling thread,
    /// which does all the work; not twice at once.
    /// - Throws: `CurlError` if libcurl itself fails; failed requests are counted instead.
    public func run(until stop: StopFlag) throws(CurlError) {
        var transfers = try CurlTransfers(
            maximumTransfers: settings.maximumInFlight,
            maximumConnections: settings.maximumInFlight)
        var shell = SimulatorShell(agents: agents, settings: settings, request: request)
        shell.publish(to: published)
        while !stop.isRequested, !shell.isOver {
            try shell.step(&transfers, wakingOn: stop.descriptor)
            if shell.isReportDue { shell.publish(to: published) }
        }
        try shell.drain(&transfers, milliseconds: settings.lastWait.milliseconds)
        shell.publish(to: published)
    }
}

/// What one run needs, on one thread.
private struct SimulatorShell: ~Copyable {
    private var model: FleetModel
    private var parser = JSONParser(SimulatorShell.fields)
    private let request: CurlRequest

    private var queue: ContiguousArray<FleetRequest> = []
    /// Requests before it in `queue` are on their way.
    private var nextInQueue = 0
    /// By tag: which request a transfer carries.
    private var carried: ContiguousArray<(agent: Int, sequence: UInt32)>
    private var idleTags: ContiguousArray<Int>
    private var body = ByteBuffer()

    private var report = FleetReport()
    private var statuses = ContiguousArray<Int>(repeating: 0, count: 1_000)
    private let startMilliseconds: Int64
    /// Wall time minus monotonic time, at the start: a clock that is set meanwhile moves no agent.
    private let wallOffset: Int64
    private let endMilliseconds: Int64
    private var nextReportMilliseconds: Int64

    private static let fields = JSONFields(["device_id", "forwards_hash"])
    private static let reportEveryMilliseconds: Int64 = 500
    private static let longestWaitMilliseconds: Int64 = 250

    init(agents: [DeviceID], settings: SimulatorSettings, request: CurlRequest) {
        self.request = request
        let start = SystemClock.monotonicMilliseconds()
        startMilliseconds = start
        wallOffset = SystemClock.wallMilliseconds() - start
        endMilliseconds =
            settings.duration.map { start + $0.milliseconds } ?? .max
        nextReportMilliseconds = startMilliseconds + Self.reportEveryMilliseconds
        model = FleetModel(
            devices: agents, settings: settings.agent, faults: settings.faults,
            seed: settings.seed, start: EventTime(milliseconds: startMilliseconds + wallOffset))
        carried = ContiguousArray(repeating: (0, 0), count: settings.maximumInFlight)
        idleTags = ContiguousArray(0..<settings.maximumInFlight)
        report.agents = agents.count
    }

    private func now() -> EventTime {
        EventTime(milliseconds: SystemClock.monotonicMilliseconds() + wallOffset)
    }

    var isOver: Bool { SystemClock.monotonicMilliseconds() >= endMilliseconds }
    var isReportDue: Bool { SystemClock.monotonicMilliseconds() >= nextReportMilliseconds }

    /// Sends what is due, then waits for answers or for what is due next.
    mutating func step(
        _ transfers: inout CurlTransfers, wakingOn descriptor: Int32
    ) throws(CurlError) {
        model.advance(to: now(), into: &queue)
        try startQueued(on: &transfers)
        var wait = Self.longestWaitMilliseconds
        if let wake = model.nextWake { wait = min(wait, wake - now()) }
        try poll(&transfers, milliseconds: max(0, wait), wakingOn: descriptor)
    }

    /// Waits for what is on its way and starts nothing new; what is late is given up.
    mutating func drain(
        _ transfers: inout CurlTransfers, milliseconds: Int64
    ) throws(CurlError) {
        let end = SystemClock.monotonicMilliseconds() + milliseconds
        while transfers.running > 0 {
            let left = end - SystemClock.monotonicMilliseconds()
            guard left > 0 else { break }
            try poll(&transfers, milliseconds: left, wakingOn: nil)
        }
        transfers.cancelAll()
    }

    private mutating func startQueued(on transfers: inout CurlTransfers) throws(CurlError) {
        while nextInQueue < queue.count, let tag = idleTags.popLast() {
            let next = queue[nextInQueue]
            nextInQueue += 1
            carried[tag] = (next.agent, next.sequence)
            body.removeAll()
            model.write(next, into: &body)
            try transfers.start(request, body: body.span, tag: UInt64(tag))
            report.requests += 1
            report.delay.record(microseconds: UInt64(max(0, now() - next.time)) * 1_000)
        }
        if nextInQueue == queue.count {
            queue.removeAll(keepingCapacity: true)
            nextInQueue = 0
        } else if nextInQueue > 4_096, nextInQueue * 2 > queue.count {
            queue.removeFirst(nextInQueue)
            nextInQueue = 0
        }
    }

    private mutating func poll(
        _ transfers: inout CurlTransfers, milliseconds: Int64, wakingOn descriptor: Int32?
    ) throws(CurlError) {
        try transfers.poll(milliseconds: milliseconds, orReadable: descriptor) {
            completion, answer in
            let tag = Int(completion.tag)
            idleTags.append(tag)
            report.connectionsOpened += completion.connectionsOpened
            let outcome: HeartbeatOutcome
            if let error = completion.error {
                report.errors[error.kind, default: 0] += 1
                report.lastError = error
                outcome = .unanswered
            } else {
                statuses[min(completion.status, statuses.count - 1)] += 1
                report.latency.record(microseconds: completion.microseconds)
                outcome =
                    completion.status == 200 ? read(answer) : .refused(status: completion.status)
            }
            model.answer(
                agent: carried[tag].agent, sequence: carried[tag].sequence, outcome, at: now(),
                into: &queue)
        }
    }

    private mutating func read(_ answer: Span<UInt8>) -> HeartbeatOutcome {
        do throws(JSONError) {
            try parser.parse(answer)
        } catch {
            report.unreadableAnswers += 1
            return .unreadable
        }
        guard parser.kind(0) == .string else {
            report.unreadableAnswers += 1
            return .unreadable
        }
        return .accepted(parser.withString(1) { ForwardsHash($0) })
    }

    mutating func publish(to published: borrowing Mutex<FleetReport>) {
        let now = SystemClock.monotonicMilliseconds()
        nextReportMilliseconds = now + Self.reportEveryMilliseconds
        report.elapsed = .milliseconds(now - startMilliseconds)
        report.inFlight = carried.count - idleTags.count
        report.waiting = queue.count - nextInQueue
        report.counts = model.counts
        for (condition, count) in zip(AgentCondition.allCases, model.conditions()) {
            report.conditions[condition] = count
        }
        for (status, count) in statuses.enumerated() where count > 0 {
            report.statuses[status] = count
        }
        let report = report
        published.withLock { $0 = report }
    }
}

extension Duration {
    fileprivate var milliseconds: Int64 {
        components.seconds * 1_000 + components.attoseconds / 1_000_000_000_000_000
    }
}
