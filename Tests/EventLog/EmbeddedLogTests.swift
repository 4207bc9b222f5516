import Bytes
import EventLog
import Foundation
import KeyValue
import Schemas
import System
import TestSupport
import Testing

struct EmbeddedLogTests {
    @Test func directoriesAndFilesAreOurs() throws {
        try withDirectory { directory in
            let log = try EmbeddedLog(directory: "\(directory)/a/b")
            defer { log.close() }
            for path in ["a", "a/b", "a/b/acked", "a/b/queued"] {
                #expect(try mode(of: "\(directory)/\(path)") == 0o700, "\(path)")
            }
            for path in ["acked/data.mdb", "queued/data.mdb", "acked/lock.mdb", "doorbell"] {
                #expect(try mode(of: "\(directory)/a/b/\(path)") == 0o600, "\(path)")
            }
        }
    }

    private func mode(of path: String) throws -> Int {
        let attributes = try FileManager.default.attributesOfItem(atPath: path)
        return (attributes[.posixPermissions] as? NSNumber)?.intValue ?? -1
    }

    @Test func theMapIsSparse() throws {
        try withLog { log in
            let path = "\(log.directory)/acked/data.mdb"
            let size = try FileManager.default.attributesOfItem(atPath: path)[.size] as? NSNumber
            #expect((size?.intValue ?? .max) < 1 << 20)
        }
    }

    @Test func aDirectoryThatCannotBeUsedIsAClearError() throws {
        try withDirectory { directory in
            let file = "\(directory)/file"
            #expect(FileManager.default.createFile(atPath: file, contents: Data([1])))
            for path in [file, "\(file)/log", "/proc/heartline-log"] {
                let error = #expect(throws: EventLogError.self) {
                    _ = try EmbeddedLog(directory: path)
                }
                #expect(error?.kind == .configuration, "\(path): \(error as Any)")
                #expect(error?.description.contains(path) == true, "\(error as Any)")
            }
        }
    }

    @Test func aFileThatIsNotALogIsAClearError() throws {
        try withDirectory { directory in
            try FileManager.default.createDirectory(
                atPath: "\(directory)/acked", withIntermediateDirectories: true)
            let data = Data(repeating: 0x55, count: 8_192)
            try data.write(to: URL(fileURLWithPath: "\(directory)/acked/data.mdb"))
            let error = #expect(throws: EventLogError.self) {
                _ = try EmbeddedLog(directory: directory)
            }
            #expect(error?.kind == .storage, "\(error as Any)")
        }
    }

    @Test func aLogOfANewerReleaseIsRefused() throws {
        try withDirectory { directory in
            try EmbeddedLog(directory: directory).close()
            do {
                let environment = try KeyValueEnvironment(
                    directory: "\(directory)/queued", KeyValueSettings(mapBytes: 1 << 20))
                let metadata = try environment.makeDatabase("metadata", keys: .bytes)
                var version = ByteBuffer()
                version.appendLittleEndian(UInt32(2))
                let key = ByteBuffer("format".utf8)
                let writer = try KeyValueWriter(environment)
                try writer.put(key.span, version.span, in: metadata)
                try writer.commit()
            }
            let error = #expect(throws: EventLogError.self) {
                _ = try EmbeddedLog(directory: directory)
            }
            #expect(error?.kind == .configuration)
            #expect(error?.reason.contains("format 2") == true, "\(error as Any)")
        }
    }

    @Test func everythingIsThereAfterOpeningAgain() throws {
        try withDirectory { directory in
            let log = try EmbeddedLog(directory: directory)
            try log.createTopics([
                TopicSettings(.waves, partitions: 3), TopicSettings(.heartbeats, partitions: 2),
            ])
            try log.storeNumbers(0..<10, in: .waves, partition: 2)
            try log.storeNumbers(0..<20, in: .heartbeats, partition: 1)
            let before = try log.status()
            log.close()
            let again = try EmbeddedLog(directory: directory)
            defer { again.close() }
            #expect(try again.status() == before)
            #expect(before.map(\.topic) == [.heartbeats, .waves])
            #expect(try again.drain(.waves).records == 10)
            let waker = Waker()
            let consumer = try again.makeConsumer(of: .heartbeats, group: "g", waker: waker)
            try consumer.startAll(waker)
            #expect(try consumer.collect(20, waker).count == 20)
        }
    }

    @Test func headersAreStored() throws {
        try withLog { log in
            try log.createTopics([TopicSettings(.waves, partitions: 1)])
            var headers = RecordHeaders()
            let value = ByteBuffer([1, 2, 3])
            headers.append("id", value.span)
            var batch = RecordBatch(.waves)
            batch.append(0, "k", "v", headers: headers)
            batch.append(0, "k", "v")
            try log.store(batch)
            let place = TopicPartition(.waves, 0)
            #expect(try log.headers(of: place, at: 0) == headers.bytes.bytes)
            #expect(try log.headers(of: place, at: 1) == [])
            #expect(try log.headers(of: place, at: 2) == nil)
        }
    }

    @Test func partitionsCanBeSplitBetweenWorkers() throws {
        try withLog { log in
            try log.createTopics([TopicSettings(.heartbeats, partitions: 4)])
            let waker = Waker()
            let consumer = try log.makeConsumer(
                of: .heartbeats, group: "g", waker: waker, partitions: [1, 3])
            #expect(try consumer.startAll(waker) == [1, 3])
            for partition in Int32(0)..<4 {
                try log.storeNumbers(0..<5, in: .heartbeats, partition: partition)
            }
            let found = try consumer.collect(10, waker)
            #expect(Set(found.map(\.place.partition)) == [1, 3])
            #expect(try consumer.pollCopies().isEmpty)
            #expect(throws: EventLogError.self) { try consumer.start(0, at: 0) }
            #expect(throws: EventLogError.self) {
                _ = try log.makeConsumer(of: .heartbeats, group: "g", waker: waker, partitions: [4])
            }
        }
    }

    @Test func aBadBatchDoesNotFailItsNeighbours() throws {
        try withLog { log in
            try log.createTopics([TopicSettings(.waves, partitions: 1)])
            var settings = ProducerSettings()
            settings.lingerMilliseconds = 50
            let producer = try log.makeProducer(settings)
            let receipts = ReceiptCollector()
            for token in UInt64(0)..<5 {
                var batch = RecordBatch(.waves)
                batch.append(0, "k", "\(token)")
                if token == 2 { batch.append(1, "k", "there is no such partition") }
                let receipt = DeliveryReceipt(receipts, token: token)
                #expect(producer.send(batch, receipt: receipt) == .accepted)
            }
            for token in [0, 1, 3, 4] as [UInt64] { try receipts.requireStored(token) }
            guard case .failed(let error) = try receipts.outcome(of: 2) else {
                Issue.record("a record outside the topic was stored")
                return
            }
            #expect(error.kind == .configuration)
            #expect(error.place == TopicPartition(.waves, 1))
            #expect(try log.drain(.waves).records == 4)
            producer.close()
        }
    }

    @Test func aPollEndsInTimeAndAnnouncesTheRest() throws {
        var settings = EmbeddedLogSettings()
        settings.readMilliseconds = 1
        try withLog(settings) { log in
            try log.createTopics([TopicSettings(.waves, partitions: 1)])
            try log.storeNumbers(0..<1_000, in: .waves)
            let waker = Waker()
            let consumer = try log.makeConsumer(of: .waves, group: "g", waker: waker)
            try consumer.startAll(waker)
            waker.drain()
            let end = SystemClock.monotonicMilliseconds() + 3
            let first = try consumer.poll(limit: 1_000) { _, _, _ in
                while SystemClock.monotonicMilliseconds() < end {}
            }
            #expect(first == 32)
            #expect(waker.wait(milliseconds: 0))
            #expect(try consumer.collect(968, waker).first?.place.offset == 32)
        }
    }

    @Test func aFullMapFailsBatchesAndLeavesTheLogUsable() throws {
        var settings = EmbeddedLogSettings()
        settings.mapBytes = 2 << 20
        settings.expiryMilliseconds = 10
        try withLog(settings) { log in
            try log.createTopics([
                TopicSettings(.waves, partitions: 1), TopicSettings(.messages, partitions: 1),
            ])
            let old = SystemClock.wallMilliseconds() - 6 * 24 * 3_600_000
            let producer = try log.makeProducer(ProducerSettings())
            let receipts = ReceiptCollector()
            var stored: Int64 = 0
            var failure: EventLogError?
            for token in UInt64(0)..<1_000 where failure == nil {
                var batch = RecordBatch(.waves)
                for _ in 0..<20 {
                    batch.append(0, "k", String(repeating: "x", count: 1_000), at: old)
                }
                let receipt = DeliveryReceipt(receipts, token: token)
                #expect(producer.send(batch, receipt: receipt) == .accepted)
                switch try receipts.outcome(of: token) {
                case .stored: stored += 20
                case .failed(let error): failure = error
                }
            }
            #expect(failure?.kind == .storage)
            #expect(failure?.reason.contains("retention") == true, "\(failure as Any)")
            let place = TopicPartition(.waves, 0)
            #expect(try log.offsets(of: place) == OffsetRange(earliest: 0, next: stored))
            let waker = Waker()
            let consumer = try log.makeConsumer(of: .waves, group: "g", waker: waker)
            try consumer.startAll(waker)
            #expect(try consumer.collect(Int(stored), waker).count == Int(stored))
            // A shorter retention makes room, and what comes then is stored.
            var shorter = TopicSettings(.waves, partitions: 1)
            shorter.retentionMilliseconds = 24 * 3_600_000
            try log.createTopics([shorter])
            try eventually("room in the map") {
                do {
                    try log.storeNumbers(0..<1, in: .messages, padding: 100_000)
                    return true
                } catch let error as EventLogError where error.kind == .storage {
                    return false
                }
            }
            producer.close()
        }
    }

    @Test func aClosedLogRefusesBatchesAndStoresThoseItTook() throws {
        try withDirectory { directory in
            let log = try EmbeddedLog(directory: directory)
            try log.createTopics([TopicSettings(.waves, partitions: 1)])
            var settings = ProducerSettings()
            settings.lingerMilliseconds = 60_000
            let producer = try log.makeProducer(settings)
            var batch = RecordBatch(.waves)
            batch.append(0, "k", "v")
            #expect(producer.send(batch, receipt: nil) == .accepted)
            log.close()
            #expect(try log.offsets(of: TopicPartition(.waves, 0)).next == 1)
            #expect(producer.send(batch, receipt: nil) == .closed)
            #expect(producer.queuedBytes == 0)
            producer.close()
            #expect(throws: EventLogError.self) { _ = try log.makeProducer(ProducerSettings()) }
        }
    }

    @Test func aDoorbellIsHeardThroughAnotherMapping() throws {
        try withDirectory { directory in
            let here = try Doorbell(path: "\(directory)/bell")
            let there = try Doorbell(path: "\(directory)/bell")
            let seen = here.count
            let thread = SystemThread.start("ringer") { there.ring(5) }
            while here.count == seen { here.wait(while: seen, milliseconds: 60_000) }
            #expect(here.count(of: 5) == 1)
            #expect(here.count(of: 6) == 0)
            thread.join()
            // One that changed before the wait does not wait.
            here.wait(while: seen, milliseconds: 60_000)
        }
    }
}
