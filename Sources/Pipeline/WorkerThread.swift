public import EventLog
public import Processors
public import Sinks
public import System
internal import Postgres
internal import Synchronization

/// Drives one worker in production: a thread that steps it whenever it asks to be, or is signalled.
public final class WorkerThread: Sendable {
    public let board: WorkerStatusBoard
    /// Signalled by the log, the store and this object; the consumer and the store must be made with
    /// it.
    public let waker: Waker

    private struct Orders {
        var deadline: Int64?
        var thread: SystemThread?
    }

    private let orders = Mutex(Orders())

    private init(board: WorkerStatusBoard, waker: Waker) {
        self.board = board
        self.waker = waker
    }

    /// Starts a worker on a thread of its own, which makes its clients: a consumer belongs to the
    /// thread that polls it.
    ///
    /// - Parameters:
    ///   - waker: what `makeConsumer` and `store` were made with.
    ///   - mailbox: new settings for the processor; `nil` if they never change.
    ///   - makeConsumer: called on the new thread, and again after a while when it throws; the board
    ///     tells why.
    ///   - failed: told of each such failure.
    public static func start<
        Consumer: EventConsumer & SendableMetatype, Producer: EventProducer,
        Store: StreamStore & Sendable,
        P: Processor
    >(
        _ type: P.Type, settings: WorkerSettings, processor: ProcessorSettings<P.Settings>,
        mailbox: SettingsMailbox<P.Settings>? = nil, producer: Producer, store: Store,
        waker: Waker, makeConsumer: @escaping @Sendable () throws(EventLogError) -> Consumer,
        failed: @escaping @Sendable (EventLogError) -> Void = { _ in }
    ) -> WorkerThread {
        let board = WorkerStatusBoard(pipeline: settings.pipeline)
        let driver = WorkerThread(board: board, waker: waker)
        let thread = SystemThread.start("work \(settings.pipeline)") {
            guard let consumer = driver.insist(on: makeConsumer, failed) else { return }
            var worker = Worker<Consumer, Producer, Store, P>(
                consumer: consumer, producer: producer, store: store, settings: settings,
                processor: processor, waker: waker, board: board,
                now: SystemClock.monotonicMilliseconds())
            driver.run(&worker, mailbox)
        }
        driver.orders.withLock { $0.thread = thread }
        return driver
    }

    /// - Returns: `nil` if it is stopped before there is one.
    private func insist<Consumer>(
        on makeConsumer: () throws(EventLogError) -> Consumer, _ failed: (EventLogError) -> Void
    ) -> Consumer? {
        var failures = 0
        var status = board.current
        while orders.withLock({ $0.deadline }) == nil {
            do throws(EventLogError) { return try makeConsumer() } catch {
                failures += 1
                failed(error)
                if status.logFault != error.description {
                    Log.warning(
                        "reading the log cannot begin",
                        ["pipeline": status.pipeline, "error": "\(error)"])
                }
                status.logFault = error.description
                board.publish(status)
                waker.wait(milliseconds: Backoff().delay(afterFailures: failures))
            }
        }
        return nil
    }

    private func run<
        Consumer: EventConsumer, Producer: EventProducer, Store: StreamStore, P: Processor
    >(
        _ worker: inout Worker<Consumer, Producer, Store, P>,
        _ mailbox: SettingsMailbox<P.Settings>?
    ) {
        var isStopping = false
        while true {
            let deadline = orders.withLock { $0.deadline }
            if let deadline {
                if !isStopping { worker.stop() }
                isStopping = true
                if worker.isStopped || SystemClock.monotonicMilliseconds() >= deadline { return }
            }
            if let newest = mailbox?.take() { worker.reconfigure(newest) }
            let wake = worker.step(now: SystemClock.monotonicMilliseconds())
            let wait = wake - SystemClock.monotonicMilliseconds()
            if wait > 0 { waker.wait(milliseconds: isStopping ? min(wait, 50) : wait) }
        }
    }

    /// Lets the worker commit what it has applied and give its partitions up, and waits for that, at
    /// most `milliseconds`. Whatever was not stored then is read again by the next owner. Call it once.
    public func stop(milliseconds: Int64) {
        let thread = orders.withLock { orders in
            orders.deadline = SystemClock.monotonicMilliseconds() + milliseconds
            defer { orders.thread = nil }
            return orders.thread
        }
        waker.signal()
        thread?.join()
    }
}

/// Hands new settings to a worker's thread.
public final class SettingsMailbox<Settings: Sendable>: Sendable {
    private let newest = Mutex<ProcessorSettings<Settings>?>(nil)
    private let waker: Waker

    public init(waker: Waker) { self.waker = waker }

    /// They take effect in each partition with its next commit.
    public func post(_ settings: ProcessorSettings<Settings>) {
        newest.withLock { $0 = settings }
        waker.signal()
    }

    func take() -> ProcessorSettings<Settings>? {
        newest.withLock { settings in
            defer { settings = nil }
            return settings
        }
    }
}
