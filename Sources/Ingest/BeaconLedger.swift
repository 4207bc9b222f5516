/// What a front-end's beacons may claim: the decisions, without clock and log.
///
/// A beacon says "all that I accepted up to my reading of the clock stands before me in the log, but
/// for what I dropped, and I say whether I dropped any". So a loss stays to be declared until a
/// beacon that declares it was accepted by the log's queue, and returns if the queue refuses that
/// beacon or its delivery fails later.
///
/// A beacon that is written while the log has been silent on earlier ones for a while is *behind*: it
/// will come to the log in one burst with others, and the time that they tell of is no sign that other
/// front-ends, whose burst comes later, were silent. A log that is slow but goes on answering makes no
/// beacon behind, however long each answer takes.
package struct BeaconLedger: Sendable {
    /// Losses that an accepted beacon declared, of all losses of this boot.
    private var declared: UInt64 = 0
    /// Beacons that are on their way: what was declared before them.
    private var underWay: [UInt64: UInt64] = [:]
    /// Milliseconds without an answer after which the log counts as silent: one beacon and a half.
    private static let patience: Int64 = 7_500
    /// The reading from which on the log's silence counts: of the last claim before which it had
    /// answered, or had nothing to answer.
    private var quietSince: Int64 = 0
    private var hasAnswered = true
    private var lastReading: Int64 = 0

    package init() {}

    package struct Claim: Equatable, Sendable {
        package var monotonicMilliseconds: Int64
        package var isLossy: Bool
        package var isBehind: Bool
        /// Losses that the beacon covers.
        var losses: UInt64
    }

    /// What the next beacon says.
    ///
    /// - Parameters:
    ///   - readings: for each event loop, the time up to which all that it accepted is in the log's
    ///     queue or counted as lost.
    ///   - losses: heartbeats lost since the start, read after the readings.
    package mutating func claim(readings: some Sequence<Int64>, losses: UInt64) -> Claim {
        // A loop that hangs holds everyone's progress: its devices may be speaking unheard.
        let reading = max(lastReading, readings.min() ?? lastReading)
        if hasAnswered || underWay.isEmpty { quietSince = reading }
        hasAnswered = false
        return Claim(
            monotonicMilliseconds: reading, isLossy: losses > declared,
            isBehind: reading - quietSince > Self.patience, losses: losses)
    }

    /// The beacon goes to the log's queue; `token` names it.
    package mutating func sent(_ claim: Claim, token: UInt64) {
        underWay[token] = declared
        declared = claim.losses
        lastReading = claim.monotonicMilliseconds
    }

    /// The beacon is in the log, or will never be: refused by the queue, or failed later.
    package mutating func settled(token: UInt64, isStored: Bool) {
        guard let before = underWay.removeValue(forKey: token) else { return }
        if isStored { hasAnswered = true } else { declared = min(declared, before) }
    }
}
