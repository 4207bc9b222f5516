internal import Bytes
package import HTTP
internal import JSON
internal import Schemas

/// What an operator's request asks for, free of its connection.
struct AdminCall: Sendable {
    /// Values of the path's placeholders, in order.
    var parameters: [String]
    var query: QueryParameters
    var body: ByteBuffer
    var request: OperatorRequest

    /// The device that the path names.
    func device() throws(AdminFault) -> DeviceID {
        // What is no UUID is the id of no device.
        guard let text = parameters.first, let device = DeviceID(text) else {
            throw AdminFault(.notFound, "no device has this id: it is not a UUID")
        }
        return device
    }
}

struct AdminAnswer: Sendable {
    var status: Status
    var body: ByteBuffer

    init(_ document: some Encodable, status: Status = .ok) throws {
        self.status = status
        body = ByteBuffer(try AuditJSON.text(document).utf8)
    }

    init(_ fault: AdminFault) {
        status = fault.status
        body = ByteBuffer()
        body.append("{\"error\":")
        body.append(jsonString: fault.message)
        body.append("}")
    }
}

/// A request that is answered with an error; the message holds no secrets.
struct AdminFault: Error {
    var status: Status
    var message: String

    init(_ status: Status, _ message: String) {
        self.status = status
        self.message = message
    }

    init(_ error: RegistryError) {
        status =
            switch error.kind {
            case .unknownDevice, .unknownToken, .unknownForward: .notFound
            case .badSetting: .badRequest
            case .poolFull, .tokenUsed, .forwardConflict, .requestConflict: .conflict
            case .wrongSecretKey, .damagedSecrets, .noNetwork: .internalServerError
            }
        message = error.description
    }
}

/// A route of the operators' API, as data.
package struct AdminRoute: Sendable {
    package var method: Method
    /// Segments; `{name}` stands for any.
    package var path: String
    var segments: [Substring]
    /// Runs on the thread that has the registry.
    var run: @Sendable (AdminCall, Registry) throws -> AdminAnswer

    private init(
        _ method: Method, _ path: String,
        _ run: @escaping @Sendable (AdminCall, Registry) throws -> AdminAnswer
    ) {
        self.method = method
        self.path = path
        segments = path.split(separator: "/")
        self.run = run
    }

    /// The placeholders' values if the path is one of this route; `nil` otherwise.
    func parameters(_ given: [Substring]) -> [String]? {
        guard given.count == segments.count else { return nil }
        var result: [String] = []
        for (segment, value) in zip(segments, given) {
            if segment.hasPrefix("{") {
                result.append(String(value))
            } else if segment != value {
                return nil
            }
        }
        return result
    }

    /// All of them, as docs/openapi.yaml describes them.
    package static let all: [AdminRoute] = [
        AdminRoute(.get, "/admin/v1/devices", AdminActions.listDevices),
        AdminRoute(.post, "/admin/v1/devices", AdminActions.addDevices),
        AdminRoute(.get, "/admin/v1/devices/{id}", AdminActions.showDevice),
        AdminRoute(.delete, "/admin/v1/devices/{id}") { call, registry in
            try AdminAnswer(registry.remove(call.device(), by: call.request))
        },
        AdminRoute(.post, "/admin/v1/devices/{id}/suspend") { call, registry in
            try AdminAnswer(registry.suspend(call.device(), by: call.request))
        },
        AdminRoute(.post, "/admin/v1/devices/{id}/resume") { call, registry in
            try AdminAnswer(registry.resume(call.device(), by: call.request))
        },
        AdminRoute(.post, "/admin/v1/devices/{id}/rotate") { call, registry in
            try AdminAnswer(registry.rotate(call.device(), by: call.request))
        },
        AdminRoute(.put, "/admin/v1/devices/{id}/interval", AdminActions.setInterval),
        AdminRoute(.get, "/admin/v1/devices/{id}/forwards", AdminActions.listForwards),
        AdminRoute(.put, "/admin/v1/devices/{id}/forwards", AdminActions.setForwards),
        AdminRoute(.post, "/admin/v1/devices/{id}/forwards", AdminActions.addForward),
        AdminRoute(.delete, "/admin/v1/devices/{id}/forwards", AdminActions.removeForward),
        AdminRoute(.get, "/admin/v1/tokens", AdminActions.listTokens),
        AdminRoute(.post, "/admin/v1/tokens", AdminActions.createTokens),
        AdminRoute(.delete, "/admin/v1/tokens/{id}", AdminActions.revokeToken),
        AdminRoute(.get, "/admin/v1/audit", AdminActions.listAudit),
    ]

    enum Match {
        case route(AdminRoute, parameters: [String])
        /// The path exists with other methods.
        case otherMethods([Method])
        case none
    }

    static func find(_ method: Method, _ path: String) -> Match {
        // An empty segment is one, so `/admin/v1//devices` is no route.
        let given = path.dropFirst().split(separator: "/", omittingEmptySubsequences: false)
        var methods: [Method] = []
        for route in all {
            guard let parameters = route.parameters(given) else { continue }
            if route.method == method { return .route(route, parameters: parameters) }
            methods.append(route.method)
        }
        return methods.isEmpty ? .none : .otherMethods(methods)
    }
}

extension Method {
    /// As RFC 9110 writes it; empty for `.other`.
    package var text: String {
        switch self {
        case .get: "GET"
        case .head: "HEAD"
        case .post: "POST"
        case .put: "PUT"
        case .delete: "DELETE"
        case .patch: "PATCH"
        case .options: "OPTIONS"
        case .other: ""
        }
    }
}
