/// How a connection is made and how long it waits.
public struct PostgresOptions: Sendable {
    /// Shown in `pg_stat_activity`, unless the address names another.
    public var applicationName = "heartline"
    /// Longest wait for a connection, name resolution excepted. Default: 10 s.
    public var connectTimeout: Duration = .seconds(10)
    /// The server ends a statement that takes longer; `nil` leaves the server's setting.
    public var statementTimeout: Duration?
    /// Longest wait for the next byte of an answer, after which the connection counts as lost. Must
    /// exceed the longest statement. Default: 5 min.
    public var responseTimeout: Duration = .seconds(300)
    /// Silence of the network after which a TCP connection counts as lost. Default: 30 s.
    /// - SeeAlso: tcp(7), `TCP_USER_TIMEOUT`, `TCP_KEEPIDLE`.
    public var deadPeerTimeout: Duration = .seconds(30)
    /// Handed each notice of the server, on the thread that uses the connection; `nil` drops them.
    public var notice: (@Sendable (String) -> Void)?

    public init() {}

    public init(applicationName: String) { self.applicationName = applicationName }
}

extension Duration {
    /// Rounded up; clamped to what a 32-bit number of milliseconds holds.
    var wholeMilliseconds: Int64 {
        let (seconds, attoseconds) = components
        let clamped = min(max(seconds, 0), 2_000_000)
        return clamped * 1_000 + (attoseconds + 999_999_999_999_999) / 1_000_000_000_000_000
    }
}
