import Bytes
import EventLog
import Foundation
import KeyValue
import Schemas
import Synchronization
import System
import TestSupport
import Testing

/// What several processes do to one log, and what is left when one is killed.
struct EmbeddedLogProcessTests {
    @Test(arguments: [3, 40, 150])
    func killingAWriterLosesNothingThatWasAcknowledged(afterMilliseconds delay: Int) async throws {
        let directory = try makeDirectory()
        defer { removeDirectory(directory) }
        try EmbeddedLog(directory: directory).makeTestTopic()
        await #expect(processExitsWith: .signal(SIGKILL)) {
            [directory = directory as String, delay = delay as Int] in
            let log = try EmbeddedLog(directory: directory)
            let producer = try log.makeProducer(ProducerSettings())
            let acknowledged = try Acknowledged(path: "\(directory)/acknowledged")
            var next = 0
            var killTime = Int64.max
            while true {
                var batch = RecordBatch(.waves)
                for _ in 0..<100 {
                    batch.append(Int32(next % 2), "k", Self.value(next))
                    next += 1
                }
                let receipt = DeliveryReceipt(acknowledged, token: UInt64(next))
                if producer.send(batch, receipt: receipt) == .queueFull { next -= 100 }
                let now = SystemClock.monotonicMilliseconds()
                // The clock starts with the first acknowledgement, so that there is one to lose.
                if killTime == .max, acknowledged.hasAny { killTime = now + Int64(delay) }
                if now >= killTime { kill(getpid(), SIGKILL) }
            }
        }
        let count = try Acknowledged.read("\(directory)/acknowledged")
        #expect(count > 0)
        let log = try EmbeddedLog(directory: directory)
        defer { log.close() }
        let waker = Waker()
        let consumer = try log.makeConsumer(of: .waves, group: "g", waker: waker)
        try consumer.startAll(waker)
        var stored = 0
        for partition in Int32(0)..<2 {
            let range = try log.offsets(of: TopicPartition(.waves, partition))
            #expect(range.earliest == 0)
            stored += Int(range.next)
        }
        #expect(stored >= count)
        #expect(stored % 100 == 0, "a batch is stored as a whole or not at all")
        for record in try consumer.collect(stored, waker) {
            let number = Int(record.place.offset) * 2 + Int(record.place.partition)
            #expect(record.value == Array(Self.value(number).utf8))
        }
        // And it goes on where it ended.
        try log.storeNumbers(0..<10, in: .waves)
        #expect(
            try log.offsets(of: TopicPartition(.waves, 0)).next == Int64(stored / 2 + 10))
    }

    static func value(_ number: Int) -> String {
        "\(number) " + String(repeating: "x", count: number % 300)
    }

    @Test func anotherProcessesAppendsWakeAConsumerHere() async throws {
        let directory = try makeDirectory()
        defer { removeDirectory(directory) }
        // Longer than the reader waits: the doorbell alone must wake it.
        var settings = EmbeddedLogSettings()
        settings.wakeMilliseconds = 600_000
        let log = try EmbeddedLog(directory: directory, settings: settings)
        defer { log.close() }
        try log.makeTestTopic()
        // A thread of its own: waiting must not hold up the tests' pool.
        let found = Mutex<Result<[ReadRecord], any Error>>(.success([]))
        let reader = SystemThread.start("reader") { [log] in
            let result = Result {
                let waker = Waker()
                let consumer = try log.makeConsumer(of: .waves, group: "g", waker: waker)
                try consumer.startAll(waker)
                return try consumer.collect(40, waker)
            }
            found.withLock { $0 = result }
        }
        // This process writes as well: both wait for one another's transactions.
        let writer = SystemThread.start("writer") { [log] in
            for number in 20..<40 {
                try? log.storeNumbers(number..<number + 1, in: .waves, partition: Int32(number % 2))
            }
        }
        await #expect(processExitsWith: .success) {
            [directory = directory as String] in
            let log = try EmbeddedLog(directory: directory)
            for number in 0..<20 {
                try log.storeNumbers(number..<number + 1, in: .waves, partition: Int32(number % 2))
            }
            log.close()
        }
        writer.join()
        reader.join()
        let records = try found.withLock { $0 }.get()
        let values = records.map { Int(String(decoding: $0.value!, as: UTF8.self))! }
        #expect(Set(values) == Set(0..<40))
        for partition in Int32(0)..<2 {
            let offsets = records.filter { $0.place.partition == partition }.map(\.place.offset)
            #expect(offsets == Array(0..<20))
        }
    }

    @Test func readersOfAProcessThatWasKilledAreCleared() async throws {
        let directory = try makeDirectory()
        defer { removeDirectory(directory) }
        let environment = try await killAReader(in: directory)
        #expect(try environment.clearDeadReaders() == 1)
        #expect(try environment.clearDeadReaders() == 0)
    }

    @Test func openingClearsTheReadersOfAProcessThatWasKilled() async throws {
        let directory = try makeDirectory()
        defer { removeDirectory(directory) }
        let environment = try await killAReader(in: directory)
        try EmbeddedLog(directory: directory).close()
        #expect(try environment.clearDeadReaders() == 0)
    }

    /// Has a process die inside a read transaction, whose pages would never be used again.
    /// - Returns: the environment, held open: LMDB itself clears what nobody has open.
    private func killAReader(in directory: String) async throws -> KeyValueEnvironment {
        let log = try EmbeddedLog(directory: directory)
        try log.makeTestTopic()
        try log.storeNumbers(0..<10, in: .waves)
        log.close()
        let environment = try KeyValueEnvironment(
            directory: "\(directory)/acked", KeyValueSettings(mapBytes: 1 << 30))
        await #expect(processExitsWith: .signal(SIGKILL)) {
            [directory = directory as String] in
            let log = try EmbeddedLog(directory: directory)
            let waker = Waker()
            let consumer = try log.makeConsumer(of: .waves, group: "g", waker: waker)
            try consumer.startAll(waker)
            _ = try consumer.poll(limit: 1) { _, _, _ in kill(getpid(), SIGKILL) }
        }
        return environment
    }

    @Test func aDiskThatTakesNoMoreFailsBatchesUntilThereIsRoom() async throws {
        let directory = try makeDirectory()
        defer { removeDirectory(directory) }
        await #expect(processExitsWith: .success) {
            [directory = directory as String] in
            // A limit on the size of files stands in for a full disk: writes fall short alike.
            signal(SIGXFSZ, SIG_IGN)
            let log = try EmbeddedLog(directory: directory)
            try log.makeTestTopic()
            limitFiles(to: 1 << 20)
            var stored = 0
            let error = #expect(throws: EventLogError.self) {
                while stored < 100_000 {
                    try log.storeNumbers(stored..<stored + 100, in: .waves, padding: 100)
                    stored += 100
                }
            }
            #expect(error?.kind == .storage, "\(error as Any)")
            #expect(try log.drain(.waves).records == stored)
            limitFiles(to: 1 << 30)
            try log.storeNumbers(stored..<stored + 1_000, in: .waves, padding: 100)
            #expect(try log.drain(.waves).records == stored + 1_000)
            log.close()
        }
    }

    @Test(arguments: [0, 2_048, 30_000])
    func openingOnAFullDiskIsAClearError(roomBytes: Int) async throws {
        let directory = try makeDirectory()
        defer { removeDirectory(directory) }
        await #expect(processExitsWith: .success) {
            [directory = directory as String, roomBytes = roomBytes as Int] in
            signal(SIGXFSZ, SIG_IGN)
            limitFiles(to: roomBytes)
            let error = #expect(throws: EventLogError.self) {
                _ = try EmbeddedLog(directory: directory)
            }
            #expect(error?.kind == .storage, "\(error as Any)")
            limitFiles(to: 1 << 30)
            let log = try EmbeddedLog(directory: directory)
            try log.makeTestTopic()
            log.close()
        }
    }

    @Test func twoLogsOfOneProcessShareADirectory() throws {
        try withDirectory { directory in
            let first = try EmbeddedLog(directory: directory)
            try first.makeTestTopic()
            let second = try EmbeddedLog(
                directory: "\(directory)/../\(directory.split(separator: "/").last!)")
            let waker = Waker()
            let consumer = try second.makeConsumer(of: .waves, group: "g", waker: waker)
            try consumer.startAll(waker)
            try first.storeNumbers(0..<100, in: .waves)
            try second.storeNumbers(100..<200, in: .waves)
            #expect(try consumer.collect(200, waker).count == 200)
            first.close()
            // The first to close takes nothing away from the second.
            try second.storeNumbers(200..<300, in: .waves)
            #expect(try consumer.collect(100, waker).count == 100)
            second.close()
        }
    }
}

extension EmbeddedLog {
    func makeTestTopic() throws { try createTopics([TopicSettings(.waves, partitions: 2)]) }
}

/// Sets the size beyond which this process cannot write to a file.
func limitFiles(to bytes: Int) {
    var limit = rlimit()
    unsafe getrlimit(__rlimit_resource_t(UInt32(RLIMIT_FSIZE.rawValue)), &limit)
    limit.rlim_cur = rlim_t(bytes)
    unsafe setrlimit(__rlimit_resource_t(UInt32(RLIMIT_FSIZE.rawValue)), &limit)
}

/// Notes in a file how many records were acknowledged: it outlives the process.
final class Acknowledged: DeliveryReceiver {
    private let descriptor: Int32

    init(path: String) throws {
        descriptor = unsafe open(path, O_RDWR | O_CREAT, 0o600)
        guard descriptor >= 0 else { throw BrokenPromise("opening \(path)") }
    }

    deinit { close(descriptor) }

    var hasAny: Bool { lseek(descriptor, 0, SEEK_END) > 0 }

    func delivered(_ token: UInt64, _ outcome: DeliveryOutcome) {
        guard case .stored = outcome else { return }
        var count = token
        unsafe _ = pwrite(descriptor, &count, 8, 0)
    }

    static func read(_ path: String) throws -> Int {
        let bytes = ByteBuffer(try Data(contentsOf: URL(fileURLWithPath: path)))
        return Int(bytes.span.littleEndian(at: 0, as: UInt64.self))
    }
}
