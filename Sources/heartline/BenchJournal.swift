import Foundation
import Synchronization
import System

/// What the measurements of one run found; what `heartline bench --json` writes.
struct BenchJournal: Codable {
    /// One figure beside its yardstick.
    struct Figure: Codable {
        var measure: String
        var value: Double
        var unit: String
        /// Absent where there is none.
        var yardstick: String?
        var yardstick_value: Double?
        /// As printed: of the figure to its yardstick.
        var ratio: Double?
    }

    struct Section: Codable {
        /// As the command line names it.
        var name: String
        var seconds: Double
        /// As printed.
        var lines: [String]
        var figures: [Figure]
    }

    var version: String
    var started: String
    var machine: MachineFacts
    var devices: Int
    var sections: [Section]
}

extension Bench {
    private static let open = Mutex<BenchJournal.Section?>(nil)

    /// Makes a measurement and keeps what it says.
    static func section(
        _ name: String, into journal: inout BenchJournal, _ body: () throws -> Void
    ) rethrows {
        open.withLock {
            $0 = BenchJournal.Section(name: name, seconds: 0, lines: [], figures: [])
        }
        let start = SystemClock.monotonicNanoseconds()
        try body()
        let seconds = Double(SystemClock.monotonicNanoseconds() - start) / 1e9
        open.withLock { section in
            section?.seconds = seconds
            if let section { journal.sections.append(section) }
            section = nil
        }
    }

    /// Prints lines and keeps them.
    static func say(_ text: String) {
        Terminal.write(text + "\n")
        open.withLock { $0?.lines += text.split(separator: "\n").map(String.init) }
    }

    /// Keeps a figure. The ratio is of the two unless it is given.
    static func note(
        _ measure: String, _ value: Double, _ unit: String,
        beside yardstick: (name: String, value: Double)? = nil, ratio: Double? = nil
    ) {
        let quotient = yardstick.flatMap { $0.value == 0 ? nil : value / $0.value }
        let figure = BenchJournal.Figure(
            measure: measure, value: value, unit: unit, yardstick: yardstick?.name,
            yardstick_value: yardstick?.value, ratio: ratio ?? quotient)
        open.withLock { $0?.figures.append(figure) }
    }
}
