import Bytes
import EventLog
import Pipeline
import Processors
import Schemas
import Sinks
import Simulation
import TestSupport
import Testing

@Suite struct WorkerTests {
    private func bench(_ texts: [String]...) -> WorkerBench<Tally> {
        WorkerBench(tallySettings(), records: texts.map { $0.map { tallyRecord($0) } })
    }

    @Test func anUndecodableRecordBecomesADeadLetterAndTheNextIsProcessed() throws {
        let bench = bench(["1 1", "!broken", "1 2"])
        bench.start()
        bench.run(500)
        #expect(bench.store.nextOffset(of: 0) == 3)
        #expect(bench.status.deadLetters == 1)
        let letters = bench.published(.deadLetters)
        #expect(letters.count == 1)
        let letter = try #require(letters.first)
        #expect(letter.hasPrefix("{\"v\":1,\"topic\":\"heartbeats\",\"partition\":0,\"offset\":1,"))
        #expect(letter.contains("\"key\":\"key\""))
        #expect(letter.contains("\"value_base64\":\"IWJyb2tlbg==\""))
    }

    @Test func aDamagedSnapshotIsReportedAndNothingIsRebuilt() throws {
        let bench = bench(["1 1", "1 2"], ["2 1"])
        bench.start()
        bench.run(500)
        var snapshot = try #require(bench.store.snapshot(of: 0))
        snapshot[60] ^= 1
        bench.store.setSnapshot(snapshot, of: 0)
        bench.crash()
        bench.log.append(tallyRecord("1 3"), to: 0)
        bench.log.append(tallyRecord("2 2"), to: 1)
        bench.start()
        bench.run(2_000)
        #expect(!bench.status.isReady)
        #expect(bench.status.faults.count == 1)
        #expect(bench.status.faults.first?.contains("checksum") == true)
        // One partition's fault is not another's.
        #expect(bench.store.nextOffset(of: 0) == 2)
        #expect(bench.store.nextOffset(of: 1) == 2)
        snapshot[60] ^= 1
        bench.store.setSnapshot(snapshot, of: 0)
        bench.run(12_000)
        #expect(bench.status.isReady)
        #expect(bench.store.nextOffset(of: 0) == 3)
    }

    @Test func aLogThatBeginsAfterTheStoredOffsetIsReportedWithTheCommandThatDecides() throws {
        let bench = bench(["1 1", "1 2", "1 3", "1 4"])
        bench.start()
        bench.run(500)
        bench.crash()
        for number in 5...9 { bench.log.append(tallyRecord("1 \(number)"), to: 0) }
        bench.log.truncate(0, before: 7)
        bench.start()
        bench.run(2_000)
        let fault = try #require(bench.status.faults.first)
        #expect(fault.contains("heartbeats/0"))
        #expect(fault.contains("offset 4"))
        #expect(fault.contains("begins at 7"))
        #expect(fault.contains("heartline pipeline resume bench --partition 0"))
        #expect(bench.store.nextOffset(of: 0) == 4)
        // What the command does.
        bench.store.setOffsets(of: 0, start: 7, next: 7)
        bench.run(12_000)
        #expect(bench.status.isReady)
        #expect(bench.store.nextOffset(of: 0) == 9)
    }

    @Test func aDatabaseThatIsDownLosesNothingAndIsNobodysFault() throws {
        let bench = bench((0..<400).map { "\($0 % 8) \($0 % 100)" })
        bench.settings.pollLimit = 10
        bench.settings.bufferedRows = 40
        bench.start()
        bench.run(100)
        bench.store.setDown(true)
        for number in 0..<400 { bench.log.append(tallyRecord("\(number % 8) 4"), to: 0) }
        bench.run(20_000)
        #expect(!bench.status.isReady)
        #expect(bench.status.isPaused)
        let waiting = bench.status.partitions[0]
        #expect(waiting.position < 800)
        #expect(waiting.lag > 0)
        bench.store.setDown(false)
        bench.run(10_000)
        #expect(bench.status.isReady)
        #expect(bench.store.nextOffset(of: 0) == 800)
        #expect(bench.status.deadLetters == 0)
    }

    @Test func aPartitionInWhichOnlyTheOffsetMovesIsCommittedAtACalmerPace() {
        let bench = bench(["#later", "#later"])
        bench.start()
        bench.run(900)
        #expect(bench.store.nextOffset(of: 0) == 0)
        bench.run(200)
        #expect(bench.store.nextOffset(of: 0) == 2)
    }

    @Test func withoutAnIntervalEveryPollIsCommitted() {
        let bench = bench((0..<10).map { "1 \($0)" })
        bench.settings.commitInterval = 0
        bench.settings.pollLimit = 1
        bench.start()
        bench.run(100)
        #expect(bench.store.commits == 10)
    }

    @Test func stoppingCommitsWhatWasApplied() {
        let bench = bench(["1 1", "1 2"])
        bench.settings.commitInterval = 60_000
        bench.start()
        bench.run(100)
        #expect(bench.store.nextOffset(of: 0) == 0)
        bench.stop()
        bench.run(100)
        #expect(bench.isStopped)
        #expect(bench.store.nextOffset(of: 0) == 2)
    }

    @Test func newSettingsAreStoredWithTheFirstOffsetThatTheyJudge() throws {
        let bench = bench(["1 1", "1 2"])
        bench.start()
        bench.run(500)
        let first = bench.store.snapshot(of: 0)
        bench.reconfigure(tallySettings(1))
        bench.run(500)
        bench.log.append(tallyRecord("1 3"), to: 0)
        bench.run(500)
        bench.log.append(tallyRecord("1 4"), to: 0)
        bench.run(500)
        let history = try #require(bench.store.settingsHistory[0])
        #expect(history.map(\.offset) == [0, 3])
        #expect(history.map(\.revision) == [tallySettings(3).revision, tallySettings(1).revision])
        // What comes after the change was judged by the new settings alone, and so is restored.
        #expect(bench.store.snapshot(of: 0) != first)
        #expect(bench.published(.alerts).count == 2)
    }

    @Test func otherSettingsAfterACrashDoNotChangeWhatIsStored() throws {
        let bench = bench(["1 1", "1 2"])
        bench.start()
        bench.run(500)
        for number in 3...5 { bench.log.append(tallyRecord("1 \(number)"), to: 0) }
        bench.run(500)
        bench.crash()
        #expect(bench.published(.alerts).count == 1)
        bench.processor = tallySettings(1)
        bench.start()
        bench.run(500)
        bench.log.append(tallyRecord("1 6"), to: 0)
        bench.run(500)
        bench.log.append(tallyRecord("1 7"), to: 0)
        bench.run(500)
        let history = try #require(bench.store.settingsHistory[0])
        #expect(history.map(\.offset) == [0, 6])
        // The third by the old settings, the sixth by them as well, the seventh by the new ones.
        #expect(bench.published(.alerts).count == 3)
    }

    @Test func rowsThatTheDatabaseRejectsArePublishedAsDeadLetters() {
        let bench = bench(["1 4", "1 8", "1 12"])
        bench.store.poisoned = [1]
        bench.start()
        bench.run(500)
        #expect(bench.store.nextOffset(of: 0) == 3)
        #expect(bench.published(.deadLetters) == ["rejected tally_steps 1"])
        #expect(bench.store.outboxCount == 0)
        #expect(bench.status.deadLetters == 1)
    }

    @Test func theStatusCountsWhatWasDone() {
        let bench = bench(["1 4", "2 1", "!x"], ["3 3"])
        bench.start()
        bench.run(2_000)
        let status = bench.status
        #expect(status.isReady)
        #expect(status.records == 4)
        #expect(status.deadLetters == 1)
        #expect(status.rows == 4)
        #expect(status.snapshots == 2)
        #expect(status.partitions.map(\.committedOffset) == [3, 1])
        #expect(status.partitions.map(\.end) == [3, 1])
        #expect(status.partitions.map(\.lag) == [0, 0])
    }
}
