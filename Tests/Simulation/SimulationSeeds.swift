import Foundation
import System

/// The seeds of a test run: 1,000 of them, or the one in `HEARTLINE_SEED`.
enum SimulationSeeds {
    /// A storm is full of warnings.
    static let isQuiet: Bool = {
        Log.configure(minimum: .error, format: .text)
        return true
    }()

    static let blocks: [Range<UInt64>] = {
        _ = isQuiet
        if let text = ProcessInfo.processInfo.environment["HEARTLINE_SEED"],
            let seed = UInt64(text)
        {
            return [seed..<(seed + 1)]
        }
        return stride(from: UInt64(0), to: 1_000, by: 50).map { $0..<($0 + 50) }
    }()
}
