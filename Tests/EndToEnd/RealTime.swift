import Synchronization
import Testing

/// Traits of tests of real processes in real time.
///
/// Such a test is told what the machine does beside it: a machine that stood still for seconds has kept
/// a device silent, and nothing in the test can tell that from a fault. A test that fails is therefore run once
/// more, from its beginning, with a new installation. What failed the first time stands in the output
/// as a known issue and in the runner's summary; a test that fails twice fails.
struct RealTime: TestTrait, SuiteTrait, TestScoping {
    var isRecursive: Bool { true }

    func provideScope(
        for test: Test, testCase: Test.Case?,
        performing function: @concurrent @Sendable () async throws -> Void
    ) async throws {
        let hasFailed = Mutex(false)
        try await withKnownIssue("the first of two attempts", isIntermittent: true) {
            try await function()
        } matching: { _ in
            hasFailed.withLock { $0 = true }
            return true
        }
        if hasFailed.withLock({ $0 }) { try await function() }
    }
}

extension Trait where Self == RealTime {
    /// Run once more when it fails.
    static var realTime: RealTime { RealTime() }
}
