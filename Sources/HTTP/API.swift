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

    /// Called once, before the first request, on the loop's thread: what a handler needs to be
    /// called back on its own loop, or to judge the server's load.
    func attached(to loop: LoopContext)

    /// The largest body in bytes for this request; `nil` for the listener's own limit.
    ///
    /// Called for requests that bring a body, before any of it is taken.
    func bodyLimit(_ head: borrowing RequestHead) -> Int?

    /// Called after each round of socket events in which a request was handled: the place to hand
    /// over what the round gathered.
    func roundEnded()

    /// Called about every 100 ms.
    func tick()

    /// All requests that had come whole up to `milliseconds` of the monotonic clock have been handed
    /// to `handle`, but for those behind a request of the same connection whose answer is awaited.
    ///
    /// Called several times a second, unless clients cannot be read: it says nothing while the process
    /// hangs, nor while more of them wait than can be accepted.
    func caughtUp(to milliseconds: Int64)
}

extension RequestHandler {
    public func attached(to loop: LoopContext) {}
    public func bodyLimit(_ head: borrowing RequestHead) -> Int? { nil }
    public func roundEnded() {}
    public func tick() {}
    public func caughtUp(to milliseconds: Int64) {}
}

/// What a handler may keep of the loop it belongs to.
public struct LoopContext: Sendable {
    /// From 0, in the order of the loops.
    public let index: Int
    /// Runs work on this loop's thread.
    public let mailbox: LoopMailbox
    /// The whole server's counters.
    public let counters: ServerCounters
}

/// Makes a handler for one event loop; called on that loop's thread.
public typealias HandlerFactory = @Sendable (_ loopIndex: Int) -> any RequestHandler

/// Limits of a listener. Sizes in bytes, times in milliseconds.
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
    /// From the moment a handler defers an answer until the client gets 503 instead.
    public var answerMilliseconds: Int64 = 60_000
    /// Connections of one loop; above it new ones are answered 503 and closed.
    public var connections = 100_000
    /// A streamed answer is asked for more below this many waiting bytes.
    public var lowWaterBytes = 64 << 10
    /// Reading from a client stops above this many waiting bytes.
    public var highWaterBytes = 256 << 10
    /// Bytes that one streamed answer may leave waiting; above it the client is cut.
    public var streamBytes = 16 << 20
    /// After an answer that closes the connection: how much of what the client still sends is read
    /// and discarded, so that the answer reaches it.
    public var lingerBytes = 64 << 20
    /// The same, in time.
    public var lingerMilliseconds: Int64 = 5_000
    /// Time that a drain may take before connections are cut.
    public var drainMilliseconds: Int64 = 10_000

    public init() {}

    var shortestMilliseconds: Int64 {
        min(
            requestMilliseconds, idleMilliseconds, writeMilliseconds, answerMilliseconds,
            lingerMilliseconds)
    }
}

/// Statuses that we answer with, and their reason phrases (RFC 9110).
public enum Status: Int, Sendable {
    case switchingProtocols = 101
    case ok = 200, created = 201, accepted = 202, noContent = 204
    case seeOther = 303, notModified = 304
    case badRequest = 400, unauthorized = 401, forbidden = 403, notFound = 404
    case methodNotAllowed = 405, requestTimeout = 408, conflict = 409, gone = 410
    case contentTooLarge = 413, unsupportedMediaType = 415, expectationFailed = 417
    case unprocessableContent = 422, upgradeRequired = 426, tooManyRequests = 429
    case headerFieldsTooLarge = 431
    case internalServerError = 500, notImplemented = 501, badGateway = 502
    case serviceUnavailable = 503, versionNotSupported = 505

    public var reason: StaticString {
        switch self {
        case .switchingProtocols: "Switching Protocols"
        case .ok: "OK"
        case .created: "Created"
        case .accepted: "Accepted"
        case .noContent: "No Content"
        case .seeOther: "See Other"
        case .notModified: "Not Modified"
        case .badRequest: "Bad Request"
        case .unauthorized: "Unauthorized"
        case .forbidden: "Forbidden"
        case .notFound: "Not Found"
        case .methodNotAllowed: "Method Not Allowed"
        case .requestTimeout: "Request Timeout"
        case .conflict: "Conflict"
        case .gone: "Gone"
        case .contentTooLarge: "Content Too Large"
        case .unsupportedMediaType: "Unsupported Media Type"
        case .expectationFailed: "Expectation Failed"
        case .unprocessableContent: "Unprocessable Content"
        case .upgradeRequired: "Upgrade Required"
        case .tooManyRequests: "Too Many Requests"
        case .headerFieldsTooLarge: "Request Header Fields Too Large"
        case .internalServerError: "Internal Server Error"
        case .notImplemented: "Not Implemented"
        case .badGateway: "Bad Gateway"
        case .serviceUnavailable: "Service Unavailable"
        case .versionNotSupported: "HTTP Version Not Supported"
        }
    }

    /// Whether an answer of this status never has a body (RFC 9112, section 6.3).
    var isBodyless: Bool { self == .noContent || self == .notModified || rawValue < 200 }
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
