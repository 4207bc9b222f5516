import Bytes
import Glibc
import Schemas
import Synchronization
import System
import TestSupport

/// Devices that send heartbeats over many kept-alive connections, on a thread of its own, and keep
/// book of what each was answered.
///
/// Heartbeats are numbered from 0; heartbeat `n` is of device `n % devices.count`. One that gets no
/// answer is not repeated: the next has the next number.
final class HeartbeatLoad: Sendable {
    struct Settings: Sendable {
        var devices: [DeviceID]
        var connections = 128
        /// `nil`: as many as are answered.
        var perSecond: Int?
        /// Time without an answer after which a device gives a connection up; `nil`: never.
        var patienceMilliseconds: Int64?
        /// The body of heartbeat number `n`.
        var body: @Sendable (Int, DeviceID) -> String

        init(
            _ devices: [DeviceID], connections: Int = 128, perSecond: Int? = nil,
            patienceMilliseconds: Int64? = nil,
            body: @escaping @Sendable (Int, DeviceID) -> String = HeartbeatLoad.healthy
        ) {
            self.devices = devices
            self.connections = connections
            self.perSecond = perSecond
            self.patienceMilliseconds = patienceMilliseconds
            self.body = body
        }
    }

    /// What became of the heartbeats.
    struct Book: Sendable {
        var sent = 0
        /// Numbers of those that were answered 200.
        var accepted: [Int] = []
        var statuses: [Int: Int] = [:]
        /// The first answer that was not 200, for messages.
        var refusal: String?
        /// Answers of which a part came before the connection ended.
        var cutAnswers = 0
        /// Sent whole, and the connection ended without a byte of an answer.
        var unanswered = 0
    }

    private struct Orders {
        var place: (host: String, port: UInt16)?
        var isStopping = false
        var skipped: Set<DeviceID> = []
        var thread: SystemThread?
        var book = Book()
    }

    private let settings: Settings
    private let orders = Mutex(Orders())
    private let acceptedCount = Atomic<Int>(0)
    private let silences: Mutex<[Int64]>

    init(_ settings: Settings) {
        self.settings = settings
        silences = Mutex(settings.devices.map { _ in 0 })
        let thread = SystemThread.start("heartbeats") { [self] in run() }
        orders.withLock { $0.thread = thread }
    }

    /// A device whose tunnel is up. Its `state` says the heartbeat's number.
    static func healthy(_ number: Int, _ device: DeviceID) -> String {
        """
        {"device_id":"\(device)","status":"connected","state":"n\(number)","tunnel_up":true,\
        "last_handshake":"\(EventTime(milliseconds: SystemClock.wallMilliseconds()))"}
        """
    }

    /// Heartbeats answered 200 so far.
    var accepted: Int { acceptedCount.load(ordering: .relaxed) }

    /// Devices that went without a heartbeat that was answered 200 for so long: on a busy machine the
    /// silence may be the test's own. Time in which there was nobody to send to does not count, nor
    /// does a silence that lasts.
    func silentDevices(milliseconds: Int64) -> Set<DeviceID> {
        silences.withLock { silences in
            Set(
                settings.devices.indices.filter { silences[$0] >= milliseconds }.map {
                    settings.devices[$0]
                })
        }
    }

    /// What `silentDevices` tells of begins here.
    func forgetSilences() {
        silences.withLock { silences in for index in silences.indices { silences[index] = 0 } }
    }

    private func note(silence: Int64, of device: Int) {
        silences.withLock { $0[device] = max($0[device], silence) }
    }

    /// Where new connections go to, `http://127.0.0.1:8080`; `nil`: nowhere.
    func send(to url: String?) {
        var place: (host: String, port: UInt16)?
        if let url, let colon = url.lastIndex(of: ":") {
            let host = url[..<colon].drop { $0 != "/" }.drop { $0 == "/" }
            place = (String(host), UInt16(url[url.index(after: colon)...]) ?? 0)
        }
        let found = place
        orders.withLock { $0.place = found }
    }

    /// These devices say nothing more.
    func silence(_ devices: [DeviceID]) { orders.withLock { $0.skipped.formUnion(devices) } }

    /// Sends nothing more, waits for the answers that are due, and closes the connections.
    func stop() -> Book {
        let thread = orders.withLock { orders in
            orders.isStopping = true
            defer { orders.thread = nil }
            return orders.thread
        }
        thread?.join()
        return orders.withLock { $0.book }
    }

    // MARK: - The thread

    private struct Connection {
        var descriptor: Int32 = -1
        var isConnected = false
        var input: [UInt8] = []
        /// The heartbeat whose answer is due.
        var number: Int?
        var sentAt: Int64 = 0
        var retryAt: Int64 = 0
        var place: UInt16 = 0
    }

    /// Longest wait for the last answers.
    private static let lastMilliseconds: Int64 = 15_000

    private func run() {
        var connections = [Connection](repeating: Connection(), count: settings.connections)
        var book = Book()
        var items = [pollfd](repeating: pollfd(), count: connections.count)
        var chunk = [UInt8](repeating: 0, count: 16 << 10)
        let start = SystemClock.monotonicMilliseconds()
        var heard = settings.devices.map { _ in start }
        var stoppedAt: Int64?
        var next = 0
        while true {
            let now = SystemClock.monotonicMilliseconds()
            let (place, isStopping, skipped) = orders.withLock {
                ($0.place, $0.isStopping, $0.skipped)
            }
            if isStopping {
                if stoppedAt == nil { stoppedAt = now }
                let isDone = connections.allSatisfy { $0.number == nil }
                if isDone || now - (stoppedAt ?? now) > Self.lastMilliseconds { break }
            }
            if place == nil { for index in heard.indices { heard[index] = now } }
            var allowance = Int.max
            if let perSecond = settings.perSecond {
                allowance = Int(now - start) * perSecond / 1_000 - next
                // What could not be sent while there was nobody to send it to is not made up for.
                if allowance > perSecond { next += allowance - perSecond }
            }
            for index in connections.indices {
                if connections[index].number != nil, let patience = settings.patienceMilliseconds,
                    now - connections[index].sentAt > patience
                {
                    end(&connections[index], &book, now)
                }
                // One to a process that is gone is known to have ended only when it is read.
                if connections[index].descriptor < 0 {
                    guard let place, !isStopping, connections[index].retryAt <= now else {
                        continue
                    }
                    open(&connections[index], place, now)
                }
                guard connections[index].isConnected, connections[index].number == nil,
                    !isStopping, place != nil, allowance > 0
                else { continue }
                if connections[index].place != place?.port {
                    end(&connections[index], &book, now)
                    continue
                }
                while skipped.contains(settings.devices[next % settings.devices.count]) {
                    next += 1
                }
                if send(next, over: connections[index].descriptor) {
                    connections[index].number = next
                    connections[index].sentAt = now
                    book.sent += 1
                } else {
                    end(&connections[index], &book, now)
                }
                next += 1
                allowance -= 1
            }
            for index in connections.indices {
                let isConnecting =
                    connections[index].descriptor >= 0 && !connections[index].isConnected
                items[index] = pollfd(
                    fd: connections[index].descriptor,
                    events: Int16(isConnecting ? POLLOUT : POLLIN), revents: 0)
            }
            guard unsafe poll(&items, UInt(items.count), 5) > 0 else { continue }
            for index in items.indices where items[index].revents != 0 {
                if connections[index].isConnected {
                    if let number = read(&connections[index], &chunk, &book) {
                        let device = number % heard.count
                        note(silence: now - heard[device], of: device)
                        heard[device] = now
                    }
                } else if isConnected(connections[index].descriptor) {
                    connections[index].isConnected = true
                } else {
                    end(&connections[index], &book, SystemClock.monotonicMilliseconds())
                }
            }
        }
        for connection in connections where connection.descriptor >= 0 {
            close(connection.descriptor)
        }
        let final = book
        orders.withLock { $0.book = final }
    }

    private func open(
        _ connection: inout Connection, _ place: (host: String, port: UInt16), _ now: Int64
    ) {
        connection = Connection()
        connection.place = place.port
        connection.retryAt = now + 20
        let descriptor = socket(
            AF_INET, Int32(SOCK_STREAM.rawValue | SOCK_NONBLOCK.rawValue | SOCK_CLOEXEC.rawValue),
            0)
        guard descriptor >= 0 else { return }
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_port = place.port.bigEndian
        unsafe inet_pton(AF_INET, place.host, &address.sin_addr)
        let size = socklen_t(MemoryLayout<sockaddr_in>.size)
        let result = unsafe withUnsafePointer(to: &address) {
            unsafe $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                unsafe connect(descriptor, $0, size)
            }
        }
        if result == 0 || errno == EINPROGRESS {
            connection.descriptor = descriptor
            connection.isConnected = result == 0
        } else {
            close(descriptor)
        }
    }

    private func isConnected(_ descriptor: Int32) -> Bool {
        var code: Int32 = 0
        var size = socklen_t(MemoryLayout<Int32>.size)
        return unsafe getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &code, &size) == 0 && code == 0
    }

    private func send(_ number: Int, over descriptor: Int32) -> Bool {
        let body = settings.body(number, settings.devices[number % settings.devices.count])
        let request = ByteBuffer(
            """
            POST /api/v1/heartbeat HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n\
            Content-Length: \(body.utf8.count)\r\n\r\n\(body)
            """.utf8)
        // Into the empty buffer of a connection without a request it goes whole, or not at all.
        return unsafe request.withUnsafeBytes { bytes in
            unsafe Glibc.send(descriptor, bytes.baseAddress, bytes.count, Int32(MSG_NOSIGNAL))
        } == request.count
    }

    /// - Returns: the heartbeat that was answered 200, if one was.
    private func read(
        _ connection: inout Connection, _ chunk: inout [UInt8], _ book: inout Book
    ) -> Int? {
        let count = unsafe recv(connection.descriptor, &chunk, chunk.count, 0)
        if count < 0, errno == EAGAIN || errno == EINTR { return nil }
        guard count > 0 else {
            end(&connection, &book, SystemClock.monotonicMilliseconds())
            return nil
        }
        connection.input += chunk[..<count]
        guard let answer = Answer(connection.input), let number = connection.number else {
            return nil
        }
        connection.number = nil
        book.statuses[answer.status, default: 0] += 1
        if answer.status == 200 {
            book.accepted.append(number)
            acceptedCount.add(1, ordering: .relaxed)
        } else if book.refusal == nil {
            book.refusal = String(decoding: connection.input, as: UTF8.self)
        }
        connection.input.removeAll(keepingCapacity: true)
        if answer.closes { end(&connection, &book, SystemClock.monotonicMilliseconds()) }
        return answer.status == 200 ? number : nil
    }

    private func end(_ connection: inout Connection, _ book: inout Book, _ now: Int64) {
        if connection.number != nil {
            if connection.input.isEmpty { book.unanswered += 1 } else { book.cutAnswers += 1 }
        }
        close(connection.descriptor)
        connection = Connection()
        connection.retryAt = now + 20
    }

    /// A whole answer with a `Content-Length`.
    private struct Answer {
        var status: Int
        var closes: Bool

        /// `nil` as long as bytes are missing.
        init?(_ bytes: [UInt8]) {
            var head = 12
            while head + 4 <= bytes.count,
                !(bytes[head] == 13 && bytes[head + 1] == 10 && bytes[head + 2] == 13)
            { head += 1 }
            guard head + 4 <= bytes.count else { return nil }
            var size = 0
            closes = false
            for line in String(decoding: bytes[..<head], as: UTF8.self).utf8.split(separator: 10) {
                // The names are our server's own, so there is one way to write them.
                if line.starts(with: "Content-Length: ".utf8) {
                    size = line.dropFirst(16).reduce(0) {
                        (48...57).contains($1) ? $0 * 10 + Int($1 - 48) : $0
                    }
                } else if line.starts(with: "Connection: close".utf8) {
                    closes = true
                }
            }
            guard bytes.count >= head + 4 + size else { return nil }
            status = bytes[9..<12].reduce(0) { $0 * 10 + Int($1) - 48 }
        }
    }
}
