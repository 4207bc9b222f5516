import Metrics
import Postgres
import Schemas
import Synchronization
import System

/// What only the database knows of a fleet as a whole: alerts, the registry, what waits there. Counted by
/// a thread of its own, so that nobody who asks for metrics waits for the database.
///
/// - Thread safety: any thread; `start` and `stop` once each.
final class FleetMetrics: Sendable {
    struct Counts {
        var devices: Int64 = 0
        var alerts: [AlertKind: Int64] = [:]
        /// Events that wait to be published.
        var outbox: Int64 = 0
        /// Messages to receivers of alerts that wait, and for how long the oldest has, in seconds.
        var deliveries: Int64 = 0
        var deliveryAge: Double = 0
    }

    /// A count of a million rows takes a moment of the database's; it may have one part in twenty.
    private static let pauseMilliseconds: Int64 = 15_000
    private static let pauseShare: Int64 = 20

    private struct State {
        var counts: Counts?
        /// When they were counted, monotonic.
        var time: Int64 = 0
        var isUp = false
    }

    private let address: String
    private let state = Mutex(State())
    private let isStopping = Atomic(false)
    private let waker = Waker()
    private let ended = Waker()

    init(database: String) { address = database }

    func start() {
        SystemThread.start("fleet-metrics") {
            self.run()
            self.ended.signal()
        }.detach()
    }

    /// Waits for its end a little; a database that hangs is not waited for.
    func stop() {
        isStopping.store(true, ordering: .releasing)
        waker.signal()
        ended.wait(milliseconds: 500)
    }

    private func run() {
        var connection: PostgresConnection?
        while !isStopping.load(ordering: .acquiring) {
            let start = SystemClock.monotonicMilliseconds()
            // One that does not answer is asked again soon; only an answer costs the database anything.
            var isAnswered = true
            do {
                let open = try connection ?? connect()
                connection = open
                let counts = try Self.count(open)
                let now = SystemClock.monotonicMilliseconds()
                state.withLock { $0 = State(counts: counts, time: now, isUp: true) }
            } catch {
                isAnswered = (error as? PostgresError)?.sqlState == .queryCanceled
                connection?.close()
                connection = nil
                let isNews = state.withLock { state in
                    defer { state.isUp = isAnswered }
                    return state.isUp
                }
                if isNews { Log.warning("counting for the metrics", ["error": "\(error)"]) }
            }
            let taken = isAnswered ? SystemClock.monotonicMilliseconds() - start : 0
            waker.wait(milliseconds: max(Self.pauseMilliseconds, taken * Self.pauseShare))
        }
    }

    private func connect() throws -> PostgresConnection {
        var options = PostgresOptions(applicationName: "heartline metrics")
        options.connectTimeout = .seconds(5)
        options.statementTimeout = .seconds(30)
        options.responseTimeout = .seconds(40)
        return try PostgresConnection(address, options: options)
    }

    private static func count(_ connection: PostgresConnection) throws -> Counts {
        var counts = Counts()
        counts.devices = try connection.execute(
            "SELECT count(*) FROM heartline.devices"
        ).only().int8(0)
        counts.outbox = try connection.execute(
            "SELECT count(*) FROM heartline.outbox"
        ).only().int8(0)
        for row in try connection.execute(
            "SELECT kind, count(*) FROM heartline.alerts WHERE resolved_at IS NULL GROUP BY kind")
        {
            if let kind = AlertKind(rawValue: try row.text(0)) {
                counts.alerts[kind] = try row.int8(1)
            }
        }
        let waiting = try connection.execute(
            """
            SELECT count(*), coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8
              FROM heartline.alert_deliveries WHERE delivered_at IS NULL
            """
        ).only()
        counts.deliveries = try waiting.int8(0)
        counts.deliveryAge = try waiting.optionalFloat8(1) ?? 0
        return counts
    }

    func write(to page: inout MetricsPage) {
        let (counts, time, isUp) = state.withLock { ($0.counts, $0.time, $0.isUp) }
        page.gauge(
            "heartline_database_up", "Whether the database answered when it was last asked.", isUp)
        guard let counts else { return }
        page.gauge(
            "heartline_fleet_age_seconds",
            "Age of what was counted in the database: devices registered, alerts, what waits.",
            Double(SystemClock.monotonicMilliseconds() - time) / 1_000)
        page.gauge(
            "heartline_devices_registered",
            "Devices in the registry; the same from every process of an installation.",
            counts.devices)
        for kind in AlertKind.allCases {
            page.gauge(
                "heartline_alerts_open",
                "Alerts that are open; the same from every process of an installation.",
                counts.alerts[kind] ?? 0, .init("kind", configured: kind.rawValue))
        }
        page.gauge(
            "heartline_outbox_events",
            "Events in the database that wait to be published; the same from every process.",
            counts.outbox)
        page.gauge(
            "heartline_alert_deliveries_waiting",
            "Messages to receivers of alerts that wait; the same from every process.",
            counts.deliveries)
        page.gauge(
            "heartline_alert_delivery_age_seconds",
            "Age of the oldest message to a receiver of alerts that waits; 0 if none does.",
            counts.deliveryAge)
    }
}
