/// How a front-end provisions agents.
public struct ProvisioningSettings: Sendable {
    /// Requests that may wait or be worked on at once, above which others are answered 503.
    /// Default: 4,096.
    public var queueRequests = 4_096
    /// Requests that are carried out in one transaction. Default: 256.
    public var batchRequests = 256
    /// Threads, each with a connection of its own: while one holds the registry's lock, the other makes
    /// keys. Default: 2.
    public var threads = 2
    /// `nil`: no limit for one client. Default: `ProvisionLimit()`.
    public var limit: ProvisionLimit? = ProvisionLimit()

    public init() {}
}

/// How often one client address may ask to be provisioned at one front-end, whatever it is answered.
/// All of an IPv6 /64 is one client.
public struct ProvisionLimit: Sendable, Equatable {
    /// Requests at once. Default: 60, which an office behind one address survives.
    public var burst = 60
    /// What is refilled in a minute. Default: 60.
    public var perMinute = 60
    /// Addresses that are remembered; those that find no room share one allowance. 24 bytes each or so.
    /// Default: 65,536.
    public var clients = 65_536

    public init() {}
}
