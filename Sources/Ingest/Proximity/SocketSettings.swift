/// Phones' sockets of a front-end.
public struct SocketSettings: Sendable {
    /// From a WebSocket ping to the next, in milliseconds; a client that answers neither of two is
    /// closed. Default: 30 s.
    public var pingMilliseconds: Int64 = 30_000
    package var limits = PushLimits()

    public init() {}

    /// Open sockets of the front-end; above it 503. Default: 100,000.
    public var sockets: Int {
        get { limits.sockets }
        set { limits.sockets = newValue }
    }
}
