internal import Postgres
internal import Synchronization
internal import System

/// Takes the messages for one receiver to it: in order for each entity, at least once, by one process
/// at a time, until they are acknowledged.
///
/// Runs on a thread of its own, with its own session; the lease is an advisory lock of that session.
/// - Thread safety: any thread.
final class AlertReceiver: Sendable {
    private let worker: ReceiverWorker
    private let thread = StoppableThread()

    init(database: String, _ settings: AlertReceiverSettings) {
        worker = ReceiverWorker(database: database, settings)
    }

    deinit { stop(milliseconds: 4_000) }

    func start() { thread.start("alert-receiver") { [worker] in worker.run() } }

    /// Begins the end, without waiting for it.
    func askToStop() { worker.stop() }

    /// Waits so long for its end.
    func stop(milliseconds: Int64) {
        worker.stop()
        thread.join(milliseconds: milliseconds)
    }
}

/// What the thread of an `AlertReceiver` does. Only that thread calls `run`.
final class ReceiverWorker: Sendable {
    let settings: AlertReceiverSettings
    let waker = Waker()
    private let database: String
    private let isStopping = Atomic<Bool>(false)

    init(database: String, _ settings: AlertReceiverSettings) {
        self.database = database
        self.settings = settings
    }

    func stop() {
        isStopping.store(true, ordering: .relaxed)
        waker.signal()
    }

    var goesOn: Bool { !isStopping.load(ordering: .relaxed) }

    func run() {
        var health = ReceiverHealth(settings)
        // Kept over a loss of the database: what was acknowledged must not be sent again.
        var results = DeliveryResults()
        var failures = 0
        while goesOn {
            do {
                var options = PostgresOptions(applicationName: "heartline alert receiver")
                options.responseTimeout = .seconds(30)
                let connection = try PostgresConnection(database, options: options)
                try connection.listen("heartline_alert_deliveries")
                let store = DeliveryStore(connection, receiver: settings.name)
                try store.write(&results)
                failures = 0
                while goesOn, try !store.takeLease() {
                    try waitForNews(store, milliseconds: 1_000)
                }
                switch settings.target {
                case .webhook(let webhook): try serve(webhook, store, &health, &results)
                case .alertmanager(let manager): try serve(manager, store, &health, &results)
                case .notify(let channel): try serve(channel: channel, store)
                }
            } catch {
                if failures == 0 {
                    Log.warning(
                        "sending alerts", ["receiver": settings.name, "error": "\(error)"])
                }
                failures += 1
                wait(milliseconds: Backoff().delay(afterFailures: failures))
            }
        }
    }

    /// Waits for a message to be enqueued, for the end, or for the time.
    func waitForNews(_ store: DeliveryStore, milliseconds: Int64) throws {
        _ = store.connection.waitReadable(
            orReadable: waker.descriptor, timeout: .milliseconds(max(0, milliseconds)))
        waker.drain()
        _ = try store.connection.notifications()
    }

    private func wait(milliseconds: Int64) {
        waker.wait(milliseconds: milliseconds) { goesOn }
    }

    private func serve(channel: String, _ store: DeliveryStore) throws {
        while goesOn {
            if try store.notify(channel, limit: 200) == 0 {
                try waitForNews(store, milliseconds: 1_000)
            }
        }
    }
}

/// How a receiver is doing: when it may be tried again, and what was said of it in the log.
struct ReceiverHealth {
    private let settings: AlertReceiverSettings
    private let backoff: Backoff
    /// Failures in a row that are the receiver's, not one message's.
    private(set) var failures = 0
    /// Monotonic milliseconds; nothing is sent before.
    private(set) var notBefore: Int64 = 0
    private var hasToldRefusal = false

    init(_ settings: AlertReceiverSettings) {
        self.settings = settings
        backoff = Backoff(
            initialMilliseconds: settings.retryInitial, limitMilliseconds: settings.retryLimit)
    }

    /// The wait after so many failures, from half of it up: receivers that failed together are not
    /// tried together.
    func delay(afterFailures failures: Int) -> Int64 {
        let whole = backoff.delay(afterFailures: failures)
        return whole / 2 + Int64.random(in: 0...(whole - whole / 2))
    }

    /// - Returns: the wait.
    mutating func fail(_ reason: String, now: Int64) -> Int64 {
        // Requests that were under way together fail together, and count once.
        if now >= notBefore {
            failures += 1
            notBefore = now + delay(afterFailures: failures)
            if failures == 1 {
                Log.warning(
                    "a receiver of alerts does not take them: its messages wait",
                    ["receiver": settings.name, "reason": reason])
            }
        }
        return max(0, notBefore - now)
    }

    /// It answered, but refused this message. Told once: the message is tried again and again.
    mutating func refuse(_ reason: String) {
        if !hasToldRefusal {
            Log.error(
                "a receiver refuses an alert: look at its settings; the message is tried again",
                ["receiver": settings.name, "reason": reason])
        }
        hasToldRefusal = true
    }

    /// - Returns: whether it was away for long, so that what waits for a late try can go now.
    mutating func succeed() -> Bool {
        let wasAway = failures >= 3
        if failures > 0 {
            Log.notice("a receiver takes alerts again", ["receiver": settings.name])
        }
        failures = 0
        notBefore = 0
        return wasAway
    }

    /// What an HTTP status means.
    enum Verdict { case acknowledged, refused, away }

    static func verdict(status: Int) -> Verdict {
        switch status {
        case 200...299: .acknowledged
        case 408, 425, 429: .away
        case 300...499: .refused
        default: .away
        }
    }
}
