public import Bytes
public import Schemas

/// A request that an agent wants to be sent.
public struct FleetRequest: Hashable, Sendable {
    /// Index of the agent.
    public let agent: Int
    /// Of a heartbeat; 0 for a provisioning.
    public let sequence: UInt32
    /// `nil`: a provisioning.
    public let heartbeat: AgentHeartbeat?
    /// When the agent asked for it.
    public let time: EventTime
}

/// What agents without a configuration provision themselves with.
public struct FleetProvisioning: Sendable {
    /// Registration tokens, one for each agent. Secret.
    public var tokens: [DeviceID]
    /// The bytes of the installation's `SERVER_SALT`. Secret.
    public var salt: [UInt8]
    /// The agents boot one after the other within this time; at least 1 ms. Default: 30 s.
    public var rampMilliseconds: Int64 = 30_000

    public init(tokens: [DeviceID], salt: [UInt8]) {
        self.tokens = tokens
        self.salt = salt
    }
}

/// How an agent looks from outside.
public enum AgentCondition: Int, Sendable, CaseIterable {
    case starting, connected, tunnelDown, stale, recovering, silent, paused, stopped, failed

    public var name: String {
        switch self {
        case .starting: "starting"
        case .connected: "connected"
        case .tunnelDown: "tunnel down"
        case .stale: "stale"
        case .recovering: "recovering"
        case .silent: "silent"
        case .paused: "paused"
        case .stopped: "stopped"
        case .failed: "failed"
        }
    }
}

/// Sums over all agents since the start.
public struct FleetCounts: Hashable, Sendable {
    /// Agents that were given a configuration, each time.
    public var provisioned = 0
    /// Tries to provision that brought none.
    public var provisioningsFailed = 0
    /// Answers whose `forwards_hash` differed from the agent's.
    public var configurationChanges = 0
    public var tunnelRebuilds = 0
    /// Given up after the last try, or never sent for want of a network.
    public var heartbeatsFailed = 0
    public var malformedRequests = 0
    public var userNotices = 0
}

/// A fleet of agents without its network: a pure core that is handed time and answers, and hands out
/// requests. The same seed and the same answers give the same requests.
///
/// Under 220 bytes an agent.
public struct FleetModel: Sendable {
    private struct Spell: Sendable {
        var fault: Fault
        /// `nil`: never ends.
        var durationMilliseconds: Int64?
        var periodMilliseconds: Int64
        var isActive = false
    }

    public let settings: AgentSettings
    public private(set) var counts = FleetCounts()

    /// By agent; `noDevice` until it is provisioned.
    private var devices: ContiguousArray<DeviceID>
    /// By agent; empty for a fleet of devices that have their configuration.
    private let tokens: ContiguousArray<DeviceID>
    private let seed: UInt64
    private var agents: ContiguousArray<Agent> = []
    /// By agent; -1 for one without a fault.
    private var spellOfAgent: ContiguousArray<Int32>
    private var spells: ContiguousArray<Spell> = []
    /// Keys: twice the agent's index, and one more for its fault's beginning or end.
    private var wakes = WakeQueue()
    private var effects: ContiguousArray<AgentEffect> = []

    /// The nil UUID, which no device has.
    private static let noDevice = DeviceID(high: 0, low: 0)

    /// A fleet of devices that have their configuration.
    ///
    /// - Parameters:
    ///   - devices: at most 2^30.
    ///   - faults: which agents they fall on is drawn from `seed`.
    ///   - start: first heartbeats are spread over one interval from here; faults without a duration
    ///     begin within the three intervals after that, others within their period.
    public init(
        devices: [DeviceID], settings: AgentSettings = AgentSettings(),
        faults: FaultPlan = FaultPlan(), seed: UInt64, start: EventTime
    ) {
        self.init(
            devices: devices, tokens: [], bootMilliseconds: 1, settings: settings, faults: faults,
            seed: seed, start: start)
    }

    /// A fleet of agents that provision themselves first.
    ///
    /// - Parameters:
    ///   - provisioning: as many agents as it has tokens, at most 2^30.
    ///   - faults: as above; a fault that keeps an agent from its network keeps it from provisioning.
    ///   - seed: also makes the hardware ids: the same seed is the same devices.
    public init(
        provisioning: FleetProvisioning, settings: AgentSettings = AgentSettings(),
        faults: FaultPlan = FaultPlan(), seed: UInt64, start: EventTime
    ) {
        self.init(
            devices: [DeviceID](repeating: Self.noDevice, count: provisioning.tokens.count),
            tokens: provisioning.tokens, bootMilliseconds: max(1, provisioning.rampMilliseconds),
            settings: settings, faults: faults, seed: seed, start: start)
    }

    private init(
        devices: [DeviceID], tokens: [DeviceID], bootMilliseconds: Int64, settings: AgentSettings,
        faults: FaultPlan, seed: UInt64, start: EventTime
    ) {
        precondition(devices.count <= 1 << 30, "a fleet of more than 2^30 agents")
        self.devices = ContiguousArray(devices)
        self.tokens = ContiguousArray(tokens)
        self.settings = settings
        self.seed = seed
        var random = SeededRandom(seed: seed)
        let interval = settings.heartbeatMilliseconds
        spellOfAgent = ContiguousArray(repeating: -1, count: devices.count)
        agents.reserveCapacity(devices.count)
        wakes.reserveCapacity(devices.count)
        for index in devices.indices {
            let first = start + Int64.random(in: 0..<interval, using: &random)
            agents.append(Agent(firstHeartbeat: first))
            let boot = start + Int64(index) * bootMilliseconds / Int64(devices.count)
            wakes.insert(.init(time: boot, key: UInt32(index) * 2))
        }
        assign(faults, start: start + interval, using: &random)
    }

    private mutating func assign(
        _ faults: FaultPlan, start: EventTime, using random: inout SeededRandom
    ) {
        guard !faults.entries.isEmpty else { return }
        let order = devices.indices.shuffled(using: &random)
        var next = 0
        for entry in faults.entries {
            let count = min(entry.share.count(of: devices.count), devices.count - next)
            let spread =
                entry.durationMilliseconds == nil
                ? 3 * settings.heartbeatMilliseconds : max(1, entry.periodMilliseconds)
            for index in order[next..<next + count] {
                spellOfAgent[index] = Int32(spells.count)
                spells.append(
                    Spell(
                        fault: entry.fault, durationMilliseconds: entry.durationMilliseconds,
                        periodMilliseconds: entry.periodMilliseconds))
                wakes.insert(
                    .init(
                        time: start + Int64.random(in: 0..<spread, using: &random),
                        key: UInt32(index) * 2 + 1))
            }
            next += count
        }
    }

    public var count: Int { agents.count }

    /// When to call `advance` next, if no answer comes before; `nil` if there is nothing to do.
    public var nextWake: EventTime? { wakes.first }

    /// `nil` before it is provisioned.
    public func device(_ agent: Int) -> DeviceID? {
        devices[agent] == Self.noDevice ? nil : devices[agent]
    }

    /// What an agent that provisions itself says that its hardware is: a UUID in capitals, as iOS
    /// gives them, drawn from the fleet's seed and the agent's index.
    public func hardwareID(_ agent: Int) -> String {
        var random = SeededRandom(seed: seed ^ 0x6877_6964)
        let fleet = random.next()
        random = SeededRandom(seed: fleet &+ UInt64(agent))
        return DeviceID(
            high: random.next() & ~0xF000 | 0x4000, low: random.next() & ~(3 << 62) | (2 << 62)
        ).description.uppercased()
    }

    public func agent(_ index: Int) -> Agent { agents[index] }

    /// Agents by `AgentCondition.rawValue`. Looks at every agent.
    public func conditions() -> [Int] {
        var sums = [Int](repeating: 0, count: AgentCondition.allCases.count)
        for agent in agents { sums[agent.condition.rawValue] += 1 }
        return sums
    }

    /// Does everything that is due at or before `now`, in the order of its time.
    public mutating func advance(
        to now: EventTime, into requests: inout ContiguousArray<FleetRequest>
    ) {
        while let wake = wakes.take(until: now) {
            let index = Int(wake.key / 2)
            if wake.key % 2 == 1 {
                turnFault(of: index, at: wake.time, now: now, into: &requests)
            } else if agents[index].state == .boot {
                deliver(.booted, to: index, at: now, into: &requests)
            } else if agents[index].wakeTime == wake.time {
                deliver(.timer, to: index, at: now, into: &requests)
            }
        }
    }

    /// Hands an agent the end of a request.
    public mutating func answer(
        agent: Int, sequence: UInt32, _ outcome: HeartbeatOutcome, at now: EventTime,
        into requests: inout ContiguousArray<FleetRequest>
    ) {
        deliver(.answered(sequence: sequence, outcome), to: agent, at: now, into: &requests)
    }

    /// Hands an agent the end of its provisioning.
    public mutating func answer(
        agent: Int, provisioning: Result<DeviceID, ProvisioningFailure>, at now: EventTime,
        into requests: inout ContiguousArray<FleetRequest>
    ) {
        switch provisioning {
        case .success(let device):
            guard agents[agent].state == .provision else { return }
            devices[agent] = device
            counts.provisioned += 1
            deliver(.provisioned, to: agent, at: now, into: &requests)
        case .failure(let failure):
            counts.provisioningsFailed += 1
            deliver(.provisioningFailed(failure), to: agent, at: now, into: &requests)
        }
    }

    private mutating func turnFault(
        of index: Int, at time: EventTime, now: EventTime,
        into requests: inout ContiguousArray<FleetRequest>
    ) {
        let spell = Int(spellOfAgent[index])
        spells[spell].isActive.toggle()
        let current = spells[spell]
        if let duration = current.durationMilliseconds {
            // From the planned time, so that a late shell does not stretch the plan; at least 1 ms
            // on, so that a fault which lasts its whole period cannot turn forever in one moment.
            let rest = current.isActive ? duration : current.periodMilliseconds - duration
            wakes.insert(.init(time: time + max(1, rest), key: UInt32(index) * 2 + 1))
        }
        deliver(
            current.isActive ? .faultBegan(current.fault) : .faultEnded, to: index, at: now,
            into: &requests)
    }

    private mutating func deliver(
        _ event: AgentEvent, to index: Int, at now: EventTime,
        into requests: inout ContiguousArray<FleetRequest>
    ) {
        let wakeBefore = agents[index].wakeTime
        var next: AgentEvent? = event
        while let event = next {
            next = nil
            effects.removeAll(keepingCapacity: true)
            agents[index].handle(event, at: now, settings: settings, into: &effects)
            for effect in effects {
                switch effect {
                case .load: next = .loaded(isProvisioned: devices[index] != Self.noDevice)
                case .provision:
                    switch agents[index].fault {
                    case .silent, .wifi:
                        counts.provisioningsFailed += 1
                        next = .provisioningFailed(.unanswered)
                    default:
                        requests.append(
                            FleetRequest(agent: index, sequence: 0, heartbeat: nil, time: now))
                    }
                case .startTunnel:
                    next = agents[index].fault == .tunnelFails ? .tunnelFailed : .tunnelStarted
                case .send(let heartbeat, let sequence):
                    if heartbeat.malformation != .none { counts.malformedRequests += 1 }
                    requests.append(
                        FleetRequest(
                            agent: index, sequence: sequence, heartbeat: heartbeat, time: now))
                case .configurationChanged:
                    counts.configurationChanges += 1
                case .stopTunnel:
                    if agents[index].state == .tunnelRebuild { counts.tunnelRebuilds += 1 }
                case .notifyUser: counts.userNotices += 1
                case .log(.heartbeat), .log(.networkLost): counts.heartbeatsFailed += 1
                case .clearConfiguration: devices[index] = Self.noDevice
                case .log, .useFallbackStorage: break
                }
            }
        }
        if let wake = agents[index].wakeTime, wake != wakeBefore {
            wakes.insert(.init(time: wake, key: UInt32(index) * 2))
        }
    }

    /// Appends the body of a request.
    public func write(_ request: FleetRequest, into body: inout ByteBuffer) {
        if let heartbeat = request.heartbeat {
            heartbeat.write(device: devices[request.agent], into: &body)
            return
        }
        body.append("{\"token\":\"")
        body.append(tokens[request.agent])
        body.append("\",\"hwid\":\"")
        body.append(text: hardwareID(request.agent))
        body.append("\"}")
    }
}

extension Agent {
    /// How it looks from outside.
    public var condition: AgentCondition {
        switch state {
        case .boot, .appInit, .provision, .appRetry, .tunnelUp, .tunnelRebuild: return .starting
        case .paused: return .paused
        case .stopping, .stopped: return .stopped
        case .failed: return .failed
        case .heartbeat: break
        }
        switch fault {
        case .silent: return .silent
        case .recovering: return .recovering
        case .stale: return .stale
        default: return tunnel.isUp ? .connected : .tunnelDown
        }
    }
}
