public import Schemas

/// Something that an agent saw and that is worth a line: it never holds a secret.
public struct FleetObservation: Hashable, Sendable {
    public enum Kind: Hashable, Sendable {
        /// It was given a configuration and could decrypt it.
        case provisioned
        /// A heartbeat's answer had another `forwards_hash` than the one before, or the first.
        case configuration(hash: String)
    }

    public var device: DeviceID
    public var kind: Kind
    /// When the answer was there, on this machine's clock.
    public var time: EventTime
}
