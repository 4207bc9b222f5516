import Pipeline
import Processors
import Schemas
import Simulation
import TestSupport
import Testing

/// The worker with the rollout of updates: a storm leaves what one clean pass leaves.
@Suite struct UpdatesSimulationTests {
    @Test(arguments: SimulationSeeds.blocks)
    func aStormOfUpdatesLeavesTheTablesOfACleanPass(_ seeds: Range<UInt64>) {
        for seed in seeds where seed % 4 == 2 || seeds.count == 1 {
            var generator = UpdateRecords(seed: seed ^ 0x0DDA)
            var simulation = WorkerStorm<UpdateRollout>(
                seed: seed,
                records: generator.records(
                    partitions: 1 + Int(seed % 3), count: 60 + Int(seed % 120)),
                settings: [ProcessorSettings(UpdateRolloutSettings())])
            do {
                let stormy = try simulation.run(steps: 100 + Int(seed % 400))
                let calm = simulation.cleanPass()
                let difference = stormy.tables.difference(from: calm.tables)
                #expect(difference == "", "HEARTLINE_SEED=\(seed): tables differ")
                #expect(stormy.events == calm.events, "HEARTLINE_SEED=\(seed): events differ")
                #expect(!stormy.tables.keyed["update_attempts", default: [:]].isEmpty)
            } catch {
                Issue.record("HEARTLINE_SEED=\(seed): \(error)")
            }
        }
    }
}
