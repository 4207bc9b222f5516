internal import Bytes
internal import EventLog
internal import Schemas
internal import Synchronization
internal import System

/// Writes a front-end's beacons on a thread of its own.
///
/// A beacon must not claim more than is in the log before it, and there is no moment at which all
/// event loops stand still. So each loop publishes a *reading*: the time up to which all that devices
/// had sent it has been read and handed to the producer's queue (or counted as lost). This thread
/// takes the readings first, then the count of losses, and claims the smallest reading. Whatever came
/// before that time was queued before the beacon is, and the queue keeps its order. A loop publishes
/// several times a second, so a claim is hardly older than that; a loop that hangs holds the claim
/// where it was, which is the truth about its devices: what they say waits in its sockets.
final class BeaconWriter: DeliveryReceiver {
    private struct Book {
        var ledger = BeaconLedger()
        var lastToken: UInt64 = 0
    }

    private let state: IngestState
    private let frontEnd: InlineText
    private let intervalMilliseconds: Int64
    private let book = Mutex(Book())
    private let isStopping = Atomic(false)
    private let waker = Waker()
    private let thread = Mutex<SystemThread?>(nil)

    init(_ state: IngestState, frontEnd: InlineText, intervalMilliseconds: Int64) {
        self.state = state
        self.frontEnd = frontEnd
        self.intervalMilliseconds = intervalMilliseconds
    }

    /// Starts to write at intervals; the first beacon has been written by `writeFirst`.
    func start() {
        thread.withLock { $0 = SystemThread.start("beacons") { self.run() } }
    }

    /// - Returns: whether the log's queue took it.
    func writeFirst() -> Bool {
        write(readings: [SystemClock.monotonicMilliseconds()], isLeaving: false)
    }

    /// Ends the thread and says goodbye. Call it when no loop can accept anything any more.
    func leave() {
        isStopping.store(true, ordering: .releasing)
        waker.signal()
        let running = thread.withLock { thread in
            defer { thread = nil }
            return thread
        }
        running?.join()
        if !write(readings: [SystemClock.monotonicMilliseconds()], isLeaving: true) {
            Log.warning("the log took no leaving beacon; workers will wait for this front-end")
        }
    }

    private func run() {
        var next = SystemClock.monotonicMilliseconds() + intervalMilliseconds
        while !isStopping.load(ordering: .acquiring) {
            let now = SystemClock.monotonicMilliseconds()
            guard now >= next else {
                waker.wait(milliseconds: next - now)
                continue
            }
            if write(readings: state.readings.map(\.value), isLeaving: false) {
                // Late by a stall of this machine: go on from here, do not catch up.
                next = max(next + intervalMilliseconds, now)
            } else {
                next = now + min(500, intervalMilliseconds)
            }
        }
    }

    private func write(readings: [Int64], isLeaving: Bool) -> Bool {
        // After the readings: a loop counts a loss before it publishes the reading that covers it.
        let losses = state.counters.lost
        // Noted before it is sent, because its delivery may be told before `send` returns. Only one
        // thread writes at a time, so no other claim comes in between.
        let (claim, token) = book.withLock { book in
            let claim = book.ledger.claim(readings: readings, losses: losses)
            book.lastToken += 1
            book.ledger.sent(claim, token: book.lastToken)
            return (claim, book.lastToken)
        }
        let outcome = state.producer.send(
            batch(claim, isLeaving: isLeaving), receipt: DeliveryReceipt(self, token: token))
        guard outcome == .accepted else {
            book.withLock { $0.ledger.settled(token: token, isStored: false) }
            return false
        }
        state.counters.addBeacon()
        return true
    }

    private func batch(_ claim: BeaconLedger.Claim, isLeaving: Bool) -> RecordBatch {
        var batch = RecordBatch(.heartbeats)
        // The claim's own time by the wall clock, not that of writing: readers learn from it how the
        // two clocks stand to each other, and place heartbeats by that. After a hang they differ.
        let age = max(0, SystemClock.monotonicMilliseconds() - claim.monotonicMilliseconds)
        let time = EventTime(milliseconds: SystemClock.wallMilliseconds() - age)
        var value = ByteBuffer()
        for partition in 0..<state.partitions {
            value.removeAll()
            value.append(
                Beacon(
                    frontEnd: frontEnd, origin: state.nextOrigin(),
                    monotonicMilliseconds: claim.monotonicMilliseconds, isLossy: claim.isLossy,
                    isLeaving: isLeaving, isBehind: claim.isBehind))
            batch.append(
                partition: partition, timestamp: time, key: frontEnd.span, value: value.span)
        }
        return batch
    }

    func delivered(_ token: UInt64, _ outcome: DeliveryOutcome) {
        let isStored = if case .stored = outcome { true } else { false }
        book.withLock { $0.ledger.settled(token: token, isStored: isStored) }
    }
}
