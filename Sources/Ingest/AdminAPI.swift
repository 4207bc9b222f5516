internal import Bytes
internal import HTTP
internal import JSON
internal import Metrics
internal import Page
internal import System

/// The operators' routes, on a listener of their own: `/healthz` and `/readyz` for everyone, `/metrics`
/// and `/admin/v1` for who has a token, and the page for who has it or signed in with it.
final class AdminAPI: RequestHandler {
    private let readiness: Readiness
    /// `nil`: there is nothing to administer.
    private let administration: Administration?
    /// `nil`: nobody may read them.
    private let metrics: (sources: MetricsSources, gate: AdminGuard)?
    private let page: PageAPI?

    init(
        _ readiness: Readiness, _ administration: Administration?, _ page: PageAPI?,
        _ metrics: (sources: MetricsSources, gate: AdminGuard)? = nil
    ) {
        self.readiness = readiness
        self.administration = administration
        self.page = page
        self.metrics = metrics
    }

    func handle(_ request: borrowing Request, _ exchange: borrowing Exchange) {
        // Tells people by itself what it does not answer.
        if let page, page.handle(request, exchange) { return }
        let origin = RequestOrigin(
            host: request.header("host"), origin: request.header("origin"),
            fetchSite: request.header("sec-fetch-site"))
        guard !origin.isFromElsewhere else {
            exchange.respondError(.forbidden, "asked for by another site")
            return
        }
        if request.pathIs("/healthz") {
            exchange.count(as: RouteNames.Admin.healthz.rawValue)
            guard isReading(request.method) else {
                exchange.methodNotAllowed(allow: "GET, HEAD")
                return
            }
            var body = ByteBuffer()
            body.append("{\"status\":\"ok\"}")
            exchange.respond(.ok, contentType: "application/json", body.span)
        } else if request.pathIs("/readyz") {
            exchange.count(as: RouteNames.Admin.readyz.rawValue)
            guard isReading(request.method) else {
                exchange.methodNotAllowed(allow: "GET, HEAD")
                return
            }
            let checks = readiness.checks
            exchange.respond(
                checks.allSatisfy { $0.reason == nil } ? .ok : .serviceUnavailable,
                contentType: "application/json", Self.body(checks).span)
        } else if let metrics, request.pathIs("/metrics") {
            exchange.count(as: RouteNames.Admin.metrics.rawValue)
            guard isReading(request.method) else {
                exchange.methodNotAllowed(allow: "GET, HEAD")
                return
            }
            guard isLetIn(request, exchange, metrics.gate) else { return }
            let page = metrics.sources.page().render()
            exchange.respond(.ok, contentType: MetricsPage.contentType, page.span)
        } else if let administration, request.pathHasPrefix("/admin/") {
            administer(request, exchange, administration)
        } else {
            exchange.notFound()
        }
    }

    private func administer(
        _ request: borrowing Request, _ exchange: borrowing Exchange,
        _ administration: Administration
    ) {
        guard isLetIn(request, exchange, administration.gate) else { return }
        switch AdminRoute.find(request.method, request.path) {
        case .none: exchange.notFound()
        case .otherMethods(let methods):
            exchange.respondError(
                .methodNotAllowed, "method not allowed",
                headers: [Header("Allow", methods.map(\.text).joined(separator: ", "))])
        case .route(let route, let parameters):
            exchange.count(as: RouteNames.number(of: route))
            do throws(AdminFault) {
                let call = try call(request, parameters)
                let response = exchange.deferred()
                let job = Administration.Job(route: route, call: call, response: response)
                if !administration.submit(job) {
                    let busy = AdminAnswer(AdminFault(.serviceUnavailable, "overloaded"))
                    response.respond(
                        busy.status, contentType: "application/json",
                        headers: [Header("Retry-After", "1")], busy.body)
                }
            } catch {
                let answer = AdminAnswer(error)
                exchange.respond(
                    answer.status, contentType: "application/json", answer.body.span)
            }
        }
    }

    /// Whether a token was shown that `gate` knows; whoever shows none is answered here.
    private func isLetIn(
        _ request: borrowing Request, _ exchange: borrowing Exchange, _ gate: AdminGuard
    ) -> Bool {
        switch gate.judge(
            request.header("authorization"), request.clientAddress,
            now: SystemClock.monotonicMilliseconds())
        {
        case .letIn: return true
        case .refused:
            exchange.respondError(
                .unauthorized, "a bearer token is needed",
                headers: [Header("WWW-Authenticate", "Bearer realm=\"heartline\"")])
        case .tooMany(let seconds):
            exchange.respondError(
                .tooManyRequests, "too many wrong tokens",
                headers: [Header("Retry-After", String(seconds))])
        }
        return false
    }

    private func call(
        _ request: borrowing Request, _ parameters: [String]
    ) throws(AdminFault) -> AdminCall {
        let asked: OperatorRequest
        do throws(RegistryError) {
            asked = try OperatorRequest(
                actor: request.header("x-heartline-actor") ?? "admin",
                id: request.header("idempotency-key"))
        } catch {
            throw AdminFault(error)
        }
        return AdminCall(
            parameters: parameters, query: try QueryParameters(request.query),
            body: request.withBody { ByteBuffer(copying: $0) }, request: asked)
    }

    private func isReading(_ method: Method) -> Bool { method == .get || method == .head }

    private static func body(_ checks: [(part: String, reason: String?)]) -> ByteBuffer {
        let unready = checks.compactMap { check in
            check.reason.map { (part: check.part, reason: $0) }
        }
        var body = ByteBuffer()
        body.append(unready.isEmpty ? "{\"ready\":true" : "{\"ready\":false")
        body.append(",\"reasons\":[")
        for (index, (part, reason)) in unready.enumerated() {
            body.append(index == 0 ? "{\"part\":" : ",{\"part\":")
            body.append(jsonString: part)
            body.append(",\"reason\":")
            body.append(jsonString: reason)
            body.append("}")
        }
        body.append("],\"checks\":[")
        for (index, check) in checks.enumerated() {
            body.append(index == 0 ? "{\"part\":" : ",{\"part\":")
            body.append(jsonString: check.part)
            body.append(check.reason == nil ? ",\"ok\":true" : ",\"ok\":false,\"reason\":")
            if let reason = check.reason { body.append(jsonString: reason) }
            body.append("}")
        }
        body.append("]}")
        return body
    }
}
