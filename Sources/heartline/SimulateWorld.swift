import Simulation
import System

/// `heartline simulate --deterministic`: worlds on one simulated clock, chosen by a seed.
enum SimulateWorld {
    static let options: [Option] = [
        .flag("deterministic", "no network, no database: a whole world on a simulated clock"),
        .integer(
            "hours", 1...10_000,
            "with --deterministic: length of the storm; without it: minutes, by the seed"),
        .integer(
            "devices", 1...100_000, "with --deterministic: how many; without it: a few, by the seed"
        ),
        .integer(
            "seeds", 1...Int.max, default: 1, "with --deterministic: so many seeds, from --seed on"),
        .flag("trace", "with --deterministic: tell everything that happens"),
        .flag(
            "vanish",
            "with --deterministic: all devices fall silent at once and return at once, and nothing else"
        ),
    ]

    static let details = """
        --deterministic runs devices, front-ends, log, workers, database, dispatcher and receivers as the
        production code decides, on simulated time, with crashes, outages, lag, rebalances and clocks that jump, all chosen by
        --seed, and compares what comes out with the truth. The same seed does the same, to the byte. A
        promise that is broken is printed with all that led to it, and the exit code is 1.
        """

    static func run(_ arguments: Arguments) -> ExitCode {
        // A storm is full of warnings.
        Log.configure(minimum: .error, format: .text)
        let first = UInt64(arguments.integer("seed"))
        let count = UInt64(arguments.integer("seeds"))
        let started = SystemClock.monotonicMilliseconds()
        var total: WorldReport?
        for seed in first..<(first + count) {
            var options = WorldOptions(seed: seed)
            options.duration = arguments.optionalInteger("hours").map { Int64($0) * 3_600_000 }
            options.devices = arguments.optionalInteger("devices")
            if arguments.flag("vanish") {
                options.script = WorldScript().at(200, .devicesVanish(count: .max))
                    .at(500, .everyoneReturns)
                options.duration = options.duration ?? 600_000
            }
            let isTraced = arguments.flag("trace")
            let report = World(options, isTracing: isTraced).run()
            if let violation = report.violation {
                // Once more, with everything told: it does the same.
                let again = World(options, isTracing: true, focusing: violation).run()
                for line in again.trace { Terminal.write("\(line)\n") }
                Terminal.write(
                    """

                    seed \(seed): \(violation)
                    repeat it: \(command(options))

                    """)
                return .failed
            }
            for line in report.trace { Terminal.write("\(line)\n") }
            if total == nil { total = report } else { total?.add(report) }
        }
        let seeds = count == 1 ? "seed \(first)" : "seeds \(first) to \(first + count - 1)"
        Terminal.write("\(seeds): every promise held\n\(total?.summary ?? "")")
        // Not with the rest, which is the same wherever and whenever it runs.
        let elapsed = max(1, SystemClock.monotonicMilliseconds() - started)
        Terminal.write(
            "\(elapsed) ms, \((total?.milliseconds ?? 0) / elapsed) times as fast as the clock\n",
            to: .errors)
        return .done
    }

    private static func command(_ options: WorldOptions) -> String {
        var text = "heartline simulate --deterministic --seed \(options.seed)"
        if options.script != nil { text += " --vanish" }
        if let duration = options.duration, duration >= 3_600_000 {
            text += " --hours \(duration / 3_600_000)"
        }
        if let devices = options.devices { text += " --devices \(devices)" }
        return text
    }
}
