import Bytes
import HTTP
import Page
import Postgres
import Schemas
import System
import TestSupport

/// The page on a real database and socket.
final class PageRig {
    static let token = "the operators' token, as it is"
    static let key = [UInt8](repeating: 9, count: 32)

    private final class Handler: RequestHandler {
        let api: PageAPI
        init(_ api: PageAPI) { self.api = api }
        func handle(_ request: borrowing Request, _ exchange: borrowing Exchange) {
            if !api.handle(request, exchange) { exchange.notFound() }
        }
    }

    let database: TestDatabase
    let connection: PostgresConnection
    let service: PageService
    private let server: Server

    init(_ change: (inout PageSettings) -> Void = { _ in }) throws {
        database = try TestDatabase.make()
        connection = try database.connect()
        var settings = PageSettings(databaseURL: database.url, key: Self.key) { authorization, _ in
            switch authorization {
            case "Bearer \(PageRig.token.filter { $0 != " " })": .letIn
            case "Bearer slowly": .tooMany(seconds: 7)
            default: .refused
            }
        }
        change(&settings)
        let service = PageService(settings)
        self.service = service
        server = try Server(
            configuration: ServerConfiguration(host: "127.0.0.1", port: 0, name: "page-test")
        ) { _ in Handler(PageAPI(service)) }
        service.listens(on: server.boundAddress.port)
        service.start()
        try server.start()
    }

    deinit { stop() }

    func stop() {
        service.stop()
        server.drain()
    }

    var port: UInt16 { server.boundAddress.port }

    func client() throws -> RawClient { try RawClient(host: "127.0.0.1", port: port) }

    /// Sends a request with just these headers, and `Host` if it is none of them.
    func ask(
        _ method: String, _ path: String, _ headers: [String] = [], body: String = "",
        over client: RawClient? = nil
    ) throws -> RawResponse {
        let client = try client ?? self.client()
        try send(method, path, headers, body: body, over: client)
        return try client.response()
    }

    func send(
        _ method: String, _ path: String, _ headers: [String] = [], body: String = "",
        over client: RawClient
    ) throws {
        var head = "\(method) \(path) HTTP/1.1\r\n"
        if !headers.contains(where: { $0.hasPrefix("Host:") }) {
            head += "Host: 127.0.0.1:\(port)\r\n"
        }
        for header in headers { head += header + "\r\n" }
        if method == "POST" { head += "Content-Length: \(body.utf8.count)\r\n" }
        try client.send((head + "\r\n" + body).utf8)
    }

    func code(madeAt: Int64 = SystemClock.wallMilliseconds(), number: UInt64 = 1) -> String {
        LoginCode(madeAt: madeAt, number: number).text(key: Self.key)
    }

    /// Signs in, and returns the header that shows it.
    func signIn(_ number: UInt64 = 1) throws -> String {
        let answer = try ask("GET", "/login?code=\(code(number: number))")
        let cookie = answer.headers["set-cookie"] ?? "none"
        return "Cookie: \(cookie.prefix { $0 != ";" })"
    }

    func addDevice(
        _ number: UInt64, hardwareID: String? = nil, state: String? = nil
    ) throws -> DeviceID {
        let device = DeviceID(high: 0x0A1B_2C3D_4E5F_6071, low: number)
        try connection.execute(
            """
            INSERT INTO heartline.devices (device_id, hardware_id, internal_address, public_key, sealed_secrets)
            VALUES ($1, $2, ('10.64.0.' || $3)::inet, 'k', '')
            """, .uuid(device.high, device.low),
            hardwareID.map { .bytea(ByteBuffer($0.utf8)) } ?? .bytea(ByteBuffer("h\(number)".utf8)),
            .text("\(number)"))
        if let state {
            try connection.execute(
                """
                INSERT INTO heartline.device_status (device_id, partition, state, reason, since, last_seen, flags,
                flapping, transitions, agent_state) VALUES ($1, 0, $2, 'for a test', now(), now(), '[]', false, 0, $3)
                """, .uuid(device.high, device.low), .text(state), .text(hardwareID ?? ""))
        }
        return device
    }

    func setState(_ device: DeviceID, _ state: String) throws {
        try connection.execute(
            "UPDATE heartline.device_status SET state = $2, since = now() WHERE device_id = $1",
            .uuid(device.high, device.low), .text(state))
    }
}

/// Reads a stream of events until something was said.
final class EventReader {
    let client: RawClient
    private(set) var text = ""

    init(_ rig: PageRig, _ path: String, _ headers: [String]) throws {
        client = try rig.client()
        try rig.send("GET", path, headers, over: client)
    }

    /// - Returns: whether it was said in time.
    func hears(_ words: String, seconds: Int64 = 30) -> Bool {
        let deadline = SystemClock.monotonicMilliseconds() + seconds * 1_000
        var line: [UInt8] = []
        while let byte = try? client.read(1, until: deadline).first {
            line.append(byte)
            guard byte == 10 else { continue }
            let said = String(decoding: line, as: UTF8.self)
            text += said
            line = []
            if said.contains(words) { return true }
        }
        return false
    }
}
