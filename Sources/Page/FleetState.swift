/// The states of devices, in the order in which they are stacked: what is as it should be lies below.
public enum FleetState: String, CaseIterable, Sendable {
    case healthy, recovering, stale, down, offline, stopped, suspended, unknown

    /// Those that somebody should look at.
    public static let troubled: [FleetState] = [.stale, .down, .offline]

    /// What it means, in a few words.
    var meaning: String {
        switch self {
        case .healthy: "tunnel up, handshake fresh"
        case .recovering: "the agent is rebuilding its tunnel"
        case .stale: "tunnel up, handshake too old"
        case .down: "the agent says its tunnel is down"
        case .offline: "not heard of in time"
        case .stopped: "ended in order by its user"
        case .suspended: "suspended by an operator"
        case .unknown: "not heard of yet"
        }
    }

    /// Its colour and pattern in page.css.
    var css: StaticString {
        switch self {
        case .healthy: "s-healthy"
        case .recovering: "s-recovering"
        case .stale: "s-stale"
        case .down: "s-down"
        case .offline: "s-offline"
        case .stopped: "s-stopped"
        case .suspended: "s-suspended"
        case .unknown: "s-unknown"
        }
    }
}

/// How many devices are in each state.
public struct StateCounts: Hashable, Sendable {
    private var counts = [Int64](repeating: 0, count: FleetState.allCases.count)

    public init() {}

    public subscript(state: FleetState) -> Int64 {
        get { counts[Self.place(state)] }
        set { counts[Self.place(state)] = newValue }
    }

    public var total: Int64 { counts.reduce(0, +) }

    private static func place(_ state: FleetState) -> Int {
        switch state {
        case .healthy: 0
        case .recovering: 1
        case .stale: 2
        case .down: 3
        case .offline: 4
        case .stopped: 5
        case .suspended: 6
        case .unknown: 7
        }
    }
}
