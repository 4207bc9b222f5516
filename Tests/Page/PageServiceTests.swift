import Bytes
import Page
import Postgres
import Schemas
import System
import TestSupport
import Testing

@Suite("The page over HTTP") struct PageServiceTests {
    static let documents = [
        "/", "/search?q=0a", "/states/stale", "/devices/\(HTMLTests.device)",
    ]
    static let streams = ["/live", "/devices/\(HTMLTests.device)/live"]

    @Test("nothing is shown to who shows nothing, a wrong token, a wrong cookie")
    func refusals() throws {
        let rig = try PageRig()
        let wrong = [
            [], ["Authorization: Bearer wrong"], ["Authorization: Basic eDp5"],
            ["Cookie: heartline-\(rig.port)=\(String(repeating: "0", count: 64))"],
            ["Cookie: heartline-\(rig.port)="], ["Cookie: heartline-1=x; x"],
        ]
        for path in Self.documents + Self.streams {
            for headers in wrong {
                let answer = try rig.ask("GET", path, headers)
                #expect(answer.status == 401, "\(path) \(headers)")
                #expect(!answer.text.contains("fleet now"))
            }
        }
        let slowly = try rig.ask("GET", "/", ["Authorization: Bearer slowly"])
        #expect(slowly.status == 429)
        #expect(slowly.headers["retry-after"] == "7")
        // A wrong token is not made good by a cookie that is.
        let cookie = try rig.signIn()
        #expect(try rig.ask("GET", "/", [cookie, "Authorization: Bearer wrong"]).status == 401)
        #expect(try rig.ask("GET", "/", [cookie]).status == 200)
    }

    @Test("a request that another site made a browser send is refused, cookie or not")
    func otherSites() throws {
        let rig = try PageRig()
        let cookie = try rig.signIn()
        for path in Self.documents + Self.streams + ["/login", "/page.js", "/page.css"] {
            for header in [
                "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site",
                "Origin: https://evil.example", "Origin: null",
                "Origin: http://127.0.0.1:\(rig.port &+ 1)",
            ] {
                let answer = try rig.ask("GET", path, [cookie, header])
                #expect(answer.status == 403, "\(path) \(header)")
                #expect(!answer.text.contains("fleet now"))
            }
        }
        // Nor can it sign anybody in or out, with a good token or code even.
        let body = "token=\(PageRig.token.filter { $0 != " " })"
        for header in ["Sec-Fetch-Site: cross-site", "Origin: https://evil.example"] {
            for path in ["/login", "/logout"] {
                let answer = try rig.ask("POST", path, [cookie, header], body: body)
                #expect(answer.status == 403)
                #expect(answer.headers["set-cookie"] == nil)
            }
            let link = try rig.ask("GET", "/login?code=\(rig.code(number: 2))", [header])
            #expect(link.status == 403)
        }
        #expect(try rig.ask("GET", "/", [cookie, "Sec-Fetch-Site: same-origin"]).status == 200)
        #expect(try rig.ask("GET", "/", [cookie, "Sec-Fetch-Site: none"]).status == 200)
    }

    @Test("a name that was made to lead here is refused; one that was given is not")
    func rebinding() throws {
        let rig = try PageRig { $0.names = ["fleet.example.org"] }
        let cookie = try rig.signIn()
        for path in Self.documents + Self.streams + ["/login"] {
            for host in ["evil.example:\(rig.port)", "127.0.0.1.evil.example", "evil.example"] {
                #expect(try rig.ask("GET", path, [cookie, "Host: \(host)"]).status == 403)
            }
        }
        for host in ["localhost:\(rig.port)", "[::1]:1", "fleet.example.org"] {
            #expect(try rig.ask("GET", "/", [cookie, "Host: \(host)"]).status == 200)
        }
        // A script elsewhere has no token to show.
        let token = "Authorization: Bearer \(PageRig.token.filter { $0 != " " })"
        #expect(try rig.ask("GET", "/", [token, "Host: fleet:8081"]).status == 200)
    }

    @Test("what cannot be read any more stands there as it was, and is said to be old")
    func knownStays() throws {
        let rig = try PageRig()
        let cookie = try rig.signIn()
        _ = try rig.addDevice(1, state: "stale")
        try rig.connection.run(
            """
            INSERT INTO heartline.alerts
                (alert_id, kind, entity, device_id, episode, partition, reason, opened_at)
            SELECT gen_random_uuid(), 'stale', d::text, d, 1, 0, 'for a test', now()
              FROM (SELECT device_id FROM heartline.device_status) s (d)
            """)
        var answer = try rig.ask("GET", "/", [cookie])
        #expect(answer.status == 200 && !answer.text.contains("No alert is open."))
        // Each part in turn is what fails first: the ones before it still answer.
        for table in ["alerts", "stream_partitions"] {
            try rig.connection.run("ALTER TABLE heartline.\(table) RENAME TO away")
            let pause = Waker()
            let end = SystemClock.monotonicMilliseconds() + 30_000
            repeat {
                pause.wait(milliseconds: 200)
                answer = try rig.ask("GET", "/", [cookie])
            } while !answer.text.contains("older than it should be")
                && SystemClock.monotonicMilliseconds() < end
            #expect(answer.text.contains("older than it should be"), "\(table)")
            #expect(!answer.text.contains("No alert is open."), "\(table)")
            #expect(!answer.text.contains("No tunnel is stale"), "\(table)")
            try rig.connection.run("ALTER TABLE heartline.away RENAME TO \(table)")
        }
    }

    @Test("a link signs in once, for ten minutes, and only under the token that it was made from")
    func links() throws {
        let rig = try PageRig()
        let now = SystemClock.wallMilliseconds()
        let code = rig.code(madeAt: now, number: 5)
        // What only looks where it leads does not use it up.
        let looking = try rig.client()
        try rig.send("HEAD", "/login?code=\(code)", over: looking)
        #expect(looking.hasAnswer(milliseconds: 30_000))
        let answer = try rig.ask("GET", "/login?code=\(code)")
        #expect(answer.status == 303)
        #expect(answer.headers["location"] == "/")
        let cookie = try #require(answer.headers["set-cookie"])
        #expect(cookie.hasPrefix("heartline-\(rig.port)="))
        for attribute in ["; HttpOnly", "; SameSite=Strict", "; Path=/", "; Max-Age=43200"] {
            #expect(cookie.contains(attribute))
        }
        #expect(try rig.ask("GET", "/login?code=\(code)").status == 401)
        for bad in [
            rig.code(madeAt: now - 700_000), rig.code(madeAt: now + 60_000),
            LoginCode(madeAt: now, number: 6).text(key: [UInt8](repeating: 1, count: 32)), "x", "",
        ] {
            let refused = try rig.ask("GET", "/login?code=\(bad)")
            #expect(refused.status == 401)
            #expect(refused.headers["set-cookie"] == nil)
        }
    }

    @Test(
        "the form takes the token, tells a wrong one, and leads to what was asked for, if that is ours"
    )
    func form() throws {
        let rig = try PageRig()
        let asked = try rig.ask("GET", "/devices/\(HTMLTests.device)")
        #expect(asked.text.contains("name=\"to\" value=\"/devices/\(HTMLTests.device)\""))
        let token = PageRig.token.filter { $0 != " " }.replacing("'", with: "%27")
        func signIn(_ to: String) throws -> RawResponse {
            try rig.ask(
                "POST", "/login", ["Origin: http://127.0.0.1:\(rig.port)"],
                body: "to=\(to)&token=+\(token)%0A")
        }
        let answer = try signIn("%2Fdevices%2F\(HTMLTests.device)")
        #expect(answer.status == 303)
        #expect(answer.headers["location"] == "/devices/\(HTMLTests.device)")
        #expect(answer.headers["set-cookie"] != nil)
        for to in [
            "https%3A%2F%2Fevil.example%2F", "%2F%2Fevil.example", "%2Flive", "%2Flogout", "",
        ] {
            #expect(try signIn(to).headers["location"] == "/")
        }
        for body in ["", "token=", "token=wrong", "token=%ZZ", "token"] {
            let refused = try rig.ask("POST", "/login", body: body)
            #expect(refused.status == 401)
            #expect(refused.headers["set-cookie"] == nil)
            #expect(refused.text.contains("This is not the operators’ token."))
        }
        #expect(try rig.ask("POST", "/login", body: "token=slowly").status == 429)
    }

    @Test("signing out ends the session and its streams")
    func signingOut() throws {
        let rig = try PageRig()
        let cookie = try rig.signIn()
        let stream = try EventReader(rig, "/live", [cookie])
        #expect(stream.hears("\"summary\""))
        #expect(try rig.ask("GET", "/logout", [cookie]).status == 405)
        let answer = try rig.ask("POST", "/logout", [cookie])
        #expect(answer.status == 303)
        #expect(answer.headers["set-cookie"]?.contains("Max-Age=0") == true)
        #expect(try rig.ask("GET", "/", [cookie]).status == 401)
        #expect(stream.hears("event: over"))
        #expect(try eventually { rig.service.streamCount == 0 })
    }

    @Test("only what each route has is answered, with headers that keep other sites out")
    func routes() throws {
        let rig = try PageRig()
        let cookie = try rig.signIn()
        #expect(try rig.ask("GET", "/nothing", [cookie]).status == 404)
        #expect(try rig.ask("GET", "/devices/\(HTMLTests.device)", [cookie]).status == 404)
        for path in Self.documents { #expect(try rig.ask("POST", path, [cookie]).status == 405) }
        let answer = try rig.ask("GET", "/", [cookie])
        #expect(answer.headers["content-type"] == "text/html; charset=utf-8")
        let policy = try #require(answer.headers["content-security-policy"])
        #expect(policy.hasPrefix("default-src 'none'; script-src 'self'; style-src 'self';"))
        #expect(!policy.contains("unsafe"))
        #expect(policy.contains("frame-ancestors 'none'"))
        #expect(answer.headers["cache-control"] == "no-store")
        #expect(answer.headers["x-content-type-options"] == "nosniff")
        #expect(answer.headers["referrer-policy"] == "same-origin")
        for (path, type) in [
            ("/page.css", "text/css; charset=utf-8"),
            ("/page.js", "text/javascript; charset=utf-8"), ("/icon.svg", "image/svg+xml"),
        ] {
            let asset = try rig.ask("GET", path)
            #expect(asset.status == 200)
            #expect(asset.headers["content-type"] == type)
            #expect(!asset.body.isEmpty)
            #expect(!asset.text.contains("://") || path == "/icon.svg", "something of elsewhere")
        }
    }

    @Test("strangers' text is shown as text, from the database to the document", arguments: attacks)
    func attack(_ text: String) throws {
        // PostgreSQL's text cannot hold it; front-ends replace it.
        let stored = text.replacing("\u{0}", with: "\u{FFFD}")
        let rig = try PageRig()
        let cookie = try rig.signIn()
        let device = try rig.addDevice(7, hardwareID: stored, state: "stale")
        try rig.connection.execute(
            "UPDATE heartline.device_status SET reason = $1", .text(stored))
        var shown = HTML()
        shown.foreign(stored)
        let page = try rig.ask("GET", "/devices/\(device)", [cookie])
        #expect(page.status == 200)
        // As hardware id, as reason and as what its agent says.
        #expect(page.text.split(separator: shown.text).count >= 4, "\(page.text)")
        let fleet = try rig.ask("GET", "/", [cookie])
        #expect(fleet.text.contains(shown.text))
        var query = ""
        for byte in stored.utf8 { query += "%" + (byte < 16 ? "0" : "") + String(byte, radix: 16) }
        _ = try rig.addDevice(8, hardwareID: stored + "2")
        let found = try rig.ask("GET", "/search?q=\(query)", [cookie])
        #expect(found.status == 200)
        for answer in [page, fleet, found] {
            #expect(!answer.text.contains("<script>"))
            #expect(!answer.text.contains("<img src=x"))
            #expect(!answer.text.contains("<svg/"))
        }
        // What was looked for stands in its field again, as it was written.
        let field = found.text.split(separator: "<input").last?.prefix { $0 != ">" } ?? ""
        for text in [page.text, fleet.text, found.text.replacing(field, with: "")] {
            #expect(!text.unicodeScalars.contains("\u{202E}"))
        }
    }

    @Test("devices are found by id, address and hardware id; one alone is led to")
    func search() throws {
        let rig = try PageRig()
        let cookie = try rig.signIn()
        let first = try rig.addDevice(1, hardwareID: "phone-1", state: "stale")
        let second = try rig.addDevice(2, hardwareID: "phone-2", state: "healthy")
        let third = try rig.addDevice(30, hardwareID: "tablet")
        func found(_ query: String) throws -> Set<DeviceID> {
            let answer = try rig.ask("GET", "/search?q=\(query)", [cookie])
            if let place = answer.headers["location"],
                case .device(let device)? = PagePath(parsing: place)
            {
                #expect(answer.status == 303)
                return [device]
            }
            #expect(answer.status == 200)
            return Set([first, second, third].filter { answer.text.contains("/devices/\($0)\"") })
        }
        #expect(try found("0a1b") == [first, second, third])
        #expect(try found("0A1B2C3D-4e5f-6071-0000-000000000002") == [second])
        #expect(try found("10.64.0.30") == [third])
        #expect(try found("10.64.0") == [first, second, third])
        #expect(try found("10.65") == [])
        #expect(try found("phone") == [first, second])
        #expect(try found("phone-2") == [second])
        #expect(try found("one") == [])
        #expect(try found("") == [])
        let stale = try rig.ask("GET", "/states/stale", [cookie])
        #expect(stale.text.contains("/devices/\(first)\""))
        #expect(!stale.text.contains("/devices/\(second)\""))
        #expect(try rig.ask("GET", "/states/removed", [cookie]).status == 404)
    }

    @Test("what changes is sent, to every browser, by one loop of queries")
    func live() throws {
        let rig = try PageRig()
        let cookie = try rig.signIn()
        let device = try rig.addDevice(1, state: "healthy")
        let streams = try (0..<5).map { _ in try EventReader(rig, "/live", [cookie]) }
        for stream in streams { #expect(stream.hears("The one device is healthy.")) }
        try rig.setState(device, "stale")
        for stream in streams { #expect(stream.hears("0 of 1 device is healthy; 1 stale.")) }
        for stream in streams { #expect(stream.hears(device.shortened)) }
        // Five streams and one more, of one loop: no round for each of them.
        let before = rig.service.roundCount
        let start = SystemClock.monotonicMilliseconds()
        let one = try EventReader(rig, "/devices/\(device)/live", [cookie])
        #expect(one.hears("for a test"))
        try rig.setState(device, "down")
        #expect(one.hears("down"))
        let seconds = Int((SystemClock.monotonicMilliseconds() - start) / 1_000)
        #expect(rig.service.roundCount - before <= seconds + 3)
    }

    @Test("streams have a bound, and give their place back")
    func bound() throws {
        let rig = try PageRig { $0.streams = 2 }
        let cookie = try rig.signIn()
        var streams = try (0..<2).map { _ in try EventReader(rig, "/live", [cookie]) }
        for stream in streams { #expect(stream.hears("event: part")) }
        let refused = try rig.ask("GET", "/live", [cookie])
        #expect(refused.status == 503)
        #expect(refused.headers["retry-after"] == "10")
        streams.removeLast()
        #expect(try eventually { rig.service.streamCount == 1 })
        let last = try EventReader(rig, "/live", [cookie])
        #expect(last.hears("event: part"))
        // An end ends the streams in order, so that a drain need not wait for who looks.
        rig.service.stop()
        while last.hears("0\r\n"), !last.text.utf8.suffix(5).elementsEqual("\r\n0\r\n".utf8) {}
        #expect(last.text.utf8.suffix(5).elementsEqual("\r\n0\r\n".utf8))
        #expect(try rig.ask("GET", "/live", [cookie]).status == 503)
    }

    @Test("a database that is away is told of, and what was known stays")
    func databaseAway() throws {
        let server = try TestServer()
        let database = try server.makeDatabase()
        let rig = try PageRig { $0.databaseURL = database.url }
        let cookie = try rig.signIn()
        #expect(try rig.ask("GET", "/", [cookie]).text.contains("No device has been judged yet."))
        server.stop()
        let isTold = try eventually {
            let answer = try rig.ask("GET", "/", [cookie])
            #expect(answer.status == 200)
            #expect(answer.text.contains("No device has been judged yet."))
            return answer.text.contains("The database does not answer.")
        }
        #expect(isTold)
        let device = try rig.ask("GET", "/devices/\(HTMLTests.device)", [cookie])
        #expect(device.status == 503)
        #expect(device.headers["retry-after"] == "5")
        try server.start()
        #expect(
            try eventually {
                try !rig.ask("GET", "/", [cookie]).text.contains("The database does not answer.")
            })
        rig.stop()
        server.remove()
    }
}
