internal import Bytes

/// What the agent contract says of `POST /api/v1/heartbeat`, checked over raw HTTP.
///
/// It knows the contract's text alone, and an address to try it on.
public struct HeartbeatContract: Sendable {
    public var host: String
    public var port: UInt16
    /// Devices that the server knows: one that may report, one that an operator suspended.
    public var device: String
    public var suspended: String?

    public init(host: String, port: UInt16, device: String, suspended: String?) {
        self.host = host
        self.port = port
        self.device = device
        self.suspended = suspended
    }

    /// The fields of the answer, in the contract's order.
    public static let answerFields = [
        "device_id", "status", "internal_ip", "private_key", "preshared_key", "server_pub",
        "endpoint", "server_wg_ip", "dns", "allowed_ips", "forwards_hash",
    ]

    public struct Case: Sendable, CustomStringConvertible {
        public var description: String
        var method = "POST"
        var path = "/api/v1/heartbeat"
        var body: [UInt8]
        public var status: Int
        /// The whole body; `nil`: not looked at.
        public var answer: String?
        public var header: (name: String, value: String)?
    }

    /// A case and what came instead of it; `nil`: as it should be.
    public func check(_ example: Case) throws -> String? {
        let client = try RawClient(host: host, port: port)
        let found = try client.request(example.method, example.path, body: example.body)
        if found.status != example.status { return "status \(found.status): \(found.text)" }
        if let answer = example.answer, found.text != answer { return "body \(found.text)" }
        if found.headers["content-type"] != "application/json" {
            return "content type \(found.headers["content-type"] ?? "none")"
        }
        if let header = example.header, found.headers[header.name] != header.value {
            return "header \(header.name): \(found.headers[header.name] ?? "none")"
        }
        // The connection is still good for a proper heartbeat.
        let next = try client.request(
            "POST", "/api/v1/heartbeat", body: "{\"device_id\":\"\(device)\"}".utf8)
        return next.status == 200 ? nil : "the next heartbeat got \(next.status): \(next.text)"
    }

    public var cases: [Case] {
        func invalid(_ description: String, _ body: String) -> Case {
            Case(
                description: description, body: Array(body.utf8), status: 400,
                answer: "{\"error\":\"invalid device id\"}")
        }
        func notJSON(_ description: String, _ body: [UInt8]) -> Case {
            Case(
                description: description, body: body, status: 400,
                answer: "{\"error\":\"invalid json\"}")
        }
        func good(_ description: String, _ fields: String, id: String? = nil) -> Case {
            Case(
                description: description,
                body: Array("{\"device_id\":\"\(id ?? device)\"\(fields)}".utf8), status: 200)
        }
        var cases = [
            invalid("no device id", "{}"), invalid("an empty device id", "{\"device_id\":\"\"}"),
            invalid("a device id that is a number", "{\"device_id\":12}"),
            invalid("a device id that is null", "{\"device_id\":null}"),
            invalid("a device id that is no UUID", "{\"device_id\":\"device-1\"}"),
            invalid("a UUID in braces", "{\"device_id\":\"{\(device)}\"}"),
            invalid(
                "a UUID that no device has",
                "{\"device_id\":\"00000000-0000-4000-8000-000000000000\"}"),
            notJSON("nothing", []), notJSON("not JSON", Array("heartbeat".utf8)),
            notJSON("JSON that ends early", Array("{\"device_id\":\"\(device)\"".utf8)),
            notJSON("JSON with more behind it", Array("{\"device_id\":\"\(device)\"}{}".utf8)),
            notJSON(
                "a key twice",
                Array("{\"device_id\":\"\(device)\",\"device_id\":\"\(device)\"}".utf8)),
            notJSON(
                "invalid UTF-8",
                Array("{\"device_id\":\"\(device)\",\"state\":\"".utf8)
                    + [0xC3, 0x28] + Array("\"}".utf8)),
            notJSON("deep nesting", [UInt8](repeating: 0x5B, count: 60_000)),
            good("only the required field", ""),
            good("the id in upper case", "", id: device.uppercased()),
            good(
                "all fields",
                ",\"status\":\"connected\",\"state\":\"up\",\"tunnel_up\":true,"
                    + "\"last_handshake\":\"2026-06-26T09:00:00Z\""),
            good("never a handshake", ",\"last_handshake\":\"1970-01-01T00:00:00Z\""),
            good("fields that came later", ",\"battery\":0.5,\"nested\":{\"a\":[1,2,3]}"),
            good(
                "wrong types in optional fields",
                ",\"status\":1,\"state\":[],\"tunnel_up\":\"yes\",\"last_handshake\":\"soon\""),
            good("a zero character in a state", ",\"state\":\"a\\u0000b\""),
        ]
        if let suspended {
            cases.append(
                Case(
                    description: "a suspended device",
                    body: Array("{\"device_id\":\"\(suspended)\"}".utf8), status: 403,
                    answer: "{\"error\":\"device is suspended\"}"))
        }
        for method in ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"] {
            cases.append(
                Case(
                    description: "method \(method)", method: method, body: [], status: 405,
                    header: (name: "allow", value: "POST")))
        }
        for path in ["/", "/api/v1/heartbeats", "/api/v1/heartbeat/", "/api/v2/heartbeat"] {
            cases.append(
                Case(description: "path \(path)", path: path, body: [], status: 404))
        }
        return cases
    }

    /// What is wrong with the answer to a good heartbeat; `nil`: nothing.
    public func checkAnswer() throws -> String? {
        let client = try RawClient(host: host, port: port)
        let found = try client.request(
            "POST", "/api/v1/heartbeat?x=1", body: "{\"device_id\":\"\(device)\"}".utf8)
        guard found.status == 200 else { return "status \(found.status)" }
        // Field by field, in order: the contract's own example has no spaces to skip in ours.
        var rest = Substring(found.text)
        var values: [String: Substring] = [:]
        for (index, field) in Self.answerFields.enumerated() {
            let prefix = (index == 0 ? "{" : ",") + "\"\(field)\":\""
            guard rest.hasPrefix(prefix) else { return "\(field) is not at its place" }
            rest = rest.dropFirst(prefix.count)
            guard let end = rest.firstIndex(of: "\"") else { return "\(field) has no end" }
            values[field] = rest[..<end]
            rest = rest[rest.index(after: end)...]
        }
        guard rest == "}" else { return "more fields than the contract has" }
        func isHex(_ field: String) -> Bool {
            values[field]!.count == 64
                && values[field]!.allSatisfy { $0.isHexDigit && !$0.isUppercase }
        }
        for field in ["private_key", "preshared_key", "server_pub"] where !isHex(field) {
            return "\(field) is not 64 hexadecimal digits"
        }
        if values["status"] != "ok" { return "status is not ok" }
        if values["device_id"]! != device.lowercased() { return "another device's id" }
        if values["forwards_hash"]!.isEmpty { return "no forwards_hash" }
        return nil
    }
}
