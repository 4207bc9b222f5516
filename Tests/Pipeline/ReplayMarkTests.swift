import Bytes
import EventLog
import Pipeline
import Processors
import Schemas
import Simulation
import TestSupport
import Testing

/// Dead letters that come again: applied once, by the pipeline that they are for.
@Suite struct ReplayMarkTests {
    private func bench(_ records: [SimulatedRecord]) -> WorkerBench<Tally> {
        WorkerBench(tallySettings(), records: [records])
    }

    private func replay(
        _ text: String, of offset: Int64, pipeline: String = "bench"
    ) -> SimulatedRecord {
        var record = tallyRecord(text)
        record.headers = ReplayMark(pipeline: pipeline, partition: 0, offset: offset).headers
        return record
    }

    @Test func aMarkIsReadAsItWasWrittenAndNothingElseIsOne() {
        let mark = ReplayMark(pipeline: "tunnel-health", partition: 3, offset: 1 << 40)
        func read(_ headers: RecordHeaders) -> ReplayMark? {
            ReplayMark(headers: headers.bytes.span)
        }
        #expect(read(mark.headers) == mark)
        #expect(read(RecordHeaders()) == nil)
        for text in ["", "a/1", "a/1/2/3", "a/x/2", "a/1/-2", "a/-1/2", "/1"] {
            var headers = RecordHeaders()
            headers.append("replay", ByteBuffer(text.utf8).span)
            #expect(read(headers) == nil, "\(text)")
        }
        var other = RecordHeaders()
        other.append("outbox", ByteBuffer("replay".utf8).span)
        #expect(read(other) == nil)
        // Cut off anywhere, it is none, and nothing is read beyond it.
        for size in 0..<mark.headers.bytes.count {
            let part = ByteBuffer(copying: mark.headers.bytes.span.extracting(0..<size))
            #expect(read(RecordHeaders(encoded: part)) == nil)
        }
    }

    @Test func aReplayIsAppliedOnceHoweverOftenItIsPublished() {
        let once = bench([tallyRecord("1 1"), tallyRecord("!broken"), tallyRecord("1 5")])
        once.start()
        once.run(500)
        let twice = bench([
            tallyRecord("1 1"), tallyRecord("!broken"), replay("1 5", of: 1), replay("1 5", of: 1),
            replay("1 5", of: 1),
        ])
        twice.start()
        twice.run(500)
        #expect(twice.store.nextOffset(of: 0) == 5)
        #expect(twice.store.tables == once.store.tables)
        #expect(twice.status.deadLetters == 1)
    }

    @Test func aReplayForAnotherPipelineIsPassedOver() {
        let without = bench([tallyRecord("1 1")])
        without.start()
        without.run(500)
        let with = bench([tallyRecord("1 1"), replay("1 5", of: 0, pipeline: "other")])
        with.start()
        with.run(1_500)
        #expect(with.store.nextOffset(of: 0) == 2)
        #expect(with.store.tables == without.store.tables)
    }

    @Test func aReplayThatStillCannotBeReadIsANewDeadLetter() throws {
        let bench = bench([tallyRecord("!broken"), replay("!broken", of: 0)])
        bench.start()
        bench.run(500)
        let letters = bench.published(.deadLetters)
        #expect(letters.count == 2)
        #expect(letters.last?.contains("\"offset\":1,") == true)
    }

    /// Killed after any number of records, and started again: what was applied is known, whether the
    /// snapshot was made before the first copy, between two, or after both.
    @Test(arguments: 0...8) func aRestartBetweenTwoCopiesAppliesNoneAgain(crash: Int) {
        let records = [
            tallyRecord("1 1"), tallyRecord("!a"), tallyRecord("!b"), replay("1 5", of: 1),
            replay("2 7", of: 2), replay("1 5", of: 1), tallyRecord("2 1"), replay("2 7", of: 2),
        ]
        let calm = bench(records)
        calm.start()
        calm.run(2_000)
        for snapshotInterval: Int64 in [0, 3_600_000] {
            let stormy = bench(Array(records.prefix(crash)))
            stormy.settings.snapshotInterval = snapshotInterval
            stormy.settings.pollLimit = 1
            stormy.settings.commitInterval = 0
            stormy.settings.idleCommitInterval = 0
            stormy.start()
            stormy.run(500)
            stormy.crash()
            for record in records.dropFirst(crash) { stormy.log.append(record, to: 0) }
            stormy.start()
            stormy.run(2_000)
            #expect(stormy.store.nextOffset(of: 0) == 8)
            #expect(stormy.store.tables == calm.store.tables, "after \(crash) records")
        }
    }

    @Test func theLatestReplaysAreKnownAndStored() {
        var known = ReplayedRecords()
        let count = ReplayedRecords.limit * 2 + 5
        for number in 0..<count {
            let origin = ReplayedRecords.Origin(partition: 1, offset: Int64(number))
            let isNew = known.isFirst(origin, at: Int64(1_000 + number))
            #expect(isNew)
        }
        var bytes = ByteBuffer()
        known.append(to: &bytes)
        #expect(bytes.count == ReplayedRecords.limit * 20)
        guard var restored = ReplayedRecords(decoding: bytes.span) else {
            Issue.record("what was encoded is not decoded")
            return
        }
        for number in (count - ReplayedRecords.limit)..<count {
            let origin = ReplayedRecords.Origin(partition: 1, offset: Int64(number))
            let isCopyNew = restored.isFirst(origin, at: 999_999)
            #expect(!isCopyNew)
            // The first copy, read again by a restart.
            let isSame = restored.isFirst(origin, at: Int64(1_000 + number))
            #expect(isSame)
        }
        let isCutRead = ReplayedRecords(decoding: bytes.span.extracting(0..<19)) != nil
        #expect(!isCutRead)
    }

    @Test func aSnapshotCarriesReplaysAndAnOlderReleaseReadsOneWithout() throws {
        var replays = ReplayedRecords()
        _ = replays.isFirst(ReplayedRecords.Origin(partition: 2, offset: 9), at: 77)
        var bytes = ByteBuffer()
        Snapshot.seal(
            pipeline: "p", offset: 70, sequence: 5, settings: "", replays: replays, into: &bytes
        ) { $0.append(text: "state") }
        #expect(bytes[11] == 2)
        var opened = try Snapshot.open(bytes.span, pipeline: "p")
        #expect(bytes.span.extracting(opened.state).text == "state")
        let isKnown = !opened.replays.isFirst(
            ReplayedRecords.Origin(partition: 2, offset: 9), at: 78)
        #expect(isKnown)
        var plain = ByteBuffer()
        Snapshot.seal(pipeline: "p", offset: 70, sequence: 5, settings: "", into: &plain) {
            $0.append(text: "state")
        }
        #expect(plain[11] == 1)
    }
}
