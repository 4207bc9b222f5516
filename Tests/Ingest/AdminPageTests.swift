import HTTP
import Ingest
import System
import TestSupport
import Testing

@Suite("The page on the operators' listener") struct AdminPageTests {
    /// With `Host` as a browser would send it.
    private func ask(
        _ rig: AdminRig, _ method: String, _ path: String, _ headers: [String] = [],
        body: String = ""
    ) throws -> RawResponse {
        let client = try AdminRig.connect(rig.rig)
        let address = rig.rig.frontEnd.adminAddress!
        var head = "\(method) \(path) HTTP/1.1\r\nHost: \(address.host):\(address.port)\r\n"
        for header in headers { head += header + "\r\n" }
        if method == "POST" { head += "Content-Length: \(body.utf8.count)\r\n" }
        try client.send((head + "\r\n" + body).utf8)
        return try client.response()
    }

    @Test("it is for who has the token of /admin/v1, and the cookie is good for the page only")
    func token() throws {
        let rig = try AdminRig()
        #expect(try ask(rig, "GET", "/").status == 401)
        let bearer = "Authorization: Bearer \(AdminRig.token)"
        let shown = try ask(rig, "GET", "/", [bearer])
        #expect(shown.status == 200)
        #expect(shown.text.contains("The fleet now"))
        let signedIn = try ask(rig, "POST", "/login", body: "token=\(AdminRig.token)")
        #expect(signedIn.status == 303)
        let cookie = "Cookie: \((signedIn.headers["set-cookie"] ?? "").prefix { $0 != ";" })"
        #expect(try ask(rig, "GET", "/", [cookie]).status == 200)
        // Nothing can be changed by what a browser sends of itself.
        #expect(try ask(rig, "GET", "/admin/v1/devices", [cookie]).status == 401)
        #expect(try ask(rig, "POST", "/admin/v1/devices", [cookie]).status == 401)
    }

    @Test("a code that was made from the token signs in, once")
    func code() throws {
        let rig = try AdminRig()
        let token = try AdminToken(AdminRig.token)
        let code = try token.loginCode(now: SystemClock.wallMilliseconds())
        #expect(!code.contains(AdminRig.token))
        #expect(try ask(rig, "GET", "/login?code=\(code)").status == 303)
        #expect(try ask(rig, "GET", "/login?code=\(code)").status == 401)
        let other = try AdminToken(String(repeating: "x", count: 40))
        let forged = try other.loginCode(now: SystemClock.wallMilliseconds())
        #expect(try ask(rig, "GET", "/login?code=\(forged)").status == 401)
    }

    @Test("whoever tries tokens in the form is told to stop, and whoever has it is not")
    func guessing() throws {
        let rig = try AdminRig()
        var statuses: [Int] = []
        for _ in 0..<12 { statuses.append(try ask(rig, "POST", "/login", body: "token=x").status) }
        #expect(statuses.first == 401)
        #expect(statuses.last == 429)
        #expect(try rig.ask("GET", "/admin/v1/devices", token: "wrong").status == 429)
        #expect(try ask(rig, "POST", "/login", body: "token=\(AdminRig.token)").status == 303)
        // Who merely has no cookie yet has tried nothing.
        #expect(try ask(rig, "GET", "/").status == 401)
    }

    @Test("nothing on the listener is answered to what another site made a browser send")
    func otherSites() throws {
        let rig = try AdminRig()
        let bearer = "Authorization: Bearer \(AdminRig.token)"
        for path in [
            "/", "/live", "/login", "/healthz", "/readyz", "/admin/v1/devices", "/nothing",
        ] {
            for header in [
                "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site",
                "Origin: https://evil.example",
                "Origin: null",
            ] {
                #expect(
                    try ask(rig, "GET", path, [bearer, header]).status == 403, "\(path) \(header)")
            }
        }
        let change = try ask(
            rig, "POST", "/admin/v1/devices", [bearer, "Origin: https://evil.example"])
        #expect(change.status == 403)
        #expect(try rig.rig.registry.deviceCount == 1)
        #expect(try ask(rig, "GET", "/healthz", ["Sec-Fetch-Site: none"]).status == 200)
        #expect(try ask(rig, "GET", "/admin/v1/devices", [bearer]).status == 200)
    }

    @Test("without an operators' token there is no page")
    func noToken() throws {
        let rig = try Rig()
        for path in ["/", "/login", "/live", "/page.css"] {
            #expect(try rig.admin(path).status == 404)
        }
    }

    @Test("an end waits for nobody who looks")
    func stopping() throws {
        let rig = try AdminRig()
        let client = try AdminRig.connect(rig.rig)
        try client.sendRequest(
            "GET", "/live", body: [], headers: ["Authorization: Bearer \(AdminRig.token)"])
        #expect(try client.response().status == 200)
        #expect(client.hasAnswer(milliseconds: 30_000))
        let frontEnd = rig.rig.frontEnd
        let ending = SystemThread.start("end") { frontEnd.stop() }
        var said: [UInt8] = []
        let deadline = SystemClock.monotonicMilliseconds() + 60_000
        while let byte = try? client.read(1, until: deadline).first { said.append(byte) }
        ending.join()
        // In order, and not cut when the listener's drain was over.
        #expect(said.suffix(5) == Array("0\r\n\r\n".utf8)[...])
    }
}
