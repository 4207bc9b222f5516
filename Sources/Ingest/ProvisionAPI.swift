internal import Bytes
internal import HTTP
internal import System

/// The route of agents that have no configuration yet, on one event loop (agent contract):
/// `POST /api/v1/provision`. What is good in form is handed to the provisioner's threads; they answer.
final class ProvisionAPI: Routes {
    private let provisioner: Provisioner
    private let rates: ClientRates<ClientAddress>?
    private let overloadBytes: Int
    private var reader = ProvisionReader()

    /// - Parameter overloadBytes: bytes in flight on the whole listener above which nobody is provisioned.
    init(_ provisioner: Provisioner, rates: ClientRates<ClientAddress>?, overloadBytes: Int) {
        self.provisioner = provisioner
        self.rates = rates
        self.overloadBytes = overloadBytes
    }

    func attached(to loop: LoopContext) {}

    func handle(_ request: borrowing Request, _ exchange: borrowing Exchange) -> Bool {
        guard request.pathIs("/api/v1/provision") else { return false }
        exchange.count(as: RouteNames.Public.provision.rawValue)
        guard request.method == .post else {
            exchange.methodNotAllowed(allow: "POST")
            return true
        }
        let counters = provisioner.counters
        // First of all: whoever asks too often costs as little as can be.
        if let rates {
            let now = SystemClock.monotonicMilliseconds()
            if let wait = rates.take(request.clientAddress.network, now: now) {
                counters.limited.add(1)
                // Spread, so that all that wait behind one address do not come again at once.
                let seconds = (wait + 999) / 1_000 + Int64.random(in: 0...4)
                exchange.respondError(
                    .tooManyRequests, "too many requests",
                    headers: [Header("Retry-After", String(seconds))])
                return true
            }
        }
        switch request.withBody({ reader.read($0) }) {
        case .request(let asked):
            if exchange.counters.bytesInFlight > overloadBytes
                || !provisioner.submit(asked, { exchange.deferred() })
            {
                counters.overloaded.add(1)
                exchange.overloaded()
            }
        case .invalidJSON:
            counters.refused.add(1)
            exchange.respondError(.badRequest, "invalid json")
        case .invalidToken:
            counters.refused.add(1)
            exchange.respondError(.badRequest, "invalid token format")
        case .invalidHardwareID:
            counters.refused.add(1)
            exchange.respondError(.badRequest, "invalid hardware id")
        case .outOfMemory:
            counters.failed.add(1)
            exchange.respondError(.internalServerError, "provisioning failed")
        }
        return true
    }

    func roundEnded() {}
    func tick() {}
}
