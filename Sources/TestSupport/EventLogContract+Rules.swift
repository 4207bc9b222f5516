internal import Bytes
internal import EventLog
internal import Schemas
internal import System

/// The rules, each checked on a log of its own.
///
/// Timestamps are of the present: an implementation may expire older ones while a rule is checked.
struct EventLogContract<Log: EventLog> {
    let log: Log
    let now = SystemClock.wallMilliseconds()

    func check(_ rule: EventLogRule) throws {
        switch rule {
        case .topicsAreMadeOnce: try topicsAreMadeOnce()
        case .partitionsAreFixed: try partitionsAreFixed()
        case .missingTopicsAreNil: try missingTopicsAreNil()
        case .offsetsBeginAtZero: try offsetsBeginAtZero()
        case .orderIsKept: try orderIsKept()
        case .receiptsMeanDurable: try receiptsMeanDurable()
        case .batchesWithoutReceipts: try batchesWithoutReceipts()
        case .recordsComeBackWhole: try recordsComeBackWhole()
        case .tombstonesAreNotEmptyValues: try tombstonesAreNotEmptyValues()
        case .largeRecords: try largeRecords()
        case .everyPartitionIsAssigned: try everyPartitionIsAssigned()
        case .nothingIsReadBeforeStart: try nothingIsReadBeforeStart()
        case .readingStartsInTheMiddle: try readingStartsInTheMiddle()
        case .offsetsOutOfRangeAreErrors: try offsetsOutOfRangeAreErrors()
        case .limitsHold: try limitsHold()
        case .pausedPartitionsRest: try pausedPartitionsRest()
        case .releasedPartitionsRest: try releasedPartitionsRest()
        case .partitionsShareThePolls: try partitionsShareThePolls()
        case .membersOfTwoGroupsSeeTheSame: try membersOfTwoGroupsSeeTheSame()
        case .appendsWakeConsumers: try appendsWakeConsumers()
        case .fullQueuesTakeNothing: try fullQueuesTakeNothing()
        case .unknownTopicsFail: try unknownTopicsFail()
        case .flushWaits: try flushWaits()
        case .closedProducersRefuse: try closedProducersRefuse()
        }
    }

    // MARK: - Topics

    private func topicsAreMadeOnce() throws {
        let topics = [
            TopicSettings(.waves, partitions: 3), TopicSettings(.heartbeats, partitions: 2),
        ]
        try log.createTopics(topics)
        try send([(0, "a", "1")], to: .waves)
        try log.createTopics(topics)
        try promise(try log.partitionCount(of: .waves), is: 3, "partitions of waves")
        try promise(try log.partitionCount(of: .heartbeats), is: 2, "partitions of heartbeats")
        try promise(try log.offsets(of: TopicPartition(.waves, 0)).next, is: 1, "the next offset")
    }

    private func partitionsAreFixed() throws {
        try log.createTopics([TopicSettings(.waves, partitions: 3)])
        do {
            try log.createTopics([TopicSettings(.waves, partitions: 4)])
            throw BrokenPromise("another number of partitions was accepted")
        } catch let error as EventLogError {
            try promise(error.kind, is: .configuration, "the kind of \(error)")
        }
        try promise(try log.partitionCount(of: .waves), is: 3, "partitions of waves")
    }

    private func missingTopicsAreNil() throws {
        try promise(try log.partitionCount(of: .messages), is: nil, "partitions of messages")
        try promise(try log.partitionCount(of: .telemetry), is: nil, "partitions of telemetry")
    }

    private func offsetsBeginAtZero() throws {
        try log.createTopics([TopicSettings(.waves, partitions: 2)])
        let empty = OffsetRange(earliest: 0, next: 0)
        try promise(try log.offsets(of: TopicPartition(.waves, 1)), is: empty, "an empty partition")
        try send([(1, "a", "1"), (0, "b", "2"), (1, "c", "3")], to: .waves)
        let (_, records) = try readAll(.waves, 3)
        let places = records.map { [Int64($0.place.partition), $0.place.offset] }
        try promise(Set(places), is: [[1, 0], [0, 0], [1, 1]], "the places")
        let expected = OffsetRange(earliest: 0, next: 2)
        try promise(try log.offsets(of: TopicPartition(.waves, 1)), is: expected, "the offsets")
    }

    // MARK: - Records

    private func orderIsKept() throws {
        try log.createTopics([TopicSettings(.heartbeats, partitions: 4)])
        let producer = try log.makeProducer(ProducerSettings())
        let receipts = ReceiptCollector()
        for number in 0..<200 {
            var batch = RecordBatch(.heartbeats)
            for record in 0..<10 {
                let index = number * 10 + record
                batch.append(Int32(index % 4), "k", "\(index)", at: now)
            }
            try promise(
                producer.send(batch, receipt: DeliveryReceipt(receipts, token: UInt64(number))),
                is: .accepted, "sending batch \(number)")
        }
        for number in 0..<200 { try receipts.requireStored(UInt64(number)) }
        let (_, records) = try readAll(.heartbeats, 2_000)
        for partition in Int32(0)..<4 {
            let values = records.filter { $0.place.partition == partition }.map(\.text)
            let expected = stride(from: Int(partition), to: 2_000, by: 4).map { "\($0)" }
            try promise(values, is: expected, "the values of partition \(partition)")
        }
        producer.close()
    }

    private func receiptsMeanDurable() throws {
        try log.createTopics([TopicSettings(.waves, partitions: 1)])
        let producer = try log.makeProducer(ProducerSettings())
        let receipts = ReceiptCollector()
        for number in 0..<20 {
            var batch = RecordBatch(.waves)
            batch.append(0, "k", "\(number)", at: now)
            let receipt = DeliveryReceipt(receipts, token: UInt64(number))
            try promise(producer.send(batch, receipt: receipt), is: .accepted, "sending")
            try receipts.requireStored(UInt64(number))
            let range = try log.offsets(of: TopicPartition(.waves, 0))
            try promise(range.next, is: Int64(number) + 1, "the next offset after a receipt")
        }
        for number in UInt64(0)..<20 {
            try promise(receipts.count(number), is: 1, "how often receipt \(number) was told")
        }
        producer.close()
    }

    private func batchesWithoutReceipts() throws {
        try log.createTopics([TopicSettings(.waves, partitions: 1)])
        let producer = try log.makeProducer(ProducerSettings())
        let receipts = ReceiptCollector()
        let empty = producer.send(
            RecordBatch(.waves), receipt: DeliveryReceipt(receipts, token: 1))
        try promise(empty, is: .accepted, "sending an empty batch")
        try receipts.requireStored(1)
        var batch = RecordBatch(.waves)
        batch.append(0, "k", "v", at: now)
        try promise(producer.send(batch, receipt: nil), is: .accepted, "sending without receipt")
        try promise(producer.flush(milliseconds: 60_000), "flushing")
        try promise(try log.offsets(of: TopicPartition(.waves, 0)).next, is: 1, "the next offset")
        producer.close()
    }

    private func recordsComeBackWhole() throws {
        try log.createTopics([TopicSettings(.heartbeats, partitions: 2)])
        let everyByte = ByteBuffer((0...255).map { UInt8($0) })
        var headers = RecordHeaders()
        headers.append("id", everyByte.span)
        headers.append("empty", ByteBuffer().span)
        headers.append("second", ByteBuffer("2".utf8).span)
        var batch = RecordBatch(.heartbeats)
        batch.append(
            partition: 1, timestamp: EventTime(milliseconds: now - 5), key: everyByte.span,
            value: everyByte.span, headers: headers)
        batch.append(1, "", "no key", at: now)
        try send(batch)
        let (_, records) = try readAll(.heartbeats, 2)
        let expected = [
            ReadRecord(
                place: place(1, 0, now - 5), key: everyByte.bytes, value: everyByte.bytes,
                headers: headers.bytes.span.array),
            ReadRecord(place: place(1, 1, now), key: [], value: Array("no key".utf8)),
        ]
        try promise(records, is: expected, "the records")
    }

    private func tombstonesAreNotEmptyValues() throws {
        try log.createTopics([TopicSettings(.waves, partitions: 1)])
        var batch = RecordBatch(.waves)
        batch.append(0, "empty", "", at: now)
        batch.append(tombstone: "gone", 0, at: now)
        try send(batch)
        let (_, records) = try readAll(.waves, 2)
        try promise(records.map(\.value), is: [[], nil], "the values")
        try promise(records[1].key, is: Array("gone".utf8), "the tombstone's key")
    }

    private func largeRecords() throws {
        try log.createTopics([TopicSettings(.messages, partitions: 1)])
        let value = ByteBuffer((0..<1 << 20).map { UInt8(truncatingIfNeeded: $0 &* 31 >> 3) })
        let key = ByteBuffer("large".utf8)
        var batch = RecordBatch(.messages)
        batch.append(0, "before", "small", at: now)
        batch.append(
            partition: 0, timestamp: EventTime(milliseconds: now), key: key.span, value: value.span)
        batch.append(0, "after", "small", at: now)
        try send(batch)
        let (_, records) = try readAll(.messages, 3)
        try promise(records[1].value == value.bytes, "the large value came back changed")
        try promise(records[2].text, is: "small", "the value behind it")
    }

    // MARK: - Consumers

    private func everyPartitionIsAssigned() throws {
        try log.createTopics([TopicSettings(.waves, partitions: 5)])
        let waker = Waker()
        let consumer = try log.makeConsumer(of: .waves, group: "g", waker: waker)
        try promise(Set(try consumer.startAll(waker)), is: [0, 1, 2, 3, 4], "the assignment")
        try promise(try consumer.nextAssignmentChange(), is: nil, "the change after it")
    }

    private func nothingIsReadBeforeStart() throws {
        try log.createTopics([TopicSettings(.waves, partitions: 2)])
        try send([(0, "a", "0"), (1, "b", "1")], to: .waves)
        let waker = Waker()
        let consumer = try log.makeConsumer(of: .waves, group: "g", waker: waker)
        try promise(try consumer.pollCopies(), is: [], "records before the assignment")
        try consumer.awaitAssignment(waker)
        try promise(try consumer.pollCopies(), is: [], "records before the start")
        try consumer.start(1, at: 0)
        try promise(try consumer.collect(1, waker).map(\.text), is: ["1"], "what was started")
        try promise(try consumer.pollCopies(), is: [], "records of the other partition")
    }

    private func readingStartsInTheMiddle() throws {
        try log.createTopics([TopicSettings(.waves, partitions: 1)])
        try send((0..<10).map { (0, "k", "\($0)") }, to: .waves)
        let waker = Waker()
        let consumer = try log.makeConsumer(of: .waves, group: "g", waker: waker)
        try consumer.awaitAssignment(waker)
        for offset in [7, 0, 9, 3] as [Int64] {
            try consumer.start(0, at: offset)
            let values = try consumer.collect(10 - Int(offset), waker).map(\.text)
            try promise(values, is: (offset..<10).map { "\($0)" }, "reading from \(offset)")
        }
        try consumer.start(0, at: 10)
        try promise(try consumer.pollCopies(), is: [], "records at the end")
        try send([(0, "k", "10")], to: .waves)
        try promise(try consumer.collect(1, waker).map(\.text), is: ["10"], "what came later")
    }

    private func offsetsOutOfRangeAreErrors() throws {
        try log.createTopics([TopicSettings(.waves, partitions: 1)])
        try send((0..<10).map { (0, "k", "\($0)") }, to: .waves)
        let waker = Waker()
        let consumer = try log.makeConsumer(of: .waves, group: "g", waker: waker)
        try consumer.awaitAssignment(waker)
        for offset in [-1, 11, .max] as [Int64] {
            do {
                try consumer.start(0, at: offset)
                throw BrokenPromise("starting at \(offset) was accepted")
            } catch let error as EventLogError {
                let expected = EventLogError.Kind.offsetOutOfRange(
                    requested: offset, OffsetRange(earliest: 0, next: 10))
                try promise(error.kind, is: expected, "the kind of \(error)")
            }
        }
        try consumer.start(0, at: 9)
        try promise(try consumer.collect(1, waker).count, is: 1, "records after a good start")
    }

    private func limitsHold() throws {
        try log.createTopics([TopicSettings(.waves, partitions: 1)])
        try send((0..<100).map { (0, "k", "\($0)") }, to: .waves)
        let waker = Waker()
        let consumer = try log.makeConsumer(of: .waves, group: "g", waker: waker)
        try consumer.startAll(waker)
        var values: [String] = []
        let end = SystemClock.monotonicMilliseconds() + 60_000
        while values.count < 100, SystemClock.monotonicMilliseconds() < end {
            let found = try consumer.pollCopies(limit: 7)
            try promise(found.count <= 7, "a poll lent \(found.count) records")
            values += found.map(\.text)
            // What is left must be announced: a consumer that waits for the waker gets it all.
            if values.count < 100 { waker.wait(milliseconds: 60_000) }
        }
        try promise(values, is: (0..<100).map { "\($0)" }, "the values")
        try promise(try consumer.pollCopies(limit: 0), is: [], "a poll of nothing")
    }

    private func pausedPartitionsRest() throws {
        try log.createTopics([TopicSettings(.waves, partitions: 2)])
        try send((0..<10).map { (Int32($0 % 2), "k", "\($0)") }, to: .waves)
        let waker = Waker()
        let consumer = try log.makeConsumer(of: .waves, group: "g", waker: waker)
        try consumer.startAll(waker)
        consumer.pause(1)
        let first = try consumer.collect(5, waker).map(\.text)
        try promise(first, is: ["0", "2", "4", "6", "8"], "what is not paused")
        try promise(try consumer.pollCopies(), is: [], "what is paused")
        waker.drain()
        consumer.resume(1)
        let second = try consumer.collect(5, waker).map(\.text)
        try promise(second, is: ["1", "3", "5", "7", "9"], "what was paused")
    }

    private func releasedPartitionsRest() throws {
        try log.createTopics([TopicSettings(.waves, partitions: 2)])
        let waker = Waker()
        let consumer = try log.makeConsumer(of: .waves, group: "g", waker: waker)
        try consumer.startAll(waker)
        try consumer.release([0])
        try send((0..<10).map { (Int32($0 % 2), "k", "\($0)") }, to: .waves)
        let values = try consumer.collect(5, waker).map(\.text)
        try promise(values, is: ["1", "3", "5", "7", "9"], "what is left")
        try promise(try consumer.pollCopies(), is: [], "what was released")
    }

    private func partitionsShareThePolls() throws {
        try log.createTopics([TopicSettings(.waves, partitions: 3)])
        let records = (0..<300).map { (Int32($0 % 3), "k", "\($0)") }
        try send(records, to: .waves)
        // Over a network one partition may have come whole before another's first record, by chance.
        var partitions = Set<Int32>()
        for attempt in 0..<5 where partitions.count < 3 {
            let waker = Waker()
            let consumer = try log.makeConsumer(of: .waves, group: "g\(attempt)", waker: waker)
            try consumer.startAll(waker)
            let found = try consumer.collect(60, waker, limit: 10)
            partitions = Set(found.map(\.place.partition))
        }
        try promise(partitions, is: [0, 1, 2], "the partitions among the first 60 records")
    }

    private func membersOfTwoGroupsSeeTheSame() throws {
        try log.createTopics([TopicSettings(.waves, partitions: 2)])
        let wakers = [Waker(), Waker()]
        let consumers = try wakers.enumerated().map { number, waker in
            let consumer = try log.makeConsumer(of: .waves, group: "g\(number)", waker: waker)
            try consumer.startAll(waker)
            return consumer
        }
        try send((0..<50).map { (Int32($0 % 2), "k", "\($0)") }, to: .waves)
        let seen = try zip(consumers, wakers).map { consumer, waker in
            try consumer.collect(50, waker)
        }
        try promise(Set(seen[0]), is: Set(seen[1]), "the records of two groups")
    }

    private func appendsWakeConsumers() throws {
        try log.createTopics([TopicSettings(.waves, partitions: 1)])
        let waker = Waker()
        let consumer = try log.makeConsumer(of: .waves, group: "g", waker: waker)
        try consumer.startAll(waker)
        for number in 0..<10 {
            while try !consumer.pollCopies().isEmpty {}
            waker.drain()
            try send([(0, "k", "\(number)")], to: .waves)
            try promise(waker.wait(milliseconds: 60_000), "append \(number) woke nobody")
            let found = try consumer.collect(1, waker).map(\.text)
            try promise(found, is: ["\(number)"], "what was appended")
        }
    }

    // MARK: - Producers

    private func fullQueuesTakeNothing() throws {
        try log.createTopics([TopicSettings(.waves, partitions: 1)])
        var settings = ProducerSettings()
        settings.queueBytes = 1_000
        let producer = try log.makeProducer(settings)
        let receipts = ReceiptCollector()
        var large = RecordBatch(.waves)
        for _ in 0..<20 { large.append(0, "large", String(repeating: "x", count: 100), at: now) }
        let refused = producer.send(large, receipt: DeliveryReceipt(receipts, token: 1))
        try promise(refused, is: .queueFull, "sending more than the queue holds")
        try promise(producer.queuedBytes, is: 0, "bytes of a batch that was refused")
        var small = RecordBatch(.waves)
        small.append(0, "small", "x", at: now)
        let taken = producer.send(small, receipt: DeliveryReceipt(receipts, token: 2))
        try promise(taken, is: .accepted, "sending what fits")
        try receipts.requireStored(2)
        producer.close()
        try promise(receipts.count(1), is: 0, "how often the refused batch's receipt was told")
        let (_, records) = try readAll(.waves, 1)
        try promise(records.map(\.text), is: ["x"], "what is there")
    }

    private func unknownTopicsFail() throws {
        try log.createTopics([TopicSettings(.waves, partitions: 1)])
        let producer = try log.makeProducer(ProducerSettings())
        let receipts = ReceiptCollector()
        var lost = RecordBatch(.messages)
        lost.append(0, "k", "v", at: now)
        var good = RecordBatch(.waves)
        good.append(0, "k", "v", at: now)
        for (token, batch) in [(1, lost), (2, good)] as [(UInt64, RecordBatch)] {
            let outcome = producer.send(batch, receipt: DeliveryReceipt(receipts, token: token))
            try promise(outcome, is: .accepted, "sending batch \(token)")
        }
        if case .stored = try receipts.outcome(of: 1) {
            throw BrokenPromise("a batch for a missing topic was stored")
        }
        try receipts.requireStored(2)
        producer.close()
    }

    private func flushWaits() throws {
        try log.createTopics([
            TopicSettings(.waves, partitions: 1), TopicSettings(.heartbeats, partitions: 1),
        ])
        var settings = ProducerSettings()
        settings.lingerMilliseconds = 20
        let producer = try log.makeProducer(settings)
        try promise(producer.flush(milliseconds: 0), "flushing nothing")
        for number in 0..<50 {
            for topic in [Topic.waves, .heartbeats] {
                var batch = RecordBatch(topic)
                batch.append(0, "k", "\(number)", at: now)
                try promise(producer.send(batch, receipt: nil), is: .accepted, "sending")
            }
        }
        try promise(producer.flush(milliseconds: 60_000), "flushing")
        try promise(producer.queuedBytes, is: 0, "queued bytes after a flush")
        for topic in [Topic.waves, .heartbeats] {
            let range = try log.offsets(of: TopicPartition(topic, 0))
            try promise(range.next, is: 50, "the next offset of \(topic)")
        }
        producer.close()
    }

    private func closedProducersRefuse() throws {
        try log.createTopics([TopicSettings(.waves, partitions: 1)])
        let producer = try log.makeProducer(ProducerSettings())
        let receipts = ReceiptCollector()
        var batch = RecordBatch(.waves)
        batch.append(0, "k", "v", at: now)
        for token in UInt64(0)..<100 {
            let outcome = producer.send(batch, receipt: DeliveryReceipt(receipts, token: token))
            try promise(outcome, is: .accepted, "sending batch \(token)")
        }
        producer.close()
        try promise(
            try log.offsets(of: TopicPartition(.waves, 0)).next, is: 100, "what a close has stored")
        let refused = producer.send(batch, receipt: DeliveryReceipt(receipts, token: 1_000))
        try promise(refused, is: .closed, "sending to a closed producer")
        producer.close()
        let another = try log.makeProducer(ProducerSettings())
        let taken = another.send(batch, receipt: DeliveryReceipt(receipts, token: 1_001))
        try promise(taken, is: .accepted, "sending to another producer")
        try receipts.requireStored(1_001)
        another.close()
        try promise(receipts.count(1_000), is: 0, "how often the refused receipt was told")
    }

    // MARK: - Helpers

    private func place(_ partition: Int32, _ offset: Int64, _ milliseconds: Int64) -> RecordPlace {
        RecordPlace(
            partition: partition, offset: offset, timestamp: EventTime(milliseconds: milliseconds))
    }

    private func send(_ records: [(Int32, String, String)], to topic: Topic) throws {
        var batch = RecordBatch(topic)
        for (partition, key, value) in records { batch.append(partition, key, value, at: now) }
        try send(batch)
    }

    private func send(_ batch: RecordBatch) throws { try log.store(batch) }

    private func readAll(_ topic: Topic, _ count: Int) throws -> (Log.Consumer, [ReadRecord]) {
        let waker = Waker()
        let consumer = try log.makeConsumer(of: topic, group: "all", waker: waker)
        try consumer.startAll(waker)
        return (consumer, try consumer.collect(count, waker))
    }
}

extension ReadRecord {
    /// The value as text; "" for a tombstone.
    var text: String { String(decoding: value ?? [], as: UTF8.self) }
}

extension EventConsumer {
    /// Waits for an assignment and starts nothing.
    func awaitAssignment(_ waker: Waker, seconds: Int64 = 60) throws {
        let end = SystemClock.monotonicMilliseconds() + seconds * 1_000
        while try nextAssignmentChange() == nil {
            let left = end - SystemClock.monotonicMilliseconds()
            guard left > 0 else { throw BrokenPromise("no partitions were assigned in time") }
            waker.wait(milliseconds: left)
        }
    }
}
