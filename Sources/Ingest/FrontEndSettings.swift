internal import Foundation
public import HTTP
public import Schemas

/// How a front-end listens and what it promises.
public struct FrontEndSettings: Sendable {
    /// The public listener. Default: 127.0.0.1:8080, without TLS.
    public var server: ServerConfiguration
    /// The operators' listener; `nil`: none.
    public var admin: ServerConfiguration?
    /// `HEARTLINE_SECRET_KEY`, 32 bytes.
    public var secretKey: [UInt8]
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
    /// Longest wait for the log to store what is queued at the end. Default: 5 s.
    public var flushMilliseconds: Int64 = 5_000
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
}

/// A front-end that cannot start or cannot be made.
public struct FrontEndError: Error, Hashable, Sendable, CustomStringConvertible {
    public var reason: String

    public var description: String { "starting the front-end: \(reason)" }
}
