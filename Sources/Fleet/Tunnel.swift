public import Schemas

/// What an agent knows of its WireGuard tunnel: whether it stands, and its last handshake.
///
/// While a tunnel carries traffic, WireGuard renews the handshake every 120 s (`REKEY_AFTER_TIME`);
/// the time of the last one is computed when asked for, so that a tunnel needs no timer.
/// - SeeAlso: J. Donenfeld, "WireGuard: Next Generation Kernel Network Tunnel", section 6.1.
public struct Tunnel: Hashable, Sendable {
    public private(set) var isUp = false
    private var isRekeying = false
    /// The first handshake of this run while rekeying; afterwards the last of all.
    private var handshake: EventTime?

    public init() {}

    /// Comes up, with a handshake at once.
    public mutating func start(at now: EventTime) {
        isUp = true
        isRekeying = true
        handshake = now
    }

    /// Goes down; the last handshake stays known.
    public mutating func stop(at now: EventTime, rekeyAfterMilliseconds: Int64) {
        loseHandshakes(at: now, rekeyAfterMilliseconds: rekeyAfterMilliseconds)
        isUp = false
    }

    /// Stays up, but no handshake succeeds any more, as when the server is out of reach.
    public mutating func loseHandshakes(at now: EventTime, rekeyAfterMilliseconds: Int64) {
        handshake = lastHandshake(at: now, rekeyAfterMilliseconds: rekeyAfterMilliseconds)
        isRekeying = false
    }

    /// `nil` if there never was one.
    public func lastHandshake(at now: EventTime, rekeyAfterMilliseconds: Int64) -> EventTime? {
        guard let handshake, isRekeying, now > handshake else { return handshake }
        let age = now - handshake
        return handshake + (age - age % rekeyAfterMilliseconds)
    }
}
