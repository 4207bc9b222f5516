import Glibc

/// A client that sends exactly the bytes it is told to.
final class RawClient {
    enum Failure: Error { case connecting(Int32), ended, timedOut, malformed(String) }

    struct Answer: Equatable {
        var status: Int
        /// Names in lower case.
        var headers: [String: String]
        var body: [UInt8]

        var text: String { String(decoding: body, as: UTF8.self) }
    }

    private(set) var descriptor: Int32
    private var received: [UInt8] = []
    private var readOffset = 0

    /// Waits for its server at most this long; only a hang is as slow.
    static let patienceSeconds = 60

    init(port: UInt16, host: String = "127.0.0.1", receiveBuffer: Int32? = nil) throws {
        let isIPv6 = host.contains(":")
        descriptor = socket(
            isIPv6 ? AF_INET6 : AF_INET, Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
        var patience = timeval(tv_sec: Self.patienceSeconds, tv_usec: 0)
        let size = socklen_t(MemoryLayout<timeval>.size)
        unsafe setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &patience, size)
        unsafe setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &patience, size)
        var one: Int32 = 1
        unsafe setsockopt(descriptor, Int32(IPPROTO_TCP), 1 /* TCP_NODELAY */, &one, 4)
        if var receiveBuffer {
            unsafe setsockopt(descriptor, SOL_SOCKET, SO_RCVBUF, &receiveBuffer, 4)
        }
        let result: Int32
        if isIPv6 {
            var address = sockaddr_in6()
            address.sin6_family = sa_family_t(AF_INET6)
            address.sin6_port = port.bigEndian
            unsafe inet_pton(AF_INET6, host, &address.sin6_addr)
            result = unsafe withUnsafePointer(to: &address) {
                unsafe $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                    unsafe connect(descriptor, $0, socklen_t(MemoryLayout<sockaddr_in6>.size))
                }
            }
        } else {
            var address = sockaddr_in()
            address.sin_family = sa_family_t(AF_INET)
            address.sin_port = port.bigEndian
            unsafe inet_pton(AF_INET, host, &address.sin_addr)
            result = unsafe withUnsafePointer(to: &address) {
                unsafe $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                    unsafe connect(descriptor, $0, socklen_t(MemoryLayout<sockaddr_in>.size))
                }
            }
        }
        guard result == 0 else { throw Failure.connecting(errno) }
    }

    deinit { disconnect() }

    func disconnect() {
        guard descriptor >= 0 else { return }
        close(descriptor)
        descriptor = -1
    }

    /// Closes with a reset instead of a proper end.
    func reset() {
        var option = linger(l_onoff: 1, l_linger: 0)
        unsafe setsockopt(
            descriptor, SOL_SOCKET, SO_LINGER, &option, socklen_t(MemoryLayout<linger>.size))
        disconnect()
    }

    func endOutput() { shutdown(descriptor, Int32(SHUT_WR)) }

    /// - Returns: whether the server took all of it.
    @discardableResult
    func send(_ bytes: [UInt8]) -> Bool { Self.send(bytes, to: descriptor) }

    @discardableResult
    static func send(_ bytes: [UInt8], to descriptor: Int32) -> Bool {
        var sent = 0
        while sent < bytes.count {
            let count = unsafe bytes.withUnsafeBytes {
                unsafe Glibc.send(
                    descriptor, $0.baseAddress! + sent, bytes.count - sent, Int32(MSG_NOSIGNAL))
            }
            guard count > 0 else { return false }
            sent += count
        }
        return true
    }

    @discardableResult
    func send(_ text: String) -> Bool { send(Array(text.utf8)) }

    private func receive() throws {
        if readOffset > 1 << 20 {
            received.removeFirst(readOffset)
            readOffset = 0
        }
        var buffer = [UInt8](repeating: 0, count: 64 << 10)
        let count = unsafe recv(descriptor, &buffer, buffer.count, 0)
        if count < 0, errno == EAGAIN { throw Failure.timedOut }
        guard count > 0 else { throw Failure.ended }
        received.append(contentsOf: buffer[..<count])
    }

    func readByte() throws -> UInt8 {
        while readOffset == received.count { try receive() }
        defer { readOffset += 1 }
        return received[readOffset]
    }

    func readLine() throws -> String {
        var line: [UInt8] = []
        while true {
            let byte = try readByte()
            if byte == 0x0A { break }
            line.append(byte)
        }
        guard line.popLast() == 0x0D else { throw Failure.malformed("a line without CR") }
        return String(decoding: line, as: UTF8.self)
    }

    func read(_ count: Int) throws -> [UInt8] {
        while received.count - readOffset < count { try receive() }
        defer { readOffset += count }
        return Array(received[readOffset..<(readOffset + count)])
    }

    func readToEnd() throws -> [UInt8] {
        while true {
            do { try receive() } catch Failure.ended { break }
        }
        defer { readOffset = received.count }
        return Array(received[readOffset...])
    }

    /// Whether the server ends the connection (properly or by a reset) without another byte.
    func isEnded() -> Bool {
        guard readOffset == received.count else { return false }
        do {
            try receive()
            return false
        } catch Failure.ended {
            return true
        } catch {
            return false
        }
    }

    func readHead() throws -> Answer {
        let start = try readLine()
        let parts = start.split(separator: " ", maxSplits: 2)
        guard parts.count >= 2, parts[0] == "HTTP/1.1", let status = Int(parts[1]) else {
            throw Failure.malformed(start)
        }
        var headers: [String: String] = [:]
        while true {
            let line = try readLine()
            if line.isEmpty { break }
            guard let colon = line.firstIndex(of: ":") else { throw Failure.malformed(line) }
            let value = line[line.index(after: colon)...].drop { $0 == " " }
            headers[line[..<colon].lowercased()] = String(value)
        }
        return Answer(status: status, headers: headers, body: [])
    }

    func readAnswer(toHead: Bool = false) throws -> Answer {
        var answer = try readHead()
        if toHead || answer.status < 200 || answer.status == 204 { return answer }
        if answer.headers["transfer-encoding"] == "chunked" {
            while let chunk = try readChunk() { answer.body += chunk }
        } else if let length = answer.headers["content-length"].flatMap({ Int($0) }) {
            answer.body = try read(length)
        } else {
            answer.body = try readToEnd()
        }
        return answer
    }

    /// One chunk; `nil` is the end of the body.
    func readChunk() throws -> [UInt8]? {
        guard let size = Int(try readLine(), radix: 16) else { throw Failure.malformed("size") }
        let chunk = try read(size)
        guard try readLine().isEmpty else { throw Failure.malformed("chunk") }
        return size == 0 ? nil : chunk
    }

    func request(_ text: String) throws -> Answer {
        send(text)
        return try readAnswer()
    }
}
