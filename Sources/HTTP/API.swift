/// Request methods that routes know (RFC 9110, section 9); anything else is `.other`.
public enum Method: UInt8, Sendable {
    case get, head, post, put, delete, patch, options, other
}

/// What answers requests. Each event loop has an instance of its own, made on that loop's thread,
/// so it may keep state without a lock.
public protocol RequestHandler: AnyObject {
    /// Called once for each complete request. Answers at once by `exchange.respond`, or keeps
    /// `exchange.deferred()` and answers from any thread later.
    func handle(_ request: borrowing Request, _ exchange: borrowing Exchange)

    /// Called after each round of socket events: the place to hand over what the round gathered.
    func roundEnded()

    /// Called about every 100 ms.
    func tick()
}

extension RequestHandler {
    public func roundEnded() {}
    public func tick() {}
}

/// Makes a handler for one event loop; called on that loop's thread.
public typealias HandlerFactory = @Sendable (_ loopIndex: Int) -> any RequestHandler

/// Limits of a listener (DESIGN 15). Sizes in bytes, times in milliseconds.
public struct ServerLimits: Sendable {
    /// Request line and headers together. Above it: 431.
    public var headBytes = 16 << 10
    /// Largest body where the handler names no other. Above it: 413.
    public var bodyBytes = 64 << 10
    /// From the first byte of a request to its last.
    public var requestMilliseconds: Int64 = 10_000
    /// Silence between requests of a kept connection.
    public var idleMilliseconds: Int64 = 75_000
    /// Time a client may take none of our bytes.
    public var writeMilliseconds: Int64 = 30_000
    /// Connections of one loop; above it new ones are answered 503 and closed.
    public var connections = 100_000
    /// A streamed answer is asked for more below this many waiting bytes.
    public var lowWaterBytes = 64 << 10
    /// Reading from a client stops above this many waiting bytes.
    public var highWaterBytes = 256 << 10
    /// Time that a drain may take before connections are cut.
    public var drainMilliseconds: Int64 = 10_000

    public init() {}
}

/// Common statuses with their reason phrases (RFC 9110).
public enum Status: Int, Sendable {
    case ok = 200, noContent = 204
    case badRequest = 400, unauthorized = 401, forbidden = 403, notFound = 404
    case methodNotAllowed = 405, requestTimeout = 408, conflict = 409, contentTooLarge = 413
    case unprocessableContent = 422, upgradeRequired = 426, tooManyRequests = 429
    case headerFieldsTooLarge = 431
    case internalServerError = 500, badGateway = 502, serviceUnavailable = 503

    public var reason: StaticString {
        switch self {
        case .ok: "OK"
        case .noContent: "No Content"
        case .badRequest: "Bad Request"
        case .unauthorized: "Unauthorized"
        case .forbidden: "Forbidden"
        case .notFound: "Not Found"
        case .methodNotAllowed: "Method Not Allowed"
        case .requestTimeout: "Request Timeout"
        case .conflict: "Conflict"
        case .contentTooLarge: "Content Too Large"
        case .unprocessableContent: "Unprocessable Content"
        case .upgradeRequired: "Upgrade Required"
        case .tooManyRequests: "Too Many Requests"
        case .headerFieldsTooLarge: "Request Header Fields Too Large"
        case .internalServerError: "Internal Server Error"
        case .badGateway: "Bad Gateway"
        case .serviceUnavailable: "Service Unavailable"
        }
    }
}

/// A header of an answer.
public struct Header: Sendable {
    public var name: String
    public var value: String

    public init(_ name: String, _ value: String) {
        self.name = name
        self.value = value
    }
}

/// One request, lent to a handler; nothing of it outlives `handle`.
public struct Request: ~Copyable {}

/// One request's way to its answer.
public struct Exchange: ~Copyable {}
