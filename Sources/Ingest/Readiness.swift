internal import Synchronization

/// Why this process does not take requests now, by part. Parts set and clear their own reason.
public final class Readiness: Sendable {
    /// A part that was told of stays, with its reason or without.
    private let parts = Mutex<[String: String?]>([:])

    public init() {}

    /// `nil`: the part is ready. A reason holds no secrets.
    public func set(_ part: String, _ reason: String?) {
        _ = parts.withLock { $0.updateValue(reason, forKey: part) }
    }

    /// Part and reason, in the order of the parts' names; empty: ready.
    public var unready: [(part: String, reason: String)] {
        checks.compactMap { check in check.reason.map { (part: check.part, reason: $0) } }
    }

    /// Every part that has said anything, in the order of their names; without a reason it is ready.
    public var checks: [(part: String, reason: String?)] {
        parts.withLock { $0.map { (part: $0.key, reason: $0.value) } }
            .sorted { $0.part < $1.part }
    }
}
