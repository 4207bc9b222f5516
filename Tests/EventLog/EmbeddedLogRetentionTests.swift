import Bytes
import EventLog
import Schemas
import System
import TestSupport
import Testing

struct EmbeddedLogRetentionTests {
    static let day: Int64 = 24 * 3_600_000

    /// Expires seldom by itself, so that a test sees what commits do.
    static var seldom: EmbeddedLogSettings {
        var settings = EmbeddedLogSettings()
        settings.expiryMilliseconds = Int64(Int32.max)
        return settings
    }

    static var often: EmbeddedLogSettings {
        var settings = EmbeddedLogSettings()
        settings.expiryMilliseconds = 10
        return settings
    }

    @Test func oldRecordsOfAnIdleTopicExpireAndOffsetsDoNotGoBack() throws {
        let old = SystemClock.wallMilliseconds() - 2 * Self.day
        try withLog(Self.often) { log in
            try log.createTopics([TopicSettings(.heartbeats, partitions: 2)])
            try log.storeNumbers(0..<5_000, in: .heartbeats, at: old)
            try eventually("the end of old records") {
                let range = try log.offsets(of: TopicPartition(.heartbeats, 0))
                return range == OffsetRange(earliest: 5_000, next: 5_000)
            }
            #expect(try log.status()[0].contentBytes == 0)
            try log.storeNumbers(0..<1, in: .heartbeats)
            #expect(
                try log.offsets(of: TopicPartition(.heartbeats, 0))
                    == OffsetRange(earliest: 5_000, next: 5_001))
        }
    }

    @Test func recordsWithinTheirAgeStay() throws {
        let now = SystemClock.wallMilliseconds()
        try withLog(Self.often) { log in
            try log.createTopics([TopicSettings(.heartbeats, partitions: 1)])
            try log.storeNumbers(0..<100, in: .heartbeats, at: now - 25 * 3_600_000)
            try log.storeNumbers(100..<200, in: .heartbeats, at: now - 23 * 3_600_000)
            let place = TopicPartition(.heartbeats, 0)
            try eventually("expiry") { try log.offsets(of: place).earliest == 100 }
            try log.storeNumbers(200..<300, in: .heartbeats)
            #expect(try log.offsets(of: place) == OffsetRange(earliest: 100, next: 300))
        }
    }

    @Test func aCommitDeletesNoMoreThanTwiceWhatItAppends() throws {
        let old = SystemClock.wallMilliseconds() - 2 * Self.day
        try withLog(Self.seldom) { log in
            try log.createTopics([TopicSettings(.heartbeats, partitions: 1)])
            let place = TopicPartition(.heartbeats, 0)
            // In one commit, so none of it expires before all of it is there.
            try log.storeNumbers(0..<10_000, in: .heartbeats, at: old, size: 10_000)
            var earliest: Int64 = 0
            for size in [1_000, 300, 1] {
                try log.storeNumbers(0..<size, in: .heartbeats, size: size)
                let now = try log.offsets(of: place).earliest
                #expect(now - earliest == Int64(max(2 * size, 256)))
                earliest = now
            }
        }
    }

    @Test func aTopicKeepsToItsSizeAndDropsTheOldestOfAllPartitions() throws {
        let now = SystemClock.wallMilliseconds()
        try withLog(Self.seldom) { log in
            try log.createTopics([
                TopicSettings(.heartbeats, partitions: 2, retentionBytes: 100_000)
            ])
            // 1,000 bytes a record, about; the older half in partition 0.
            try log.storeNumbers(
                0..<40, in: .heartbeats, partition: 0, at: now - 2_000, padding: 990)
            for number in 0..<70 {
                try log.storeNumbers(
                    number..<number + 1, in: .heartbeats, partition: 1, at: now - 1_000,
                    padding: 990)
            }
            let older = try log.offsets(of: TopicPartition(.heartbeats, 0))
            let newer = try log.offsets(of: TopicPartition(.heartbeats, 1))
            #expect(newer == OffsetRange(earliest: 0, next: 70))
            #expect(older.earliest > 0)
            for number in 70..<200 {
                try log.storeNumbers(
                    number..<number + 1, in: .heartbeats, partition: 1, at: now, padding: 990)
                // One commit may stand above the limit until the next.
                #expect(try log.status()[0].contentBytes <= 102_000)
            }
            #expect(try log.status()[0].contentBytes > 95_000)
            let left = try log.drain(.heartbeats)
            #expect(left.contentBytes == (try log.status()[0].contentBytes))
            let range = try log.offsets(of: TopicPartition(.heartbeats, 0))
            #expect(range == OffsetRange(earliest: 40, next: 40))
        }
    }

    @Test func partitionsOfOneBurstShrinkTogether() throws {
        let now = SystemClock.wallMilliseconds()
        try withLog(Self.seldom) { log in
            try log.createTopics([
                TopicSettings(.heartbeats, partitions: 4, retentionBytes: 100_000)
            ])
            for _ in 0..<10 {
                for partition in Int32(0)..<4 {
                    try log.storeNumbers(
                        0..<20, in: .heartbeats, partition: partition, at: now, padding: 990)
                }
            }
            for partition in Int32(0)..<4 {
                let range = try log.offsets(of: TopicPartition(.heartbeats, partition))
                #expect(range.next - range.earliest >= 10)
            }
        }
    }

    @Test func aReaderThatIsOvertakenIsToldAndSkipsNothing() throws {
        try withLog(Self.seldom) { log in
            try log.createTopics([
                TopicSettings(.heartbeats, partitions: 2, retentionBytes: 50_000)
            ])
            let waker = Waker()
            let consumer = try log.makeConsumer(of: .heartbeats, group: "g", waker: waker)
            try log.storeNumbers(0..<40, in: .heartbeats, padding: 1_000)
            try log.storeNumbers(0..<1, in: .heartbeats, partition: 1)
            try consumer.startAll(waker)
            #expect(try consumer.collect(10, waker, limit: 10).count == 10)
            for number in 40..<80 {
                try log.storeNumbers(number..<number + 1, in: .heartbeats, padding: 1_000)
            }
            let range = try log.offsets(of: TopicPartition(.heartbeats, 0))
            #expect(range.earliest > 10)
            for _ in 0..<2 {
                let error = #expect(throws: EventLogError.self) { _ = try consumer.pollCopies() }
                guard case .offsetOutOfRange(_, let held)? = error?.kind else {
                    Issue.record("\(error as Any)")
                    return
                }
                #expect(held == range)
                #expect(error?.place == TopicPartition(.heartbeats, 0))
            }
            // Paused, it does not stand in the way of the others.
            consumer.pause(0)
            #expect(try consumer.pollCopies().allSatisfy { $0.place.partition == 1 })
            consumer.resume(0)
            try consumer.start(0, at: range.earliest)
            let rest = try consumer.collect(Int(range.next - range.earliest), waker)
            #expect(rest.first?.place.offset == range.earliest)
        }
    }

    @Test func retentionCanBeChangedLater() throws {
        try withLog(Self.often) { log in
            let now = SystemClock.wallMilliseconds()
            try log.createTopics([TopicSettings(.heartbeats, partitions: 1)])
            try log.storeNumbers(0..<100, in: .heartbeats, at: now - 60_000)
            var settings = TopicSettings(.heartbeats, partitions: 1)
            settings.retentionMilliseconds = 1_000
            try log.createTopics([settings])
            try eventually("expiry by the new age") {
                try log.offsets(of: TopicPartition(.heartbeats, 0)).earliest == 100
            }
            settings.retentionMilliseconds = nil
            #expect(throws: EventLogError.self) { try log.createTopics([settings]) }
        }
    }

    @Test func aCompactedTopicKeepsTheLastValueOfEachKey() throws {
        try withLog(Self.seldom) { log in
            try log.createTopics([TopicSettings(.deviceConfigs, partitions: 1)])
            for round in 0..<50 {
                var batch = RecordBatch(.deviceConfigs)
                for device in 0..<20 { batch.append(0, "device-\(device)", "\(round)") }
                // Twice in one batch as well.
                batch.append(0, "device-0", "\(round) again")
                try log.store(batch)
            }
            let waker = Waker()
            let consumer = try log.makeConsumer(of: .deviceConfigs, group: "g", waker: waker)
            try consumer.startAll(waker)
            let records = try consumer.collect(20, waker)
            #expect(
                records.map { String(decoding: $0.key, as: UTF8.self) }.sorted()
                    == (0..<20).map { "device-\($0)" }.sorted())
            for record in records {
                let again = record.key == Array("device-0".utf8) ? " again" : ""
                #expect(record.value == Array("49\(again)".utf8))
            }
            #expect(try consumer.pollCopies().isEmpty)
            let range = try log.offsets(of: TopicPartition(.deviceConfigs, 0))
            #expect(range == OffsetRange(earliest: 0, next: 50 * 21))
            #expect(try log.drain(.deviceConfigs).records == 20)
            #expect(
                try log.drain(.deviceConfigs).contentBytes == (try log.status()[0].contentBytes))
            try log.storeNumbers(0..<1, in: .deviceConfigs)
            #expect(try consumer.collect(1, waker)[0].place.offset == 50 * 21)
        }
    }

    @Test func tombstonesTakeValuesAwayAndLeaveAfterADay() throws {
        let now = SystemClock.wallMilliseconds()
        try withLog(Self.often) { log in
            try log.createTopics([TopicSettings(.deviceConfigs, partitions: 1)])
            var batch = RecordBatch(.deviceConfigs)
            for key in ["stays", "old", "new", "back"] { batch.append(0, key, "value", at: now) }
            batch.append(tombstone: "old", 0, at: now - 25 * 3_600_000)
            batch.append(tombstone: "back", 0, at: now - 25 * 3_600_000)
            batch.append(0, "back", "again", at: now)
            batch.append(tombstone: "new", 0, at: now - 23 * 3_600_000)
            try log.store(batch)
            try eventually("the end of the old tombstone") {
                try log.drain(.deviceConfigs).records == 3
            }
            let waker = Waker()
            let consumer = try log.makeConsumer(of: .deviceConfigs, group: "g", waker: waker)
            try consumer.startAll(waker)
            let records = try consumer.collect(3, waker)
            let values = Dictionary(
                uniqueKeysWithValues: records.map {
                    (
                        String(decoding: $0.key, as: UTF8.self),
                        $0.value.map { String(decoding: $0, as: UTF8.self) }
                    )
                })
            #expect(values == ["stays": "value", "back": "again", "new": String?.none])
            #expect(
                try log.drain(.deviceConfigs).contentBytes == (try log.status()[0].contentBytes))
            // The forgotten key can come back.
            var later = RecordBatch(.deviceConfigs)
            later.append(0, "old", "third", at: now)
            try log.store(later)
            #expect(try consumer.collect(1, waker)[0].value == Array("third".utf8))
        }
    }

    @Test func aCompactedTopicRefusesKeysItCannotIndex() throws {
        try withLog { log in
            try log.createTopics([TopicSettings(.deviceConfigs, partitions: 1)])
            for size in [0, 512] {
                var batch = RecordBatch(.deviceConfigs)
                batch.append(0, String(repeating: "k", count: size), "value")
                let error = #expect(throws: EventLogError.self) { try log.store(batch) }
                #expect(error?.kind == .configuration)
            }
            var batch = RecordBatch(.deviceConfigs)
            batch.append(0, String(repeating: "k", count: 511), "value")
            try log.store(batch)
        }
    }
}
