internal import EventLog
internal import HTTP
internal import Schemas

/// The proximity service of one front-end: what its event loops share.
final class Proximity: Sendable {
    let sessions: Sessions
    let worker: ProximityWorker
    let rates: ClientRates<ClientAddress>?
    private let sweeper: ProximitySweeper

    /// - Parameter partitions: of each of `ProximityEvents.topics`.
    init(
        _ settings: ProximitySettings, _ ingest: IngestState, _ sessions: Sessions,
        partitions: [Topic: Int32], databaseURL: String, statementMilliseconds: Int64
    ) {
        self.sessions = sessions
        worker = ProximityWorker(
            settings: settings, sessions: sessions,
            events: ProximityEvents(ingest, partitions: partitions), databaseURL: databaseURL,
            statementMilliseconds: statementMilliseconds)
        rates = settings.exchangeLimit.map { ClientRates<ClientAddress>($0) }
        sweeper = ProximitySweeper(
            databaseURL: databaseURL, intervalMilliseconds: settings.sweepMilliseconds)
    }

    func start() {
        worker.start()
        sweeper.start()
    }

    /// Called when no request comes any more.
    func stop() {
        sweeper.stop()
        worker.stop()
    }
}
