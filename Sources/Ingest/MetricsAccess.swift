public import Metrics

/// `GET /metrics` on an operators' listener: what is told, and who may read it.
public struct MetricsAccess: Sendable {
    public var sources: MetricsSources
    /// Let in with any of these: the operators' own, and one that can read metrics and nothing else.
    public var tokens: [AdminToken]

    /// `nil` without a token: then there is no such route.
    public init?(_ sources: MetricsSources, tokens: [AdminToken?]) {
        let given = tokens.compactMap { $0 }
        guard !given.isEmpty else { return nil }
        self.sources = sources
        self.tokens = given
    }
}
