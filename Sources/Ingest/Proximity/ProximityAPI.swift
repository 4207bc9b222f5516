internal import Bytes
internal import HTTP
internal import Schemas
internal import System

/// The routes of people's devices on one event loop (client's contract): `/v1/…`. Who asks and what
/// for is looked at here; the database and the log are the worker's.
final class ProximityAPI: Routes {
    private let proximity: Proximity
    private let overloadBytes: Int
    private let reader = ProximityReader()

    /// - Parameter overloadBytes: bytes in flight on the whole listener above which requests are refused.
    init(_ proximity: Proximity, overloadBytes: Int) {
        self.proximity = proximity
        self.overloadBytes = overloadBytes
    }

    func attached(to loop: LoopContext) {}
    func roundEnded() {}
    func tick() {}

    func bodyLimit(_ head: borrowing RequestHead) -> Int? {
        if case .route(let route) = ProximityRoute.find(head) { route.bodyBytes } else { nil }
    }

    func handle(_ request: borrowing Request, _ exchange: borrowing Exchange) -> Bool {
        switch ProximityRoute.find(request.head) {
        case .none: return false
        case .otherMethods(let methods):
            exchange.respondError(
                .methodNotAllowed, "method not allowed",
                headers: [Header("Allow", methods.map { $0.text }.joined(separator: ", "))])
        case .route(let route):
            exchange.count(as: RouteNames.number(of: route))
            if route == .exchange {
                exchangeToken(request, exchange)
            } else {
                handle(route, request, exchange)
            }
        }
        return true
    }

    // MARK: - Without a session

    private func exchangeToken(_ request: borrowing Request, _ exchange: borrowing Exchange) {
        // First of all: whoever asks too often costs as little as can be.
        if let rates = proximity.rates {
            let now = SystemClock.monotonicMilliseconds()
            if let wait = rates.take(request.clientAddress.network, now: now) {
                // Spread, so that all that wait behind one address do not come again at once.
                let seconds = (wait + 999) / 1_000 + Int64.random(in: 0...4)
                exchange.respondError(
                    .tooManyRequests, "too many requests",
                    headers: [Header("Retry-After", String(seconds))])
                return
            }
        }
        let read = request.withBody { body -> Result<ExchangeRequest, ProximityFault> in
            do throws(ProximityFault) {
                return .success(try reader.exchange(body))
            } catch {
                return .failure(error)
            }
        }
        switch read {
        case .failure(let fault): refuse(fault, exchange)
        case .success(let asked):
            guard proximity.worker.hasProvider(asked.provider) else {
                refuse(ProximityFault(.badRequest, "unknown provider"), exchange)
                return
            }
            submit(.exchange(asked), exchange)
        }
    }

    // MARK: - With a session

    private func handle(
        _ route: ProximityRoute, _ request: borrowing Request, _ exchange: borrowing Exchange
    ) {
        guard let session = SessionID(authorization: request.header("authorization")) else {
            refuse(.unauthorized, exchange)
            return
        }
        let query = route.method == .get ? request.query : nil
        let read = request.withBody { body -> Result<ProximityRequest, ProximityFault> in
            do throws(ProximityFault) {
                return .success(try reader.request(route, body, query: query))
            } catch {
                return .failure(error)
            }
        }
        if let account = proximity.sessions.cached(session) {
            switch read {
            case .failure(let fault): refuse(fault, exchange)
            case .success(let asked):
                submit(.request(asked, by: Caller(session: session, account: account)), exchange)
            }
            return
        }
        guard exchange.counters.bytesInFlight <= overloadBytes else {
            exchange.overloaded()
            return
        }
        let response = exchange.deferred()
        proximity.sessions.resolve(session) { [worker = proximity.worker] answer in
            switch (answer, read) {
            case (.unauthorized, _): response.respond(.unauthorized)
            case (.unavailable, _): response.respond(.unavailable)
            case (.account, .failure(let fault)): response.respond(fault)
            case (.account(let account), .success(let asked)):
                let caller = Caller(session: session, account: account)
                if !worker.submit(.request(asked, by: caller), { response }) {
                    response.respond(.overloaded)
                }
            }
        }
    }

    // MARK: - Both

    private func submit(_ call: ProximityCall, _ exchange: borrowing Exchange) {
        if exchange.counters.bytesInFlight > overloadBytes
            || !proximity.worker.submit(call, { exchange.deferred() })
        {
            exchange.overloaded()
        }
    }

    private func refuse(_ fault: ProximityFault, _ exchange: borrowing Exchange) {
        exchange.respondError(fault.status, fault.message, headers: fault.headers)
    }
}
