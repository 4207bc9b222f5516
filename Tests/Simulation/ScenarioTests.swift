import Foundation
import Simulation
import Testing

/// Stories of which people have been woken for nothing, or not at all, in whole worlds: devices,
/// front-ends, log, workers, database, dispatcher and receivers. The oracle judges all of each world;
/// what is expected here besides is how many alerts a story may make.
@Suite struct ScenarioTests {
    private static let minute: Int64 = 60_000

    private func live(
        _ script: WorldScript, minutes: Int64 = 20, devices: Int = 8, frontEnds: Int = 2,
        partitions: Int = 2, workers: Int = 2, isUneventful: Bool = false
    ) -> [WorldReport] {
        _ = SimulationSeeds.isQuiet
        // The stories are told; who is where and when within its interval is the seed's.
        return (0..<3 as Range<UInt64>).map { seed in
            var options = WorldOptions(
                seed: seed, duration: minutes * Self.minute, devices: devices)
            options.frontEnds = frontEnds
            options.partitions = partitions
            options.workers = workers
            options.script = script
            let report = World(options).run()
            if let violation = report.violation {
                let told = World(options, isTracing: true, focusing: violation).run().trace
                Issue.record(
                    "seed \(seed): \(violation)\n\(told.suffix(60).joined(separator: "\n"))")
            }
            if isUneventful, report.alertsOpened["offline"] != nil {
                let told = World(options, isTracing: true).run().trace
                let end = told.firstIndex { $0.contains("alert offline opens") } ?? told.endIndex
                Issue.record(
                    "seed \(seed)\n\(told[...end].suffix(400).joined(separator: "\n"))")
            }
            return report
        }
    }

    private func opened(_ report: WorldReport, _ kind: String) -> Int {
        report.alertsOpened[kind, default: 0]
    }

    private func resolved(_ report: WorldReport, _ kind: String) -> Int {
        report.alertsResolved[kind, default: 0]
    }

    @Test func nothingGoesWrongAndNobodyIsTold() {
        for report in live(WorldScript()) {
            #expect(report.alertsOpened.isEmpty)
            #expect(report.told == ["everything": [:], "offline-only": [:]])
        }
    }

    @Test func aPipelineThatWasDownForTenMinutesCallsNobodyOffline() {
        let script = WorldScript().at(300, .workersAreDown(for: 10 * Self.minute))
        for report in live(script) { #expect(opened(report, "offline") == 0) }
    }

    @Test func aDatabaseThatWasDownForTenMinutesMakesNobodyOffline() {
        let script = WorldScript().at(300, .databaseIsDown(for: 10 * Self.minute))
        for report in live(script) { #expect(opened(report, "offline") == 0) }
    }

    @Test func aLogThatWasDownForTenMinutesMakesNobodyOffline() {
        let script = WorldScript().at(300, .logIsDown(for: 10 * Self.minute))
        for report in live(script) {
            #expect(opened(report, "offline") == 0)
            // That judgement stands still is told.
            #expect(opened(report, "front-end-lost") == 0)
        }
    }

    @Test func aRestartWhileADeviceIsDownIsOneAlertAndOneResolve() {
        let script = WorldScript().at(200, .deviceFallsSilent(3))
            .at(500, .workersAreDown(for: Self.minute))
            .at(700, .workersAreDown(for: 5_000))
            .at(900, .deviceReturns(3))
        for report in live(script) {
            #expect(opened(report, "offline") == 1)
            #expect(resolved(report, "offline") == 1)
            for told in report.told.values {
                #expect(told["offline firing"] == 1)
                #expect(told["offline resolved"] == 1)
            }
        }
    }

    @Test func threeWorkersAndARebalanceInTheMiddleAreOneFireAndOneResolve() {
        let script = WorldScript().at(200, .deviceFallsSilent(3))
            .at(285, .partitionsAreGivenAnew)
            .at(293, .workerCrashes)
            .at(296, .partitionsAreGivenAnew)
            .at(310, .workerStarts)
            .at(400, .partitionsAreGivenAnew)
            .at(600, .deviceReturns(3))
            .at(601, .partitionsAreGivenAnew)
            .at(603, .workerCrashes)
            .at(620, .workerStarts)
        for report in live(script, workers: 3) {
            #expect(opened(report, "offline") == 1)
            #expect(resolved(report, "offline") == 1)
            for told in report.told.values {
                #expect(told["offline firing"] == 1)
                #expect(told["offline resolved"] == 1)
            }
        }
    }

    @Test func aFrontEndThatIsCutWhileAnotherIsOpenMakesNobodyOffline() {
        // Below the time after which the others go on without it.
        let script = WorldScript().at(300, .frontEndIsCut(0, for: 35_000))
            .at(500, .frontEndIsCut(1, for: 38_000))
        for report in live(script) { #expect(opened(report, "offline") == 0) }
    }

    @Test func aFrontEndThatLosesHeartbeatsMakesNobodyOffline() {
        var script = WorldScript()
        for second in stride(from: 300, to: 900, by: 40) as StrideTo<Int64> {
            script = script.at(second, .frontEndIsCut(0, for: 12_000))
                .at(second + 11, .frontEndLosesItsQueue(0))
        }
        for report in live(script) {
            #expect(opened(report, "offline") == 0)
        }
    }

    @Test func aFrontEndWhoseClockRunsAheadAndThatDiesMakesNobodyOffline() {
        let script = WorldScript().at(200, .frontEndClockIsSet(1, by: 3_600_000))
            .at(330, .frontEndCrashes(1, for: 5 * Self.minute))
        // Devices try again at front-ends by chance: of two, too often at the one that is dead.
        for report in live(script, frontEnds: 4, isUneventful: true) {
            #expect(opened(report, "offline") == 0)
            #expect(opened(report, "front-end-lost") == 1)
            #expect(resolved(report, "front-end-lost") == 1)
        }
    }

    @Test func aPartitionThatLagsIsJudgedByItsOwnTime() {
        let script = WorldScript().at(300, .partitionLags(0, for: 8 * Self.minute))
        for report in live(script, partitions: 3) { #expect(opened(report, "offline") == 0) }
    }

    @Test func aReceiverThatWasDownForAnHourMissesNothing() {
        let script = WorldScript().at(60, .receiverIsDown(0, for: 60 * Self.minute))
            .at(200, .deviceFallsSilent(1)).at(500, .deviceTunnelBreaks(2))
            .at(900, .deviceReturns(1)).at(1_200, .deviceReturns(2))
        for report in live(script, minutes: 70) {
            for receiver in ["everything", "offline-only"] {
                #expect(report.told[receiver]?["offline firing"] == 1)
                #expect(report.told[receiver]?["offline resolved"] == 1)
            }
            #expect(report.told["everything"]?["down firing"] == 1)
            #expect(report.told["everything"]?["down resolved"] == 1)
        }
    }

    @Test func aSilenceThatEndsWhileTheCausePersistsFiresThen() {
        let script = WorldScript().at(60, .deviceIsSilenced(1, for: 10 * Self.minute))
            .at(100, .deviceFallsSilent(1)).at(900, .deviceReturns(1))
            .at(100, .deviceFallsSilent(2)).at(400, .deviceReturns(2))
            .at(60, .deviceIsSilenced(2, for: 10 * Self.minute))
        for report in live(script) {
            #expect(opened(report, "offline") == 2)
            // The other one was over before its silence.
            #expect(report.told["everything"]?["offline firing"] == 1)
            #expect(report.told["everything"]?["offline resolved"] == 1)
        }
    }

    @Test func newSettingsLeaveWhatHoldsAndResolveTheRestOnce() {
        // Of World.settings: offline after 90 s, then after 150 s, then after 60 s.
        let script = WorldScript().at(200, .deviceFallsSilent(0))
            .at(320, .deviceFallsSilent(1))
            // The first has been silent for 235 s, the second for 115 s.
            .at(435, .settingsChange(2))
            .at(600, .settingsChange(1))
            .at(900, .deviceReturns(0)).at(900, .deviceReturns(1))
        for report in live(script) {
            // The second fires, resolves under the new settings, and fires again at 150 s.
            #expect(opened(report, "offline") == 3)
            #expect(resolved(report, "offline") == 3)
        }
    }

    @Test func thousandsThatVanishAtOnceAreAHandfulOfMessages() {
        let script = WorldScript().at(200, .devicesVanish(count: 1_000)).at(500, .everyoneReturns)
        var options = WorldOptions(seed: 1, duration: 10 * Self.minute, devices: 1_200)
        options.script = script
        let report = World(options).run()
        #expect(report.violation == nil)
        #expect(opened(report, "offline") == 1_000)
        #expect(resolved(report, "offline") == 1_000)
        #expect(report.massEvents == 1)
        for told in report.told.values {
            #expect(told["mass-offline firing"] == 1)
            #expect(told["mass-offline resolved"] == 1)
            #expect(told["offline firing", default: 0] == 0)
        }
    }
}
