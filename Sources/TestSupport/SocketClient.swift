internal import Bytes
internal import System

/// A WebSocket client that keeps to the rules, on a connection without TLS; every wait has a deadline.
///
/// Pings are answered while something is waited for, unless `answersPings` says otherwise.
public final class SocketClient {
    public enum Event: Equatable, Sendable {
        case text(String)
        /// The server closes; 1005 without a code.
        case close(UInt16)
        case ping([UInt8])
    }

    private let client: RawClient
    public var answersPings = true

    /// - Parameter token: shown as `Authorization: Bearer …`.
    /// - Throws: also `RawHTTPError` with the status if it is not 101.
    public init(
        host: String, port: UInt16, path: String = "/ws", token: String?,
        receiveBuffer: Int32? = nil
    ) throws {
        client = try RawClient(host: host, port: port, receiveBuffer: receiveBuffer)
        try client.sendRequest("GET", path, body: [], headers: Self.headers(token: token))
        let answer = try client.response()
        guard answer.status == 101 else {
            throw RawHTTPError(description: "status \(answer.status)")
        }
    }

    /// The headers of a handshake (RFC 6455, section 1.3, has the key).
    public static func headers(token: String?) -> [String] {
        [
            "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ] + (token.map { ["Authorization: Bearer \($0)"] } ?? [])
    }

    public func send(text: String) throws { try send(1, Array(text.utf8)) }

    public func sendClose(_ code: UInt16) throws {
        try send(8, [UInt8(code >> 8), UInt8(code & 0xFF)])
    }

    public func sendPong(_ payload: [UInt8]) throws { try send(10, payload) }

    private func send(_ opcode: UInt8, _ payload: [UInt8]) throws {
        let mask: [UInt8] = [0x37, 0xFA, 0x21, 0x3D]
        var bytes = [0x80 | opcode]
        if payload.count < 126 {
            bytes.append(0x80 | UInt8(payload.count))
        } else {
            bytes += [0xFE, UInt8(payload.count >> 8), UInt8(payload.count & 0xFF)]
        }
        bytes += mask
        for (index, byte) in payload.enumerated() { bytes.append(byte ^ mask[index & 3]) }
        try client.send(bytes)
    }

    /// The next message or close; pings too where they are not answered.
    public func next(milliseconds: Int64 = 30_000) throws -> Event {
        let deadline = SystemClock.monotonicMilliseconds() + milliseconds
        while true {
            let head = try client.read(2, until: deadline)
            var count = Int(head[1] & 0x7F)
            if count > 125 {
                count = try client.read(count == 126 ? 2 : 8, until: deadline)
                    .reduce(0) { $0 << 8 | Int($1) }
            }
            let payload = try client.read(count, until: deadline)
            switch head[0] & 0x0F {
            case 1: return .text(String(decoding: payload, as: UTF8.self))
            case 8:
                try? send(8, payload)
                return .close(
                    payload.count < 2 ? 1005 : UInt16(payload[0]) << 8 | UInt16(payload[1]))
            case 9:
                guard answersPings else { return .ping(payload) }
                try send(10, payload)
            default: continue
            }
        }
    }

    /// The next message.
    public func text(milliseconds: Int64 = 30_000) throws -> String {
        switch try next(milliseconds: milliseconds) {
        case .text(let text): return text
        case let other: throw RawHTTPError(description: "\(other) where a text was expected")
        }
    }

    /// Reads up to the server's close.
    public func closeCode(milliseconds: Int64 = 30_000) throws -> UInt16 {
        while true {
            if case .close(let code) = try next(milliseconds: milliseconds) { return code }
        }
    }

    /// Whether nothing but pings comes for so long.
    public func isQuiet(milliseconds: Int64) throws -> Bool {
        let deadline = SystemClock.monotonicMilliseconds() + milliseconds
        while true {
            let left = deadline - SystemClock.monotonicMilliseconds()
            guard left > 0, client.hasAnswer(milliseconds: left) else { return true }
            answersPings = false
            defer { answersPings = true }
            guard case .ping(let payload) = try next(milliseconds: left + 1_000) else {
                return false
            }
            try send(10, payload)
        }
    }
}
