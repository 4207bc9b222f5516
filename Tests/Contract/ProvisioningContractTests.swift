import Bytes
import Foundation
import TestSupport
import Testing

@Suite("Agent contract: provisioning") struct ProvisioningContractTests {
    static let salt = ContractServer.salt

    private static func isHex(_ text: String) -> Bool {
        text.count == 64 && text.allSatisfy { $0.isHexDigit && !$0.isUppercase }
    }

    @Test("an agent decrypts its configuration, and its heartbeats are answered with the same")
    func success() throws {
        let server = try ContractServer()
        let hardwareID = "6B2F8C1E-8A53-4E0B-B1B0-1D6A8C4B5F11"
        let client = try server.client()
        let response = try ContractAgent.provision(client, try server.token(), hardwareID)
        let config = try ContractAgent.config(response, hardwareID: hardwareID, salt: Self.salt)
        #expect(config.fields == ContractAgent.payloadFields)
        for field in ["private_key", "preshared_key", "server_pub"] {
            #expect(Self.isHex(config[field]), "\(field)")
        }
        #expect(UUID(uuidString: config["device_id"]) != nil)
        #expect(config["device_id"] == config["device_id"].lowercased())
        #expect(config["internal_ip"] == "10.0.0.2")
        #expect(config["server_wg_ip"] == "10.0.0.1")
        #expect(config["endpoint"] == "italy-twenty.example.net:59750")
        #expect(config["dns"] == "1.1.1.1")
        #expect(config["allowed_ips"] == "0.0.0.0/0")

        for id in [config["device_id"], config["device_id"].uppercased()] {
            let beat = try ContractAgent.heartbeat(client, id)
            #expect(beat.status == 200)
            let answer = try JSONDecoder().decode(
                [String: String].self, from: Data(beat.body.bytes))
            for field in ContractAgent.payloadFields {
                #expect(answer[field] == config[field], "\(field)")
            }
        }
        // Another hardware id, or another salt, opens nothing.
        for (other, salt) in [("another", Self.salt), (hardwareID, "another salt")] {
            #expect(throws: (any Error).self) {
                try ContractAgent.config(response, hardwareID: other, salt: salt)
            }
        }
    }

    /// A row of the contract's table of errors, or of what HTTP and JSON can get wrong.
    struct Row: Sendable, CustomTestStringConvertible {
        var testDescription: String
        var body: String
        var status: Int
        var error: String

        init(_ description: String, _ body: String, _ error: String) {
            self.init(description, body, 400, error)
        }

        init(_ description: String, _ body: String, _ status: Int, _ error: String) {
            testDescription = description
            self.body = body
            self.status = status
            self.error = error
        }
    }

    static let uuid = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"

    static let rows: [Row] = [
        Row("no token", "{\"hwid\":\"a\"}", "invalid token format"),
        Row("an empty token", "{\"token\":\"\",\"hwid\":\"a\"}", "invalid token format"),
        Row("a token that is a number", "{\"token\":1,\"hwid\":\"a\"}", "invalid token format"),
        Row("a token that is null", "{\"token\":null,\"hwid\":\"a\"}", "invalid token format"),
        Row("a token that is no UUID", "{\"token\":\"t\",\"hwid\":\"a\"}", "invalid token format"),
        Row(
            "a UUID in braces", "{\"token\":\"{\(uuid)}\",\"hwid\":\"a\"}", "invalid token format"),
        Row(
            "a bad token and a bad hwid", "{\"token\":\"t\",\"hwid\":\"\"}", "invalid token format"),
        Row("a list", "[]", "invalid token format"),
        Row("no hwid", "{\"token\":\"\(uuid)\"}", "invalid hardware id"),
        Row("an empty hwid", "{\"token\":\"\(uuid)\",\"hwid\":\"\"}", "invalid hardware id"),
        Row("a hwid that is a number", "{\"token\":\"\(uuid)\",\"hwid\":7}", "invalid hardware id"),
        Row("a hwid that is null", "{\"token\":\"\(uuid)\",\"hwid\":null}", "invalid hardware id"),
        Row(
            "a hwid of 257 characters",
            "{\"token\":\"\(uuid)\",\"hwid\":\"\(String(repeating: "x", count: 257))\"}",
            "invalid hardware id"),
        Row(
            "a hwid of 257 emoji",
            "{\"token\":\"\(uuid)\",\"hwid\":\"\(String(repeating: "😀", count: 257))\"}",
            "invalid hardware id"),
        Row(
            "U+0000 in a hwid", "{\"token\":\"\(uuid)\",\"hwid\":\"a\\u0000\"}",
            "invalid hardware id"),
        Row(
            "a line feed in a hwid", "{\"token\":\"\(uuid)\",\"hwid\":\"a\\n\"}",
            "invalid hardware id"),
        Row("DEL in a hwid", "{\"token\":\"\(uuid)\",\"hwid\":\"\\u007f\"}", "invalid hardware id"),
        Row(
            "U+0085 in a hwid", "{\"token\":\"\(uuid)\",\"hwid\":\"a\\u0085\"}",
            "invalid hardware id"),
        Row(
            "U+2028 in a hwid", "{\"token\":\"\(uuid)\",\"hwid\":\"\\u2028\"}",
            "invalid hardware id"),
        Row("half of an emoji", "{\"token\":\"\(uuid)\",\"hwid\":\"\\ud83d\"}", "invalid json"),
        Row("nothing", "", "invalid json"),
        Row("not JSON", "token=\(uuid)", "invalid json"),
        Row("JSON that ends early", "{\"token\":\"\(uuid)\",\"hwid\":\"a\"", "invalid json"),
        Row(
            "a key twice", "{\"token\":\"\(uuid)\",\"hwid\":\"a\",\"hwid\":\"a\"}", "invalid json"),
        Row("a token nobody made", "{\"token\":\"\(uuid)\",\"hwid\":\"a\"}", 403, "token expired"),
    ]

    @Test("what is wrong is answered as the contract says, in its order of checks")
    func errors() throws {
        let server = try ContractServer()
        let client = try server.client()
        func expect(_ row: Row) throws {
            let found = try client.request("POST", "/api/v1/provision", body: row.body.utf8)
            #expect(found.status == row.status, "\(row.testDescription)")
            #expect(found.text == "{\"error\":\"\(row.error)\"}", "\(row.testDescription)")
            #expect(found.headers["content-type"] == "application/json")
        }
        for row in Self.rows { try expect(row) }
        let expired = try server.expiredToken()
        try expect(
            Row(
                "an expired token", "{\"token\":\"\(expired)\",\"hwid\":\"a\"}", 403,
                "token expired"))
        let used = try server.token()
        #expect(try ContractAgent.provision(client, used, "a").status == 200)
        for hardwareID in ["a", "b"] {
            try expect(
                Row(
                    "a used token", "{\"token\":\"\(used)\",\"hwid\":\"\(hardwareID)\"}",
                    "token already used"))
        }
        try expect(
            Row(
                "a used token and a bad hwid", "{\"token\":\"\(used)\",\"hwid\":\"\"}",
                "invalid hardware id"))
        // Nothing of this used a token or made a device.
        #expect(try server.deviceCount == 1)
    }

    @Test("other methods, other paths and too large bodies are told apart") func http() throws {
        let server = try ContractServer()
        for method in ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"] {
            let found = try server.client().request(method, "/api/v1/provision", body: [])
            #expect(found.status == 405)
            #expect(found.headers["allow"] == "POST")
        }
        for path in ["/api/v1/provision/", "/api/v1/provisions", "/api/v2/provision"] {
            #expect(try server.client().request("POST", path, body: "{}".utf8).status == 404)
        }
        let padding = String(repeating: "x", count: 65 << 10)
        let large = try server.client().request(
            "POST", "/api/v1/provision", body: "{\"token\":\"\(padding)\"}".utf8)
        #expect(large.status == 413)
        #expect(large.headers["content-type"] == "application/json")
    }

    @Test(
        "a hardware id may be of any printable characters, up to 256 of them",
        arguments: [
            "a", " ", "😀", "👨‍👩‍👧‍👦 phone", "é", "e\u{301}", "日本語", "\"quoted\\\"",
            String(repeating: "x", count: 256), String(repeating: "😀", count: 256),
        ])
    func hardwareIDs(hardwareID: String) throws {
        let server = try ContractServer()
        let client = try server.client()
        var devices: Set<String> = []
        for _ in 0..<2 {
            let response = try ContractAgent.provision(client, try server.token(), hardwareID)
            let config = try ContractAgent.config(
                response, hardwareID: hardwareID, salt: Self.salt)
            devices.insert(config["device_id"])
        }
        #expect(devices.count == 1)
    }

    @Test("hardware ids are compared byte by byte, and fields that came later are ignored")
    func bytes() throws {
        let server = try ContractServer()
        let client = try server.client()
        var devices: Set<String> = []
        let spellings = ["é", "e\u{301}", "A", "a", "a ", "ａ"]
        for hardwareID in spellings {
            let response = try ContractAgent.provision(client, try server.token(), hardwareID)
            devices.insert(
                try ContractAgent.config(response, hardwareID: hardwareID, salt: Self.salt)[
                    "device_id"])
        }
        #expect(devices.count == spellings.count)
        let token = try server.token().uppercased()
        let found = try client.request(
            "POST", "/api/v1/provision?source=qr",
            body: "{\"model\":{\"name\":[1]},\"hwid\":\"a\",\"token\":\"\(token)\"}".utf8)
        let config = try ContractAgent.config(found, hardwareID: "a", salt: Self.salt)
        #expect(devices.contains(config["device_id"]))
    }

    @Test("who comes again keeps id and address, gets new keys, and is answered with them at once")
    func again() throws {
        let server = try ContractServer(frontEnds: 2)
        let client = try server.client()
        let other = try server.client(1)
        let hardwareID = "phone-1"
        func provision() throws -> ContractAgent.Config {
            let response = try ContractAgent.provision(client, try server.token(), hardwareID)
            return try ContractAgent.config(response, hardwareID: hardwareID, salt: Self.salt)
        }
        let first = try provision()
        let id = first["device_id"]
        // On both, also where nobody has heard of it.
        for client in [client, other] {
            #expect(try ContractAgent.heartbeat(client, id).status == 200)
        }
        let second = try provision()
        #expect(second["device_id"] == id)
        #expect(second["internal_ip"] == first["internal_ip"])
        #expect(second["private_key"] != first["private_key"])
        #expect(second["preshared_key"] != first["preshared_key"])
        #expect(second["server_pub"] == first["server_pub"])
        // Where it came again the new keys are the next answer; elsewhere when word has come.
        #expect(try ContractAgent.heartbeat(client, id).text.contains(second["private_key"]))
        #expect(
            try eventually {
                try ContractAgent.heartbeat(other, id).text.contains(second["private_key"])
            })
        #expect(try server.deviceCount == 1)
    }

    @Test("a suspended device stays suspended when it comes again, until it is resumed")
    func suspended() throws {
        let server = try ContractServer()
        let client = try server.client()
        func provision() throws -> ContractAgent.Config {
            let response = try ContractAgent.provision(client, try server.token(), "tablet")
            return try ContractAgent.config(response, hardwareID: "tablet", salt: Self.salt)
        }
        let id = try provision()["device_id"]
        try server.suspend(id)
        func isSuspended() throws -> Bool {
            let found = try ContractAgent.heartbeat(client, id)
            return found.status == 403 && found.text == "{\"error\":\"device is suspended\"}"
        }
        #expect(try eventually { try isSuspended() })
        let again = try provision()
        #expect(again["device_id"] == id)
        #expect(try isSuspended())
        try server.resume(id)
        #expect(
            try eventually {
                try ContractAgent.heartbeat(client, id).text.contains(again["private_key"])
            })
    }

    @Test("the placeholder \"unknown\" is nobody's id: each token makes a new device")
    func placeholder() throws {
        let server = try ContractServer()
        let client = try server.client()
        var devices: Set<String> = []
        for token in try server.tokens(3) {
            let response = try ContractAgent.provision(client, token, "unknown")
            devices.insert(
                try ContractAgent.config(response, hardwareID: "unknown", salt: Self.salt)[
                    "device_id"])
        }
        #expect(devices.count == 3)
    }

    @Test("of 1,000 requests racing with one token one wins, on two front-ends") func oneToken()
        throws
    {
        let server = try ContractServer(frontEnds: 2)
        let token = try server.token()
        let answers = try ContractAgent.race(
            (0..<1_000).map { (token, "racer-\($0 % 7)") }, connections: 100
        ) { try server.client($0 % 2) }
        #expect(answers.count { $0.status == 200 } == 1)
        #expect(
            answers.count {
                $0.status == 400 && $0.text == "{\"error\":\"token already used\"}"
            } == 999)
        #expect(try server.deviceCount == 1)
    }

    @Test("1,000 agents at once get 1,000 addresses, on two front-ends") func addresses() throws {
        let server = try ContractServer(frontEnds: 2)
        let requests = try server.tokens(1_000).enumerated().map { ($1, "agent-\($0)") }
        let answers = try ContractAgent.race(requests, connections: 100) {
            try server.client($0 % 2)
        }
        var devices: Set<String> = []
        var addresses: Set<String> = []
        for (request, answer) in zip(requests, answers) {
            let config = try ContractAgent.config(answer, hardwareID: request.1, salt: Self.salt)
            devices.insert(config["device_id"])
            addresses.insert(config["internal_ip"])
        }
        #expect(devices.count == 1_000)
        #expect(addresses.count == 1_000)
        // Any front-end knows all of them at once.
        let client = try server.client(0)
        for device in devices {
            #expect(try ContractAgent.heartbeat(client, device).status == 200)
        }
    }

    @Test("agents of one hardware that race are one device") func oneHardware() throws {
        let server = try ContractServer(frontEnds: 2)
        let requests = try server.tokens(300).map { ($0, "the same") }
        let answers = try ContractAgent.race(requests, connections: 100) {
            try server.client($0 % 2)
        }
        var devices: Set<String> = []
        var keys: Set<String> = []
        for answer in answers {
            let config = try ContractAgent.config(answer, hardwareID: "the same", salt: Self.salt)
            devices.insert(config["device_id"])
            keys.insert(config["private_key"])
        }
        #expect(devices.count == 1)
        #expect(keys.count == 300)
        #expect(try server.deviceCount == 1)
    }

    @Test("a full prefix is 500, and the token stays good") func fullPrefix() throws {
        let server = try ContractServer(prefix: "10.9.9.0/30")
        let client = try server.client()
        #expect(try ContractAgent.provision(client, try server.token(), "first").status == 200)
        let token = try server.token()
        for _ in 0..<2 {
            let found = try ContractAgent.provision(client, token, "second")
            #expect(found.status == 500)
            #expect(found.text == "{\"error\":\"provisioning failed\"}")
        }
        // Who has an address needs none: the token is good for that one.
        #expect(try ContractAgent.provision(client, token, "first").status == 200)
    }

    @Test("without its database the server answers 500, and afterwards everything is as it was")
    func databaseAway() throws {
        let postgres = try TestServer()
        defer { postgres.remove() }
        let server = try ContractServer(database: try postgres.makeDatabase())
        let client = try server.client()
        let tokens = try server.tokens(2)
        let answer = try ContractAgent.provision(client, tokens[0], "here")
        let config = try ContractAgent.config(answer, hardwareID: "here", salt: Self.salt)
        #expect(try ContractAgent.heartbeat(client, config["device_id"]).status == 200)
        postgres.stop()
        let away = try ContractAgent.provision(client, tokens[1], "later")
        #expect(away.status == 500)
        #expect(away.text == "{\"error\":\"provisioning failed\"}")
        let beat = try ContractAgent.heartbeat(client, Self.uuid)
        #expect(beat.status == 500)
        #expect(beat.text == "{\"error\":\"heartbeat failed\"}")
        try postgres.start()
        #expect(
            try eventually(milliseconds: 60_000) {
                try ContractAgent.provision(client, tokens[1], "later").status == 200
            })
    }

    @Test("the heartbeat's rows hold for a device that was provisioned") func heartbeats() throws {
        let server = try ContractServer()
        let client = try server.client()
        var devices: [String] = []
        for hardwareID in ["one", "two"] {
            let response = try ContractAgent.provision(client, try server.token(), hardwareID)
            devices.append(
                try ContractAgent.config(response, hardwareID: hardwareID, salt: Self.salt)[
                    "device_id"])
        }
        try server.suspend(devices[1])
        #expect(try eventually { try ContractAgent.heartbeat(client, devices[1]).status == 403 })
        let contract = HeartbeatContract(
            host: server.address.host, port: server.address.port, device: devices[0],
            suspended: devices[1])
        for example in contract.cases {
            let fault = try contract.check(example)
            #expect(fault == nil, "\(example)")
        }
        let fault = try contract.checkAnswer()
        #expect(fault == nil)
    }
}
