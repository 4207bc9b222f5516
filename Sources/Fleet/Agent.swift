public import Schemas

/// The timers of the agents' document.
public struct AgentSettings: Hashable, Sendable {
    /// From one heartbeat to the next. Default: 30 s.
    public var heartbeatMilliseconds: Int64 = 30_000
    /// Tries of a request, a tunnel start or a look for Wi-Fi before giving up. Default: 3.
    public var attempts: UInt8 = 3
    /// The pause after the n-th failed try is n times this. Default: 1 s.
    public var retryPauseMilliseconds: Int64 = 1_000
    /// From one handshake to the next. Default: 120 s (WireGuard's).
    public var rekeyAfterMilliseconds: Int64 = 120_000

    public init() {}

    /// All timers run `factor` times as fast; none is shorter than 1 ms.
    public func faster(by factor: Double) -> AgentSettings {
        precondition(factor > 0 && factor.isFinite, "agents cannot run at this speed")
        func scaled(_ milliseconds: Int64) -> Int64 {
            max(1, Int64((Double(milliseconds) / factor).rounded()))
        }
        var settings = self
        settings.heartbeatMilliseconds = scaled(heartbeatMilliseconds)
        settings.retryPauseMilliseconds = scaled(retryPauseMilliseconds)
        settings.rekeyAfterMilliseconds = scaled(rekeyAfterMilliseconds)
        return settings
    }
}

/// The text of a `forwards_hash`, reduced to what tells two apart.
public struct ForwardsHash: Hashable, Sendable {
    private let digest: UInt64

    /// FNV-1a with 64 bits: a fleet holds one for each agent, and the text may have any length.
    public init(_ text: Span<UInt8>) {
        var digest: UInt64 = 0xCBF2_9CE4_8422_2325
        for index in 0..<text.count {
            digest = (digest ^ UInt64(text[index])) &* 0x100_0000_01B3
        }
        self.digest = digest
    }
}

/// How a heartbeat's request ended.
public enum HeartbeatOutcome: Hashable, Sendable {
    /// 200 with a configuration; the hash is `nil` if the answer had none.
    case accepted(ForwardsHash?)
    /// 200 with something that is not the contract's answer.
    case unreadable
    /// Any other status.
    case refused(status: Int)
    /// No answer: refused connection, timeout, TLS, DNS.
    case unanswered
}

/// Why a try to provision brought no configuration.
public enum ProvisioningFailure: Error, Hashable, Sendable {
    /// Any other status than 200.
    case refused(status: Int)
    /// No answer: refused connection, timeout, TLS, DNS.
    case unanswered
    /// 200 with something that is not the contract's answer.
    case unreadable
    /// `encrypted_config` could not be decrypted, or holds no whole configuration.
    case undecryptable
}

public enum AgentEvent: Hashable, Sendable {
    /// The device started, or its user started the agent again.
    case booted
    /// The stored configuration was looked for.
    case loaded(isProvisioned: Bool)
    case provisioned
    case provisioningFailed(ProvisioningFailure)
    case storageFailed
    case tunnelStarted
    case tunnelFailed
    /// `wakeTime` has come.
    case timer
    /// - Parameter sequence: of the `send` that it answers; answers to older ones change nothing.
    case answered(sequence: UInt32, HeartbeatOutcome)
    case faultBegan(Fault)
    case faultEnded
}

public enum AgentNotice: Hashable, Sendable {
    case provisioning, tunnelStart, heartbeat, networkLost
}

public enum AgentEffect: Hashable, Sendable {
    /// Look for a stored configuration; answer with `loaded`.
    case load
    /// Answer with `provisioned` or `provisioningFailed`.
    case provision
    case clearConfiguration
    case useFallbackStorage
    /// Answer with `tunnelStarted` or `tunnelFailed`.
    case startTunnel
    case stopTunnel
    /// Answer with `answered` and the same sequence.
    case send(AgentHeartbeat, sequence: UInt32)
    /// The configuration in the answer differs from the one in use.
    case configurationChanged
    case notifyUser(AgentNotice)
    /// A line in the agent's log, and no more.
    case log(AgentNotice)
}

/// The WireGuard agent's own state machine: (state, event, time) → effects.
///
/// It does no I/O, reads no clock and draws no random number. Whoever runs it carries the effects out,
/// answers those that ask for it, and sends `timer` at `wakeTime`.
public struct Agent: Hashable, Sendable {
    public enum State: UInt8, Hashable, Sendable, CaseIterable {
        case boot, appInit, provision, appRetry, tunnelUp, heartbeat, tunnelRebuild
        /// The heartbeat pauses until Wi-Fi is back.
        case paused
        /// Says `stopped`, then rests until it is started again.
        case stopping, stopped
        /// Gave up and told its user; starts again when the user does.
        case failed
    }

    public private(set) var state = State.boot
    public private(set) var tunnel = Tunnel()
    public private(set) var fault: Fault?
    /// Of the last answer; `nil` before the first.
    public private(set) var forwardsHash: ForwardsHash?
    /// When to send `timer`; `nil` while an answer is awaited or nothing is to be done.
    public private(set) var wakeTime: EventTime?

    private var due: EventTime
    /// 1 is the first try.
    private var attempt: UInt8 = 1
    private var sequence: UInt32 = 0
    /// What is being sent: a retry repeats the same body.
    private var current: AgentHeartbeat?
    /// Heartbeats under the fault.
    private var faultyHeartbeats: UInt32 = 0

    /// - Parameter firstHeartbeat: not before it; so a fleet spreads its heartbeats.
    public init(firstHeartbeat: EventTime) { due = firstHeartbeat }

    public mutating func handle(
        _ event: AgentEvent, at now: EventTime, settings: AgentSettings,
        into effects: inout ContiguousArray<AgentEffect>
    ) {
        switch event {
        case .booted:
            switch state {
            case .boot: load(into: &effects)
            case .failed, .stopped: restart(at: now, into: &effects)
            default: return
            }
        case .loaded(let isProvisioned):
            guard state == .appInit else { return }
            guard isProvisioned else {
                state = .provision
                effects.append(.provision)
                return
            }
            startTunnel(in: .tunnelUp, into: &effects)
        case .provisioned:
            guard state == .provision else { return }
            startTunnel(in: .tunnelUp, into: &effects)
        case .provisioningFailed(let failure):
            guard state == .provision else { return }
            if failure == .undecryptable { effects.append(.clearConfiguration) }
            retry(.provisioning, in: .appRetry, at: now, settings, into: &effects)
            // As the contract's `sendRequest`: a status other than 200 is tried again at once.
            if case .refused = failure, state == .appRetry { wakeTime = now }
        case .storageFailed:
            effects.append(.useFallbackStorage)
        case .tunnelStarted:
            guard state == .tunnelUp || state == .tunnelRebuild else { return }
            tunnel.start(at: now)
            applyFaultToTunnel(at: now, settings)
            awaitNextHeartbeat(at: now, settings)
        case .tunnelFailed:
            guard state == .tunnelUp || state == .tunnelRebuild else { return }
            retry(.tunnelStart, in: state, at: now, settings, into: &effects)
        case .timer:
            wakeTime = nil
            timer(at: now, settings, into: &effects)
        case .answered(let answered, let outcome):
            guard answered == sequence, current != nil, wakeTime == nil else { return }
            finish(outcome, at: now, settings, into: &effects)
        case .faultBegan(let fault):
            begin(fault, at: now, settings, into: &effects)
        case .faultEnded:
            endFault(at: now, settings, into: &effects)
        }
    }

    // MARK: Start

    private mutating func load(into effects: inout ContiguousArray<AgentEffect>) {
        state = .appInit
        wakeTime = nil
        current = nil
        effects.append(.load)
    }

    private mutating func restart(
        at now: EventTime, into effects: inout ContiguousArray<AgentEffect>
    ) {
        attempt = 1
        due = now
        load(into: &effects)
    }

    private mutating func startTunnel(
        in state: State, into effects: inout ContiguousArray<AgentEffect>
    ) {
        self.state = state
        attempt = 1
        wakeTime = nil
        current = nil
        effects.append(.startTunnel)
    }

    /// Tries again in `state` after a pause, or gives up and tells the user.
    private mutating func retry(
        _ notice: AgentNotice, in state: State, at now: EventTime, _ settings: AgentSettings,
        into effects: inout ContiguousArray<AgentEffect>
    ) {
        guard attempt < settings.attempts else {
            self.state = .failed
            wakeTime = nil
            effects.append(.notifyUser(notice))
            return
        }
        self.state = state
        pause(at: now, settings)
    }

    private mutating func pause(at now: EventTime, _ settings: AgentSettings) {
        wakeTime = now + settings.retryPauseMilliseconds * Int64(attempt)
        attempt += 1
    }

    private mutating func timer(
        at now: EventTime, _ settings: AgentSettings,
        into effects: inout ContiguousArray<AgentEffect>
    ) {
        switch state {
        case .appRetry: load(into: &effects)
        case .tunnelUp, .tunnelRebuild: effects.append(.startTunnel)
        case .heartbeat, .stopping: sendHeartbeat(at: now, settings, into: &effects)
        case .boot, .appInit, .provision, .paused, .stopped, .failed: break
        }
    }

    // MARK: AgentHeartbeat

    /// Keeps the agent's place in the interval, whatever the last heartbeat took.
    private mutating func awaitNextHeartbeat(at now: EventTime, _ settings: AgentSettings) {
        state = .heartbeat
        current = nil
        attempt = 1
        if due < now { passDue(at: now, settings) }
        wakeTime = due
    }

    /// The next moment of this agent's own that is later than `now`.
    private mutating func passDue(at now: EventTime, _ settings: AgentSettings) {
        guard due <= now else { return }
        let interval = settings.heartbeatMilliseconds
        due = due + ((now - due) / interval + 1) * interval
    }

    private mutating func sendHeartbeat(
        at now: EventTime, _ settings: AgentSettings,
        into effects: inout ContiguousArray<AgentEffect>
    ) {
        switch fault {
        case .silent:
            // Nothing could leave: as after three tries in vain, log only and go on.
            effects.append(.log(.heartbeat))
            giveUp(at: now, settings)
            return
        case .wifi:
            guard attempt < settings.attempts else {
                effects.append(.log(.networkLost))
                state = .paused
                current = nil
                return
            }
            pause(at: now, settings)
            return
        case .stopped where state == .heartbeat:
            begin(.stopped, at: now, settings, into: &effects)
            return
        default: break
        }
        if current == nil {
            current = compose(at: now, settings)
            attempt = 1
        }
        guard let current else { return }
        sequence &+= 1
        effects.append(.send(current, sequence: sequence))
    }

    private mutating func compose(at now: EventTime, _ settings: AgentSettings) -> AgentHeartbeat {
        let rekeyAfter = settings.rekeyAfterMilliseconds
        var malformation = AgentHeartbeat.Malformation.none
        var clockError: Int64 = 0
        switch fault {
        case .flapping where faultyHeartbeats % 2 == 0:
            if tunnel.isUp {
                tunnel.stop(at: now, rekeyAfterMilliseconds: rekeyAfter)
            } else {
                tunnel.start(at: now)
            }
        case .malformed:
            let ways = UInt32(AgentHeartbeat.Malformation.allCases.count - 1)
            malformation =
                AgentHeartbeat.Malformation(rawValue: UInt8(1 + faultyHeartbeats % ways))
                ?? .notJSON
        case .clockAhead: clockError = 86_400_000
        case .clockBehind: clockError = -86_400_000
        default: break
        }
        if fault != nil { faultyHeartbeats &+= 1 }
        return AgentHeartbeat(
            status: state == .stopping ? .stopped : fault == .recovering ? .recovering : .connected,
            isTunnelUp: tunnel.isUp,
            lastHandshake: tunnel.lastHandshake(at: now, rekeyAfterMilliseconds: rekeyAfter).map {
                $0 + clockError
            },
            malformation: malformation)
    }

    /// The contract's `sendRequest`: a connection that fails is tried again after a pause, a status
    /// other than 200 at once; after the last try the heartbeat is logged as failed, and no more.
    private mutating func finish(
        _ outcome: HeartbeatOutcome, at now: EventTime, _ settings: AgentSettings,
        into effects: inout ContiguousArray<AgentEffect>
    ) {
        switch outcome {
        case .accepted(let hash):
            let changed = hash != nil && forwardsHash != nil && hash != forwardsHash
            if let hash { forwardsHash = hash }
            guard changed, state == .heartbeat else {
                giveUp(at: now, settings)
                return
            }
            tunnel.stop(at: now, rekeyAfterMilliseconds: settings.rekeyAfterMilliseconds)
            passDue(at: now, settings)
            effects.append(.configurationChanged)
            effects.append(.stopTunnel)
            startTunnel(in: .tunnelRebuild, into: &effects)
        case .unreadable:
            effects.append(.log(.heartbeat))
            giveUp(at: now, settings)
        case .refused where attempt < settings.attempts:
            attempt += 1
            sendHeartbeat(at: now, settings, into: &effects)
        case .unanswered where attempt < settings.attempts:
            pause(at: now, settings)
        case .refused, .unanswered:
            effects.append(.log(.heartbeat))
            giveUp(at: now, settings)
        }
    }

    /// This heartbeat is over; on to the next, or to rest.
    private mutating func giveUp(at now: EventTime, _ settings: AgentSettings) {
        if state == .stopping {
            state = .stopped
            current = nil
            wakeTime = nil
        } else {
            passDue(at: now, settings)
            awaitNextHeartbeat(at: now, settings)
        }
    }

    // MARK: Faults

    private mutating func begin(
        _ fault: Fault, at now: EventTime, _ settings: AgentSettings,
        into effects: inout ContiguousArray<AgentEffect>
    ) {
        self.fault = fault
        faultyHeartbeats = 0
        applyFaultToTunnel(at: now, settings)
        guard state == .heartbeat else { return }
        switch fault {
        case .stopped:
            tunnel.stop(at: now, rekeyAfterMilliseconds: settings.rekeyAfterMilliseconds)
            effects.append(.stopTunnel)
            state = .stopping
            current = nil
            sendHeartbeat(at: now, settings, into: &effects)
            wakeTime = nil
        case .tunnelFails:
            tunnel.stop(at: now, rekeyAfterMilliseconds: settings.rekeyAfterMilliseconds)
            effects.append(.stopTunnel)
            startTunnel(in: .tunnelRebuild, into: &effects)
        default: break
        }
    }

    private mutating func applyFaultToTunnel(at now: EventTime, _ settings: AgentSettings) {
        guard tunnel.isUp else { return }
        let rekeyAfter = settings.rekeyAfterMilliseconds
        switch fault {
        case .silent, .wifi, .stale:
            tunnel.loseHandshakes(at: now, rekeyAfterMilliseconds: rekeyAfter)
        case .tunnelDown, .recovering:
            tunnel.stop(at: now, rekeyAfterMilliseconds: rekeyAfter)
        case nil, .stopped, .flapping, .tunnelFails, .clockAhead, .clockBehind, .malformed: break
        }
    }

    private mutating func endFault(
        at now: EventTime, _ settings: AgentSettings,
        into effects: inout ContiguousArray<AgentEffect>
    ) {
        guard let ended = fault else { return }
        fault = nil
        switch state {
        case .failed, .stopped, .stopping:
            // The user starts the agent again.
            restart(at: now, into: &effects)
        case .paused:
            tunnel.start(at: now)
            state = .heartbeat
            attempt = 1
            wakeTime = now
        case .heartbeat:
            switch ended {
            case .silent, .wifi, .stale, .tunnelDown, .recovering: tunnel.start(at: now)
            case .flapping where !tunnel.isUp: tunnel.start(at: now)
            default: break
            }
            if ended == .wifi, wakeTime != nil, current == nil, attempt > 1 {
                // It was looking for Wi-Fi between two tries, and has found it.
                attempt = 1
                wakeTime = now
            }
        case .boot, .appInit, .provision, .appRetry, .tunnelUp, .tunnelRebuild: break
        }
    }
}
