import Bytes
import Glibc
import HTTP
import Synchronization
import TLS

/// A WebSocket client that sends exactly the frames it is told to, however wrong they are.
final class WebSocketClient {
    struct Frame: Equatable {
        var opcode: UInt8
        var payload: [UInt8]
        var isFinal = true
        var isMasked = false

        static func text(_ text: String) -> Frame { Frame(opcode: 1, payload: Array(text.utf8)) }

        /// The code of a close frame; `nil` if it is none or names none.
        var closeCode: UInt16? {
            guard opcode == 8, payload.count >= 2 else { return nil }
            return UInt16(payload[0]) << 8 | UInt16(payload[1])
        }
    }

    static let key = "dGhlIHNhbXBsZSBub25jZQ=="

    let raw: RawClient

    init(_ server: SocketServer, path: String = "/echo", receiveBuffer: Int32? = nil) throws {
        raw = try RawClient(port: server.port, receiveBuffer: receiveBuffer)
        raw.send(Self.handshake(path))
        let answer = try raw.readHead()
        guard answer.status == 101 else {
            throw RawClient.Failure.malformed("status \(answer.status)")
        }
    }

    static func handshake(_ path: String = "/echo", changing: [String: String?] = [:]) -> String {
        var headers: [String: String?] = [
            "Host": "a", "Connection": "Upgrade", "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key,
        ]
        for (name, value) in changing { headers.updateValue(value, forKey: name) }
        var text = "GET \(path) HTTP/1.1\r\n"
        for (name, value) in headers {
            if let value { text += "\(name): \(value)\r\n" }
        }
        return text + "\r\n"
    }

    static func bytes(
        _ opcode: UInt8, _ payload: [UInt8], isFinal: Bool = true, reserved: UInt8 = 0,
        isMasked: Bool = true, mask: [UInt8] = [0x37, 0xFA, 0x21, 0x3D]
    ) -> [UInt8] {
        var bytes = [(isFinal ? 0x80 : 0) | reserved << 4 | opcode]
        let flag: UInt8 = isMasked ? 0x80 : 0
        switch payload.count {
        case 0..<126: bytes.append(flag | UInt8(payload.count))
        case 126...0xFFFF:
            bytes += [flag | 126, UInt8(payload.count >> 8), UInt8(payload.count & 0xFF)]
        default:
            bytes.append(flag | 127)
            for shift in stride(from: 56, through: 0, by: -8) {
                bytes.append(UInt8(truncatingIfNeeded: payload.count >> shift))
            }
        }
        guard isMasked else { return bytes + payload }
        bytes += mask
        for (index, byte) in payload.enumerated() { bytes.append(byte ^ mask[index & 3]) }
        return bytes
    }

    func send(
        _ opcode: UInt8, _ payload: [UInt8], isFinal: Bool = true, reserved: UInt8 = 0,
        isMasked: Bool = true
    ) {
        raw.send(
            Self.bytes(
                opcode, payload, isFinal: isFinal, reserved: reserved, isMasked: isMasked))
    }

    func send(text: String) { send(1, Array(text.utf8)) }

    func sendClose(_ code: UInt16, _ reason: String = "") {
        send(8, [UInt8(code >> 8), UInt8(code & 0xFF)] + Array(reason.utf8))
    }

    func read() throws -> Frame {
        let head = try raw.read(2)
        var count = Int(head[1] & 0x7F)
        if count > 125 {
            count = try raw.read(count == 126 ? 2 : 8).reduce(0) { $0 << 8 | Int($1) }
        }
        return Frame(
            opcode: head[0] & 0x0F, payload: try raw.read(count), isFinal: head[0] & 0x80 != 0,
            isMasked: head[1] & 0x80 != 0)
    }

    /// Frames up to a close frame; pings in between are left out, and answered if asked for.
    func readClose() throws -> Frame {
        while true {
            let frame = try read()
            if frame.opcode == 8 { return frame }
        }
    }
}

/// A server of WebSockets that ends with the test: `/echo` sends everything back, `/quiet` nothing.
final class SocketServer {
    final class State: Sendable {
        let sockets = Mutex<[WebSocket]>([])
        let closed = Mutex<[UInt16]>([])
        let received = Mutex<[[UInt8]]>([])

        var closeCodes: [UInt16] { closed.withLock { $0 } }
        var messages: [[UInt8]] { received.withLock { $0 } }
        var last: WebSocket? { sockets.withLock { $0.last } }
    }

    final class Handler: WebSocketHandler {
        private let state: State
        private let echoes: Bool
        private var socket: WebSocket?

        init(_ state: State, echoes: Bool) {
            self.state = state
            self.echoes = echoes
        }

        func opened(_ socket: WebSocket) {
            self.socket = socket
            state.sockets.withLock { $0.append(socket) }
        }

        func received(_ kind: WebSocket.MessageKind, _ bytes: Span<UInt8>) {
            if echoes {
                socket?.send(kind, ByteBuffer(copying: bytes))
            } else {
                let copy = ByteBuffer(copying: bytes).bytes
                state.received.withLock { $0.append(copy) }
            }
        }

        func closed(_ code: WebSocket.CloseCode) {
            state.closed.withLock { $0.append(code.rawValue) }
        }
    }

    final class Requests: RequestHandler {
        private let state: State
        private let limits: WebSocket.Limits

        init(_ state: State, _ limits: WebSocket.Limits) {
            self.state = state
            self.limits = limits
        }

        func handle(_ request: borrowing Request, _ exchange: borrowing Exchange) {
            let isEcho = request.pathIs("/echo")
            guard isEcho || request.pathIs("/quiet") else { return exchange.notFound() }
            exchange.webSocket(request, limits: limits, subprotocol: request.query) {
                Handler(state, echoes: isEcho)
            }
        }
    }

    let server: Server
    let state = State()
    let port: UInt16

    init(
        loops: Int = 1, tls: TLSContext? = nil, _ change: (inout ServerLimits) -> Void = { _ in },
        sockets: (inout WebSocket.Limits) -> Void = { _ in }
    ) throws {
        var limits = ServerLimits()
        change(&limits)
        var socketLimits = WebSocket.Limits()
        sockets(&socketLimits)
        let configuration = try ServerConfiguration(
            host: "127.0.0.1", port: 0, loops: loops, limits: limits, tls: tls, name: "test")
        server = try Server(configuration: configuration) { [state, socketLimits] _ in
            Requests(state, socketLimits)
        }
        port = server.boundAddress.port
        try server.start()
    }

    deinit { server.stop() }

    var counters: ServerCounters { server.counters }

    /// The server's end of the newest socket.
    func takeSocket() -> WebSocket? {
        _ = eventually { self.state.last != nil }
        return state.last
    }
}
