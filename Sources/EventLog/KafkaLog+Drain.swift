internal import Kafka
public import Schemas
internal import System

extension KafkaLog {
    /// Takes the last `records` of a topic from librdkafka one by one and does nothing with them: the
    /// least that any consumer costs, beside which benchmarks print their own figures.
    ///
    /// Joins a group of its own, which may take seconds, before `started` is called.
    /// - Returns: how many records came.
    /// - Throws: if nothing comes for 30 s.
    public func drain(
        _ topic: Topic, last records: Int64, started: () -> Void
    ) throws(EventLogError) -> Int64 {
        guard let partitions = try partitionCount(of: topic) else {
            throw EventLogError(
                .reading, .configuration, "topic \(topic.rawValue) does not exist")
        }
        var starts: [(partition: Int32, offset: Int64)] = []
        var left: Int64 = 0
        for partition in 0..<partitions {
            let range = try offsets(of: TopicPartition(topic, partition))
            let start = max(range.earliest, range.next - records / Int64(partitions))
            left += range.next - start
            starts.append((partition, start))
        }
        let total = left
        let waker = Waker()
        var quietSince = SystemClock.monotonicMilliseconds()
        func wait() throws(EventLogError) {
            guard SystemClock.monotonicMilliseconds() - quietSince < 30_000 else {
                throw EventLogError(.reading, .unavailable, "nothing came for 30 s")
            }
            waker.wait(milliseconds: 10)
        }
        let configuration = try settings.makeConsumer(group: "drain", partitions: partitions)
        let consumer: KafkaConsumer
        do throws(KafkaError) {
            consumer = try KafkaConsumer(
                of: topic.rawValue, configuration, wakeDescriptor: waker.descriptor,
                observer: health)
        } catch { throw EventLogError(.reading, error) }
        while consumer.nextChange() == nil {
            if let error = consumer.serve() { throw EventLogError(.reading, error) }
            try wait()
        }
        started()
        do throws(KafkaError) { try consumer.read(starts) } catch {
            throw EventLogError(.reading, error)
        }
        while left > 0 {
            var taken: Int64 = 0
            for (partition, _) in starts {
                var room = 2_500
                consumer.take(from: partition) { message in
                    if !message.isError { taken += 1 }
                    room -= 1
                    return room > 0
                }
            }
            left -= taken
            _ = consumer.serve()
            if taken == 0 {
                try wait()
            } else {
                quietSince = SystemClock.monotonicMilliseconds()
            }
        }
        return total
    }
}
