import Bytes
import Glibc
import HTTP
import Synchronization
import System
import TLS
import Testing

/// What handlers leave for the test that started them.
final class TestState: Sendable {
    let deferred = Mutex<[String: DeferredResponse]>([:])
    let pending = Mutex<[String: PendingResponse]>([:])
    let streams = Mutex<[String: ResponseStream]>([:])
    let mailboxes = Mutex<[LoopMailbox]>([])
    let roundsEnded = Atomic(0)
    let ticks = Atomic(0)
    let upgradesClosed = Atomic(0)
}

final class TestHandler: RequestHandler {
    private let state: TestState

    init(_ state: TestState) { self.state = state }

    func attached(to loop: LoopContext) {
        state.mailboxes.withLock { $0.append(loop.mailbox) }
    }

    func bodyLimit(_ head: borrowing RequestHead) -> Int? {
        head.pathIs("/telemetry") ? 1 << 20 : nil
    }

    func roundEnded() { state.roundsEnded.add(1, ordering: .relaxed) }
    func tick() { state.ticks.add(1, ordering: .relaxed) }

    func handle(_ request: borrowing Request, _ exchange: borrowing Exchange) {
        if request.pathIs("/hello") {
            guard request.method == .get || request.method == .head else {
                return exchange.methodNotAllowed(allow: "GET, HEAD")
            }
            exchange.respond(.ok, contentType: "text/plain", text("hello").span)
        } else if request.pathIs("/echo") || request.pathIs("/telemetry") {
            request.withBody { exchange.respond(.ok, contentType: "text/plain", $0) }
        } else if request.pathIs("/about") {
            let about =
                "\(request.method) \(request.path) \(request.query ?? "-") "
                + "\(request.header("x-test") ?? "-") \(request.clientAddress) "
                + "\(request.isSecure) \(request.clientCertificate?.commonName ?? "-")"
            exchange.respond(.ok, contentType: "text/plain", text(about).span)
        } else if request.pathIs("/peer") {
            let name = request.withPeerName { name in
                guard let name else { return "nobody" }
                return name.text
            }
            exchange.respond(.ok, contentType: "text/plain", text("peer=\(name).").span)
        } else if request.pathIs("/big") {
            let size = Int(request.query ?? "") ?? 0
            exchange.respond(
                .ok, contentType: "text/plain", [UInt8](repeating: 0x78, count: size).span)
        } else if request.pathIs("/headers") {
            exchange.respond(
                .ok, contentType: "text/plain",
                headers: [Header("X-Injected", "a\r\nX-Evil: 1")], text("").span)
        } else if request.pathIs("/empty") {
            exchange.respond(.noContent, contentType: "text/plain", text("").span)
        } else if request.pathIs("/deferred") {
            let response = exchange.deferred()
            state.deferred.withLock { $0[request.query ?? ""] = response }
        } else if request.pathIs("/pending") {
            let response = exchange.pending()
            state.pending.withLock { $0[request.query ?? ""] = response }
        } else if request.pathIs("/dropped-pending") {
            _ = exchange.pending()
        } else if request.pathIs("/dropped") {
            _ = exchange.deferred()
        } else if request.pathIs("/silent") {
        } else if request.pathIs("/overloaded") {
            exchange.overloaded()
        } else if request.pathIs("/stream") {
            let stream = exchange.stream(.ok, contentType: "application/x-ndjson")
            state.streams.withLock { $0[request.query ?? ""] = stream }
        } else if request.pathIs("/upgrade") {
            exchange.upgrade(to: "echo", EchoProtocol(state))
        } else {
            exchange.notFound()
        }
    }

    private func text(_ text: String) -> [UInt8] { Array(text.utf8) }
}

/// Sends back what it receives; `!` ends it.
final class EchoProtocol: UpgradedProtocol {
    private let state: TestState
    private var connection: UpgradedConnection?

    init(_ state: TestState) { self.state = state }

    func opened(_ connection: UpgradedConnection) { self.connection = connection }

    func received(_ bytes: Span<UInt8>) {
        connection?.write(ByteBuffer(copying: bytes))
        if bytes[bytes.count - 1] == 0x21 { connection?.close() }
    }

    func draining() {
        var goodbye = ByteBuffer()
        goodbye.append("goodbye")
        connection?.write(goodbye)
        connection?.close()
    }

    func closed() { state.upgradesClosed.add(1, ordering: .relaxed) }
}

/// A running server that ends with the test.
final class TestServer {
    let server: Server
    let state = TestState()
    let port: UInt16

    init(
        loops: Int = 1, host: String = "127.0.0.1", tls: TLSContext? = nil,
        _ change: (inout ServerLimits) -> Void = { _ in }
    ) throws {
        var limits = ServerLimits()
        change(&limits)
        let configuration = try ServerConfiguration(
            host: host, port: 0, loops: loops, limits: limits, tls: tls, name: "test")
        server = try Server(configuration: configuration) { [state] _ in TestHandler(state) }
        port = server.boundAddress.port
        try server.start()
    }

    deinit { server.stop() }

    func connect(receiveBuffer: Int32? = nil) throws -> RawClient {
        try RawClient(port: port, receiveBuffer: receiveBuffer)
    }

    func takePending(_ key: String) -> PendingResponse? {
        var found: PendingResponse?
        _ = eventually {
            found = self.state.pending.withLock { $0.removeValue(forKey: key) }
            return found != nil
        }
        return found
    }

    func takeDeferred(_ key: String) -> DeferredResponse? {
        var found: DeferredResponse?
        _ = eventually {
            found = self.state.deferred.withLock { $0.removeValue(forKey: key) }
            return found != nil
        }
        return found
    }

    func takeStream(_ key: String) -> ResponseStream? {
        var found: ResponseStream?
        _ = eventually {
            found = self.state.streams.withLock { $0.removeValue(forKey: key) }
            return found != nil
        }
        return found
    }

    /// Whether the server still answers a new client.
    func isAlive() -> Bool {
        guard let client = try? connect(),
            let answer = try? client.request("GET /hello HTTP/1.1\r\nHost: a\r\n\r\n")
        else { return false }
        return answer.text == "hello"
    }
}

/// Drains on a thread of its own.
final class Drain: Sendable {
    private let result = Mutex<Server.DrainReport?>(nil)
    private let thread = Mutex<SystemThread?>(nil)

    init(_ server: Server) {
        let started = SystemThread.start("drain") { [self] in
            let report = server.drain()
            result.withLock { $0 = report }
        }
        thread.withLock { $0 = started }
    }

    var isDone: Bool { result.withLock { $0 != nil } }

    func wait() -> Server.DrainReport? {
        thread.withLock { thread in
            thread?.join()
            thread = nil
        }
        return result.withLock { $0 }
    }
}

/// Waits for a condition; only a hang is as slow as its deadline.
func eventually(_ condition: () -> Bool) -> Bool {
    let deadline = SystemClock.monotonicMilliseconds() + 60_000
    while SystemClock.monotonicMilliseconds() < deadline {
        if condition() { return true }
        usleep(1000)
    }
    return condition()
}

func buffer(_ text: String) -> ByteBuffer { ByteBuffer(text.utf8) }

/// Random numbers that a seed repeats (SplitMix64).
struct SeededRandom: RandomNumberGenerator {
    private var state: UInt64

    init(seed: UInt64) { state = seed }

    mutating func next() -> UInt64 {
        state &+= 0x9E37_79B9_7F4A_7C15
        var mixed = state
        mixed = (mixed ^ (mixed >> 30)) &* 0xBF58_476D_1CE4_E5B9
        mixed = (mixed ^ (mixed >> 27)) &* 0x94D0_49BB_1331_11EB
        return mixed ^ (mixed >> 31)
    }
}
