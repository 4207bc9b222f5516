import Pipeline
import Processors
import Simulation
import TestSupport
import Testing

/// The worker with the processor that it was made for.
@Suite struct TunnelHealthSimulationTests {
    @Test(arguments: SimulationSeeds.blocks)
    func aStormLeavesTheTablesOfACleanPass(_ seeds: Range<UInt64>) {
        for seed in seeds where seed % 5 == 0 || seeds.count == 1 {
            var records = TunnelHealthRecords(seed: seed ^ 0x7EA17)
            let partitions = 1 + Int(seed / 5 % 2)
            var simulation = WorkerStorm<TunnelHealth>(
                seed: seed, records: records.make(partitions: partitions, seconds: 600),
                settings: [Self.settings(staleAfter: 180_000), Self.settings(staleAfter: 60_000)])
            do {
                let stormy = try simulation.run(steps: 200 + Int(seed % 400))
                let calm = simulation.cleanPass()
                // Every partition raises the loss of a front-end, and whoever comes first writes it.
                let difference = stormy.tables.without("alerts", where: "kind", "front-end-lost")
                    .difference(
                        from: calm.tables.without("alerts", where: "kind", "front-end-lost"))
                #expect(difference == "", "HEARTLINE_SEED=\(seed): tables differ")
                #expect(stormy.events == calm.events, "HEARTLINE_SEED=\(seed): events differ")
            } catch {
                Issue.record("HEARTLINE_SEED=\(seed): \(error)")
            }
        }
    }

    /// Every heartbeat is written, so that the last row of a device does not depend on when a
    /// refresh happened to be due.
    static func settings(staleAfter: Int64) -> ProcessorSettings<TunnelHealthSettings> {
        @Sendable func read(_ text: String) -> TunnelHealthSettings? {
            guard let staleAfter = Int64(text) else { return nil }
            var values = TunnelHealthSettings()
            values.staleAfter = staleAfter
            values.refresh = 0
            return values
        }
        return ProcessorSettings(
            read("\(staleAfter)") ?? TunnelHealthSettings(), text: "\(staleAfter)", read: read)
    }
}
