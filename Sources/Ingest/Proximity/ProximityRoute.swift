internal import HTTP

/// The routes of the proximity service, but for its WebSocket.
package enum ProximityRoute: Int, Sendable, CaseIterable {
    case exchange, revoke, register, nearby, encounter, wave, storeKey, fetchKey, block, message
    case erase

    package var path: StaticString {
        switch self {
        case .exchange: "/v1/auth/exchange"
        case .revoke: "/v1/auth/revoke"
        case .register: "/v1/token"
        case .nearby: "/v1/nearby"
        case .encounter: "/v1/encounter"
        case .wave: "/v1/wave"
        case .storeKey, .fetchKey: "/v1/peer-key"
        case .block: "/v1/block"
        case .message: "/v1/message"
        case .erase: "/v1/account"
        }
    }

    /// As requests write it.
    package var methodName: String { method.text }

    var method: HTTP.Method {
        switch self {
        case .nearby, .fetchKey: .get
        case .erase: .delete
        default: .post
        }
    }

    /// Largest body, in bytes; `nil`: the listener's own limit.
    var bodyBytes: Int? { self == .message ? 128 << 10 : nil }

    enum Finding {
        case route(ProximityRoute)
        case otherMethods([HTTP.Method])
        case none
    }

    static func find(_ head: borrowing RequestHead) -> Finding {
        guard head.pathHasPrefix("/v1/") else { return .none }
        var methods: [HTTP.Method] = []
        for route in allCases where head.pathIs(route.path) {
            if route.method == head.method { return .route(route) }
            methods.append(route.method)
        }
        return methods.isEmpty ? .none : .otherMethods(methods)
    }
}
