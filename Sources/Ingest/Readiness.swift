internal import Synchronization

/// Why this process does not take requests now, by part. Parts set and clear their own reason.
public final class Readiness: Sendable {
    private let reasons = Mutex<[String: String]>([:])

    public init() {}

    /// `nil`: the part is ready. A reason holds no secrets.
    public func set(_ part: String, _ reason: String?) {
        reasons.withLock { $0[part] = reason }
    }

    /// Part and reason, in the order of the parts' names; empty: ready.
    public var unready: [(part: String, reason: String)] {
        reasons.withLock { $0.map { (part: $0.key, reason: $0.value) } }
            .sorted { $0.part < $1.part }
    }
}
