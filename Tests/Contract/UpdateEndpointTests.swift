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

/// The apps' contract, "Every update endpoint". Numbers are those of docs/updates-conformance.md.
@Suite("App update contract: every update endpoint") struct UpdateEndpointTests {
    private func path(_ app: UpdateRig.App, check: Bool = false) -> String {
        "/api/app/\(app.id)/update\(check ? "/check" : "")"
    }

    @Test("E1 E11 /check stands behind the path; query items that are there stay and say nothing")
    func queryItems() throws {
        let rig = try UpdateRig()
        rig.source.publish(.init("v2", files: ["Example.ipa"]))
        rig.source.publish(
            .init(
                "v9", files: ["Example.ipa"], isPrerelease: true,
                publishedAt: "2027-01-01T00:00:00Z"))
        let app = try rig.add()
        let query = "?source=gh%3Aevil%2Fother&filter=tv&team=X&release=pre-release&prefetch=false"
        let answer = try rig.curl(path(app, check: true) + query)
        #expect(answer.status == 200 && answer.json["latest"] as? String == "v2")
        // Damaged items of others' are nobody's business.
        #expect(try rig.curl(path(app, check: true) + "?%zz=%&prefetch=false&&=").status == 200)
    }

    @Test("E2 E6 E18 E28 a check answers JSON and downloads behind it", arguments: ["GET", "POST"])
    func backgroundCheck(_ method: String) throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        for query in ["", "?prefetch=true"] {
            let answer = try rig.curl(path(app, check: true) + query, method: method)
            #expect(answer.status == 200 && answer.headers["content-type"] == "application/json")
            #expect(answer.json["available"] as? Bool == true)
            #expect(answer.json["current"] as? String == "v1")
            #expect(answer.json["latest"] as? String == "v2")
            #expect(answer.json["prefetch"] as? String == "background")
            let asset = try #require(answer.json["asset"] as? [String: String])
            #expect(asset["name"] == "Example.ipa" && asset["id"]?.isEmpty == false)
            #expect(asset["url"] == rig.source.fileURL("Example.ipa"))
        }
        #expect(try eventually { try rig.stages().contains("prefetch result") })
        #expect(rig.cached.count == 1 && rig.ran("sign") == 0)
    }

    @Test("E3 prefetch=false checks only", arguments: ["GET", "POST"])
    func checkOnly(_ method: String) throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        let answer = try rig.curl(path(app, check: true) + "?prefetch=false", method: method)
        #expect(answer.isAvailable == true && answer.json["prefetch"] as? String == "disabled")
        // Later events would be behind this one's.
        _ = try rig.curl(path(app, check: true) + "?prefetch=false")
        #expect(try rig.stages().isEmpty && rig.source.count("/files/") == 0)
    }

    @Test(
        "E4 E5 E13 E24 prefetch=foreground streams check and download on both routes, and never installs"
    )
    func foreground() throws {
        for isCheck in [true, false] {
            for method in ["GET", "POST"] {
                let rig = try UpdateRig()
                let app = try rig.addWithUpdate()
                let answer = try rig.curl(
                    path(app, check: isCheck) + "?prefetch=foreground", method: method)
                #expect(answer.status == 200 && answer.isNDJSON)
                #expect(answer.story == ["check", "download", "result"])
                let result = try #require(answer.lines.last?["result"] as? [String: Any])
                #expect(result["available"] as? Bool == true && result["latest"] as? String == "v2")
                #expect(result["prefetched"] as? Bool == true)
                #expect(result["prefetch"] as? String == "complete")
                #expect(rig.cached.count == 1 && rig.commands.isEmpty)
            }
        }
    }

    @Test("E13 prefetch on the base route selects the check", arguments: ["true", "false"])
    func prefetchOnBase(_ policy: String) throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        let answer = try rig.curl(path(app) + "?open=true&prefetch=\(policy)", method: "POST")
        #expect(answer.headers["content-type"] == "application/json" && answer.isAvailable == true)
        #expect(rig.commands.isEmpty)
    }

    @Test(
        "E7 E9 E14 E16 POST and GET install, and open again what ran just before",
        arguments: ["POST", "GET"])
    func install(_ method: String) throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate { $0.team = "ABC" }
        for (number, query) in ["", "?open=true"].enumerated() {
            let answer = try rig.curl(path(app) + query, method: method)
            #expect(answer.status == 200 && answer.isNDJSON, "\(answer)")
            #expect(answer.story == ["check", "download", "sign", "install", "open", "result"])
            #expect(rig.ran("sign") == number + 1 && rig.ran("install") == number + 1)
            #expect(rig.ran("open") == number + 1)
        }
        #expect(try rig.version(app) == "v2")
        // Asked after signing, just before installing.
        let order = rig.commands.prefix(4).map { String($0.prefix { $0 != " " }) }
        #expect(order == ["sign", "running", "install", "open"])
        #expect(rig.commands[0].hasSuffix(" ABC") && rig.commands[2].contains("phone"))
        #expect(rig.lastApp == AppSourceServer.app(200_000))
    }

    @Test("E8 E16 what did not run, or open=false, stays closed")
    func staysClosed() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        let closed = try rig.curl(path(app) + "?open=false", method: "POST")
        #expect(closed.story == ["check", "download", "sign", "install", "result"])
        try rig.setRunning(1)
        let answer = try rig.curl(path(app), method: "POST")
        #expect(answer.story == ["check", "download", "sign", "install", "result"])
        let result = try #require(answer.lines.last?["result"] as? [String: Any])
        #expect(result["warnings"] as? [String] == ["the profile is old"])
        #expect(rig.ran("open") == 0)
    }

    @Test(
        "E17 where it cannot be found out, the installation goes on with a warning; open=true changes nothing"
    )
    func unknownState() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        try rig.setRunning(69)
        let answer = try rig.curl(path(app) + "?open=true", method: "POST")
        #expect(answer.story == ["check", "download", "sign", "install", "result"])
        let result = try #require(answer.lines.last?["result"] as? [String: Any])
        let warnings = try #require(result["warnings"] as? [String])
        #expect(warnings.count == 2 && warnings[1].contains("could not be found out"))
        #expect(rig.ran("open") == 0)
    }

    @Test("E10 the older routes do the same")
    func aliases() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        let check = try rig.curl("/update/\(app.id)/check?prefetch=false")
        #expect(check.isAvailable == true && check.json["prefetch"] as? String == "disabled")
        #expect(
            try rig.curl("/update/\(app.id)?prefetch=foreground").story
                == ["check", "download", "result"])
        #expect(
            try rig.curl("/update/\(app.id.uppercased())", method: "POST").story.last == "result")
        #expect(try rig.version(app) == "v2")
    }

    @Test(
        "E12 S6 values are exact, and each is given once",
        arguments: [
            "open=maybe", "open=", "open", "open=TRUE", "open=1", "open=true&open=true",
            "prefetch=", "prefetch", "prefetch=yes", "prefetch=Foreground",
            "prefetch=true&prefetch=false", "open=%66alse&open=false",
        ])
    func values(_ query: String) throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        for isCheck in [true, false] {
            let answer = try rig.curl(path(app, check: isCheck) + "?" + query, method: "POST")
            #expect(answer.status == 400 && answer.error?.isEmpty == false, "\(query)")
        }
        #expect(rig.commands.isEmpty && rig.source.requests.isEmpty)
    }

    @Test("E12 open is checked where it says nothing, too")
    func openOnChecks() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        let encoded = try rig.curl(path(app, check: true) + "?prefetch=%66alse&open=fals%65")
        #expect(encoded.status == 200 && encoded.json["prefetch"] as? String == "disabled")
    }

    @Test("E15 there are no other routes, and no other methods")
    func otherRoutes() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        for end in ["/resign", "/latest", "/status", "/cancel", "/check/", "/check/x", "/"] {
            #expect(try rig.curl(path(app) + end).status == 404, "\(end)")
        }
        #expect(try rig.curl("/api/app/\(app.id)").status == 404)
        #expect(try rig.curl("/api/other").status == 404)
        for method in ["PUT", "DELETE", "PATCH", "OPTIONS"] {
            let answer = try rig.curl(path(app), method: method)
            #expect(answer.status == 405 && answer.headers["allow"] == "GET, POST", "\(method)")
        }
        #expect(rig.commands.isEmpty)
    }

    @Test(
        "E19 a background download that fails changes no answer; the installation downloads again")
    func failedPrefetch() throws {
        let rig = try UpdateRig { $0.configuration.sources.retries = 0 }
        let app = try rig.addWithUpdate()
        rig.source.change("Example.ipa") { $0.behaviour = .status(404) }
        let answer = try rig.curl(path(app, check: true))
        #expect(answer.status == 200 && answer.json["prefetch"] as? String == "background")
        #expect(
            try eventually { try rig.stages().contains("prefetch error 127.0.0.1 answered 404.") })
        rig.source.change("Example.ipa") { $0.behaviour = .normal }
        #expect(try rig.curl(path(app), method: "POST").story.last == "result")
    }

    @Test("E20 background downloads of one installation are one")
    func deduplicated() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        rig.source.change("Example.ipa") { $0.behaviour = .held(after: 50_000) }
        for _ in 0..<5 {
            #expect(
                try rig.curl(path(app, check: true)).json["prefetch"] as? String == "background")
        }
        #expect(try eventually { rig.source.held == 1 })
        rig.source.release()
        #expect(try eventually { try rig.stages().contains("prefetch result") })
        #expect(rig.source.count("GET /files/") == 1)
        #expect(try rig.stages().count { $0 == "prefetch download" } == 1)
    }

    @Test("E21 a release is compared by channel, tag and file")
    func releases() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        #expect(try rig.curl(path(app), method: "POST").story.last == "result")
        let check = path(app, check: true) + "?prefetch=false"
        #expect(try rig.curl(check).isAvailable == false)
        // Another file under the same tag.
        rig.source.put(.init("Example.ipa", AppSourceServer.app(150_000)))
        let replaced = try rig.curl(check)
        #expect(replaced.isAvailable == true && replaced.json["latest"] as? String == "v2")
        rig.source.publish(
            .init(
                "v3-rc", files: ["Example.ipa"], isPrerelease: true,
                publishedAt: "2026-05-01T00:00:00Z"))
        #expect(try rig.curl(check).json["latest"] as? String == "v2")
        let early = try rig.add(nil) { $0.channel = "pre-release" }
        let other = try rig.curl("/api/app/\(early.id)/update/check?prefetch=false&release=latest")
        #expect(other.json["latest"] as? String == "v3-rc")
        // An app of a certain tag, though it is a prerelease, follows the stable ones.
        let tagged = try rig.add(nil) { $0.version = "v3-rc" }
        let stable = try rig.curl("/api/app/\(tagged.id)/update/check?prefetch=false")
        #expect(stable.isAvailable == true && stable.json["latest"] as? String == "v2")
    }

    @Test("E22 an address is compared by its validators, and without any the answer says why")
    func addresses() throws {
        let rig = try UpdateRig()
        let app = try rig.add(rig.source.fileURL("Example.ipa"))
        #expect(try rig.curl(path(app), method: "POST").story.last == "result")
        let check = path(app, check: true) + "?prefetch=false"
        let same = try rig.curl(check)
        #expect(same.isAvailable == false && same.json["reason"] == nil)
        rig.source.put(.init("Example.ipa", AppSourceServer.app(100_000)))
        #expect(try rig.curl(check).isAvailable == true)
        rig.source.change("Example.ipa") { $0.hasValidators = false }
        let unknown = try rig.curl(check)
        #expect(unknown.isAvailable == false)
        #expect((unknown.json["reason"] as? String)?.contains("reliably") == true)
    }

    @Test("E22 a file on this machine has no channel, and is compared as well")
    func localFile() throws {
        let rig = try UpdateRig()
        let file = rig.folder + "/local app.ipa"
        try Data(AppSourceServer.app(5_000).bytes).write(to: URL(filePath: file))
        let app = try rig.add(file)
        let check = path(app, check: true) + "?prefetch=false"
        #expect(try rig.curl(check).isAvailable == false)
        #expect(try rig.curl(path(app), method: "POST").story.last == "result")
        #expect(rig.lastApp == AppSourceServer.app(5_000))
        let same = try rig.curl(check)
        #expect(same.isAvailable == false && same.json["reason"] == nil)
        try Data(AppSourceServer.app(6_000).bytes).write(to: URL(filePath: file))
        #expect(try rig.curl(check).isAvailable == true)
        let hub = try #require(try rig.metadata()["IPAHub"] as? [String: Any])
        #expect(hub["release"] == nil)
    }

    @Test("E23 G18 a credential is used by itself, and never comes back")
    func credentials() throws {
        let rig = try UpdateRig()
        let secret = "a-secret-of-the-source"
        let app = try rig.addWithUpdate { $0.credential = secret }
        let check = try rig.curl(path(app, check: true) + "?prefetch=false")
        let install = try rig.curl(path(app), method: "POST")
        #expect(check.isAvailable == true && install.story.last == "result")
        #expect(rig.source.credentials.allSatisfy { $0 == "Bearer \(secret)" })
        #expect(rig.source.count("/assets/") == 1, "private files are fetched by the API")
        #expect(!check.body.contains(secret) && !install.body.contains(secret))
        let rows = try rig.database.connect().execute(
            "SELECT a::text FROM heartline.app_installations a")
        #expect(try rows.allSatisfy { try !$0.text(0).contains(secret) })
        #expect(try rig.events().allSatisfy { !"\($0)".contains(secret) })
    }

    @Test("E25 without an update a foreground prefetch ends with a result all the same")
    func nothingNew() throws {
        let rig = try UpdateRig()
        rig.source.publish(.init("v1", files: ["Example.ipa"]))
        let app = try rig.add()
        let answer = try rig.curl(path(app, check: true) + "?prefetch=foreground")
        #expect(answer.isNDJSON && answer.story == ["check", "result"])
        let result = try #require(answer.lines.last?["result"] as? [String: Any])
        #expect(result["available"] as? Bool == false)
        #expect(result["prefetch"] as? String == "disabled")
    }

    @Test("E26 a foreground prefetch has the events of errors and selections")
    func foregroundFailures() throws {
        let rig = try UpdateRig()
        rig.source.put(.init("Example-tv.ipa", AppSourceServer.app(10)))
        rig.source.publish(.init("v2", files: ["Example.ipa", "Example-tv.ipa"]))
        let app = try rig.add()
        let answer = try rig.curl(path(app, check: true) + "?prefetch=foreground")
        #expect(answer.status == 200 && answer.story == ["check", "selection"])
        rig.source.answerAPI(500)
        let failed = try rig.curl(path(app, check: true) + "?prefetch=foreground")
        #expect(failed.status == 200 && failed.story == ["check", "error"])
        #expect(failed.lines.last?["message"] as? String == "The releases API answered 500.")
    }

    @Test("E27 who leaves a foreground prefetch ends it, and nothing of it is left")
    func leaving() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        rig.source.change("Example.ipa") { $0.behaviour = .held(after: 50_000) }
        let stream = try rig.stream(path(app, check: true) + "?prefetch=foreground")
        #expect(try eventually { rig.source.held == 1 && !rig.cached.isEmpty })
        stream.leave()
        #expect(try eventually { rig.cached.isEmpty })
        #expect(
            try eventually {
                try rig.stages().suffix(2)
                    == ["prefetch disconnected", "prefetch error The client went away."]
            })
        #expect(rig.commands.isEmpty)
        // And while the source is asked.
        rig.source.holdAPI()
        let other = try rig.stream(path(app, check: true) + "?prefetch=foreground")
        #expect(try other.reaches("check"))
        #expect(try eventually { rig.source.held == 2 })
        other.leave()
        #expect(try eventually { try rig.stages().count { $0 == "prefetch disconnected" } == 2 })
    }

    @Test("E27 a download that another request shares goes on")
    func sharing() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        rig.source.change("Example.ipa") { $0.behaviour = .held(after: 50_000) }
        let first = try rig.stream(path(app, check: true) + "?prefetch=foreground")
        #expect(try eventually { rig.source.held == 1 })
        let second = try rig.stream(path(app, check: true) + "?prefetch=foreground")
        #expect(try second.reaches("download"))
        first.leave()
        #expect(try eventually { try rig.stages().contains("prefetch disconnected") })
        rig.source.release()
        #expect(second.waitForEnd() == .exited(0))
        #expect(second.story == ["check", "download", "result"])
        #expect(rig.source.count("GET /files/") == 1)
    }
}
