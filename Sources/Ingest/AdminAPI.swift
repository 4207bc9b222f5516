internal import Bytes
internal import HTTP
internal import JSON

/// The operators' routes, on a listener of their own: `/healthz` and `/readyz`.
final class AdminAPI: RequestHandler {
    private let readiness: Readiness

    init(_ readiness: Readiness) { self.readiness = readiness }

    func handle(_ request: borrowing Request, _ exchange: borrowing Exchange) {
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
        } else {
            exchange.notFound()
        }
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
