import Pipeline
import Processors
import Simulation
import TestSupport
import Testing

/// The worker with the processor of telemetry: a storm leaves the rows of a clean pass, each once.
@Suite struct TelemetrySimulationTests {
    @Test(arguments: SimulationSeeds.blocks)
    func aStormLeavesTheMinutesAndLogsOfACleanPass(_ seeds: Range<UInt64>) {
        for seed in seeds where seed % 5 == 2 || seeds.count == 1 {
            var records = TelemetryRecords(seed: seed ^ 0x7E1E)
            var simulation = WorkerStorm<TelemetryRollup>(
                seed: seed,
                records: records.make(
                    partitions: 1 + Int(seed / 5 % 2), count: 60 + Int(seed % 120)),
                settings: Self.settings)
            do {
                let stormy = try simulation.run(steps: 150 + Int(seed % 400))
                let calm = simulation.cleanPass()
                let difference = stormy.tables.difference(from: calm.tables)
                #expect(difference == "", "HEARTLINE_SEED=\(seed): tables differ")
                #expect(stormy.events == calm.events, "HEARTLINE_SEED=\(seed): events differ")
                #expect(
                    calm.tables.appended["telemetry_minutes"]?.isEmpty == false,
                    "HEARTLINE_SEED=\(seed)")
            } catch {
                Issue.record("HEARTLINE_SEED=\(seed): \(error)")
            }
        }
    }

    /// Limits that are met take turns with those that are not.
    private static let settings: [ProcessorSettings<TelemetryRollupSettings>] = {
        var small = TelemetryRollupSettings()
        small.namesPerDevice = 2
        small.sums = 100
        var quick = TelemetryRollupSettings()
        quick.closeAfter = 60_000
        return [TelemetryRollupSettings(), small, quick].map { ProcessorSettings($0) }
    }()
}
