internal import KeyValue
public import Schemas
internal import Synchronization
internal import System

/// What a spool may take, and when it begins.
public struct SpoolSettings: Sendable {
    /// Made if it is missing. One process at a time.
    public var directory: String
    /// Bytes that may wait in it; above it batches are refused. Default: 4 GiB.
    public var limitBytes = 4 << 30
    /// Bytes that may wait for its disk. Default: 64 MiB.
    public var queueBytes = 64 << 20
    /// Age of a batch that the log has not acknowledged at which the log counts as away, in
    /// milliseconds. Default: 2 s; who waits for the answer should not have given up before.
    public var patienceMilliseconds: Int64 = 2_000
    /// Topics whose batches are spooled. Default: those that are answered when they are stored.
    public var topics = Set(Topic.allCases.filter { $0.durability == .acked })

    public init(directory: String) { self.directory = directory }
}

/// What one producer has under way: neither in the log nor in the spool yet.
final class SpoolAccount: Sendable {
    let unsettled = Atomic<Int>(0)
    let isClosed = Atomic(false)
}

/// Keeps batches that the log does not take now on disk, and forwards them in order when it does.
///
/// While anything waits in it, what comes goes behind it. A batch that was sent to the log before it
/// counted as away may be in both: readers ignore repeats.
final class Spool<Producer: EventProducer>: DeliveryReceiver {
    private struct Item {
        var batch: RecordBatch
        var receipt: DeliveryReceipt?
        var account: SpoolAccount
        /// When it was sent, on the monotonic clock.
        var time: Int64

        func tell(_ outcome: DeliveryOutcome) {
            if let receipt { receipt.receiver.delivered(receipt.token, outcome) }
            account.unsettled.subtract(1, ordering: .acquiringAndReleasing)
        }
    }

    private struct State {
        var isSpooling: Bool
        /// Sent to the log and not acknowledged, by token; tokens count up.
        var direct: [UInt64: Item] = [:]
        var nextToken: UInt64 = 0
        /// To be made durable.
        var pending = ContiguousArray<Item>()
        /// Of these and of those that are being written.
        var pendingCount = 0
        var pendingBytes = 0
        var storedCount: Int
        var storedBytes: Int
        var isStopping = false
    }

    private let settings: SpoolSettings
    private let store: SpoolStore
    private let state: Mutex<State>
    private let forwarding: Producer
    private let receipts = ForwardReceipts()
    private let writerWaker = Waker()
    private let firstNumber: UInt64
    private let threads = Mutex<[SystemThread]>([])

    private enum Way { case direct(UInt64), spooled, refused }

    /// - Parameter forwarding: by which it forwards; closed by `stop`.
    init(_ settings: SpoolSettings, forwarding: Producer) throws(EventLogError) {
        self.settings = settings
        self.forwarding = forwarding
        store = try SpoolStore(directory: settings.directory, limitBytes: settings.limitBytes)
        do throws(KeyValueError) {
            let (next, count, bytes) = try store.totals()
            firstNumber = next
            state = Mutex(
                State(isSpooling: count > 0, storedCount: count, storedBytes: bytes))
            if count > 0 {
                Log.notice("the spool has batches of before", ["spool.batches": "\(count)"])
            }
        } catch { throw EventLogError(.opening, error) }
    }

    func start() {
        threads.withLock {
            $0 = [
                SystemThread.start("spool-in") { self.write() },
                SystemThread.start("spool-out") { self.forward() },
            ]
        }
    }

    /// Makes durable what came, and ends. What was not forwarded is there at the next start.
    func stop() {
        state.withLock { $0.isStopping = true }
        writerWaker.signal()
        receipts.waker.signal()
        let running = threads.withLock { threads in
            defer { threads = [] }
            return threads
        }
        for thread in running { thread.join() }
        forwarding.close()
    }

    /// Bytes that wait for the disk.
    var pendingBytes: Int { state.withLock { $0.pendingBytes } }
    /// Bytes that wait on the disk for the log.
    var storedBytes: Int { state.withLock { $0.storedBytes } }
    /// Whether batches go to the disk now.
    var isSpooling: Bool { state.withLock { $0.isSpooling } }

    func takes(_ topic: Topic) -> Bool { settings.topics.contains(topic) }

    // MARK: - In

    func send(
        _ batch: RecordBatch, _ receipt: DeliveryReceipt?, _ account: SpoolAccount,
        through base: Producer
    ) -> SendOutcome {
        let item = Item(
            batch: batch, receipt: receipt, account: account,
            time: SystemClock.monotonicMilliseconds())
        account.unsettled.add(1, ordering: .sequentiallyConsistent)
        guard !account.isClosed.load(ordering: .sequentiallyConsistent) else {
            account.unsettled.subtract(1, ordering: .acquiringAndReleasing)
            return .closed
        }
        let way: Way = state.withLock { state in
            if state.isSpooling { return enter(item, &state) ? .spooled : .refused }
            state.nextToken += 1
            state.direct[state.nextToken] = item
            return .direct(state.nextToken)
        }
        switch way {
        case .direct(let token):
            // Not under the lock: the log may tell the end at once.
            if case .accepted = base.send(batch, receipt: DeliveryReceipt(self, token: token)) {
                return .accepted
            }
            // The log's own queue is full, so the log is slow or away.
            let (isKnown, isTaken) = state.withLock { state in
                guard let item = state.direct.removeValue(forKey: token) else {
                    return (false, true)
                }
                return (true, enter(item, &state))
            }
            if isKnown, !isTaken {
                account.unsettled.subtract(1, ordering: .acquiringAndReleasing)
                return .queueFull
            }
            writerWaker.signal()
            return .accepted
        case .spooled:
            writerWaker.signal()
            return .accepted
        case .refused:
            account.unsettled.subtract(1, ordering: .acquiringAndReleasing)
            return .queueFull
        }
    }

    /// - Returns: whether there was room.
    private func enter(_ item: Item, _ state: inout State) -> Bool {
        let size = SpoolStore.size(item.batch)
        guard state.storedBytes + state.pendingBytes + size <= settings.limitBytes,
            state.pendingBytes + size <= settings.queueBytes, !state.isStopping
        else { return false }
        state.isSpooling = true
        state.pending.append(item)
        state.pendingCount += 1
        state.pendingBytes += size
        return true
    }

    /// The log's word on a batch that was sent to it.
    func delivered(_ token: UInt64, _ outcome: DeliveryOutcome) {
        guard case .failed(let error) = outcome, error.kind == .unavailable else {
            let item = state.withLock { $0.direct.removeValue(forKey: token) }
            item?.tell(outcome)
            return
        }
        spoolAll { state in state.direct[token] != nil }
    }

    /// Puts everything that the log has not acknowledged into the spool, in the order in which it was
    /// sent.
    private func spoolAll(_ condition: (State) -> Bool) {
        var refused: [Item] = []
        let count = state.withLock { state in
            guard condition(state) else { return 0 }
            let items = state.direct.sorted { $0.key < $1.key }.map(\.value)
            state.direct = [:]
            for item in items where !enter(item, &state) { refused.append(item) }
            return items.count
        }
        guard count > 0 else { return }
        Log.warning("the log does not take events; they are spooled", ["spool.batches": "\(count)"])
        writerWaker.signal()
        receipts.waker.signal()
        for item in refused {
            item.tell(
                .failed(
                    EventLogError(
                        .producing, .unavailable,
                        "the log is away and the spool is full; \(settings.limitBytes) bytes may "
                            + "wait in \(settings.directory)")))
        }
    }

    /// The body of the thread that makes batches durable, as many as have come with one sync.
    private func write() {
        var number = firstNumber
        while true {
            let (items, isStopping) = state.withLock { state in
                defer { state.pending = [] }
                return (state.pending, state.isStopping)
            }
            guard !items.isEmpty else {
                if isStopping { return }
                writerWaker.wait(milliseconds: 1_000)
                continue
            }
            let size = items.reduce(0) { $0 + SpoolStore.size($1.batch) }
            var outcome = DeliveryOutcome.stored
            do throws(KeyValueError) {
                try store.append(items.lazy.map(\.batch), from: number)
                number += UInt64(items.count)
            } catch {
                Log.error("the spool cannot store batches", ["error": "\(error)"])
                outcome = .failed(EventLogError(.producing, error))
            }
            let isStored = if case .stored = outcome { true } else { false }
            state.withLock { state in
                state.pendingCount -= items.count
                state.pendingBytes -= size
                guard isStored else { return }
                state.storedCount += items.count
                state.storedBytes += size
            }
            for item in items { item.tell(outcome) }
            receipts.waker.signal()
        }
    }

    // MARK: - Out

    /// Outcomes of the batches that are being forwarded.
    private final class ForwardReceipts: DeliveryReceiver {
        private struct Window {
            /// The token of the first.
            var first: UInt64 = 0
            var outcomes: [DeliveryOutcome?] = []
        }

        private let window = Mutex(Window())
        let waker = Waker()

        /// Expects so many outcomes; those of windows before are of no interest any more.
        /// - Returns: the token of the first.
        func begin(_ count: Int) -> UInt64 {
            window.withLock { window in
                window.first += UInt64(window.outcomes.count)
                window.outcomes = Array(repeating: nil, count: count)
                return window.first
            }
        }

        /// Whether one of them is known to have failed.
        var haveFailed: Bool {
            window.withLock { window in
                window.outcomes.contains { outcome in
                    if case .failed = outcome { true } else { false }
                }
            }
        }

        /// Those that are known, in order, up to the first that is not.
        var known: [DeliveryOutcome] {
            window.withLock { window in
                window.outcomes.prefix { $0 != nil }.compactMap { $0 }
            }
        }

        /// `nil` while some are missing.
        var outcomes: [DeliveryOutcome]? {
            window.withLock { window in
                let known = window.outcomes.compactMap { $0 }
                return known.count == window.outcomes.count ? known : nil
            }
        }

        func delivered(_ token: UInt64, _ outcome: DeliveryOutcome) {
            window.withLock { window in
                guard token >= window.first, token - window.first < window.outcomes.count else {
                    return
                }
                window.outcomes[Int(token - window.first)] = outcome
            }
            waker.signal()
        }
    }

    private static var windowBytes: Int { 1 << 20 }

    /// The body of the thread that hands the spool's batches to the log, and watches over those that
    /// were sent to the log at once.
    private func forward() {
        var failures = 0
        while true {
            let (isStopping, stored) = state.withLock { ($0.isStopping, $0.storedCount) }
            if isStopping { return }
            let now = SystemClock.monotonicMilliseconds()
            let patience = settings.patienceMilliseconds
            spoolAll { state in
                state.direct.values.contains { now - $0.time >= patience }
            }
            if stored > 0 {
                if forwardWindow() {
                    failures = 0
                    continue
                }
                failures += 1
                receipts.waker.wait(milliseconds: min(2_000, 100 << min(failures, 5)))
                continue
            }
            let isOver = state.withLock { state in
                guard state.isSpooling, state.pendingCount == 0, state.storedCount == 0 else {
                    return false
                }
                state.isSpooling = false
                return true
            }
            if isOver { Log.notice("the spool is empty; events go to the log at once again") }
            receipts.waker.wait(milliseconds: min(250, max(10, patience / 4)))
        }
    }

    /// - Returns: whether the log took all of it.
    private func forwardWindow() -> Bool {
        let entries: [SpoolStore.Entry]
        do throws(KeyValueError) {
            entries = try store.oldest(atMost: Self.windowBytes)
        } catch {
            Log.error("the spool cannot be read", ["error": "\(error)"])
            return false
        }
        guard !entries.isEmpty else { return false }
        let first = receipts.begin(entries.count)
        for (index, entry) in entries.enumerated() {
            // What is behind one that failed would be ahead of it.
            if receipts.haveFailed { return settle(entries, receipts.known) }
            let receipt = DeliveryReceipt(receipts, token: first + UInt64(index))
            var outcome = forwarding.send(entry.batch, receipt: receipt)
            while case .queueFull = outcome, !mustStop {
                receipts.waker.wait(milliseconds: 20)
                outcome = forwarding.send(entry.batch, receipt: receipt)
            }
            guard case .accepted = outcome else { return false }
        }
        let end = SystemClock.monotonicMilliseconds() + 5 * settings.patienceMilliseconds
        while receipts.outcomes == nil, !mustStop, SystemClock.monotonicMilliseconds() < end {
            receipts.waker.wait(milliseconds: 100)
        }
        return settle(entries, receipts.known)
    }

    private var mustStop: Bool { state.withLock { $0.isStopping } }

    /// Forgets what the log has stored, up to the first batch that it has not.
    private func settle(_ entries: [SpoolStore.Entry], _ outcomes: [DeliveryOutcome]) -> Bool {
        var stored = 0
        for outcome in outcomes {
            guard case .stored = outcome else { break }
            stored += 1
        }
        if stored < outcomes.count, case .failed(let error) = outcomes[stored],
            error.kind != .unavailable
        {
            Log.error("the log refuses a spooled batch; it is tried again", ["error": "\(error)"])
        }
        guard stored > 0 else { return false }
        do throws(KeyValueError) {
            try store.remove(through: entries[stored - 1].number)
        } catch {
            // They are forwarded again.
            Log.error("the spool cannot forget batches", ["error": "\(error)"])
            return false
        }
        let size = entries[..<stored].reduce(0) { $0 + $1.sizeBytes }
        state.withLock { state in
            state.storedCount -= stored
            state.storedBytes -= size
        }
        return stored == entries.count
    }
}
