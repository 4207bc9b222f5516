internal import Synchronization
internal import System

/// Asks a running simulator to stop. Any thread may.
public final class StopFlag: Sendable {
    private let requested = Atomic<Bool>(false)
    private let waker = Waker()

    public init() {}

    public var isRequested: Bool { requested.load(ordering: .acquiring) }

    /// Ends the simulator's wait at once; asking again does nothing more.
    public func request() {
        requested.store(true, ordering: .releasing)
        waker.signal()
    }

    /// Stays readable once a stop was asked for.
    var descriptor: Int32 { waker.descriptor }
}
