import Bytes
import EventLog
import Kafka
import Schemas
import System
import TestSupport

/// Waits until `condition` holds.
func eventually(
    _ what: String, seconds: Int64 = 60, _ condition: () throws -> Bool
) throws {
    let end = SystemClock.monotonicMilliseconds() + seconds * 1_000
    let pause = Waker()
    while try !condition() {
        guard SystemClock.monotonicMilliseconds() < end else {
            throw BrokenPromise("\(what) did not come about in time")
        }
        pause.wait(milliseconds: 5)
    }
}

/// Lends a mock cluster and a log on it with topic waves.
func withMock<Result>(
    partitions: Int32 = 1,
    _ change: (inout KafkaLogSettings) -> Void = { _ in },
    _ body: (MockKafka, KafkaLog) throws -> Result
) throws -> Result {
    let mock = try MockKafka()
    let log = try mock.makeLog(MockKafka.quick, change)
    defer { log.close() }
    try log.createTopics([TopicSettings(.waves, partitions: partitions)])
    return try body(mock, log)
}

extension EventProducer {
    /// Sends one record a batch, each with its number as value.
    func sendNumbers(
        _ numbers: Range<Int>, partition: Int32 = 0, _ receipts: ReceiptCollector
    ) throws {
        for number in numbers {
            var batch = RecordBatch(.waves)
            batch.append(partition, "k", "\(number)")
            let outcome = send(batch, receipt: DeliveryReceipt(receipts, token: UInt64(number)))
            guard case .accepted = outcome else { throw BrokenPromise("sending \(number)") }
        }
    }
}

extension KafkaLog {
    /// All values of a partition of topic waves, by a reader of its own.
    func values(_ count: Int, group: String = "all") throws -> [String] {
        let waker = Waker()
        let consumer = try makeConsumer(of: .waves, group: group, waker: waker)
        try consumer.startAll(waker)
        return try consumer.collect(count, waker).map(\.text)
    }
}

extension ReadRecord {
    var text: String { String(decoding: value ?? [], as: UTF8.self) }
}
