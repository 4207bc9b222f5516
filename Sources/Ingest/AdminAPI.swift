internal import Bytes
internal import HTTP
internal import JSON
internal import Page
internal import System

/// The operators' routes, on a listener of their own: `/healthz` and `/readyz` for everyone, `/admin/v1` for
/// who has the token, and the page for who has it or signed in with it.
final class AdminAPI: RequestHandler {
    private let readiness: Readiness
    /// `nil`: health only.
    private let administration: Administration?
    private let page: PageAPI?

    init(_ readiness: Readiness, _ administration: Administration?, _ page: PageAPI?) {
        self.readiness = readiness
        self.administration = administration
        self.page = page
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
            guard isReading(request.method) else {
                exchange.methodNotAllowed(allow: "GET, HEAD")
                return
            }
            var body = ByteBuffer()
            body.append("{\"status\":\"ok\"}")
            exchange.respond(.ok, contentType: "application/json", body.span)
        } else if request.pathIs("/readyz") {
            guard isReading(request.method) else {
                exchange.methodNotAllowed(allow: "GET, HEAD")
                return
            }
            let unready = readiness.unready
            exchange.respond(
                unready.isEmpty ? .ok : .serviceUnavailable, contentType: "application/json",
                Self.body(unready).span)
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
        switch administration.gate.judge(
            request.header("authorization"), request.clientAddress,
            now: SystemClock.monotonicMilliseconds())
        {
        case .letIn: break
        case .refused:
            exchange.respondError(
                .unauthorized, "a bearer token is needed",
                headers: [Header("WWW-Authenticate", "Bearer realm=\"heartline\"")])
            return
        case .tooMany(let seconds):
            exchange.respondError(
                .tooManyRequests, "too many wrong tokens",
                headers: [Header("Retry-After", String(seconds))])
            return
        }
        switch AdminRoute.find(request.method, request.path) {
        case .none: exchange.notFound()
        case .otherMethods(let methods):
            exchange.respondError(
                .methodNotAllowed, "method not allowed",
                headers: [Header("Allow", methods.map(\.text).joined(separator: ", "))])
        case .route(let route, let parameters):
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

    private static func body(_ unready: [(part: String, reason: String)]) -> ByteBuffer {
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
        body.append("]}")
        return body
    }
}
