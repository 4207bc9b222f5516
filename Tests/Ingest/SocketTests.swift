import Bytes
import HTTP
import Ingest
import Postgres
import Schemas
import System
import TestSupport
import Testing

@Suite("Phones' sockets") struct SocketTests {
    @Test("without an upgrade 426, without a session 401, by another method 405")
    func refusals() throws {
        let rig = try PhoneRig()
        let account = try rig.addAccount()
        let token = try rig.addSession(of: account)
        let plain = try rig.refusal(["Authorization: Bearer \(token)"])
        #expect(plain.status == 426)
        #expect(plain.headers["upgrade"] == "websocket")
        #expect(try rig.refusal(SocketClient.headers(token: nil)).status == 401)
        let unknown = try rig.refusal(
            SocketClient.headers(token: String(repeating: "x", count: 43)))
        #expect(unknown.status == 401)
        #expect(unknown.text == "{\"error\":\"unauthorized\"}")
        #expect(unknown.headers["www-authenticate"] == "Bearer")
        #expect(try rig.refusal(SocketClient.headers(token: "short")).status == 401)
        let expired = try rig.addSession(of: account, seconds: -1)
        #expect(try rig.refusal(SocketClient.headers(token: expired)).status == 401)
        #expect(try rig.refusal(SocketClient.headers(token: token), method: "POST").status == 405)
        #expect(try rig.refusal(SocketClient.headers(token: token), path: "/wss").status == 404)
        _ = try rig.open(token)
    }

    @Test("a ping of the client's is answered with pong, and anything else with nothing")
    func pings() throws {
        let rig = try PhoneRig()
        let token = try rig.addSession(of: try rig.addAccount())
        let socket = try rig.open(token)
        for text in [
            "ping", "{\"type\":\"ping\"}", "{\"at\": 1, \"type\" : \"ping\", \"x\": [{}]}",
        ] {
            try socket.send(text: text)
            #expect(try socket.text() == "{\"type\":\"pong\"}")
        }
        for text in [
            "", "hello", "{\"type\":\"pong\"}", "{\"type\":", "[\"ping\"]", "{\"type\":[\"ping\"]}",
            String(repeating: "x", count: 2_000), "{\"type\":\"wave\"}",
        ] {
            try socket.send(text: text)
        }
        try socket.send(text: "ping")
        #expect(try socket.text() == "{\"type\":\"pong\"}")
        #expect(try socket.isQuiet(milliseconds: 100))
    }

    @Test("a silent client stays as long as it answers pings, and goes when it misses two")
    func silence() throws {
        let rig = try PhoneRig { $0.pingMilliseconds = 100 }
        let token = try rig.addSession(of: try rig.addAccount())
        let silent = try rig.open(token)
        let dead = try rig.open(token)
        dead.answersPings = false
        #expect(try silent.isQuiet(milliseconds: 1_500))
        try silent.send(text: "ping")
        #expect(try silent.text() == "{\"type\":\"pong\"}")
        #expect(try dead.closeCode() == 1011)
    }

    @Test("a push reaches every socket of the account on every front-end, and no one else's")
    func everySocket() throws {
        let rig = try PhoneRig()
        let other = try PhoneRig(database: rig.rig.database)
        let (anna, bert) = (try rig.addAccount(), try rig.addAccount())
        let token = try rig.addSession(of: anna)
        let second = try rig.addSession(of: anna)
        let sockets = [
            try rig.open(token), try rig.open(second), try other.open(token),
            try other.open(second),
        ]
        let stranger = try other.open(try rig.addSession(of: bert))
        var earlier: Set<String> = []
        for number in 1...20 {
            let push = try rig.addPush(to: anna, of: bert, body: "{\"n\":\(number)}")
            rig.log.ring(anna)
            other.log.ring(anna)
            for socket in sockets {
                // At least once: what came before may come again.
                var text = try socket.text()
                while earlier.contains(text) { text = try socket.text() }
                #expect(text == "{\"n\":\(number)}")
            }
            earlier.insert("{\"n\":\(number)}")
            if number == 20 {
                #expect(
                    try eventually {
                        // Their answers to the marks come while they wait for something.
                        for socket in sockets { _ = try socket.isQuiet(milliseconds: 1) }
                        return try rig.isDelivered(push)
                    })
            }
        }
        #expect(try stranger.isQuiet(milliseconds: 50))
        #expect(rig.frontEnd.pushCounters.map { $0.sent.value >= 40 } == true)
    }

    @Test("who was away gets on connection what was missed, and what was confirmed not again")
    func away() throws {
        let rig = try PhoneRig()
        let (anna, bert) = (try rig.addAccount(), try rig.addAccount())
        let token = try rig.addSession(of: anna)
        try rig.addPush(to: anna, of: bert, .mutual, body: "{\"n\":\"old\"}", age: 90_000)
        try rig.addPush(to: anna, of: bert, .mutual, body: "{\"n\":1}", age: 5_000)
        let message = try rig.addPush(to: anna, of: bert, .message, body: "{\"n\":2}", age: 4_000)
        let first = try rig.open(token)
        #expect(try first.text() == "{\"n\":1}")
        #expect(try first.text() == "{\"n\":2}")
        #expect(
            try eventually {
                _ = try first.isQuiet(milliseconds: 1)
                return try rig.isDelivered(message)
            })
        let second = try rig.open(token)
        #expect(try second.text() == "{\"n\":1}")
        #expect(try second.isQuiet(milliseconds: 100))
        // With what it had last, a client gets what came after it, confirmed or not.
        let third = try rig.open(token, path: "/ws?after=\(message)")
        #expect(try third.isQuiet(milliseconds: 100))
        try rig.addPush(to: anna, of: bert, .message, body: "{\"n\":3}")
        let fourth = try rig.open(token, path: "/ws?x=1&after=\(message)")
        #expect(try fourth.text() == "{\"n\":3}")
        for cursor in ["00000000-0000-4000-8000-000000000000", "nonsense", ""] {
            let lost = try rig.open(token, path: "/ws?after=\(cursor)")
            #expect(try lost.text() == "{\"type\":\"resync\"}")
            #expect(try lost.text() == "{\"n\":1}")
        }
    }

    @Test("thousands of missed messages come whole and in order")
    func backlog() throws {
        let rig = try PhoneRig()
        let (anna, bert) = (try rig.addAccount(), try rig.addAccount())
        try rig.connection.execute(
            """
            INSERT INTO heartline.pushes (account_id, push_id, peer, kind, body, created_at) \
            SELECT $1, gen_random_uuid(), $2, 'message', \
            '{"n":' || n || ',"x":"' || repeat('x', 1000) || '"}', \
            now() - interval '1 hour' + n * interval '1 ms' FROM generate_series(1, 3000) n
            """, .uuid(anna.high, anna.low), .uuid(bert.high, bert.low))
        let socket = try rig.open(try rig.addSession(of: anna))
        for number in 1...3_000 {
            let text = try socket.text()
            guard text.hasPrefix("{\"n\":\(number),") else {
                Issue.record("\(text.prefix(20)) where \(number) was expected")
                return
            }
        }
        #expect(try socket.isQuiet(milliseconds: 50))
    }

    @Test("from a block on, in either direction, nothing of the other side is pushed")
    func blocks() throws {
        let rig = try PhoneRig()
        let (anna, bert, carl) = (
            try rig.addAccount(), try rig.addAccount(), try rig.addAccount()
        )
        let token = try rig.addSession(of: anna)
        // More than a question brings: what may not be sent must not stand in the way of the rest.
        for _ in 0..<100 { try rig.addPush(to: anna, of: bert, body: "{\"n\":\"bert\"}", age: 60) }
        try rig.addPush(to: anna, of: carl, .message, body: "{\"n\":\"carl\"}", age: 60)
        try rig.block(bert, by: anna)
        try rig.block(anna, by: carl)
        let socket = try rig.open(token)
        try rig.addPush(to: anna, of: bert, body: "{\"n\":\"bert\"}")
        try rig.addPush(to: anna, of: carl, body: "{\"n\":\"carl\"}")
        rig.log.ring(anna)
        let dora = try rig.addAccount()
        try rig.addPush(to: anna, of: dora, body: "{\"n\":\"dora\"}")
        rig.log.ring(anna)
        #expect(try socket.text() == "{\"n\":\"dora\"}")
        let second = try rig.open(token)
        #expect(try second.text() == "{\"n\":\"dora\"}")
        let third = try rig.open(token, path: "/ws?after=00000000-0000-4000-8000-000000000000")
        #expect(try third.text() == "{\"type\":\"resync\"}")
        #expect(try third.text() == "{\"n\":\"dora\"}")
        for socket in [socket, second, third] { #expect(try socket.isQuiet(milliseconds: 50)) }
    }

    @Test("a revoked session's sockets are closed with 1008, and no others")
    func revocation() throws {
        let rig = try PhoneRig()
        let other = try PhoneRig(database: rig.rig.database)
        let account = try rig.addAccount()
        let revoked = try rig.addSession(of: account)
        let kept = try rig.addSession(of: account)
        let closing = [
            try rig.open(revoked), try rig.open(revoked), try other.open(revoked),
        ]
        let staying = [try rig.open(kept), try other.open(kept)]
        try rig.revoke(revoked)
        for socket in closing { #expect(try socket.closeCode() == 1008) }
        for socket in staying {
            try socket.send(text: "ping")
            #expect(try socket.text() == "{\"type\":\"pong\"}")
        }
        #expect(try rig.refusal(SocketClient.headers(token: revoked)).status == 401)
        // Erasing the account ends its sessions.
        try rig.connection.execute(
            "DELETE FROM heartline.accounts WHERE account_id = $1",
            .uuid(account.high, account.low))
        for socket in staying { #expect(try socket.closeCode() == 1008) }
    }

    @Test("a session that expires while its socket is open closes it")
    func expiry() throws {
        let rig = try PhoneRig()
        let token = try rig.addSession(of: try rig.addAccount(), seconds: 1.5)
        let socket = try rig.open(token)
        #expect(try socket.closeCode() == 1008)
    }

    @Test("a client that does not read is closed, and others get everything at once")
    func slow() throws {
        let rig = try PhoneRig { $0.limits.slowMilliseconds = 1_000 }
        let (anna, bert) = (try rig.addAccount(), try rig.addAccount())
        let token = try rig.addSession(of: anna)
        let slow = try rig.open(token, receiveBuffer: 4_096)
        let fast = try rig.open(token)
        let body = "{\"x\":\"\(String(repeating: "x", count: 50_000))\"}"
        for _ in 0..<100 {
            try rig.addPush(to: anna, of: bert, .message, body: body)
            rig.log.ring(anna)
            #expect(try fast.text() == body)
        }
        // It is told so behind what it had been sent.
        #expect(try slow.closeCode() == 1013)
    }

    @Test("the oldest of an account's sockets goes for a ninth, and a full front-end refuses")
    func limits() throws {
        let rig = try PhoneRig { $0.sockets = 10 }
        let account = try rig.addAccount()
        let token = try rig.addSession(of: account)
        let sockets = try (0..<9).map { _ in try rig.open(token) }
        #expect(try sockets[0].closeCode() == 4001)
        for socket in sockets.dropFirst() {
            try socket.send(text: "ping")
            #expect(try socket.text() == "{\"type\":\"pong\"}")
        }
        let other = try rig.addSession(of: try rig.addAccount())
        let more = (0..<2).map { _ in try? rig.open(other) }
        let refused = try rig.refusal(SocketClient.headers(token: other))
        #expect(refused.status == 503)
        #expect(refused.headers["retry-after"] != nil)
        withExtendedLifetime((sockets, more)) {}
    }

    @Test("a front-end that ends closes its sockets with 1001")
    func drain() throws {
        let rig = try PhoneRig()
        let token = try rig.addSession(of: try rig.addAccount())
        let socket = try rig.open(token)
        let frontEnd = rig.frontEnd
        let ending = SystemThread.start("ending") { frontEnd.stop() }
        #expect(try socket.closeCode() == 1001)
        ending.join()
    }

    @Test("without doorbells pushes come with the sweep")
    func sweep() throws {
        let rig = try PhoneRig { $0.limits.sweepMilliseconds = 300 }
        let (anna, bert) = (try rig.addAccount(), try rig.addAccount())
        let socket = try rig.open(try rig.addSession(of: anna))
        for number in 1...3 {
            try rig.addPush(to: anna, of: bert, body: "{\"n\":\(number)}")
            #expect(try socket.text() == "{\"n\":\(number)}")
        }
    }

    @Test("a lost database delays pushes and loses none; sockets stay open")
    func databaseAway() throws {
        let rig = try PhoneRig()
        let (anna, bert) = (try rig.addAccount(), try rig.addAccount())
        let socket = try rig.open(try rig.addSession(of: anna))
        for number in 1...5 {
            try rig.connection.execute(
                """
                SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                WHERE datname = current_database() AND application_name LIKE 'heartline %'
                """)
            try rig.addPush(to: anna, of: bert, body: "{\"n\":\(number)}")
            rig.log.ring(anna)
            #expect(try socket.text() == "{\"n\":\(number)}")
        }
    }
}
