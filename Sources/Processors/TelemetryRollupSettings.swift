/// What `TelemetryRollup` may be told.
public struct TelemetryRollupSettings: Hashable, Sendable {
    /// A minute closes when a record this much younger than its end has been read, in milliseconds.
    /// 0 to 30 min.
    public var closeAfter: Int64 = 300_000
    /// Names of one device that are kept apart at a time; the others are counted as `other`. 1 to
    /// 10,000.
    public var namesPerDevice: Int64 = 200
    /// Sums (of a device, a name and a minute) that a partition keeps. Beyond them the oldest minute
    /// closes early. 100 to 10,000,000.
    public var sums: Int64 = 500_000

    public init() {}
}
