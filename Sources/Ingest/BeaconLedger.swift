/// What a front-end's beacons may claim: the decisions, without clock and log.
///
/// A beacon says "all that I accepted up to my reading of the clock stands before me in the log, but
/// for what I dropped, and I say whether I dropped any". So a loss stays to be declared until a
/// beacon that declares it was accepted by the log's queue, and returns if the queue refuses that
/// beacon or its delivery fails later.
///
/// A beacon that is written while an earlier one has been on its way for long is behind: it will come
/// to the log in one burst with others, and what they tell of the time that they took is no sign that
/// other front-ends, whose burst comes later, were silent. It declares a loss, so silence is counted
/// anew from the first beacon for which the way was open again.
package struct BeaconLedger: Sendable {
    /// Losses that an accepted beacon declared, of all losses of this boot.
    private var declared: UInt64 = 0
    /// Beacons that are on their way: what was declared before them, and what they claim.
    private var underWay: [UInt64: (declared: UInt64, reading: Int64)] = [:]
    /// Milliseconds after which a beacon ought to be in the log.
    private static let patience: Int64 = 2_500
    private var lastReading: Int64 = 0

    package init() {}

    package struct Claim: Equatable, Sendable {
        package var monotonicMilliseconds: Int64
        package var isLossy: Bool
        /// Losses that the beacon covers.
        var losses: UInt64
    }

    /// What the next beacon says.
    ///
    /// - Parameters:
    ///   - readings: for each event loop, the time up to which all that it accepted is in the log's
    ///     queue or counted as lost.
    ///   - losses: heartbeats lost since the start, read after the readings.
    package func claim(readings: some Sequence<Int64>, losses: UInt64) -> Claim {
        // A loop that hangs holds everyone's progress: its devices may be speaking unheard.
        let reading = max(lastReading, readings.min() ?? lastReading)
        let isBehind = underWay.values.contains { reading - $0.reading > Self.patience }
        return Claim(
            monotonicMilliseconds: reading, isLossy: isBehind || losses > declared, losses: losses)
    }

    /// The beacon goes to the log's queue; `token` names it.
    package mutating func sent(_ claim: Claim, token: UInt64) {
        underWay[token] = (declared, claim.monotonicMilliseconds)
        declared = claim.losses
        lastReading = claim.monotonicMilliseconds
    }

    /// The beacon is in the log, or will never be: refused by the queue, or failed later.
    package mutating func settled(token: UInt64, isStored: Bool) {
        guard let before = underWay.removeValue(forKey: token), !isStored else { return }
        declared = min(declared, before.declared)
    }
}
