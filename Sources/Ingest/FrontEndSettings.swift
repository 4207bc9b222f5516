internal import Foundation
public import HTTP
public import Schemas

/// How a front-end listens and what it promises.
public struct FrontEndSettings: Sendable, CustomStringConvertible {
    /// The public listener. Default: 127.0.0.1:8080, without TLS.
    public var server: ServerConfiguration
    /// The operators' listener; `nil`: none.
    public var admin: ServerConfiguration?
    /// What operators must show on it; `nil`: it tells the health only.
    public var adminToken: AdminToken?
    /// `GET /metrics` on it; `nil`: there is none.
    public var metrics: MetricsAccess?
    /// Names by which the page on it may be reached, beside addresses and `localhost`.
    public var adminNames: [String] = []
    /// `HEARTLINE_SECRET_KEY`, 32 bytes.
    public var secretKey: [UInt8]
    /// `SERVER_SALT`, at least 16 bytes. Empty, the default: agents cannot be provisioned here, and are
    /// answered 404.
    public var salt: [UInt8] = []
    public var provisioning = ProvisioningSettings()
    /// `nil`, the default: the proximity service is not served here, and its routes are answered 404.
    public var proximity: ProximitySettings?
    /// `nil`, the default: no socket is opened here.
    public var sockets: SocketSettings?
    /// How apps are updated; `nil`, the default: not from here, and their routes are answered 404.
    public var updates: UpdateSettings?
    /// The front-end's name in beacons: stable over its restarts, and unlike any other's. At most
    /// 120 bytes. Default: the host's name and the address it listens on.
    public var name: String
    /// What a 200 to a heartbeat promises. Default: `.queued`.
    public var durability = Topic.heartbeats.durability
    /// Time between beacons, in milliseconds. Default: 5 s; workers hold their time when a
    /// front-end is silent for 10 s, so more than that is of no use.
    public var beaconMilliseconds: Int64 = 5_000
    public var cache = CacheLimits()
    /// Bytes of events that may wait for the log. Default: 64 MiB.
    public var queueBytes = 64 << 20
    /// Bytes of requests and answers in flight on the whole listener above which a heartbeat whose
    /// device would have to be read is answered 503. Default: 256 MiB. Devices in memory are always
    /// answered.
    public var overloadBytes = 256 << 20
    /// Longest read of devices from the database, after which their heartbeats are answered 500.
    /// Default: 5 s.
    public var databaseMilliseconds: Int64 = 5_000
    /// Longest wait for requests in flight at the end; the listener's own limit if that is shorter.
    /// Default: 5 s, so that with the next an end takes less than 10 s.
    public var drainMilliseconds: Int64 = 5_000
    /// Longest wait for the log to store what is queued at the end. Default: 4 s.
    public var flushMilliseconds: Int64 = 4_000
    /// Longest wait at the start for the log to be followed and to take a first beacon.
    public var startMilliseconds: Int64 = 10_000

    /// - Parameter secretKey: 32 bytes.
    public init(server: ServerConfiguration, admin: ServerConfiguration? = nil, secretKey: [UInt8])
    {
        self.server = server
        self.admin = admin
        self.secretKey = secretKey
        name = "\(ProcessInfo.processInfo.hostName)/\(server.address)"
    }

    /// What operators can do on the listener of their own; `nil` without their token.
    /// - Parameter logEnd: the offset that a partition's next record gets.
    public func administration(
        databaseURL: String, logEnd: @escaping @Sendable (TopicPartition) -> Int64?
    ) -> AdministrationSettings? {
        adminToken.map { token in
            var settings = AdministrationSettings(
                databaseURL: databaseURL, secretKey: secretKey, token: token)
            settings.logEnd = logEnd
            settings.names = adminNames
            return settings
        }
    }

    /// Without the secret key.
    public var description: String { "FrontEndSettings(\(name), \(durability))" }
}

/// A front-end that cannot start or cannot be made.
public struct FrontEndError: Error, Hashable, Sendable, CustomStringConvertible {
    public var reason: String

    public var description: String { "starting the front-end: \(reason)" }
}
