public import EventLog
public import Schemas
internal import System

/// Reads what a topic holds now, once, from end to end: for commands.
///
/// - Thread safety: the caller's thread does all of it.
public enum LogScan {
    /// Lends the records of all partitions, in order within each, up to the ends as of the beginning.
    ///
    /// - Parameters:
    ///   - starts: by partition, where to begin; others at the earliest record.
    ///   - ends: by partition, where to stop before the end.
    ///   - quietMilliseconds: how long the log may say nothing before that is an error.
    ///   - body: must not call the log.
    public static func scan(
        _ log: some EventLog, _ topic: Topic, from starts: [Int32: Int64] = [:],
        to ends: [Int32: Int64] = [:], quietMilliseconds: Int64 = 30_000,
        _ body: (RecordPlace, Span<UInt8>, borrowing RecordValue) -> Void
    ) throws(EventLogError) {
        guard let count = try log.partitionCount(of: topic) else {
            throw EventLogError(
                .reading, .configuration,
                "topic \(topic.rawValue) does not exist; nothing has run on this log yet")
        }
        let waker = Waker()
        // A group of its own: in a common one each reader would get a part.
        let group = "heartline-scan-\(SystemClock.wallMilliseconds())-\(waker.descriptor)"
        let consumer = try log.makeConsumer(of: topic, group: group, waker: waker)
        var left: [Int32: (position: Int64, end: Int64)] = [:]
        var quietSince = SystemClock.monotonicMilliseconds()
        while left.count < Int(count) || left.values.contains(where: { $0.position < $0.end }) {
            while let change = try consumer.nextAssignmentChange() {
                guard case .assigned(let list) = change else { continue }
                for partition in list {
                    let range = try consumer.offsets(of: partition)
                    let start = min(
                        max(starts[partition] ?? range.earliest, range.earliest), range.next)
                    try consumer.start(partition, at: start)
                    left[partition] = (start, min(ends[partition] ?? .max, range.next))
                }
                quietSince = SystemClock.monotonicMilliseconds()
            }
            var taken = 0
            do throws(EventLogError) {
                taken = try consumer.poll(limit: 1_000) { place, key, value in
                    guard let end = left[place.partition]?.end else { return }
                    left[place.partition]?.position = place.offset + 1
                    if place.offset < end { body(place, key, value) }
                }
            } catch {
                // Retention goes on while we read.
                guard case .offsetOutOfRange(_, let range) = error.kind, let place = error.place
                else { throw error }
                try consumer.start(place.partition, at: range.earliest)
                left[place.partition]?.position = range.earliest
            }
            if taken > 0 {
                quietSince = SystemClock.monotonicMilliseconds()
                continue
            }
            guard SystemClock.monotonicMilliseconds() - quietSince < quietMilliseconds else {
                throw EventLogError(
                    .reading, .unavailable,
                    "topic \(topic.rawValue) was not read to its end: nothing came for "
                        + "\(quietMilliseconds / 1_000) s; try again")
            }
            waker.wait(milliseconds: 50)
        }
    }
}
