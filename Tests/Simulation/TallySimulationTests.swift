import Pipeline
import Simulation
import TestSupport
import Testing

/// The worker with a processor whose state shows whether each record was applied once and in order.
@Suite struct TallySimulationTests {
    @Test(arguments: SimulationSeeds.blocks)
    func aStormLeavesWhatACleanPassLeaves(_ seeds: Range<UInt64>) {
        for seed in seeds {
            var random = SplitMix64(seed: seed ^ 0x7A11)
            let records = Tally.records(
                partitions: 1 + random.below(3), count: 30 + random.below(100), using: &random)
            var simulation = WorkerStorm<Tally>(
                seed: seed, records: records, settings: Self.settings)
            do {
                let stormy = try simulation.run(steps: 100 + random.below(400))
                let calm = simulation.cleanPass()
                let difference = stormy.tables.difference(from: calm.tables)
                #expect(difference == "", "HEARTLINE_SEED=\(seed): tables differ")
                #expect(stormy.events == calm.events, "HEARTLINE_SEED=\(seed): events differ")
            } catch {
                Issue.record("HEARTLINE_SEED=\(seed): \(error)")
            }
        }
    }

    static let settings = [1, 3, 4].map { (every: Int64) in
        ProcessorSettings(
            Tally.Settings(publishEvery: every), text: "\(every)",
            read: { Tally.Settings(text: $0) })
    }
}
