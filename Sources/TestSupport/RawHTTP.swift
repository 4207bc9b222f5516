public import Bytes
internal import Glibc
internal import System

/// An answer as it came over the wire.
public struct RawResponse: Sendable {
    public var status: Int
    /// Names in lower case.
    public var headers: [String: String]
    public var body: ByteBuffer

    public var text: String { body.span.text }
}

public struct RawHTTPError: Error, CustomStringConvertible {
    public var description: String

    public init(description: String) { self.description = description }
}

/// A client that sends just the bytes it is given: for requests that no library would make.
///
/// Not `Sendable`; every wait has a deadline.
@safe public final class RawClient {
    private let descriptor: Int32
    private var input: [UInt8] = []

    /// - Parameter host: an IPv4 address.
    /// - Parameter receiveBuffer: what the system keeps of what was not read yet, in bytes, about.
    public init(host: String, port: UInt16, receiveBuffer: Int32? = nil) throws {
        descriptor = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
        guard descriptor >= 0 else { throw RawHTTPError(description: "no socket") }
        if var receiveBuffer {
            unsafe setsockopt(descriptor, SOL_SOCKET, SO_RCVBUF, &receiveBuffer, 4)
        }
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_port = port.bigEndian
        unsafe inet_pton(AF_INET, host, &address.sin_addr)
        let size = socklen_t(MemoryLayout<sockaddr_in>.size)
        let descriptor = descriptor
        let connected = unsafe withUnsafePointer(to: &address) {
            unsafe $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                unsafe connect(descriptor, $0, size)
            }
        }
        guard connected == 0 else {
            close(descriptor)
            throw RawHTTPError(description: "cannot connect to \(host):\(port)")
        }
    }

    deinit { close(descriptor) }

    public func send(_ bytes: some Sequence<UInt8>) throws {
        let buffer = ByteBuffer(bytes)
        let descriptor = descriptor
        let isSent = unsafe buffer.withUnsafeBytes { bytes in
            var offset = 0
            while offset < bytes.count {
                let written = unsafe Glibc.send(
                    descriptor, bytes.baseAddress! + offset, bytes.count - offset,
                    Int32(MSG_NOSIGNAL))
                if written <= 0 { return false }
                offset += written
            }
            return true
        }
        if !isSent { throw RawHTTPError(description: "the connection was closed while sending") }
    }

    /// Sends a request with a body and reads its answer.
    public func request(
        _ method: String, _ path: String, body: some Sequence<UInt8>,
        headers: [String] = ["Content-Type: application/json"], milliseconds: Int64 = 30_000
    ) throws -> RawResponse {
        try sendRequest(method, path, body: body, headers: headers)
        return try response(milliseconds: milliseconds)
    }

    public func sendRequest(
        _ method: String, _ path: String, body: some Sequence<UInt8>,
        headers: [String] = ["Content-Type: application/json"]
    ) throws {
        let bytes = Array(body)
        var head = "\(method) \(path) HTTP/1.1\r\nHost: test\r\n"
        for header in headers { head += header + "\r\n" }
        if !bytes.isEmpty || method == "POST" { head += "Content-Length: \(bytes.count)\r\n" }
        try send(Array((head + "\r\n").utf8) + bytes)
    }

    /// Reads one answer with a `Content-Length`.
    public func response(milliseconds: Int64 = 30_000) throws -> RawResponse {
        let deadline = SystemClock.monotonicMilliseconds() + milliseconds
        var end = headEnd()
        while end == nil {
            try receive(until: deadline)
            end = headEnd()
        }
        let head = String(decoding: input[..<end!], as: UTF8.self)
        var lines = head.split(separator: "\r\n").map(String.init)
        guard let status = lines.first?.split(separator: " ").dropFirst().first.flatMap({ Int($0) })
        else { throw RawHTTPError(description: "not an HTTP answer: \(head.prefix(60))") }
        lines.removeFirst()
        var headers: [String: String] = [:]
        for line in lines {
            guard let colon = line.firstIndex(of: ":") else { continue }
            headers[line[..<colon].lowercased()] = String(
                line[line.index(after: colon)...].drop { $0 == " " })
        }
        let size = headers["content-length"].flatMap { Int($0) } ?? 0
        while input.count < end! + 4 + size { try receive(until: deadline) }
        let body = ByteBuffer(input[(end! + 4)..<(end! + 4 + size)])
        input.removeFirst(end! + 4 + size)
        return RawResponse(status: status, headers: headers, body: body)
    }

    /// Whether a byte of an answer comes within the time.
    public func hasAnswer(milliseconds: Int64) -> Bool {
        if !input.isEmpty { return true }
        var item = pollfd(fd: descriptor, events: Int16(POLLIN), revents: 0)
        return unsafe poll(&item, 1, Int32(clamping: milliseconds)) > 0
    }

    /// Reads so many bytes, behind an answer's.
    public func read(_ count: Int, until deadline: Int64) throws -> [UInt8] {
        while input.count < count { try receive(until: deadline) }
        defer { input.removeFirst(count) }
        return Array(input.prefix(count))
    }

    private func headEnd() -> Int? {
        let bytes = input
        var index = 0
        while index + 4 <= bytes.count {
            if bytes[index] == 13, bytes[index + 1] == 10, bytes[index + 2] == 13,
                bytes[index + 3] == 10
            {
                return index
            }
            index += 1
        }
        return nil
    }

    private func receive(until deadline: Int64) throws {
        let left = deadline - SystemClock.monotonicMilliseconds()
        var item = pollfd(fd: descriptor, events: Int16(POLLIN), revents: 0)
        guard left > 0, unsafe poll(&item, 1, Int32(clamping: left)) > 0 else {
            throw RawHTTPError(description: "no answer in time")
        }
        var chunk = [UInt8](repeating: 0, count: 64 << 10)
        let count = unsafe recv(descriptor, &chunk, chunk.count, 0)
        guard count > 0 else { throw RawHTTPError(description: "the connection was closed") }
        input += chunk.prefix(count)
    }
}

/// Waits for a condition; `false` if it does not come true in time.
public func eventually(
    milliseconds: Int64 = 30_000, _ condition: () throws -> Bool

) throws -> Bool {
    let deadline = SystemClock.monotonicMilliseconds() + milliseconds
    let pause = Waker()
    while true {
        if try condition() { return true }
        if SystemClock.monotonicMilliseconds() >= deadline { return false }
        pause.wait(milliseconds: 5)
    }
}
