import Bytes
import Foundation
import HTTP
import Ingest
import Metrics
import Postgres
import Schemas
import TestSupport
import Testing

/// A front-end whose operators' listener takes a token.
struct AdminRig {
    static let token = String(repeating: "t0ken-", count: 8)
    let rig: Rig
    let client: RawClient

    /// - Parameter updates: where downloads are kept; `nil`: the update routes are not there.
    init(devices: Int = 1, database: TestDatabase? = nil, updates: String? = nil) throws {
        rig = try Rig(database: database, devices: devices) {
            $0.adminToken = try? AdminToken(Self.token)
            $0.metrics = MetricsAccess(MetricsSources(), tokens: [$0.adminToken])
            $0.salt = Array("a salt of a good length".utf8)
            $0.proximity = ProximitySettings()
            $0.sockets = SocketSettings()
            $0.updates = updates.map { UpdateSettings(directory: $0) }
        }
        client = try Self.connect(rig)
    }

    static func connect(_ rig: Rig) throws -> RawClient {
        let address = rig.frontEnd.adminAddress!
        return try RawClient(host: address.host, port: address.port)
    }

    func ask(
        _ method: String, _ path: String, _ body: String = "", id: String? = nil,
        actor: String? = nil, token: String? = token
    ) throws -> RawResponse {
        var headers = ["Content-Type: application/json"]
        if let token { headers.append("Authorization: Bearer \(token)") }
        if let id { headers.append("Idempotency-Key: \(id)") }
        if let actor { headers.append("X-Heartline-Actor: \(actor)") }
        return try client.request(method, path, body: body.utf8, headers: headers)
    }

    func object(_ response: RawResponse) throws -> [String: Any] {
        let value = try JSONSerialization.jsonObject(with: Data(response.body.bytes))
        return try #require(value as? [String: Any], "\(response.text)")
    }
}

@Suite("Operators' HTTP") struct AdminAPITests {
    @Test("health needs no token, everything else does; a wrong one is told so, and then to stop")
    func authentication() throws {
        let rig = try AdminRig()
        let path = "/admin/v1/devices"
        #expect(try rig.ask("GET", "/healthz", token: nil).status == 200)
        #expect(try rig.ask("GET", path).status == 200)
        let refused = try rig.ask("GET", path, token: nil)
        #expect(refused.status == 401)
        #expect(refused.headers["www-authenticate"] == "Bearer realm=\"heartline\"")
        #expect(refused.text == "{\"error\":\"a bearer token is needed\"}")
        // What there is, is not told either.
        #expect(try rig.ask("GET", "/admin/v1/nothing", token: nil).status == 401)
        #expect(try rig.ask("PATCH", path, token: nil).status == 401)
        for wrong in ["", "x", AdminRig.token + "x", String(AdminRig.token.dropLast())] {
            #expect(try rig.ask("GET", path, token: wrong).status != 200)
        }
        var statuses: [Int] = []
        for _ in 0..<12 { statuses.append(try rig.ask("GET", path, token: "wrong").status) }
        #expect(statuses.last == 429)
        let stopped = try rig.ask("GET", path, token: "wrong")
        #expect(stopped.status == 429)
        #expect(Int(stopped.headers["retry-after"] ?? "") ?? 0 >= 1)
        // Somebody's old script on this machine does not lock out the operator beside it.
        #expect(try rig.ask("GET", path).status == 200)
        let basic = try rig.client.request(
            "GET", path, body: [], headers: ["Authorization: Basic \(AdminRig.token)"])
        #expect(basic.status == 429)
        let lower = try rig.client.request(
            "GET", path, body: [], headers: ["authorization: bearer \(AdminRig.token)"])
        #expect(lower.status == 200)
    }

    @Test("without a token of its own the listener tells the health only")
    func healthOnly() throws {
        let rig = try Rig()
        #expect(try rig.admin("/readyz").status == 200)
        #expect(try rig.admin("/admin/v1/devices").status == 404)
    }

    @Test("tokens that can be guessed or cannot stand in a header are refused")
    func weakTokens() {
        for text in ["", "short", String(repeating: "a", count: 31), "a b" + AdminRig.token] {
            #expect(throws: SecretError.self) { try AdminToken(text) }
        }
    }

    @Test("devices are added, shown, changed and removed")
    func devices() throws {
        let rig = try AdminRig()
        let added = try rig.ask("POST", "/admin/v1/devices", "{\"count\":3}", actor: "ada")
        #expect(added.status == 201)
        let ids = try #require(try rig.object(added)["device_ids"] as? [String])
        #expect(ids.count == 3)
        #expect(try rig.ask("POST", "/admin/v1/devices").status == 201)

        var seen: [String] = []
        var next: String? = ""
        while let after = next {
            let page = try rig.object(
                try rig.ask(
                    "GET", "/admin/v1/devices?limit=2\(after.isEmpty ? "" : "&after=\(after)")"))
            let devices = try #require(page["devices"] as? [[String: Any]])
            seen += devices.compactMap { $0["device_id"] as? String }
            next = page["next"] as? String
        }
        #expect(seen.count == 5)
        #expect(seen == seen.sorted())

        let path = "/admin/v1/devices/\(ids[0].uppercased())"
        let change = try rig.ask("POST", "\(path)/suspend")
        #expect(change.status == 200)
        #expect(
            change.text == "{\"changed\":true,\"device_id\":\"\(ids[0])\",\"version\":2}")
        let device = try rig.object(try rig.ask("GET", path))
        #expect(device["suspended"] as? Bool == true)
        #expect(device["version"] as? Int == 2)
        #expect(try rig.ask("POST", "\(path)/resume").status == 200)
        #expect(try rig.ask("POST", "\(path)/rotate").status == 200)
        #expect(
            try rig.ask("PUT", "\(path)/interval", "{\"expected_interval_ms\":60000}").status
                == 200)
        #expect(
            try rig.object(try rig.ask("GET", path))["expected_interval_ms"] as? Int == 60_000)
        #expect(
            try rig.ask("PUT", "\(path)/interval", "{\"expected_interval_ms\":null}").status
                == 200)
        #expect(try rig.object(try rig.ask("GET", path))["expected_interval_ms"] == nil)
        #expect(try rig.ask("DELETE", path).status == 200)
        #expect(try rig.ask("GET", path).status == 404)
        #expect(try rig.ask("DELETE", path).status == 404)
        #expect(try rig.ask("GET", "/admin/v1/devices/none").status == 404)

        let audit = try rig.object(try rig.ask("GET", "/admin/v1/audit?limit=100"))
        let entries = try #require(audit["entries"] as? [[String: Any]])
        #expect(
            entries.compactMap { $0["action"] as? String }
                == [
                    "device.remove", "device.interval", "device.interval", "device.rotate",
                    "device.resume", "device.suspend", "device.add", "device.add",
                    "device.add",
                ].suffix(entries.count))
        #expect(entries.first?["actor"] as? String == "admin")
        let named = entries.filter { $0["actor"] as? String == "ada" }
        #expect(named.count == 1)
        #expect((named.first?["details"] as? [String: Any])?["count"] as? Int == 3)
        let of = try rig.object(try rig.ask("GET", "/admin/v1/audit?entity=\(ids[0])&limit=2"))
        #expect((of["entries"] as? [Any])?.count == 2)
        #expect(of["next"] as? Int != nil)
    }

    @Test("forwards and tokens over HTTP")
    func forwardsAndTokens() throws {
        let rig = try AdminRig()
        let path = "/admin/v1/devices/\(rig.rig.devices[0])/forwards"
        let web = """
            {"protocol":"tcp","listen_port":8080,"target_host":"10.0.0.5","target_port":80}
            """
        #expect(try rig.ask("GET", path).text == "{\"forwards\":[]}")
        #expect(try rig.ask("POST", path, web).status == 200)
        #expect(try rig.object(try rig.ask("POST", path, web))["changed"] as? Bool == false)
        let conflict = try rig.ask("POST", path, web.replacing("10.0.0.5", with: "10.0.0.6"))
        #expect(conflict.status == 409)
        #expect(conflict.text.contains("is there already"))
        #expect(try rig.ask("PUT", path, "{\"forwards\":[\(web),\(web)]}").status == 200)
        let listed = try rig.object(try rig.ask("GET", path))
        #expect((listed["forwards"] as? [Any])?.count == 1)
        #expect(try rig.ask("DELETE", path).status == 400)
        #expect(
            try rig.ask("DELETE", "\(path)?protocol=udp&listen_port=8080").status == 404)
        #expect(
            try rig.ask("DELETE", "\(path)?protocol=tcp&listen_port=8080").status == 200)
        #expect(try rig.ask("PUT", path, "{\"forwards\":[]}").status == 200)

        let made = try rig.ask(
            "POST", "/admin/v1/tokens", "{\"count\":2,\"ttl_ms\":60000,\"note\":\"n\"}", id: "t-1")
        #expect(made.status == 201)
        #expect(
            try rig.ask(
                "POST", "/admin/v1/tokens", "{\"note\":\"n\",\"ttl_ms\":60000,\"count\":2}",
                id: "t-1"
            ).text == made.text)
        let tokens = try #require(try rig.object(made)["tokens"] as? [[String: String]])
        let id = try #require(tokens[0]["token_id"])
        let secret = try #require(tokens[0]["token"])
        #expect(DeviceID(secret) != nil)
        let list = try rig.ask("GET", "/admin/v1/tokens")
        #expect(list.text.contains(id))
        #expect(!list.text.contains(secret))
        #expect(try rig.ask("DELETE", "/admin/v1/tokens/\(secret)").status == 404)
        #expect(try rig.ask("DELETE", "/admin/v1/tokens/\(id)").status == 200)
        #expect(try rig.ask("DELETE", "/admin/v1/tokens/x").status == 404)
        #expect(!(try rig.ask("GET", "/admin/v1/audit").text.contains(secret)))
    }

    @Test("a request is done once, and its key is good for no other")
    func idempotency() throws {
        let rig = try AdminRig()
        let path = "/admin/v1/devices/\(rig.rig.devices[0])"
        let first = try rig.ask("POST", "\(path)/rotate", id: "k-1")
        #expect(try rig.ask("POST", "\(path)/rotate", id: "k-1").text == first.text)
        #expect(try rig.object(try rig.ask("GET", path))["version"] as? Int == 2)
        let other = try rig.ask("POST", "\(path)/suspend", id: "k-1")
        #expect(other.status == 409)
        #expect(other.text.contains("k-1 was used for another request"))
        #expect(try rig.ask("POST", "\(path)/rotate", id: "a b").status == 400)
        #expect(
            try rig.ask("POST", "\(path)/rotate", actor: String(repeating: "a", count: 101)).status
                == 400)
    }

    @Test(
        "bodies of a wrong shape are refused with what is wrong, and change nothing",
        arguments: [
            ("POST", "", "[]", "the body is not a JSON object"),
            ("POST", "", "{", "invalid json"),
            ("POST", "", "{\"count\":1,\"count\":2}", "the body repeats a key"),
            ("POST", "", "{\"count\":\"1\"}", "\"count\" is not a whole number"),
            ("POST", "", "{\"count\":true}", "\"count\" is not a whole number"),
            ("POST", "", "{\"count\":1.5}", "a number is not one that its field can have"),
            ("POST", "", "{\"count\":0}", "\"count\" is 1 to 10000"),
            ("POST", "", "{\"count\":100000000000000000000000}", "invalid json"),
            ("POST", "", "{\"cuont\":1}", "unknown field \"cuont\"; there are: count, "),
            ("POST", "", "{\"expected_interval_ms\":999}", "is not 1 s to 7 d"),
            ("POST", "", "{\"expected_interval_ms\":9223372036854775807}", "is not 1 s to 7 d"),
            ("PUT", "/ID/interval", "", "invalid json"),
            ("PUT", "/ID/interval", "{}", "\"expected_interval_ms\" is missing"),
            ("PUT", "/ID/interval", "{\"expected_interval_ms\":\"60s\"}", "not a whole number"),
            ("PUT", "/ID/interval", "{\"expected_interval_ms\":1}", "is 1000 to 604800000"),
            ("PUT", "/ID/forwards", "{}", "\"forwards\" is missing"),
            ("PUT", "/ID/forwards", "{\"forwards\":{}}", "\"forwards\" is not"),
            ("PUT", "/ID/forwards", "{\"forwards\":[1]}", "\"forwards[0]\" is not"),
            (
                "PUT", "/ID/forwards", "{\"forwards\":[{\"protocol\":\"tcp\"}]}",
                "\"forwards[0].listen_port\" is missing"
            ),
            (
                "POST", "/ID/forwards",
                "{\"protocol\":\"tcp\",\"listen_port\":70000,\"target_host\":\"a\",\"target_port\":1}",
                "a number is not one that its field can have"
            ),
            (
                "POST", "/ID/forwards",
                "{\"protocol\":\"tcp\",\"listen_port\":0,\"target_host\":\"a\",\"target_port\":1}",
                "a port is a number from 1 to 65535"
            ),
            (
                "POST", "/ID/forwards",
                "{\"protocol\":\"sctp\",\"listen_port\":1,\"target_host\":\"a\",\"target_port\":1}",
                "tcp or udp"
            ),
        ])
    func badBodies(method: String, path: String, body: String, message: String) throws {
        let rig = try AdminRig()
        let path = path.replacing("ID", with: "\(rig.rig.devices[0])")
        let response = try rig.ask(method, "/admin/v1/devices\(path)", body)
        #expect(response.status == 400, "\(response.text)")
        let error = try #require(try rig.object(response)["error"] as? String)
        #expect(error.contains(message), "\(error)")
        #expect(try rig.rig.registry.deviceCount == 1)
        #expect(try rig.rig.registry.device(rig.rig.devices[0])?.version == 1)
    }

    @Test("queries, paths and methods that are not there are refused")
    func badRequests() throws {
        let rig = try AdminRig()
        let devices = "/admin/v1/devices"
        for query in ["limit=0", "limit=1001", "limit=x", "after=x", "limit=1&limit=2", "a=%zz"] {
            #expect(try rig.ask("GET", "\(devices)?\(query)").status == 400, "\(query)")
        }
        #expect(try rig.ask("GET", "/admin/v1/audit?before=0").status == 400)
        for path in [
            "/admin/", "/admin/v1", "/admin/v1/devices/", "/admin/v1//devices", "/admin/v2/devices",
        ] {
            let status = try rig.ask("GET", path).status
            #expect(status == 404, "\(path)")
        }
        let method = try rig.ask("PATCH", devices)
        #expect(method.status == 405)
        #expect(method.headers["allow"] == "GET, POST")
        let large = try rig.ask(
            "POST", devices, "{\"a\":\"\(String(repeating: "a", count: 70_000))\"}")
        #expect(large.status == 413)
    }

    @Test("while the database is away operators are told so, and it goes on by itself afterwards")
    func outage() throws {
        let server = try TestServer()
        defer { server.remove() }
        let database = try server.makeDatabase(isMigrated: true)
        let rig = try AdminRig(database: database)
        let path = "/admin/v1/devices/\(rig.rig.devices[0])"
        #expect(try rig.ask("POST", "\(path)/suspend").status == 200)
        server.stop()
        let away = try rig.ask("POST", "\(path)/resume", id: "o-1")
        #expect(away.status == 503)
        #expect(away.headers["retry-after"] != nil)
        #expect(away.text.contains("the database does not answer"))
        #expect(try rig.ask("GET", "/healthz").status == 200)
        try server.start()
        let isBack = try eventually {
            try rig.ask("POST", "\(path)/resume", id: "o-1").status == 200
        }
        #expect(isBack)
        let version = try rig.object(try rig.ask("GET", path))["version"] as? Int
        #expect(version == 3)
    }

    @Test("more requests than may wait are answered 503 at once, and health is told all the same")
    func overload() throws {
        let rig = try AdminRig()
        let path = "/admin/v1/devices/\(rig.rig.devices[0])/rotate"
        let connection = try rig.rig.database.connect()
        try connection.run("BEGIN; SELECT 1 FROM heartline.network FOR UPDATE")
        var clients: [RawClient] = []
        // One is at work, 64 wait.
        for _ in 0..<70 {
            let client = try AdminRig.connect(rig.rig)
            try client.sendRequest(
                "POST", path, body: [], headers: ["Authorization: Bearer \(AdminRig.token)"])
            clients.append(client)
        }
        let areRefused = try eventually {
            clients.filter { $0.hasAnswer(milliseconds: 0) }.count >= 5
        }
        #expect(areRefused)
        #expect(try rig.ask("GET", "/healthz").status == 200)
        let refused = clients.filter { $0.hasAnswer(milliseconds: 0) }
        try connection.run("COMMIT")
        for client in refused {
            let response = try client.response()
            #expect(response.status == 503)
            #expect(response.headers["retry-after"] != nil)
        }
        let others = clients.filter { client in !refused.contains { $0 === client } }
        for client in others { #expect(try client.response().status == 200) }
        #expect(try rig.rig.registry.device(rig.rig.devices[0])?.version == Int64(others.count) + 1)
    }

    @Test("a stopping listener finishes what it was asked")
    func stopping() throws {
        let rig = try AdminRig()
        let path = "/admin/v1/devices/\(rig.rig.devices[0])/rotate"
        let connection = try rig.rig.database.connect()
        // Holds the registry's lock, so that the request has to wait.
        try connection.run("BEGIN; SELECT 1 FROM heartline.network FOR UPDATE")
        try rig.client.sendRequest(
            "POST", path, body: [], headers: ["Authorization: Bearer \(AdminRig.token)"])
        let isWaiting = try eventually {
            try rig.rig.database.connect().execute(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            ).only().int8(0) > 0
        }
        #expect(isWaiting)
        try connection.run("COMMIT")
        rig.rig.frontEnd.stop()
        #expect(try rig.client.response().status == 200)
    }
}
