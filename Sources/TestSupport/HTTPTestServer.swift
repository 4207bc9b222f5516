public import Bytes
internal import Glibc
internal import Synchronization
internal import System

/// An HTTP/1.1 server on an ephemeral port of the loopback address: a thread a connection, keep-alive,
/// one function that answers.
public final class HTTPTestServer: Sendable {
    public struct Request: Sendable {
        public var line: String
        public var head: String
        public var body: ByteBuffer
    }

    public enum Answer: Sendable {
        case status(Int, String)
        /// Written as it is; the connection is closed after it.
        case raw(String)
        /// Writes as it will, from the connection's thread, which it may hold; what it is handed tells
        /// whether the client took the bytes. The connection is closed after it.
        case script(@Sendable (_ write: (ByteBuffer) -> Bool) -> Void)
        /// No answer until the server ends.
        case never
        case close
    }

    private struct State {
        var connections: [Int32] = []
        var threads: [SystemThread] = []
        var isStopped = false
        var opened = 0
        var requests = 0
    }

    public let port: UInt16
    private let listener: Int32
    private let state = Mutex(State())
    private let acceptor = Mutex<SystemThread?>(nil)

    public var url: String { "http://127.0.0.1:\(port)" }
    public var connectionsOpened: Int { state.withLock { $0.opened } }
    public var requests: Int { state.withLock { $0.requests } }

    /// - Parameter port: 0 for one that the system chooses.
    public init(port: UInt16 = 0, _ answer: @escaping @Sendable (Request) -> Answer) {
        (listener, self.port) = Self.listen(port)
        acceptor.withLock {
            $0 = SystemThread.start("test-server") { [self] in accept(answer) }
        }
    }

    /// A port on which nobody listens.
    public static func closedPort() -> UInt16 {
        let (descriptor, port) = listen()
        close(descriptor)
        return port
    }

    /// Ends all connections and threads. Call it once.
    public func stop() {
        state.withLock {
            $0.isStopped = true
            for connection in $0.connections { shutdown(connection, Int32(SHUT_RDWR)) }
        }
        shutdown(listener, Int32(SHUT_RDWR))
        acceptor.withLock { $0 }?.join()
        for thread in state.withLock({ $0.threads }) { thread.join() }
        for connection in state.withLock({ $0.connections }) { close(connection) }
        close(listener)
    }

    private static func listen(_ port: UInt16 = 0) -> (Int32, UInt16) {
        let descriptor = socket(AF_INET, Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
        precondition(descriptor >= 0, "no socket for a test")
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
        address.sin_port = port.bigEndian
        var one: Int32 = 1
        unsafe setsockopt(
            descriptor, SOL_SOCKET, SO_REUSEADDR, &one, socklen_t(MemoryLayout<Int32>.size))
        var size = socklen_t(MemoryLayout<sockaddr_in>.size)
        unsafe withUnsafeMutablePointer(to: &address) { pointer in
            unsafe pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { generic in
                precondition(unsafe bind(descriptor, generic, size) == 0)
                precondition(Glibc.listen(descriptor, 512) == 0)
                precondition(unsafe getsockname(descriptor, generic, &size) == 0)
            }
        }
        return (descriptor, UInt16(bigEndian: address.sin_port))
    }

    private func accept(_ answer: @escaping @Sendable (Request) -> Answer) {
        while true {
            let connection = Glibc.accept(listener, nil, nil)
            guard connection >= 0 else { return }
            state.withLock { state in
                guard !state.isStopped else {
                    close(connection)
                    return
                }
                state.opened += 1
                state.connections.append(connection)
                state.threads.append(
                    SystemThread.start("test-connection") { [self] in
                        serve(connection, answer)
                        // Closed by `stop`, so that the number is not given out again meanwhile.
                        shutdown(connection, Int32(SHUT_RDWR))
                    })
            }
        }
    }

    private func serve(_ connection: Int32, _ answer: (Request) -> Answer) {
        var input = ByteBuffer()
        while let request = readRequest(connection, &input) {
            state.withLock { $0.requests += 1 }
            switch answer(request) {
            case .status(let status, let body):
                write(
                    connection,
                    "HTTP/1.1 \(status) X\r\nContent-Type: application/json\r\n"
                        + "Content-Length: \(body.utf8.count)\r\n\r\n\(body)")
            case .raw(let text):
                write(connection, text)
                return
            case .script(let script):
                script { write(connection, $0.bytes) }
                return
            case .close: return
            case .never:
                // Ends when `stop` shuts the connection down, or the client closes it.
                var byte: UInt8 = 0
                while unsafe recv(connection, &byte, 1, 0) > 0 {}
                return
            }
        }
    }

    private func readRequest(_ connection: Int32, _ input: inout ByteBuffer) -> Request? {
        var chunk = [UInt8](repeating: 0, count: 16_384)
        while true {
            let text = input.span.text
            if let end = text.firstRange(of: "\r\n\r\n") {
                let head = String(text[..<end.lowerBound])
                let headBytes = text[..<end.upperBound].utf8.count
                var length = 0
                for line in head.split(separator: "\r\n")
                where line.lowercased().hasPrefix("content-length:") {
                    length = Int(line.dropFirst(15).filter(\.isNumber)) ?? 0
                }
                if input.count >= headBytes + length {
                    let body = ByteBuffer(
                        copying: input.span.extracting(headBytes..<headBytes + length))
                    input = ByteBuffer(
                        copying: input.span.extracting((headBytes + length)..<input.count))
                    return Request(
                        line: String(head.prefix { !$0.isNewline }), head: head, body: body)
                }
            }
            let count = unsafe recv(connection, &chunk, chunk.count, 0)
            guard count > 0 else { return nil }
            input.append(Array(chunk[..<count]))
        }
    }

    private func write(_ connection: Int32, _ text: String) {
        _ = write(connection, Array(text.utf8))
    }

    /// - Returns: whether all of it was taken.
    private func write(_ connection: Int32, _ bytes: [UInt8]) -> Bool {
        var sent = 0
        while sent < bytes.count {
            let count = unsafe bytes[sent...].withUnsafeBytes {
                unsafe send(connection, $0.baseAddress, $0.count, Int32(MSG_NOSIGNAL))
            }
            guard count > 0 else { return false }
            sent += count
        }
        return true
    }
}

extension HTTPTestServer {
    /// Writes to every open connection, whatever was asked.
    public func sendToAll(_ text: String) {
        for connection in state.withLock({ $0.connections }) { write(connection, text) }
    }
}

extension HTTPTestServer.Request {
    /// The value of a header; the name in any case.
    public func header(_ name: String) -> String? {
        for line in head.split(separator: "\r\n") {
            let parts = line.split(separator: ":", maxSplits: 1)
            if parts.count == 2, parts[0].lowercased() == name.lowercased() {
                return String(parts[1].drop { $0 == " " })
            }
        }
        return nil
    }
}
