internal import Bytes
internal import Curl
internal import Schemas
internal import Synchronization
internal import System

/// What one run of a simulator needs, on one thread.
struct SimulatorShell: ~Copyable {
    /// What a transfer carries.
    private struct Carried {
        var agent = 0
        var sequence: UInt32 = 0
        var isProvisioning = false
    }

    private var model: FleetModel
    private var reader = AgentAnswerReader()
    private let requests: SimulatorRequests
    private let salt: [UInt8]
    private let observe: (@Sendable (FleetObservation) -> Void)?

    private var queue: ContiguousArray<FleetRequest> = []
    /// Requests before it in `queue` are on their way.
    private var nextInQueue = 0
    /// By tag.
    private var carried: ContiguousArray<Carried>
    private var idleTags: ContiguousArray<Int>
    private var body = ByteBuffer()

    private var report = FleetReport()
    private var heartbeatStatuses = ContiguousArray<Int>(repeating: 0, count: 1_000)
    private var provisioningStatuses = ContiguousArray<Int>(repeating: 0, count: 1_000)
    private let startMilliseconds: Int64
    /// Wall time minus monotonic time, at the start: a clock that is set meanwhile moves no agent.
    private let wallOffset: Int64
    private let endMilliseconds: Int64
    private var nextReportMilliseconds: Int64

    private static let reportEveryMilliseconds: Int64 = 500
    private static let longestWaitMilliseconds: Int64 = 250

    init(_ members: Simulator.Members, settings: SimulatorSettings, requests: SimulatorRequests) {
        self.requests = requests
        observe = settings.observe
        let start = SystemClock.monotonicMilliseconds()
        startMilliseconds = start
        wallOffset = SystemClock.wallMilliseconds() - start
        endMilliseconds =
            settings.duration.map { start + $0.milliseconds } ?? .max
        nextReportMilliseconds = startMilliseconds + Self.reportEveryMilliseconds
        let startTime = EventTime(milliseconds: startMilliseconds + wallOffset)
        switch members {
        case .devices(let devices):
            salt = []
            model = FleetModel(
                devices: devices, settings: settings.agent, faults: settings.faults,
                seed: settings.seed, start: startTime)
        case .provisioning(let provisioning):
            salt = provisioning.salt
            model = FleetModel(
                provisioning: provisioning, settings: settings.agent, faults: settings.faults,
                seed: settings.seed, start: startTime)
        }
        carried = ContiguousArray(repeating: Carried(), count: settings.maximumInFlight)
        idleTags = ContiguousArray(0..<settings.maximumInFlight)
        report.agents = model.count
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
            let isProvisioning = next.heartbeat == nil
            carried[tag] = Carried(
                agent: next.agent, sequence: next.sequence, isProvisioning: isProvisioning)
            body.removeAll()
            model.write(next, into: &body)
            try transfers.start(
                isProvisioning ? requests.provision : requests.heartbeat, body: body.span,
                tag: UInt64(tag))
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
            if let error = completion.error {
                report.errors[error.kind, default: 0] += 1
                report.lastError = error
            }
            if carried[tag].isProvisioning {
                endProvisioning(carried[tag], completion, answer)
            } else {
                endHeartbeat(carried[tag], completion, answer)
            }
        }
    }

    // MARK: - Provisionings

    private mutating func endProvisioning(
        _ carried: Carried, _ completion: CurlCompletion, _ answer: Span<UInt8>
    ) {
        let outcome: Result<DeviceID, ProvisioningFailure>
        if completion.error != nil {
            outcome = .failure(.unanswered)
        } else {
            provisioningStatuses[min(completion.status, 999)] += 1
            report.provisioningLatency.record(microseconds: completion.microseconds)
            outcome = provisioned(carried.agent, completion.status, answer)
        }
        if case .success(let device) = outcome {
            observe?(FleetObservation(device: device, kind: .provisioned, time: now()))
        }
        model.answer(agent: carried.agent, provisioning: outcome, at: now(), into: &queue)
    }

    private mutating func provisioned(
        _ agent: Int, _ status: Int, _ answer: Span<UInt8>
    ) -> Result<DeviceID, ProvisioningFailure> {
        guard status == 200 else { return .failure(.refused(status: status)) }
        let read = reader.configuration(
            answer, hardwareID: model.hardwareID(agent), salt: salt)
        switch read {
        case .success(let configuration): return .success(configuration.device)
        case .failure(let failure):
            report.unreadableAnswers += 1
            return .failure(failure)
        }
    }

    // MARK: - Heartbeats

    private mutating func endHeartbeat(
        _ carried: Carried, _ completion: CurlCompletion, _ answer: Span<UInt8>
    ) {
        let outcome: HeartbeatOutcome
        if completion.error != nil {
            outcome = .unanswered
        } else {
            heartbeatStatuses[min(completion.status, 999)] += 1
            report.latency.record(microseconds: completion.microseconds)
            outcome =
                completion.status == 200
                ? read(answer, carried.agent) : .refused(status: completion.status)
        }
        let before = model.agent(carried.agent).forwardsHash
        model.answer(
            agent: carried.agent, sequence: carried.sequence, outcome, at: now(), into: &queue)
        if let observe, case .accepted = outcome,
            model.agent(carried.agent).forwardsHash != before,
            let device = model.device(carried.agent)
        {
            observe(
                FleetObservation(
                    device: device, kind: .configuration(hash: reader.hashText), time: now()))
        }
    }

    private mutating func read(_ answer: Span<UInt8>, _ agent: Int) -> HeartbeatOutcome {
        guard let heartbeat = reader.heartbeat(answer, of: model.device(agent)) else {
            report.unreadableAnswers += 1
            return .unreadable
        }
        if !heartbeat.isWhole { report.faultyAnswers += 1 }
        return .accepted(heartbeat.hash)
    }

    // MARK: - The report

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
        for (status, count) in heartbeatStatuses.enumerated() where count > 0 {
            report.statuses[status] = count
        }
        for (status, count) in provisioningStatuses.enumerated() where count > 0 {
            report.provisioningStatuses[status] = count
        }
        let report = report
        published.withLock { $0 = report }
    }
}

extension Duration {
    var milliseconds: Int64 {
        components.seconds * 1_000 + components.attoseconds / 1_000_000_000_000_000
    }
}
