/// How an embedded log uses its directory. All processes on a directory should use the same.
public struct EmbeddedLogSettings: Sendable {
    /// Address space, and so the greatest file size, of each of the two environments, in bytes. The
    /// file takes only what is stored. Default: 128 GiB, twice eight topics at their default limit.
    public var mapBytes = 128 << 30
    /// Consumers and status commands of all processes together. Default: 510.
    public var maximumReaders: UInt32 = 510
    /// Queued bytes that are committed together at most (one batch is never split). Default: 4 MiB.
    public var commitBytes = 4 << 20
    /// Queued bytes from which nobody lingers for more. Default: 64 KiB.
    public var lingerBytes = 64 << 10
    /// Longest time for which a poll lends records, in milliseconds, 1 to 100: pages that a reader
    /// may still see cannot be used again. Default: 50.
    public var readMilliseconds: Int64 = 50
    /// How often topics without appends are looked through for old records, in milliseconds.
    /// Default: 1,000.
    public var expiryMilliseconds: Int64 = 1_000
    /// How often consumers are woken although nobody rang, in milliseconds: a process that is killed
    /// between its commit and its ring leaves records unannounced. Default: 1,000.
    public var wakeMilliseconds: Int64 = 1_000
    /// Age at which a compacted topic forgets a tombstone, in milliseconds; readers that are further
    /// behind would miss it. Default: 24 h.
    public var tombstoneMilliseconds: Int64 = 24 * 3_600_000

    public init() {}
}
