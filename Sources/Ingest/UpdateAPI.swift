internal import Bytes
internal import HTTP
internal import JSON
internal import Updates

/// The routes by which apps and links ask for updates, on one event loop (the apps' contract):
/// `/api/app/ID/update`, `/update/ID`, each also with `/check`, and `/global-update/ID`.
///
/// Path and query are read here; all else is the service's, which answers.
final class UpdateAPI: Routes {
    private let service: UpdateService
    private let overloadBytes: Int

    /// - Parameter overloadBytes: bytes in flight on the whole listener above which nobody is served.
    init(_ service: UpdateService, overloadBytes: Int) {
        self.service = service
        self.overloadBytes = overloadBytes
    }

    func attached(to loop: LoopContext) {}

    func handle(_ request: borrowing Request, _ exchange: borrowing Exchange) -> Bool {
        guard
            request.pathHasPrefix("/api/app/") || request.pathHasPrefix("/update/")
                || request.pathHasPrefix("/global-update/")
        else { return false }
        let reading = UpdateRequest.read(path: request.path, query: request.query)
        if case .notOurs = reading { return false }
        let name: RouteNames.Public =
            request.pathHasPrefix("/api/app/")
            ? .appUpdate : request.pathHasPrefix("/update/") ? .update : .globalUpdate
        exchange.count(as: name.rawValue)
        guard request.method == .get || request.method == .post else {
            exchange.methodNotAllowed(allow: "GET, POST")
            return true
        }
        switch reading {
        case .notOurs: return false
        case .bad(let reason): exchange.respondError(.badRequest, reason)
        case .request(let target, let kind):
            guard exchange.counters.bytesInFlight <= overloadBytes else {
                exchange.overloaded()
                return true
            }
            let asked = UpdateRequest(
                target: target, kind: kind, address: service.clients.address(of: request))
            switch kind {
            case .prefetch, .install, .linkInstall:
                service.submit(asked, .pending(exchange.pending()))
            case .check, .linkCheck, .backgroundPrefetch:
                service.submit(asked, .deferred(exchange.deferred()))
            }
        }
        return true
    }

    func roundEnded() {}
    func tick() {}
}

/// Answers a listener that has the update routes alone.
final class UpdateHandler: RequestHandler {
    private let api: UpdateAPI

    init(_ api: UpdateAPI) { self.api = api }

    func handle(_ request: borrowing Request, _ exchange: borrowing Exchange) {
        if !api.handle(request, exchange) { exchange.notFound() }
    }
}

/// Who a request comes from.
struct UpdateClients: Sendable {
    var trustedProxies: [ClientNetwork]

    /// The client's address; behind a trusted proxy the one that it tells, which is the last that no
    /// trusted proxy has. `nil` if a proxy tells none.
    func address(of request: borrowing Request) -> ClientAddress? {
        let peer = request.clientAddress
        guard isTrusted(peer) else { return peer }
        var told: [Substring] = []
        let lines = request.headers("x-forwarded-for")
        for line in lines { told += line.split(separator: ",", omittingEmptySubsequences: false) }
        for text in told.reversed() {
            guard let address = ClientAddress(Self.bare(text)) else { return nil }
            if !isTrusted(address) { return address }
        }
        return nil
    }

    private func isTrusted(_ address: ClientAddress) -> Bool {
        trustedProxies.contains { $0.contains(address) }
    }

    /// Without spaces, brackets and an IPv4 address's port.
    private static func bare(_ text: Substring) -> String {
        var text = text.drop { $0 == " " }
        while text.last == " " { text.removeLast() }
        if text.hasPrefix("["), let end = text.firstIndex(of: "]") {
            return String(text[text.index(after: text.startIndex)..<end])
        }
        let parts = text.split(separator: ":", omittingEmptySubsequences: false)
        return parts.count == 2 ? String(parts[0]) : String(text)
    }
}

/// What a request of an app is answered through.
enum UpdateResponder: Sendable {
    case deferred(DeferredResponse)
    case pending(PendingResponse)

    func respond(_ status: Status, headers: [Header] = [], _ body: ByteBuffer) {
        switch self {
        case .deferred(let response):
            response.respond(
                status, contentType: "application/json", headers: headers, body)
        case .pending(let response):
            response.respond(
                status, contentType: "application/json", headers: headers, body)
        }
    }

    func respondError(_ status: Status, _ message: String) {
        var body = ByteBuffer()
        body.append("{\"error\":")
        body.append(jsonString: message)
        body.append("}")
        // Spread, so that they do not all come again at once.
        let headers =
            status == .serviceUnavailable
            ? [Header("Retry-After", String(Int.random(in: 1...5)))] : []
        respond(status, headers: headers, body)
    }
}
