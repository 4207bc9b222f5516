internal import HTTP

/// The routes of one API on one event loop. Used on that loop's thread only.
protocol Routes: AnyObject {
    /// Answers the request if its path is one of these routes.
    /// - Returns: whether it was.
    func handle(_ request: borrowing Request, _ exchange: borrowing Exchange) -> Bool
    func attached(to loop: LoopContext)
    /// The largest body in bytes for a request to one of these routes; `nil` for the listener's own
    /// limit, or if it is another's.
    func bodyLimit(_ head: borrowing RequestHead) -> Int?
    func roundEnded()
    func tick()
}

extension Routes {
    func bodyLimit(_ head: borrowing RequestHead) -> Int? { nil }
}

/// Answers everything that comes to the public listener on one event loop.
final class IngestHandler: RequestHandler {
    /// Asked first, and by its own type: heartbeats are almost all that comes.
    private let agent: AgentAPI
    private let others: [any Routes]

    init(_ agent: AgentAPI, _ others: [any Routes] = []) {
        self.agent = agent
        self.others = others
    }

    func attached(to loop: LoopContext) {
        agent.attached(to: loop)
        for routes in others { routes.attached(to: loop) }
    }

    func handle(_ request: borrowing Request, _ exchange: borrowing Exchange) {
        if agent.handle(request, exchange) { return }
        for routes in others where routes.handle(request, exchange) { return }
        exchange.notFound()
    }

    func bodyLimit(_ head: borrowing RequestHead) -> Int? {
        if head.pathIs("/api/v1/heartbeat") { return nil }
        for routes in others {
            if let limit = routes.bodyLimit(head) { return limit }
        }
        return nil
    }

    func roundEnded() {
        agent.roundEnded()
        for routes in others { routes.roundEnded() }
    }

    func caughtUp(to milliseconds: Int64) { agent.caughtUp(to: milliseconds) }

    func tick() {
        agent.tick()
        for routes in others { routes.tick() }
    }
}
