/// Limits of the sockets of one front-end and of what is pushed over them. Sizes in bytes, times in
/// milliseconds.
package struct PushLimits: Sendable {
    /// Open sockets of one account; the oldest is closed for one more. Default: 8.
    package var accountSockets = 8
    /// Open sockets of the front-end; above it 503. Default: 100,000.
    package var sockets = 100_000
    /// What a socket may have been sent and not yet confirmed before it has to wait. Default: 256 KiB.
    package var windowBytes = 256 << 10
    /// After this much a socket is asked to confirm. Default: 64 KiB.
    package var markBytes = 64 << 10
    /// Longest time without a confirmation for a socket that owes one; then it is closed with 1013.
    /// Default: 30 s.
    package var slowMilliseconds: Int64 = 30_000
    /// How often the database is asked for an account whose doorbell does not ring. Default: 5 s.
    package var sweepMilliseconds: Int64 = 5_000
    /// How long confirmations wait for others. Default: 20 ms.
    package var confirmMilliseconds: Int64 = 20
    /// Pushes of one account and question that nobody has confirmed. Default: 64.
    package var openRows = 64
    /// Pushes of one account and question that another front-end has delivered. Default: 256.
    package var deliveredRows = 256
    /// Pushes of one question for what a socket has missed. Default: 64.
    package var pageRows = 64
    /// Accounts of one round of questions. Default: 256.
    package var roundAccounts = 256
    /// Sockets whose missed pushes are asked for in one round. Default: 128.
    package var roundPages = 128
    /// Confirmations of one round. Default: 500.
    package var confirmations = 500
    /// Bodies of one question; the rest is asked for again. Default: 4 MiB.
    package var roundBytes = 4 << 20

    package init() {}
}
