internal import Schemas

/// A change of the registry that cannot be made. Holds no secrets.
public struct RegistryError: Error, Hashable, Sendable, CustomStringConvertible {
    public enum Kind: Hashable, Sendable {
        /// The prefix has fewer free addresses than are needed.
        case poolFull(free: Int64)
        case unknownDevice
        case unknownToken, unknownForward
        /// A device was provisioned with the token.
        case tokenUsed
        /// The forward's port leads somewhere else.
        case forwardConflict
        /// The request's id was used for another request.
        case requestConflict
        /// `HEARTLINE_SECRET_KEY` is not the key under which the registry's secrets are sealed.
        case wrongSecretKey
        /// Stored secrets that do not open: changed by someone, or moved to another device.
        case damagedSecrets
        case badSetting
        /// The network's settings were never stored.
        case noNetwork
    }

    public var operation: String
    public var kind: Kind
    public var reason: String

    public var description: String { "\(operation): \(reason)" }

    init(_ operation: String, _ kind: Kind, _ reason: String) {
        self.operation = operation
        self.kind = kind
        self.reason = reason
    }

    static let wrongKey = RegistryError(
        "opening the registry", .wrongSecretKey,
        "HEARTLINE_SECRET_KEY is not the key that this database was set up with; use that one")
}
