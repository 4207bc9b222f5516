public import Schemas

/// The devices by state over time, put together from what the tables hold by minute and what was counted here
/// since somebody looks.
public struct FleetHistory: Sendable {
    /// How far back the picture goes.
    public static let span: Int64 = 6 * 3_600_000
    /// Counts of our own are of use until their minutes are in the tables, and as the finer ones for a while.
    private static let ownSpan: Int64 = 10 * 60_000
    /// What was between two counts that are further apart is not known; those before are given up.
    private static let longestGap: Int64 = 90_000
    /// Points of the picture; of those closer together the last counts.
    private static let points: Int64 = 160

    private var minutes: [FleetReading.Sample] = []
    private var own: [FleetReading.Sample] = []

    public init() {}

    /// A minute of the tables: by its start, as of its end.
    public struct Minute: Hashable, Sendable {
        public var start: EventTime
        public var counts: StateCounts
        /// Partitions that told of it.
        public var partitions: Int64

        public init(start: EventTime, counts: StateCounts, partitions: Int64) {
            self.start = start
            self.counts = counts
            self.partitions = partitions
        }
    }

    /// Takes over what the tables hold, in order of time.
    public mutating func replace(_ read: [Minute]) {
        var whole = read
        // Minutes that not every partition has closed yet would look like a loss of devices.
        while whole.count > 1, whole[whole.count - 1].partitions < whole[whole.count - 2].partitions
        {
            whole.removeLast()
        }
        minutes = whole.map { .init(at: $0.start + 60_000, counts: $0.counts) }
    }

    /// Adds a count of our own.
    public mutating func append(_ sample: FleetReading.Sample) {
        if let last = own.last, sample.at - last.at > Self.longestGap { own.removeAll() }
        own.removeAll { sample.at - $0.at > Self.ownSpan || $0.at >= sample.at }
        own.append(sample)
    }

    /// Whether there is little to show yet but what is counted here.
    public var isYoung: Bool { minutes.count < 5 }

    /// What is shown, in order of time.
    public func samples(now: EventTime) -> [FleetReading.Sample] {
        let begin = own.first?.at ?? now
        var all = minutes.filter { now - $0.at <= Self.span && $0.at < begin }
        all += own
        guard let first = all.first, let last = all.last, last.at > first.at else { return all }
        let step = max(1, (last.at - first.at) / Self.points)
        var thinned: [FleetReading.Sample] = []
        for sample in all {
            if let before = thinned.last, thinned.count > 1,
                (before.at - first.at) / step == (sample.at - first.at) / step
            {
                thinned.removeLast()
            }
            thinned.append(sample)
        }
        return thinned
    }
}

/// Decides when something that costs is asked for again: at most so often, and never more than a twentieth of
/// the time.
public struct Pace: Sendable {
    private let interval: Int64
    private var next: Int64 = .min
    private static let share: Int64 = 20

    /// - Parameter interval: shortest time between two, in milliseconds.
    public init(every interval: Int64) { self.interval = interval }

    /// - Parameter now: monotonic milliseconds.
    public func isDue(_ now: Int64) -> Bool { now >= next }

    /// - Parameter cost: milliseconds that it took.
    public mutating func took(_ cost: Int64, now: Int64) {
        next = now + max(interval, cost * Self.share)
    }
}
