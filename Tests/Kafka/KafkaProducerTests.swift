import EventLog
import Glibc
import Kafka
import Schemas
import System
import TestSupport
import Testing

@Suite("A producer on Kafka") struct KafkaProducerTests {
    @Test("stores everything once and in order when requests fail and are repeated")
    func retriableErrors() throws {
        try withMock { mock, log in
            let producer = try log.makeProducer(ProducerSettings())
            let receipts = ReceiptCollector()
            mock.cluster.fail(
                .produce,
                [.notLeader, .requestTimedOut, .notEnoughReplicas, .transport, .transport])
            try producer.sendNumbers(0..<200, receipts)
            for number in UInt64(0)..<200 { try receipts.requireStored(number) }
            producer.close()
            #expect(try log.offsets(of: TopicPartition(.waves, 0)).next == 200)
            #expect(try log.values(200) == (0..<200).map { "\($0)" })
        }
    }

    @Test("fails what was refused for good, and goes on") func fatalRequestErrors() throws {
        try withMock { mock, log in
            let producer = try log.makeProducer(ProducerSettings())
            let receipts = ReceiptCollector()
            mock.cluster.fail(.produce, [.messageTooLarge])
            try producer.sendNumbers(0..<1, receipts)
            guard case .failed(let error) = try receipts.outcome(of: 0) else {
                Issue.record("it was refused")
                return
            }
            #expect(error.kind == .configuration)
            #expect(error.reason.contains("topic waves"))
            #expect(error.reason.contains("max.message.bytes"))
            try producer.sendNumbers(1..<50, receipts)
            for number in UInt64(1)..<50 { try receipts.requireStored(number) }
            producer.close()
        }
    }

    @Test("replaces a client that a fatal error made useless") func fatalClientErrors() throws {
        try withMock { mock, log in
            let producer = try log.makeProducer(ProducerSettings())
            let receipts = ReceiptCollector()
            try producer.sendNumbers(0..<10, receipts)
            for number in UInt64(0)..<10 { try receipts.requireStored(number) }
            producer.failFatally()
            // Those that meet the useless one have failed; soon there is another.
            var next = 10
            try eventually("a batch is stored again") {
                try producer.sendNumbers(next..<next + 1, receipts)
                next += 1
                if case .stored = try receipts.outcome(of: UInt64(next - 1)) { return true }
                return false
            }
            for number in UInt64(0)..<UInt64(next) { #expect(receipts.count(number) == 1) }
            try eventually("the useless one is gone") { producer.clientCount == 1 }
            producer.close()
        }
    }

    @Test("makes no clients without end when a fatal error comes back at once")
    func fatalErrorsThatStay() throws {
        try withMock { mock, log in
            let producer = try log.makeProducer(ProducerSettings())
            let receipts = ReceiptCollector()
            var most = 0
            for number in 0..<300 {
                producer.failFatally()
                try producer.sendNumbers(number..<number + 1, receipts)
                _ = try receipts.outcome(of: UInt64(number))
                most = max(most, producer.clientCount)
            }
            // As many as a second of the loop can leave behind, and the one in use.
            #expect(most <= 4, "\(most) clients")
            producer.close()
        }
    }

    @Test("has what a broker does not know for a moment spooled, and sends it when it does")
    func topicsUnknownForAMoment() throws {
        let mock = try MockKafka()
        let log = try mock.makeLog(MockKafka.quick + ["topic.metadata.propagation.max.ms=0"])
        defer { log.close() }
        try log.createTopics([TopicSettings(.waves, partitions: 1)])
        #expect(try log.partitionCount(of: .waves) == 1)
        // As a broker that has just started.
        mock.cluster.setTopicError("waves", .unknownTopic)
        let producer = try log.makeProducer(ProducerSettings())
        let receipts = ReceiptCollector()
        try producer.sendNumbers(1..<2, receipts)
        guard case .failed(let error) = try receipts.outcome(of: 1) else {
            Issue.record("the topic is not known")
            return
        }
        // What is not `.unavailable` would not be spooled.
        #expect(error.kind == .unavailable, "\(error)")
        mock.cluster.setTopicError("waves", .none)
        var next = 2
        try eventually("the topic is used again") {
            try producer.sendNumbers(next..<next + 1, receipts)
            next += 1
            if case .stored = try receipts.outcome(of: UInt64(next - 1)) { return true }
            return false
        }
        producer.close()
    }

    @Test("has brokers whose ports nobody takes, and that can go while a process is being forked")
    func portsAreHeld() throws {
        let mock = try MockKafka()
        let port = try #require(mock.cluster.ports.first)
        // As a child has it between `fork` and `exec`.
        let copy = try #require(copyOfListener(port))
        let child = SystemThread.start("child") {
            Waker().wait(milliseconds: 500)
            close(copy)
        }
        mock.cluster.setBroker(isUp: false)
        child.join()
        #expect(!isFree(port))
        mock.cluster.setBroker(isUp: true)
        let log = try mock.makeLog()
        defer { log.close() }
        try log.createTopics([TopicSettings(.waves, partitions: 1)])
        let producer = try log.makeProducer(ProducerSettings())
        let receipts = ReceiptCollector()
        try producer.sendNumbers(0..<5, receipts)
        for number in UInt64(0)..<5 { try receipts.requireStored(number) }
        producer.close()
    }

    private func withAddress<Result>(
        _ port: UInt16, _ body: (UnsafeMutablePointer<sockaddr>, inout socklen_t) -> Result
    ) -> (Result, port: UInt16) {
        var place = sockaddr_in()
        place.sin_family = sa_family_t(AF_INET)
        place.sin_port = port.bigEndian
        place.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
        var size = socklen_t(MemoryLayout<sockaddr_in>.size)
        let result = unsafe withUnsafeMutablePointer(to: &place) {
            unsafe $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                unsafe body($0, &size)
            }
        }
        return (result, UInt16(bigEndian: place.sin_port))
    }

    private func copyOfListener(_ port: UInt16) -> Int32? {
        for descriptor in Int32(3)..<4_096 {
            var isListening: Int32 = 0
            var size = socklen_t(MemoryLayout<Int32>.size)
            guard
                unsafe getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &isListening, &size) == 0,
                isListening == 1
            else { continue }
            let (result, found) = unsafe withAddress(0) { unsafe getsockname(descriptor, $0, &$1) }
            if result == 0, found == port { return dup(descriptor) }
        }
        return nil
    }

    /// Whether somebody else could take a port, as the system gives them out.
    private func isFree(_ port: UInt16) -> Bool {
        let descriptor = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
        defer { close(descriptor) }
        return unsafe withAddress(port) { unsafe bind(descriptor, $0, $1) }.0 == 0
    }

    @Test("stores once what was written although the answer was lost") func lostAnswers() throws {
        try withMock({ $0.ackedMilliseconds = 60_000 }) { mock, log in
            let producer = try log.makeProducer(ProducerSettings())
            let receipts = ReceiptCollector()
            // Written, and answered so late that the client has given the request up.
            mock.cluster.delay(.produce, milliseconds: 3_000)
            try producer.sendNumbers(0..<100, receipts)
            for number in UInt64(0)..<100 { try receipts.requireStored(number) }
            producer.close()
            #expect(try log.values(100) == (0..<100).map { "\($0)" })
        }
    }

    @Test("goes on when the brokers are back") func brokersDownAndBack() throws {
        try withMock({ $0.ackedMilliseconds = 60_000 }) { mock, log in
            let producer = try log.makeProducer(ProducerSettings())
            let receipts = ReceiptCollector()
            try producer.sendNumbers(0..<10, receipts)
            for number in UInt64(0)..<10 { try receipts.requireStored(number) }
            mock.cluster.setBroker(isUp: false)
            try producer.sendNumbers(10..<60, receipts)
            try eventually("the fault is told") { log.fault != nil }
            #expect(log.fault?.contains("connecting to Kafka at 127.0.0.1") == true)
            #expect(receipts.count(59) == 0)
            mock.cluster.setBroker(isUp: true)
            for number in UInt64(10)..<60 { try receipts.requireStored(number) }
            try eventually("the fault is over") { log.fault == nil }
            producer.close()
            #expect(try log.values(60) == (0..<60).map { "\($0)" })
        }
    }

    @Test("fails what is too old, so that somebody can keep it") func tooOld() throws {
        try withMock({ $0.ackedMilliseconds = 300 }) { mock, log in
            let producer = try log.makeProducer(ProducerSettings())
            let receipts = ReceiptCollector()
            mock.cluster.setBroker(isUp: false)
            try producer.sendNumbers(0..<5, receipts)
            for number in UInt64(0)..<5 {
                guard case .failed(let error) = try receipts.outcome(of: number) else {
                    Issue.record("no broker was there")
                    continue
                }
                #expect(error.kind == .unavailable)
            }
            #expect(producer.queuedBytes == 0)
            mock.cluster.setBroker(isUp: true)
            producer.close()
        }
    }

    @Test("ends in time when no broker is there, and fails what it had") func endsInTime() throws {
        try withMock({ $0.closeMilliseconds = 200 }) { mock, log in
            let producer = try log.makeProducer(ProducerSettings())
            let receipts = ReceiptCollector()
            mock.cluster.setBroker(isUp: false)
            try producer.sendNumbers(0..<5, receipts)
            producer.close()
            for number in UInt64(0)..<5 { #expect(receipts.count(number) == 1) }
            #expect(producer.queuedBytes == 0)
        }
    }

    @Test("spools while the brokers are away, and forwards in order when they are back")
    func spools() throws {
        let directory = try FileSystem.makeTemporaryDirectory("/tmp/heartline-kafka-")
        defer { FileSystem.removeTree(directory) }
        try withMock({ $0.ackedMilliseconds = 300 }) { mock, log in
            var settings = SpoolSettings(directory: "\(directory)/spool")
            settings.patienceMilliseconds = 200
            let spooling = try SpoolingLog(log, settings)
            let producer = try spooling.makeProducer(ProducerSettings())
            let receipts = ReceiptCollector()
            try producer.sendNumbers(0..<20, receipts)
            for number in UInt64(0)..<20 { try receipts.requireStored(number) }
            mock.cluster.setBroker(isUp: false)
            try producer.sendNumbers(20..<120, receipts)
            // The receipt comes although no broker is there.
            for number in UInt64(20)..<120 { try receipts.requireStored(number) }
            #expect(spooling.isSpooling)
            mock.cluster.setBroker(isUp: true)
            try eventually("all is forwarded") { !spooling.isSpooling }
            let next = Int(try log.offsets(of: TopicPartition(.waves, 0)).next)
            // Twice is allowed, lost or out of order is not.
            var seen: [Int] = []
            for value in try log.values(next).compactMap({ Int($0) }) where !seen.contains(value) {
                seen.append(value)
            }
            #expect(seen == Array(0..<120))
            producer.close()
            spooling.close()
        }
    }
}
