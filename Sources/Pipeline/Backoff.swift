/// How long to wait before a failed request is repeated: 100 ms, doubled up to 5 s.
enum Backoff {
    static let longest: Int64 = 5_000

    /// - Parameter attempts: failures so far, at least 1.
    static func milliseconds(after attempts: Int) -> Int64 {
        min(longest, 100 << Int64(min(max(attempts, 1) - 1, 6)))
    }
}
