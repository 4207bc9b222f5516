import Bytes
import Crypto
import EventLog
import Foundation
import HTTP
import Ingest
import Postgres
import Schemas
import System
import TestSupport
import Testing
import Updates

/// The apps' contract, "Installation stream" and the server's part of "Integration acceptance checks".
/// Numbers are those of docs/updates-conformance.md.
@Suite("App update contract: the installation stream") struct UpdateStreamTests {
    private func path(_ app: UpdateRig.App) -> String { "/api/app/\(app.id)/update" }

    @Test("S1 S2 S3 one JSON object a line, and progress that comes while the work runs")
    func live() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        rig.source.change("Example.ipa") { $0.behaviour = .held(after: 50_000) }
        try rig.hold("sign")
        try rig.hold("install")
        let stream = try rig.stream(path(app))
        // Each line is there before what comes next can have happened.
        #expect(try stream.reaches("download"))
        #expect(stream.story == ["check", "download"] && rig.commands.isEmpty)
        rig.source.release()
        #expect(try stream.reaches("sign"))
        #expect(stream.story == ["check", "download", "sign"])
        rig.release("sign")
        #expect(try stream.reaches("install"))
        #expect(stream.story.last == "install")
        rig.release("install")
        #expect(stream.waitForEnd() == .exited(0))
        let answer = try #require(stream.answer)
        #expect(answer.status == 200 && answer.headers["content-type"] == "application/x-ndjson")
        #expect(answer.headers["transfer-encoding"] == "chunked")
        #expect(answer.body.hasSuffix("\n") && !answer.body.contains("\n\n"))
        #expect(answer.lines.count == answer.body.split(separator: "\n").count)
        var counted = 0
        for line in answer.lines.dropLast() {
            let progress = try #require(line["progress"] as? [String: Any])
            #expect(progress["step"] is String && progress["message"] is String)
            if let total = progress["total"] as? Int, let completed = progress["completed"] as? Int
            {
                #expect(completed <= total)
                counted += 1
            }
        }
        #expect(counted >= 2)
    }

    @Test("S4 the result has device, app and warnings")
    func result() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        let answer = try rig.curl(path(app), method: "POST")
        let result = try #require(answer.lines.last?["result"] as? [String: Any])
        #expect((result["device"] as? [String: Any])?["id"] as? String == "phone")
        let shown = try #require(result["app"] as? [String: Any])
        #expect(shown["name"] as? String == "Example" && shown["version"] as? String == "v2")
        #expect(result["warnings"] as? [String] == ["the profile is old"])
        // The app's own address is nowhere in it.
        let new = try rig.newID()
        #expect(!answer.body.contains(app.id) && !answer.body.contains(new))
    }

    @Test("S5 S6 an id that is malformed, unknown or revoked is 400 with an object")
    func unknown() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        let other = String(repeating: "0", count: 48)
        for id in ["x", String(app.id.dropLast()), app.id + "0", other, "g" + app.id.dropFirst()] {
            for route in ["/api/app/\(id)/update", "/api/app/\(id)/update/check", "/update/\(id)"] {
                let answer = try rig.curl(route, method: "POST")
                #expect(answer.status == 400 && answer.error == "unknown installation", "\(route)")
                #expect(answer.headers["content-type"] == "application/json")
            }
        }
        #expect(try rig.registry.revokeInstallation(app.record, by: OperatorRequestForTests.make()))
        #expect(try rig.curl(path(app)).status == 400)
    }

    @Test(
        "S7 G20 this host and paired devices may, an admin's device for others too; the address behind a trusted proxy counts"
    )
    func authorization() throws {
        let rig = try UpdateRig(proxied: true)
        let app = try rig.addWithUpdate { $0.addresses = ["192.168.7.1", "fd00::7"] }
        let request = try OperatorRequestForTests.make()
        try rig.registry.pairDevice(
            "other phone", addresses: ["192.168.7.2"], isAdmin: false, by: request)
        try rig.registry.pairDevice(
            "admin's phone", addresses: ["192.168.7.3"], isAdmin: true, by: request)
        let check = path(app) + "/check?prefetch=false"
        for (address, status) in [
            ("192.168.7.1", 200), ("fd00::7", 200), ("FD00:0::7", 200), ("::ffff:192.168.7.1", 200),
            ("192.168.7.3", 200), ("127.0.0.2", 200), ("8.8.8.8, 192.168.7.1", 200),
            ("192.168.7.1:4711", 200), ("[fd00::7]:4711", 200),
            ("192.168.7.2", 403), ("192.168.7.4", 403), ("192.168.7.1, 8.8.8.8", 403),
            ("nonsense", 403), ("192.168.7.1, nonsense", 403), ("", 403),
        ] {
            let answer = try rig.curl(check, from: address)
            #expect(answer.status == status, "\(address)")
            if status == 403 { #expect(answer.error?.isEmpty == false) }
        }
        // A proxy that does not say for whom it asks asks for nobody.
        #expect(try rig.curl(check).status == 403)
        #expect(try rig.curl(path(app), method: "POST", from: "192.168.7.4").status == 403)
        #expect(rig.commands.isEmpty)
        #expect(try rig.registry.unpairDevice("phone", addresses: ["fd00::7"], by: request))
        #expect(try rig.curl(check, from: "fd00::7").status == 403)
        #expect(try rig.curl(check, from: "192.168.7.1").status == 200)
    }

    @Test("S7 without trusted proxies nobody can say who they are")
    func forgedAddress() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        // The connection comes from this host, whatever is claimed.
        #expect(
            try rig.curl(path(app) + "/check?prefetch=false", from: "203.0.113.5").status == 200)
    }

    @Test(
        "S8 S12 S13 a server that stops refuses, ends what has not begun, and cuts what it cannot wait for"
    )
    func stopping() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        let second = try rig.add()
        try rig.hold("install")
        let installing = try rig.stream(path(app))
        #expect(try installing.reaches("install"))
        rig.source.put(.init("Example.ipa", AppSourceServer.app(90_000)))
        rig.source.change("Example.ipa") { $0.behaviour = .held(after: 50_000) }
        let downloading = try rig.stream("/api/app/\(second.id)/update")
        #expect(try downloading.reaches("download"))
        #expect(try eventually { rig.source.held == 1 })
        rig.stop()
        installing.waitForEnd()
        downloading.waitForEnd()
        #expect(downloading.story.last == "error")
        #expect(
            downloading.answer?.lines.last?["message"] as? String
                == "The server is stopping; try again later.")
        // No result, and no error that would claim to know: unconfirmed.
        #expect(installing.story.last == "install")
        // Which of the two is given up first is chance.
        #expect(try rig.stages().contains("install lost"))
        #expect(rig.cached.contains { $0.hasSuffix(".part") }, "what was downloaded is kept")
        // The next start goes on with it.
        rig.release("install")
        rig.source.release()
        try rig.start()
        #expect(try rig.curl("/api/app/\(second.id)/update", method: "POST").story.last == "result")
    }

    @Test("S9 failures behind the head are events under 200")
    func errors() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        try rig.fail("sign", "error: no profile fits\n")
        let answer = try rig.curl(path(app), method: "POST")
        #expect(answer.status == 200 && answer.story == ["check", "download", "sign", "error"])
        #expect(
            answer.lines.last?["message"] as? String
                == "Signing the app failed: no profile fits")
        rig.source.answerAPI(500)
        let source = try rig.curl(path(app), method: "POST")
        #expect(source.status == 200 && source.story == ["check", "error"])
        // Before a stream has begun it is a status.
        #expect(try rig.curl(path(app) + "/check").status == 502)
    }

    @Test("S9 without an installer the answer is the contract's own sentence")
    func noInstaller() throws {
        let rig = try UpdateRig(hasInstaller: false)
        let app = try rig.addWithUpdate()
        let answer = try rig.curl(path(app), method: "POST")
        #expect(
            answer.body.hasSuffix(
                "{\"type\":\"error\",\"message\":\"No available device matches this installation.\"}\n"
            ))
        #expect(answer.status == 200 && rig.source.count("/files/") == 0)
    }

    @Test("S9 S11 a choice that the user must make is an event, and 422 in a JSON answer")
    func selection() throws {
        let rig = try UpdateRig()
        rig.source.put(.init("Example-tv.ipa", AppSourceServer.app(1_000)))
        rig.source.publish(.init("v2", files: ["Example.ipa", "Example-tv.ipa"]))
        let app = try rig.add()
        let answer = try rig.curl(path(app), method: "POST")
        #expect(answer.status == 200 && answer.story == ["check", "selection"])
        let selection = try #require(answer.lines.last?["selection"] as? [String: Any])
        #expect(selection["key"] as? String == "asset")
        #expect((selection["message"] as? String)?.isEmpty == false)
        let choices = try #require(selection["choices"] as? [[String: String]])
        #expect(choices.compactMap { $0["label"] } == ["Example.ipa", "Example-tv.ipa"])
        #expect(choices.allSatisfy { $0["id"]?.isEmpty == false })
        let check = try rig.curl(path(app) + "/check")
        #expect(check.status == 422 && check.json["selection"] is [String: Any])
        #expect(check.error?.isEmpty == false && rig.commands.isEmpty)
        // A command can ask as well, for a signing profile.
        let filtered = try rig.add(nil) { $0.filter = "tv" }
        try rig.fail(
            "sign",
            "selection: {\"key\":\"profile\",\"message\":\"Which profile?\",\"choices\":[]}\n")
        let asked = try rig.curl("/api/app/\(filtered.id)/update", method: "POST")
        #expect(asked.story == ["check", "download", "sign", "selection"])
    }

    @Test("S10 the installed file's name decides, and what decided is kept for the next release")
    func healing() throws {
        let rig = try UpdateRig()
        for name in ["App-tv-2.0.ipa", "App-ios-2.0.ipa", "App-tv-3.0.ipa", "App-ios-3.0.ipa"] {
            rig.source.put(.init(name, AppSourceServer.app(1_000)))
        }
        rig.source.publish(.init("v2", files: ["App-tv-2.0.ipa", "App-ios-2.0.ipa"]))
        let app = try rig.add(nil) { $0.assetName = "App-ios-1.0.ipa" }
        let check = path(app) + "/check?prefetch=false"
        let answer = try rig.curl(check)
        #expect((answer.json["asset"] as? [String: String])?["name"] == "App-ios-2.0.ipa")
        let saved = {
            try rig.database.connect().execute(
                "SELECT refinement FROM heartline.app_installations"
            ).only().optionalText(0)
        }
        #expect(try eventually { try saved() == "app-ios-#.ipa" })
        rig.source.publish(
            .init(
                "v3", files: ["App-tv-3.0.ipa", "App-ios-3.0.ipa"],
                publishedAt: "2026-09-01T00:00:00Z"))
        let later = try rig.curl(check)
        #expect((later.json["asset"] as? [String: String])?["name"] == "App-ios-3.0.ipa")
    }

    @Test(
        "S13 an installation goes on without its client, in every phase",
        arguments: ["check", "download", "sign", "install", "open"])
    func disconnect(_ phase: String) throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        switch phase {
        case "check": rig.source.holdAPI()
        case "download":
            rig.source.change("Example.ipa") { $0.behaviour = .held(after: 50_000) }
        default: try rig.hold(phase)
        }
        let stream = try rig.stream(path(app))
        #expect(try stream.reaches(phase))
        stream.leave()
        #expect(try eventually { try rig.stages().contains("install disconnected") })
        rig.source.release()
        rig.release(phase)
        #expect(try eventually { try rig.stages().last == "install result" })
        #expect(try rig.version(app) == "v2" && rig.ran("install") == 1)
    }

    @Test("A4 A10 two installations of one app at once: the second is 409, on every front-end")
    func conflict() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        try rig.hold("install")
        let stream = try rig.stream(path(app))
        #expect(try stream.reaches("install"))
        for route in [path(app), "/update/\(app.id)", try rig.link(app) + "?install=foreground"] {
            let answer = try rig.curl(route, method: "POST")
            #expect(answer.status == 409 && answer.error?.isEmpty == false, "\(route)")
        }
        // Checks go on, and so do other apps.
        #expect(try rig.curl(path(app) + "/check?prefetch=false").status == 200)
        rig.release("install")
        #expect(stream.waitForEnd() == .exited(0))
        #expect(stream.story.last == "result" && rig.ran("install") == 1)
        #expect(try rig.curl(path(app), method: "POST").story.last == "result")
    }

    @Test(
        "A8 a successful installation has a new id; the old one answers until the new one was seen")
    func newID() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        #expect(try rig.curl(path(app), method: "POST").story.last == "result")
        let new = try rig.newID()
        #expect(new != app.id)
        let old = path(app) + "/check?prefetch=false"
        #expect(try rig.curl(old).status == 200)
        let answer = try rig.curl("/api/app/\(new)/update/check?prefetch=false")
        #expect(answer.status == 200 && answer.json["current"] as? String == "v2")
        #expect(try rig.curl(old).status == 400)
        #expect(try rig.curl("/api/app/\(new)/update/check?prefetch=false").status == 200)
        // The copy that still shows the old one is told of.
        #expect(try eventually { try rig.events().contains { $0.kind == .cloned } })
        let confirmed = try rig.events().compactMap { event -> DeviceID? in
            if case .checked(let check) = event.kind { check.confirmed } else { nil }
        }
        #expect(confirmed.count == 1)
    }

    @Test("A8 an app that runs although its installation failed is what is installed")
    func lateConfirmation() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        try rig.fail("install", "error: the cable\n")
        #expect(try rig.curl(path(app), method: "POST").story.last == "error")
        #expect(try rig.version(app) == "v1")
        let answer = try rig.curl("/api/app/\(try rig.newID())/update/check?prefetch=false")
        #expect(answer.json["current"] as? String == "v2" && answer.isAvailable == false)
        #expect(try rig.version(app) == "v2" && rig.curl(path(app)).status == 400)
    }

    @Test(
        "A1 A2 A5 what is merged into the app has this server's addresses and the exceptions for them"
    )
    func metadata() throws {
        let rig = try UpdateRig { $0.configuration.destinations = ["mac.local", "fd00::10"] }
        let app = try rig.addWithUpdate { $0.filter = "example" }
        #expect(try rig.curl(path(app), method: "POST").story.last == "result")
        let list = try rig.metadata()
        let port = try #require(rig.frontEnd?.boundAddress.port)
        let hub = try #require(list["IPAHub"] as? [String: Any])
        let id = try rig.newID()
        let query = "source=gh%3Aowner%2Frepo&filter=example"
        #expect(
            hub["updateURL"] as? [String] == [
                "http://mac.local:\(port)/api/app/\(id)/update?\(query)",
                "http://[fd00::10]:\(port)/api/app/\(id)/update?\(query)",
            ])
        #expect(hub["release"] as? String == "latest")
        let transport = try #require(list["NSAppTransportSecurity"] as? [String: Any])
        let domains = try #require(transport["NSExceptionDomains"] as? [String: Any])
        #expect(domains.keys.sorted() == ["fd00::10", "mac.local"])
    }

    @Test(
        "A1 A2 A6 A7 an app that knows the contract's text alone finds its way, with one and with many destinations"
    )
    func pythonClient() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        let url = "\(rig.base)/api/app/\(app.id)/update?source=gh%3Aowner%2Frepo&filter=example"
        let closed = "http://127.0.0.1:\(HTTPTestServer.closedPort())/api/app/\(app.id)/update"
        let nowhere = "http://nobody.invalid:1/api/app/\(app.id)/update"
        func outcome(_ lines: [[String: Any]]) -> String? { lines.last?["outcome"] as? String }

        let only = try rig.python(["check", "--prefetch", "false", url])
        #expect(outcome(only) == "json")
        let background = try rig.python(["check", nowhere, closed, url])
        #expect(background.count { $0["unreachable"] != nil } == 2)
        #expect(
            (background.last?["body"] as? [String: Any])?["prefetch"] as? String == "background")
        let foreground = try rig.python(["check", "--prefetch", "foreground", url])
        #expect(outcome(foreground) == "result")
        let installed = try rig.python(["install", "--open", "false", closed, url])
        #expect(outcome(installed) == "result" && rig.ran("install") == 1)
        let bad = try rig.python(["install", "--open", "yes", url])
        #expect(outcome(bad) == "http" && bad.last?["status"] as? Int == 400)
    }

    @Test("S12 a stream that ends without a result is unconfirmed to its client")
    func unconfirmed() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        try rig.hold("install")
        let url = "\(rig.base)/api/app/\(app.id)/update"
        let client = SystemThreadResult { try rig.python(["install", url]) }
        #expect(try eventually(milliseconds: 120_000) { rig.ran("install") == 1 })
        rig.stop()
        let lines = try client.wait()
        #expect(lines.last?["outcome"] as? String == "unconfirmed")
    }

    @Test("A9 ids and links are in no topic and no table")
    func secrets() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        let link = try rig.link(app)
        try rig.fail("install", "")
        #expect(try rig.curl(path(app), method: "POST").story.last == "error")
        let secrets = [app.id, String(link.suffix(48)), try rig.newID()]
        // A command that tells too much is not believed to be harmless.
        try rig.fail("sign", "error: \(secrets[2]) and \(secrets[0].uppercased())\n")
        _ = try rig.curl(path(app), method: "POST")
        #expect(
            try eventually { try rig.stages().last?.contains("Signing the app failed") == true })
        let events = try rig.events().map { "\($0)" }.joined().lowercased()
        let connection = try rig.database.connect()
        for table in ["app_installations", "app_installation_ids", "update_links", "audit_log"] {
            let rows = try connection.execute("SELECT t::text FROM heartline.\(table) t")
            #expect(!rows.isEmpty, "\(table)")
            for row in rows {
                let text = try row.text(0)
                #expect(!secrets.contains { text.contains($0) }, "\(table)")
            }
        }
        #expect(!secrets.contains { events.contains($0) })
    }
}
