import Foundation
import Testing

/// Waits until `condition` holds, looking again and again.
/// - Returns: whether it held before `seconds` were over. Generous: a deadline is for what hangs,
///   never a measure of speed.
func holds(
    within seconds: Double, _ condition: () async throws -> Bool
) async rethrows -> Bool {
    let end = ContinuousClock.now + .seconds(seconds)
    while true {
        if try await condition() { return true }
        if ContinuousClock.now > end { return false }
        try? await Task.sleep(for: .milliseconds(20))
    }
}
