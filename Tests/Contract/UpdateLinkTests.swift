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

/// The apps' contract, "Global update links". Numbers are those of docs/updates-conformance.md.
@Suite("App update contract: global update links") struct UpdateLinkTests {
    @Test(
        "G1 G2 G5 G7 a link checks, and stays what it is when its app is updated",
        arguments: ["GET", "POST"])
    func check(_ method: String) throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        let link = try rig.link(app)
        for query in ["", "?install=false"] {
            let answer = try rig.curl(link + query, method: method)
            #expect(answer.status == 200 && answer.headers["content-type"] == "application/json")
            #expect(answer.isAvailable == true && answer.json["installing"] as? Bool == false)
            #expect(answer.json["latest"] as? String == "v2")
        }
        #expect(rig.commands.isEmpty)
        #expect(try rig.curl("/api/app/\(app.id)/update", method: "POST").story.last == "result")
        _ = try rig.curl("/api/app/\(try rig.newID())/update/check?prefetch=false")
        let after = try rig.curl(link)
        #expect(after.status == 200 && after.isAvailable == false)
    }

    @Test(
        "G3 G8 G11 G14 ?install schedules, answers 202 with a job, and goes on by itself",
        arguments: ["", "=true", "="])
    func background(_ value: String) throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        try rig.hold("install")
        let answer = try rig.curl(try rig.link(app) + "?install\(value)")
        #expect(answer.status == 202 && answer.isAvailable == true)
        #expect(answer.json["installing"] as? Bool == true)
        let job = try #require((answer.json["job"] as? String).flatMap { DeviceID($0) })
        rig.release("install")
        #expect(try eventually { try rig.stages().last == "install result" })
        let attempts = try rig.events().compactMap { event -> DeviceID? in
            if case .attempt(let attempt) = event.kind { attempt.id } else { nil }
        }
        #expect(Set(attempts) == [job] && rig.ran("open") == 1)
        #expect(try rig.version(app) == "v2")
    }

    @Test(
        "G4 G6 G8 ?install=foreground streams to the end, under both spellings",
        arguments: ["foreground", "forgroung"])
    func foreground(_ value: String) throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        let answer = try rig.curl(try rig.link(app) + "?install=\(value)&open=false")
        #expect(answer.status == 200 && answer.isNDJSON)
        #expect(answer.story == ["check", "download", "sign", "install", "result"])
        #expect(rig.ran("open") == 0)
    }

    @Test("G9 without an update every mode is ordinary JSON")
    func nothingNew() throws {
        let rig = try UpdateRig()
        rig.source.publish(.init("v1", files: ["Example.ipa"]))
        let link = try rig.link(try rig.add())
        for query in ["", "?install", "?install=foreground", "?install=false"] {
            let answer = try rig.curl(link + query)
            #expect(answer.status == 200 && answer.headers["content-type"] == "application/json")
            #expect(answer.isAvailable == false && answer.json["installing"] as? Bool == false)
        }
        #expect(rig.commands.isEmpty)
    }

    @Test("G10 wrong values are 400, unknown and revoked links 403, a second installation 409")
    func refusals() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        let link = try rig.link(app)
        for query in ["install=yes", "install=Foreground", "open=", "install=true&install=true"] {
            #expect(try rig.curl(link + "?" + query).status == 400, "\(query)")
        }
        #expect(try rig.curl("/global-update/xyz").status == 400)
        let unknown = try rig.curl("/global-update/" + String(repeating: "a", count: 48))
        #expect(unknown.status == 403 && unknown.error?.isEmpty == false)
        // An app's id is no link.
        #expect(try rig.curl("/global-update/\(app.id)").status == 403)
        try rig.hold("install")
        #expect(try rig.curl(link + "?install").status == 202)
        #expect(try eventually { rig.ran("install") == 1 })
        for query in ["?install", "?install=foreground"] {
            let answer = try rig.curl(link + query)
            #expect(answer.status == 409 && answer.error?.isEmpty == false)
        }
    }

    @Test(
        "G12 who leaves a foreground installation before it has begun ends it",
        arguments: ["check", "download"])
    func leavingEarly(_ phase: String) throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        if phase == "check" { rig.source.holdAPI() }
        rig.source.change("Example.ipa") { $0.behaviour = .held(after: 50_000) }
        let link = try rig.link(app)
        let stream = try rig.stream(link + "?install=foreground", method: "GET")
        #expect(try eventually { rig.source.held == 1 })
        if phase == "download" { #expect(try eventually { !rig.cached.isEmpty }) }
        stream.leave()
        #expect(
            try eventually { try rig.stages().last == "install error The client went away." })
        #expect(try eventually { rig.cached.isEmpty })
        rig.source.release()
        rig.source.change("Example.ipa") { $0.behaviour = .normal }
        // It can be asked for again.
        #expect(
            try eventually {
                try rig.curl(link + "?install=foreground").story.last == "result"
            })
        #expect(rig.ran("install") == 1)
    }

    @Test("G13 once it has begun on the device it finishes", arguments: ["sign", "install"])
    func leavingLate(_ phase: String) throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        try rig.hold(phase)
        let stream = try rig.stream(try rig.link(app) + "?install=foreground", method: "GET")
        #expect(try stream.reaches(phase))
        stream.leave()
        #expect(try eventually { try rig.stages().contains("install disconnected") })
        rig.release(phase)
        #expect(try eventually { try rig.stages().last == "install result" })
        #expect(try rig.version(app) == "v2")
    }

    @Test(
        "G15 G19 G20 a link is good from anywhere for its one app, one without that grant only from paired addresses"
    )
    func grants() throws {
        let rig = try UpdateRig(proxied: true)
        let app = try rig.addWithUpdate { $0.addresses = ["192.168.7.1"] }
        let stranger = "203.0.113.5"
        let old = try rig.link(app, isAnywhere: false)
        #expect(try rig.curl(old, from: stranger).status == 403)
        #expect(try rig.curl(old, from: "192.168.7.1").status == 200)
        #expect(try rig.curl(old, from: "127.0.0.2").status == 200)
        let new = try rig.link(app)
        #expect(try rig.curl(new, from: stranger).status == 200)
        // A proxy that does not say for whom it asks: whoever it is has the link.
        #expect(try rig.curl(new).status == 200)
        // The new link has not made the old one better.
        #expect(try rig.curl(old, from: stranger).status == 403)
        // It opens nothing else.
        let token = String(new.suffix(48))
        for route in ["/api/app/\(token)/update/check", "/update/\(token)/check"] {
            #expect(try rig.curl(route, from: stranger).status == 400)
        }
        #expect(
            try rig.curl("/api/app/\(app.id)/update/check?prefetch=false", from: stranger).status
                == 403)
        let installed = try rig.curl(new + "?install=foreground", from: stranger)
        #expect(installed.story.last == "result")
    }

    @Test("G16 overrides in the request are ignored")
    func overrides() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        let query =
            "?install=foreground&source=gh%3Aevil%2Fapp&device=other&app=x&release=pre-release"
        let answer = try rig.curl(try rig.link(app) + query)
        #expect(answer.story.last == "result")
        #expect(rig.commands.contains { $0.hasPrefix("install phone ") })
        #expect(rig.source.requests.allSatisfy { !$0.contains("evil") })
    }

    @Test("G17 a source with a private address needs the operator's word")
    func privateHosts() throws {
        let rig = try UpdateRig { $0.configuration.allowedHosts = [] }
        let app = try rig.addWithUpdate()
        let answer = try rig.curl(try rig.link(app) + "?install=foreground")
        #expect(answer.status == 502)
        #expect(answer.error?.contains("--allow-host") == true)
        #expect(rig.source.requests.isEmpty)
    }

    @Test("G21 a revoked link is good for nothing, and what runs goes on")
    func revoked() throws {
        let rig = try UpdateRig()
        let app = try rig.addWithUpdate()
        let link = try rig.link(app)
        let other = try rig.link(app)
        try rig.hold("install")
        #expect(try rig.curl(link + "?install").status == 202)
        #expect(try eventually { rig.ran("install") == 1 })
        let first = try #require(try rig.registry.links(of: app.record).first)
        #expect(try rig.registry.revokeLink(first.id, by: OperatorRequestForTests.make()))
        #expect(try !rig.registry.revokeLink(first.id, by: OperatorRequestForTests.make()))
        #expect(try rig.curl(link).status == 403 && rig.curl(other).status == 200)
        rig.release("install")
        #expect(try eventually { try rig.stages().last == "install result" })
        #expect(try rig.registry.revokeInstallation(app.record, by: OperatorRequestForTests.make()))
        #expect(try rig.curl(other).status == 403)
    }
}

enum OperatorRequestForTests {
    static func make() throws -> OperatorRequest { try OperatorRequest(actor: "test") }
}

/// Runs something on a thread of its own and hands out what came of it.
final class SystemThreadResult<Value> {
    private final class Box: @unchecked Sendable {
        // Written by the thread before its end, read after it.
        var result: Result<Value, any Error>?
        var body: (() throws -> Value)?
    }

    private let box = Box()
    private let thread: SystemThread

    /// - Parameter body: must not touch what the caller touches meanwhile, but for what is thread-safe.
    init(_ body: @escaping () throws -> Value) {
        box.body = body
        let box = box
        thread = SystemThread.start("test") { box.result = Result { try box.body!() } }
    }

    /// Call it once.
    func wait() throws -> Value {
        thread.join()
        return try box.result!.get()
    }
}
