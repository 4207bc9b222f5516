import Bytes
import EventLog
import Kafka
import Schemas
import System
import Simulation
import TestSupport
import Testing

/// A member of a group that does as a worker does, without a store.
private final class Member {
    let waker = Waker()
    let consumer: KafkaLogConsumer
    private(set) var owned: Set<Int32> = []
    private(set) var records: [ReadRecord] = []
    private(set) var changes: [AssignmentChange] = []
    /// Releases what is revoked; otherwise the test does.
    var releases = true

    init(_ log: KafkaLog, group: String = "g") throws {
        consumer = try log.makeConsumer(of: .waves, group: group, waker: waker)
    }

    func step(from offsets: [Int32: Int64] = [:]) throws {
        while let change = try consumer.nextAssignmentChange() {
            changes.append(change)
            switch change {
            case .assigned(let partitions):
                owned.formUnion(partitions)
                for partition in partitions {
                    try consumer.start(partition, at: offsets[partition] ?? 0)
                }
            case .revoked(let partitions):
                owned.subtract(partitions)
                if releases { try consumer.release(partitions) }
            case .lost(let partitions): owned.subtract(partitions)
            }
        }
        records += try consumer.pollCopies()
    }
}

@Suite("A consumer on Kafka") struct KafkaConsumerTests {
    @Test("hands over what a new member gets, and loses no record in it") func rebalances() throws {
        try withMock(partitions: 6) { mock, log in
            var batch = RecordBatch(.waves)
            for number in 0..<6_000 { batch.append(Int32(number % 6), "k", "\(number)") }
            try log.store(batch)
            let first = try Member(log)
            try eventually("the first has all") {
                try first.step()
                return first.owned.count == 6 && !first.records.isEmpty
            }
            let second = try Member(log)
            // Each goes on where the other stood.
            var next: [Int32: Int64] = [:]
            try eventually("both have three") {
                try first.step()
                for record in first.records {
                    next[record.place.partition] = max(
                        next[record.place.partition] ?? 0, record.place.offset + 1)
                }
                try second.step(from: next)
                return first.owned.count == 3 && second.owned.count == 3
            }
            #expect(first.owned.isDisjoint(with: second.owned))
            // Cooperative: what stays is never taken away.
            let revoked = first.changes.compactMap { change -> [Int32]? in
                if case .revoked(let partitions) = change { partitions } else { nil }
            }
            #expect(Set(revoked.joined()) == second.owned)
            var more = RecordBatch(.waves)
            for number in 6_000..<6_600 { more.append(Int32(number % 6), "k", "\(number)") }
            try log.store(more)
            try eventually("all is read") {
                try first.step()
                try second.step(from: next)
                return Set((first.records + second.records).map(\.text)).count == 6_600
            }
            // In order within a partition, for each member.
            for member in [first, second] {
                var last: [Int32: Int64] = [:]
                for record in member.records {
                    if let before = last[record.place.partition] {
                        #expect(record.place.offset == before + 1)
                    }
                    last[record.place.partition] = record.place.offset
                }
            }
        }
    }

    @Test("waits with a revocation until all of it is released, and polling goes on")
    func releasesTogether() throws {
        try withMock(partitions: 4) { mock, log in
            let first = try Member(log)
            try eventually("the first has all") {
                try first.step()
                return first.owned.count == 4
            }
            first.releases = false
            let second = try Member(log)
            var revoked: [Int32] = []
            try eventually("something is revoked") {
                try first.step()
                try second.step()
                for case .revoked(let partitions) in first.changes { revoked = partitions }
                return !revoked.isEmpty
            }
            try #require(revoked.count == 2)
            try first.consumer.release([revoked[0]])
            // One is not enough, and starting another partition anew is no answer to the group either:
            // the second gets nothing as long as the other is held. Longer than the group takes to
            // hand something over.
            let kept = try #require(first.owned.min())
            var batch = RecordBatch(.waves)
            batch.append(kept, "k", "kept")
            try log.store(batch)
            try first.consumer.start(kept, at: 0)
            let end = SystemClock.monotonicMilliseconds() + 8_000
            while SystemClock.monotonicMilliseconds() < end {
                try first.step()
                try second.step()
                first.waker.wait(milliseconds: 20)
            }
            #expect(second.owned.isEmpty)
            try first.consumer.release([revoked[1]])
            try eventually("the second has both") {
                try first.step()
                try second.step()
                return second.owned == Set(revoked)
            }
            #expect(first.owned.count == 2)
            try eventually("what was started anew is read") {
                try first.step()
                return first.records.contains { $0.text == "kept" }
            }
        }
    }

    @Test(
        "ends in order at any moment of its joining", arguments: [0, 100, 3_500, 4_500, 5_500])
    func endsWhileJoining(afterMilliseconds delay: Int64) throws {
        try withMock { mock, log in
            // It has joined long before it is told what is assigned to it.
            mock.cluster.delay(.syncGroup, milliseconds: 4_000)
            let waker = Waker()
            let consumer = try log.makeConsumer(of: .waves, group: "g", waker: waker)
            let end = SystemClock.monotonicMilliseconds() + delay
            while SystemClock.monotonicMilliseconds() < end { waker.wait(milliseconds: 10) }
            withExtendedLifetime(consumer) {}
        }
        // librdkafka 2.0.2 would have ended the process.
        try withMock { mock, log in _ = try Member(log) }
    }

    @Test("is told of its place in the group also when nothing is left for it")
    func moreMembersThanPartitions() throws {
        try withMock { mock, log in
            let first = try Member(log)
            try eventually("the first has the partition") {
                try first.step()
                return first.owned.count == 1
            }
            let second = try Member(log)
            try eventually("the second has a place") {
                try first.step()
                try second.step()
                return second.changes == [.assigned([])]
            }
            #expect(first.owned.count == 1)
        }
    }

    @Test("is told when its partitions were lost, and gets them again") func losesPartitions()
        throws
    {
        try withMock(partitions: 2) { mock, log in
            let member = try Member(log)
            try eventually("it has both") {
                try member.step()
                return member.owned.count == 2
            }
            // The session ends while the brokers are away: then the group forgets the member.
            mock.cluster.fail(.heartbeat, Array(repeating: .unknownMember, count: 1))
            try eventually("they were lost") {
                try member.step()
                return member.changes.contains { change in
                    if case .lost = change { true } else { false }
                }
            }
            try eventually("it has both again") {
                try member.step()
                return member.owned.count == 2
            }
            try log.store(
                {
                    var batch = RecordBatch(.waves)
                    batch.append(0, "k", "a")
                    batch.append(1, "k", "b")
                    return batch
                }())
            try eventually("it reads") {
                try member.step()
                return member.records.count == 2
            }
        }
    }

    @Test("tells topic, partition and both offsets when the log begins later than it should read")
    func logBeginsLater() throws {
        let mock = try MockKafka()
        let log = try mock.makeLog(MockKafka.quick + ["compression.type=none"])
        defer { log.close() }
        try log.createTopics([TopicSettings(.waves, partitions: 1)])
        do {
            let value = String(repeating: "x", count: 500_000)
            // The mock keeps 5 MiB.
            for number in 0..<20 {
                var batch = RecordBatch(.waves)
                batch.append(0, "k", "\(number)\(value)")
                try log.store(batch)
            }
            let range = try log.offsets(of: TopicPartition(.waves, 0))
            try #require(range.earliest > 0)
            let waker = Waker()
            let consumer = try log.makeConsumer(of: .waves, group: "g", waker: waker)
            try consumer.awaitAssigned(waker)
            do {
                try consumer.start(0, at: range.earliest - 1)
                Issue.record("that offset is gone")
            } catch {
                #expect(error.kind == .offsetOutOfRange(requested: range.earliest - 1, range))
                #expect(error.description.contains("waves/0"))
                #expect(error.description.contains("\(range.earliest)..<\(range.next)"))
            }
            // And when the log loses it after the start.
            try consumer.start(0, at: range.earliest)
            for number in 20..<40 {
                var batch = RecordBatch(.waves)
                batch.append(0, "k", "\(number)\(value)")
                try log.store(batch)
            }
            let later = try log.offsets(of: TopicPartition(.waves, 0))
            try #require(later.earliest > range.earliest)
            var failure: EventLogError?
            try eventually("the loss shows") {
                do { _ = try consumer.pollCopies() } catch let error as EventLogError {
                    failure = error
                }
                return failure != nil
            }
            #expect(failure?.kind == .offsetOutOfRange(requested: range.earliest, later))
        }
    }

    @Test("reads on when the brokers are back") func brokersDownAndBack() throws {
        try withMock { mock, log in
            let producer = try log.makeProducer(ProducerSettings())
            let receipts = ReceiptCollector()
            try producer.sendNumbers(0..<10, receipts)
            let member = try Member(log)
            try eventually("ten are read") {
                try member.step()
                return member.records.count == 10
            }
            mock.cluster.setBroker(isUp: false)
            try eventually("the fault is told") {
                try member.step()
                return log.fault != nil
            }
            mock.cluster.setBroker(isUp: true)
            try producer.sendNumbers(10..<20, receipts)
            try eventually("twenty are read") {
                try member.step()
                return member.records.count >= 20
            }
            #expect(member.records.map(\.text) == (0..<20).map { "\($0)" })
            producer.close()
        }
    }

    @Test(
        "reads every record once and in order while each broker in turn is restarted",
        arguments: UInt64(0)..<3)
    func rollingRestarts(seed: UInt64) throws {
        let mock = try MockKafka(brokers: 3)
        let log = try mock.makeLog { $0.ackedMilliseconds = 120_000 }
        defer { log.close() }
        try log.createTopics([TopicSettings(.waves, partitions: 3)])
        var random = SplitMix64(seed: seed)
        let producer = try log.makeProducer(ProducerSettings())
        let receipts = ReceiptCollector()
        let member = try Member(log)
        var sent: [[Int]] = [[], [], []]
        var next = 0
        func send() throws {
            let partition = random.below(3)
            try producer.sendNumbers(next..<next + 1, partition: Int32(partition), receipts)
            sent[partition].append(next)
            next += 1
        }
        /// Where a worker would go on that had its partition taken away meanwhile.
        var positions: [Int32: Int64] = [:]
        func step() throws {
            try member.step(from: positions)
            for record in member.records {
                positions[record.place.partition] = record.place.offset + 1
            }
        }
        for broker in Int32(1)...3 {
            for _ in 0..<random.below(60) { try send() }
            try step()
            mock.cluster.setBroker(broker, isUp: false)
            for _ in 0..<100 + random.below(200) {
                try send()
                try step()
            }
            mock.cluster.setBroker(broker, isUp: true)
            for _ in 0..<random.below(60) {
                try send()
                try step()
            }
        }
        try eventually("all is read", seconds: 180) {
            try step()
            return member.records.count >= next
        }
        for number in UInt64(0)..<UInt64(next) { try receipts.requireStored(number) }
        for partition in Int32(0)..<3 {
            let read = member.records.filter { $0.place.partition == partition }
            #expect(
                read.map(\.text) == sent[Int(partition)].map { "\($0)" }, "seed \(seed)")
        }
        producer.close()
    }

    @Test("stays in its group while everything is paused, and goes on where it stood")
    func pausedMembersStay() throws {
        try withMock { mock, log in
            let producer = try log.makeProducer(ProducerSettings())
            let receipts = ReceiptCollector()
            let member = try Member(log)
            try producer.sendNumbers(0..<10, receipts)
            try eventually("ten are read") {
                try member.step()
                return member.records.count == 10
            }
            member.consumer.pause(0)
            try producer.sendNumbers(10..<100, receipts)
            // Longer than its session.
            let end = SystemClock.monotonicMilliseconds() + 7_000
            while SystemClock.monotonicMilliseconds() < end {
                try member.step()
                member.waker.wait(milliseconds: 50)
            }
            #expect(member.records.count == 10)
            #expect(member.changes.count == 1)
            member.consumer.resume(0)
            try eventually("the rest is read") {
                try member.step()
                return member.records.count == 100
            }
            #expect(member.records.map(\.text) == (0..<100).map { "\($0)" })
            producer.close()
        }
    }
}

extension EventConsumer {
    func awaitAssigned(_ waker: Waker) throws {
        try eventually("partitions are assigned") { try nextAssignmentChange() != nil }
    }
}
