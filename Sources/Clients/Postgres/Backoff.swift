/// How long to wait before each attempt: a pure function, without jitter and with a bound.
public struct Backoff: Hashable, Sendable {
    /// Milliseconds after the first failure. Default: 100.
    public var initialMilliseconds: Int64
    /// The longest wait. Default: 5 s.
    public var limitMilliseconds: Int64

    public init(initialMilliseconds: Int64 = 100, limitMilliseconds: Int64 = 5_000) {
        self.initialMilliseconds = max(1, initialMilliseconds)
        self.limitMilliseconds = max(1, limitMilliseconds)
    }

    /// Milliseconds to wait after `failures` failures in a row: none after 0, then doubling.
    public func delay(afterFailures failures: Int) -> Int64 {
        guard failures > 0 else { return 0 }
        let shift = min(failures - 1, 40)
        let (product, overflow) = initialMilliseconds.multipliedReportingOverflow(by: 1 << shift)
        return overflow ? limitMilliseconds : min(product, limitMilliseconds)
    }
}
