import Bytes
import Pipeline
import Processors
import Schemas
import Simulation
import TestSupport
import Testing

/// No beacon at the end of the log for 30 s, by the worker's own clock.
@Suite struct IngestSilentTests {
    private static let settings = ProcessorSettings(
        TunnelHealthSettings(), text: "", read: { _ in TunnelHealthSettings() })

    private final class Fleet {
        let bench: WorkerBench<TunnelHealth>
        private var counter: UInt64 = 0

        init() {
            bench = WorkerBench(IngestSilentTests.settings, records: [[], []])
            bench.settings.ingestSilentAfter = 30_000
            bench.start()
        }

        /// Beacons every five seconds for `seconds`, in every partition.
        func report(seconds: Int64) {
            for _ in 0..<(seconds / 5) {
                beacon()
                bench.run(5_000)
            }
        }

        func beacon() {
            for partition in 0..<2 {
                counter += 1
                var value = ByteBuffer()
                value.append(
                    .beacon(
                        Beacon(
                            frontEnd: InlineText("front"),
                            origin: EventOrigin(boot: 1, counter: counter),
                            monotonicMilliseconds: bench.now)))
                bench.log.append(
                    SimulatedRecord(
                        key: ByteBuffer("front".utf8), value: value,
                        timestamp: EventTime(milliseconds: 1_790_000_000_000 + bench.now)),
                    to: partition)
            }
        }

        var alerts: [(opened: Int64, resolved: Int64?)] { bench.store.ingestSilentAlerts }
    }

    @Test func anOutageOpensOneAlertAndItsEndResolvesIt() {
        let fleet = Fleet()
        fleet.report(seconds: 60)
        #expect(fleet.alerts.isEmpty)
        fleet.bench.run(28_000 - 5_000)
        #expect(fleet.alerts.isEmpty)
        fleet.bench.run(3_600_000)
        #expect(fleet.alerts.count == 1)
        #expect(fleet.bench.status.isIngestSilent)
        fleet.report(seconds: 20)
        #expect(fleet.alerts.count == 1)
        #expect(fleet.alerts.last?.resolved != nil)
        #expect(!fleet.bench.status.isIngestSilent)
        fleet.bench.run(60_000)
        #expect(fleet.alerts.count == 2)
    }

    @Test func aRestartDuringTheOutageOpensNoSecondAlert() {
        let fleet = Fleet()
        fleet.report(seconds: 60)
        fleet.bench.run(60_000)
        fleet.bench.crash()
        fleet.bench.start()
        fleet.bench.run(120_000)
        #expect(fleet.alerts.count == 1)
        #expect(fleet.alerts.last?.resolved == nil)
        fleet.report(seconds: 20)
        #expect(fleet.alerts.count == 1)
        #expect(fleet.alerts.last?.resolved != nil)
    }

    /// It was opened by a worker that has lost its partitions since: whoever reads beacons ends it.
    @Test func whatAnotherWorkerOpenedIsResolvedByWhoeverReadsBeacons() {
        let fleet = Fleet()
        fleet.report(seconds: 60)
        fleet.bench.store.openIngestSilent(since: nil)
        #expect(fleet.alerts.last?.resolved == nil)
        fleet.report(seconds: 90)
        #expect(fleet.alerts.count == 1)
        #expect(fleet.alerts.last?.resolved != nil)
    }

    @Test func aWorkerThatWasStoppedForAWhileHasNotWatched() {
        let fleet = Fleet()
        fleet.report(seconds: 60)
        fleet.bench.suspend(3_600_000)
        fleet.bench.run(20_000)
        #expect(fleet.alerts.isEmpty)
        fleet.report(seconds: 60)
        #expect(fleet.alerts.isEmpty)
    }

    @Test func whileTheDatabaseIsDownNothingIsRaised() {
        let fleet = Fleet()
        fleet.report(seconds: 60)
        fleet.bench.store.setDown(true)
        fleet.report(seconds: 120)
        fleet.bench.store.setDown(false)
        fleet.report(seconds: 60)
        #expect(fleet.alerts.isEmpty)
    }
}
