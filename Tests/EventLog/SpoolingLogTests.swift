import EventLog
import Foundation
import Schemas
import System
import TestSupport
import Testing

@Suite("A spool") struct SpoolingLogTests {
    /// Lends a log that can be taken away, and a directory for a spool.
    private func withSwitchableLog(
        _ body: (SwitchableLog, SpoolSettings) throws -> Void
    ) throws {
        try withDirectory { directory in
            let base = try EmbeddedLog(directory: "\(directory)/log")
            defer { base.close() }
            try base.createTopics([
                TopicSettings(.waves, partitions: 2), TopicSettings(.heartbeats, partitions: 1),
            ])
            var settings = SpoolSettings(directory: "\(directory)/spool")
            settings.limitBytes = 1 << 20
            settings.patienceMilliseconds = 100
            try body(SwitchableLog(base), settings)
        }
    }

    private func send(
        _ numbers: Range<Int>, by producer: some EventProducer, _ receipts: ReceiptCollector,
        topic: Topic = .waves, padding: Int = 0
    ) -> [SendOutcome] {
        numbers.map { number in
            var batch = RecordBatch(topic)
            batch.append(0, "k", "\(number)" + String(repeating: ".", count: padding))
            return producer.send(batch, receipt: DeliveryReceipt(receipts, token: UInt64(number)))
        }
    }

    private func values(_ log: EmbeddedLog, _ count: Int) throws -> [String] {
        let waker = Waker()
        let consumer = try log.makeConsumer(of: .waves, group: "g", waker: waker)
        try consumer.startAll(waker)
        return try consumer.collect(count, waker).map {
            String(decoding: $0.value ?? [], as: UTF8.self)
        }
    }

    @Test(
        "keeps what the log does not take and forwards it in order",
        arguments: [SwitchableLog.Manner.failing, .silent, .full])
    func forwards(_ manner: SwitchableLog.Manner) throws {
        try withSwitchableLog { log, settings in
            let spooling = try SpoolingLog(log, settings)
            let producer = try spooling.makeProducer(ProducerSettings())
            let receipts = ReceiptCollector()
            _ = send(0..<10, by: producer, receipts)
            for number in UInt64(0)..<10 { try receipts.requireStored(number) }
            #expect(!spooling.isSpooling)
            log.manner.current = manner
            _ = send(10..<60, by: producer, receipts)
            for number in UInt64(10)..<60 { try receipts.requireStored(number) }
            #expect(spooling.isSpooling)
            #expect(try log.offsets(of: TopicPartition(.waves, 0)).next == 10)
            log.manner.current = .up
            // What comes now waits behind what is there.
            _ = send(60..<80, by: producer, receipts)
            for number in UInt64(60)..<80 { try receipts.requireStored(number) }
            try eventually("all is forwarded") { !spooling.isSpooling }
            #expect(try values(log.base, 80) == (0..<80).map { "\($0)" })
            #expect(spooling.spooledBytes == 0)
            for number in UInt64(0)..<80 { #expect(receipts.count(number) == 1) }
            producer.close()
            spooling.close()
        }
    }

    @Test("forwards after a restart what it held") func restarts() throws {
        try withSwitchableLog { log, settings in
            log.manner.current = .failing
            do {
                let spooling = try SpoolingLog(log, settings)
                let producer = try spooling.makeProducer(ProducerSettings())
                let receipts = ReceiptCollector()
                _ = send(0..<20, by: producer, receipts)
                for number in UInt64(0)..<20 { try receipts.requireStored(number) }
                producer.close()
                spooling.close()
            }
            log.manner.current = .up
            let spooling = try SpoolingLog(log, settings)
            try eventually("all is forwarded") { !spooling.isSpooling }
            #expect(try values(log.base, 20) == (0..<20).map { "\($0)" })
            spooling.close()
        }
    }

    @Test("refuses what is above its limit, and takes again when there is room")
    func hasALimit() throws {
        try withSwitchableLog { log, settings in
            log.manner.current = .failing
            let spooling = try SpoolingLog(log, settings)
            let producer = try spooling.makeProducer(ProducerSettings())
            let receipts = ReceiptCollector()
            var accepted = 0
            while case .accepted = send(
                accepted..<accepted + 1, by: producer, receipts, padding: 100_000)[0]
            {
                accepted += 1
                try #require(accepted < 100)
            }
            #expect(accepted == 10)
            #expect(receipts.count(UInt64(accepted)) == 0)
            for number in 0..<accepted { try receipts.requireStored(UInt64(number)) }
            log.manner.current = .up
            try eventually("all is forwarded") { !spooling.isSpooling }
            _ = send(100..<101, by: producer, receipts)
            try receipts.requireStored(100)
            #expect(
                try values(log.base, accepted + 1).map { $0.replacing(".", with: "") }
                    == (0..<accepted).map { "\($0)" } + ["100"])
            producer.close()
            spooling.close()
        }
    }

    @Test("is not for queued topics, nor for what the log will never take") func othersPass() throws
    {
        try withSwitchableLog { log, settings in
            let spooling = try SpoolingLog(log, settings)
            let producer = try spooling.makeProducer(ProducerSettings())
            let receipts = ReceiptCollector()
            _ = send(0..<1, by: producer, receipts, topic: .messages)
            if case .stored = try receipts.outcome(of: 0) { Issue.record("there is no such topic") }
            log.manner.current = .failing
            _ = send(1..<2, by: producer, receipts, topic: .heartbeats)
            if case .stored = try receipts.outcome(of: 1) { Issue.record("the log is away") }
            #expect(!spooling.isSpooling)
            producer.close()
            spooling.close()
        }
    }

    @Test("belongs to one process, or object, at a time") func isExclusive() throws {
        try withSwitchableLog { log, settings in
            let spooling = try SpoolingLog(log, settings)
            #expect(throws: EventLogError.self) { _ = try SpoolingLog(log, settings) }
            spooling.close()
        }
    }

    @Test("forwards all that was acknowledged before a kill -9", arguments: [1, 30, 120])
    func survivesKilling(afterMilliseconds delay: Int) async throws {
        let directory = try makeDirectory()
        defer { removeDirectory(directory) }
        try EmbeddedLog(directory: "\(directory)/log").createTopics([
            TopicSettings(.waves, partitions: 2)
        ])
        await #expect(processExitsWith: .signal(SIGKILL)) {
            [directory = directory as String, delay = delay as Int] in
            let base = try EmbeddedLog(directory: "\(directory)/log")
            let log = SwitchableLog(base, .failing)
            let spooling = try SpoolingLog(log, SpoolSettings(directory: "\(directory)/spool"))
            let producer = try spooling.makeProducer(ProducerSettings())
            let acknowledged = try Acknowledged(path: "\(directory)/acknowledged")
            var next = 0
            var killTime = Int64.max
            while true {
                var batch = RecordBatch(.waves)
                batch.append(0, "k", "\(next)")
                if case .accepted = producer.send(
                    batch, receipt: DeliveryReceipt(acknowledged, token: UInt64(next + 1)))
                {
                    next += 1
                }
                let now = SystemClock.monotonicMilliseconds()
                if killTime == .max, acknowledged.hasAny { killTime = now + Int64(delay) }
                if now >= killTime { kill(getpid(), SIGKILL) }
            }
        }
        let count = try Acknowledged.read("\(directory)/acknowledged")
        #expect(count > 0)
        let base = try EmbeddedLog(directory: "\(directory)/log")
        defer { base.close() }
        let spooling = try SpoolingLog(
            SwitchableLog(base), SpoolSettings(directory: "\(directory)/spool"))
        try eventually("all is forwarded") { !spooling.isSpooling }
        spooling.close()
        let stored = Int(try base.offsets(of: TopicPartition(.waves, 0)).next)
        #expect(stored >= count)
        #expect(try values(base, stored) == (0..<stored).map { "\($0)" })
    }
}
