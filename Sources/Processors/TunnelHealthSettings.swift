/// Settings of `TunnelHealth`, all of them in a pipeline file. Times in milliseconds.
public struct TunnelHealthSettings: Hashable, Sendable {
    /// Age from which a handshake is no longer fresh: WireGuard's `REJECT_AFTER_TIME`. 1 s to 1 d.
    public var staleAfter: Int64 = 180_000
    /// Silence after which a device is offline: three heartbeats of 30 s. 1 s to 7 d.
    public var offlineAfter: Int64 = 90_000
    /// Lateness at a deadline that is not silence yet; a device is declared offline when the
    /// deadline and this much more have passed, as of the deadline. 0 to 60 s.
    public var jitter: Int64 = 1_000
    /// Intervals of silence after which a device with an `expected_interval` of its own is offline.
    public var missedIntervals: Int64 = 3
    /// Good heartbeats in a row that end `down` and `stale`. 1 to 100.
    public var recoverAfter: Int64 = 2
    /// Heartbeats with `tunnel_up: false` in a row that make a device `down`. 1 to 100.
    public var downAfter: Int64 = 2
    /// A handshake that is further in the future than this sets the flag `clock-skew`. 1 s to 1 d.
    public var clockSkewAfter: Int64 = 60_000
    /// Transitions within `flappingWithin` that mark a device flapping. 2 to 6; 0 turns it off.
    public var flappingTransitions: Int64 = 6
    /// 1 s to 1 d.
    public var flappingWithin: Int64 = 600_000
    /// Age of the stored `last_seen` at which a heartbeat that changes nothing else is written. 0: always.
    public var refresh: Int64 = 120_000
    /// Beacons: progress of the others after which a silent front-end holds watched time.
    public var frontEndSilence: Int64 = 10_000
    /// Progress of the others after that until the front-end is expelled.
    public var frontEndExpulsion: Int64 = 30_000

    public init() {}
}

/// What a device's tunnel is said to be, strongest first.
public enum DeviceState: UInt8, CaseIterable, Sendable {
    case suspended = 0, offline, stopped, recovering, down, stale, healthy, unknown
    /// Removed from the registry; an end, not a judgement.
    case removed

    public var name: StaticString {
        switch self {
        case .suspended: "suspended"
        case .offline: "offline"
        case .stopped: "stopped"
        case .recovering: "recovering"
        case .down: "down"
        case .stale: "stale"
        case .healthy: "healthy"
        case .unknown: "unknown"
        case .removed: "removed"
        }
    }
}
