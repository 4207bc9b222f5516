/// What can go wrong with an agent, on demand.
public enum Fault: UInt8, Sendable, Hashable, CaseIterable {
    /// The cable is pulled: nothing leaves the device, handshakes stop.
    case silent
    /// Wi-Fi is gone and the device knows it: it asks three times, then pauses its heartbeat.
    case wifi
    /// The tunnel is down and the device says so.
    case tunnelDown
    /// The tunnel is said to be up, but no handshake succeeds.
    case stale
    /// The agent says that it is recovering; its tunnel is down meanwhile.
    case recovering
    /// The agent says `stopped`, then nothing until it is started again.
    case stopped
    /// The tunnel goes down and comes back with every second heartbeat.
    case flapping
    /// The tunnel cannot be started: the agent gives up and asks its user.
    case tunnelFails
    /// The device's clock is a day ahead; or a day behind.
    case clockAhead, clockBehind
    /// Every heartbeat is broken in another way.
    case malformed

    /// As `--faults` writes it.
    public var name: String {
        switch self {
        case .silent: "silent"
        case .wifi: "wifi"
        case .tunnelDown: "tunnel-down"
        case .stale: "stale"
        case .recovering: "recovering"
        case .stopped: "stopped"
        case .flapping: "flapping"
        case .tunnelFails: "tunnel-fails"
        case .clockAhead: "clock-ahead"
        case .clockBehind: "clock-behind"
        case .malformed: "malformed"
        }
    }

    public init?(named name: some StringProtocol) {
        guard let fault = Fault.allCases.first(where: { $0.name == name }) else { return nil }
        self = fault
    }
}
