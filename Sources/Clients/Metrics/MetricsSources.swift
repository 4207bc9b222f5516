internal import Synchronization

/// The parts of a process that have something to tell, and the page of all of them.
/// - Thread safety: any thread. Sources are asked on the thread that asks for the page, one page at a
///   time, so each takes what it counts and waits for nothing.
public final class MetricsSources: Sendable {
    public typealias Source = @Sendable (inout MetricsPage) -> Void

    private let sources = Mutex<[String: Source]>([:])

    public init() {}

    /// - Parameter source: `nil`: the part has nothing to tell any more, and is let go.
    public func set(_ part: String, _ source: Source?) {
        sources.withLock { $0[part] = source }
    }

    public func removeAll() { sources.withLock { $0 = [:] } }

    /// What all of them tell now.
    public func page() -> MetricsPage {
        let parts = sources.withLock { $0.sorted { $0.key < $1.key } }
        var page = MetricsPage()
        for part in parts { part.value(&page) }
        return page
    }
}
