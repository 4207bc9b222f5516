public import Schemas
internal import Updates

/// An installation of the registry, as operators see it; no ids and no credentials.
public struct InstallationSummary: Sendable, Equatable {
    /// Internal and constant.
    public var id: DeviceID
    public var device: String
    public var app: String
    public var source: String
    public var filter: String?
    public var team: String?
    /// `latest` or `pre-release`.
    public var channel: String
    public var hasCredential: Bool
    public var version: String?
    public var assetName: String?
    public var createdAt: EventTime
    public var createdBy: String
    public var revokedAt: EventTime?
}

/// What the service knows of an installation when a request comes for it.
struct InstallationRecord: Sendable {
    var id: DeviceID
    var device: String
    var app: String
    var team: String?
    var tracked: TrackedApp
    var isRevoked: Bool
}

/// What became of looking a request's id up.
enum UpdateLookup: Sendable {
    case unknown
    /// A newer id has replaced it.
    case retired(InstallationRecord)
    /// - Parameter isFirst: whether the id was never shown before, so that it proves an attempt.
    case found(InstallationRecord, access: Access, isFirst: Bool)

    /// From where the installation may be asked for, beside this host.
    struct Access: Sendable {
        /// From anywhere: a link with that grant.
        var isAnywhere = false
        /// The address is of the installation's device, or of an admin's.
        var isPaired = false
    }
}
