import Bytes
import Crypto
import Foundation
import Synchronization
import System
import TestSupport
import Testing
import Updates

/// Sources and downloads against a real server on this machine.
@Suite("Asking sources and downloading") struct FetchingTests {
    final class Rig {
        let server = AppSourceServer()
        let folder: String
        var configuration = UpdatesConfiguration()

        init(isAllowed: Bool = true) throws {
            folder = try FileSystem.makeTemporaryDirectory("/tmp/heartline-fetching-")
            configuration.gitHub.api = server.url
            configuration.sources.silence = 60_000
            if isAllowed { configuration.allowedHosts = ["127.0.0.1"] }
        }

        deinit {
            server.stop()
            FileSystem.removeTree(folder)
        }

        func cache() throws -> DownloadCache {
            try DownloadCache("\(folder)/cache", sizeBytes: configuration.cache.sizeBytes)
        }

        func ask(
            _ source: String, _ change: (inout TrackedApp) -> Void = { _ in }
        ) throws -> Result<SourceState, SourceFault> {
            var app = TrackedApp(source: try #require(UpdateSource(source)))
            change(&app)
            return try SourceChecker(.init(configuration)).ask(app) { true }
        }

        func task(
            _ name: String, _ change: (inout ReleaseAsset) -> Void = { _ in }
        ) -> DownloadTask {
            let url = server.fileURL(name)
            var asset = ReleaseAsset(id: name, name: name, url: url, fingerprint: "1")
            change(&asset)
            return DownloadTask(source: UpdateSource(url)!, asset: asset, credential: nil)
        }

        func download(
            _ task: DownloadTask, goesOn: @escaping () -> Bool = { true },
            keepsPartial: Bool = false, progress: @escaping (Int64, Int64?) -> Void = { _, _ in }
        ) throws -> DownloadEnd {
            try Downloader(configuration, cache(), firstPause: 1).download(
                task, progress: progress, goesOn: goesOn, keepsPartial: { keepsPartial })
        }

        /// The bytes in the cache.
        func content(_ task: DownloadTask) throws -> ByteBuffer? {
            let cache = try cache()
            guard let path = cache.take(task.key) else { return nil }
            return ByteBuffer(try FileSystem.bytes(of: path, limit: 64 << 20))
        }

        var files: [String] {
            (try? FileSystem.names(in: "\(folder)/cache")) ?? []
        }
    }

    // MARK: - Releases

    @Test(
        "the latest stable release and the latest prerelease are told apart, drafts are not looked at"
    )
    func channels() throws {
        let rig = try Rig()
        rig.server.put(.init("a.ipa", AppSourceServer.app(10)))
        rig.server.publish(.init("v1", files: ["a.ipa"], publishedAt: "2026-01-01T00:00:00Z"))
        rig.server.publish(
            .init(
                "v2-beta.1", files: ["a.ipa"], isPrerelease: true,
                publishedAt: "2026-03-01T00:00:00Z"))
        rig.server.publish(
            .init(
                "v2-beta.0", files: ["a.ipa"], isPrerelease: true,
                publishedAt: "2026-02-01T00:00:00Z"))
        let stable = try rig.ask("gh:owner/repo").get()
        #expect(stable.version == "v1" && stable.assets.map(\.name) == ["a.ipa"])
        let early = try rig.ask("gh:owner/repo") { $0.channel = .preRelease }.get()
        #expect(early.version == "v2-beta.1")
    }

    @Test("what is known is asked for by its ETag, and a limit is kept to")
    func etagAndLimits() throws {
        let rig = try Rig()
        rig.server.put(.init("a.ipa", AppSourceServer.app(10)))
        rig.server.publish(.init("v1", files: ["a.ipa"]))
        let app = TrackedApp(source: try #require(UpdateSource("gh:owner/repo")))
        let checker = try SourceChecker(.init(rig.configuration))
        let first = try checker.ask(app) { true }.get()
        #expect(try checker.ask(app) { true }.get() == first)
        #expect(rig.server.requests.count == 2)
        // From here on the server says that there are no more questions.
        rig.server.limit(remaining: 0, reset: SystemClock.wallMilliseconds() / 1_000 + 600)
        #expect(try checker.ask(app) { true }.get() == first)
        #expect(rig.server.requests.count == 3)
        #expect(try checker.ask(app) { true }.get() == first)
        #expect(rig.server.requests.count == 3, "asked though the limit was reached")
        // Another repository is not known, and must not be asked for either.
        let other = TrackedApp(source: try #require(UpdateSource("gh:owner/other")))
        guard case .failure(let fault) = checker.ask(other, goesOn: { true }) else {
            return #expect(Bool(false))
        }
        #expect(fault.description.contains("ask again in"))
        #expect(rig.server.requests.count == 3)
        // Who has a credential has a limit of their own.
        var mine = other
        mine.credential = SourceCredential("token")
        _ = checker.ask(mine) { true }
        #expect(rig.server.requests.count == 4 && rig.server.credentials.last == "Bearer token")
    }

    @Test(
        "failures of the API are told in words",
        arguments: [
            (401, "does not take the credential"), (403, "refuses"), (429, "ask again in"),
            (500, "answered 500"), (418, "answered 418"),
        ])
    func apiFailures(_ status: Int, _ words: String) throws {
        let rig = try Rig()
        rig.server.answerAPI(status)
        guard case .failure(let fault) = try rig.ask("gh:owner/repo") else {
            return #expect(Bool(false), "\(status)")
        }
        #expect(fault.description.contains(words), "\(fault)")
    }

    @Test("no stable release is a reason, no repository of prereleases a failure")
    func nothing() throws {
        let rig = try Rig()
        let state = try rig.ask("gh:owner/repo").get()
        #expect(state.version == nil && state.reason?.contains("no stable release") == true)
        #expect(
            try rig.ask("gh:owner/repo") { $0.channel = .preRelease }.get().reason?
                .contains("no prerelease") == true)
        guard case .failure = try rig.ask("gh:owner/gone", { $0.channel = .preRelease }) else {
            return #expect(Bool(false))
        }
    }

    // MARK: - Addresses

    @Test("an address has a fingerprint of its validators, also from a server without HEAD")
    func validators() throws {
        let rig = try Rig()
        rig.server.put(.init("a.ipa", AppSourceServer.app(1_000)))
        let url = rig.server.fileURL("a.ipa")
        let first = try rig.ask(url).get().assets[0]
        #expect(first.sizeBytes == 1_000 && first.name == "a.ipa" && !first.fingerprint.isEmpty)
        rig.server.change("a.ipa") { $0.takesHead = false }
        #expect(try rig.ask(url).get().assets[0] == first)
        rig.server.put(.init("a.ipa", AppSourceServer.app(1_000, seed: 1)))
        #expect(try rig.ask(url).get().assets[0].fingerprint != first.fingerprint)
    }

    @Test("an address without validators says why nothing can be compared")
    func noValidators() throws {
        let rig = try Rig()
        var file = AppSourceServer.File("a.ipa", AppSourceServer.app(1_000))
        file.hasValidators = false
        rig.server.put(file)
        let state = try rig.ask(rig.server.fileURL("a.ipa")).get()
        #expect(state.reason?.contains("cannot be compared reliably") == true)
    }

    @Test("a web page is no app, at a check and at a download")
    func page() throws {
        let rig = try Rig()
        var file = AppSourceServer.File("a.ipa", AppSourceServer.app(1_000))
        file.behaviour = .page
        rig.server.put(file)
        guard case .failure(let fault) = try rig.ask(rig.server.fileURL("a.ipa")) else {
            return #expect(Bool(false))
        }
        #expect(fault.description == "127.0.0.1 answered with a web page and not with an app.")
        #expect(
            try rig.download(rig.task("a.ipa"))
                == .failed("127.0.0.1 answered with a web page and not with an app."))
        #expect(rig.files.isEmpty, "\(rig.files)")
    }

    @Test("a private address is refused unless its host is allowed, also behind a redirect")
    func privateAddresses() throws {
        let refused = try Rig(isAllowed: false)
        guard case .failure(let fault) = try refused.ask(refused.server.fileURL("a.ipa")) else {
            return #expect(Bool(false))
        }
        #expect(
            fault.description
                == "127.0.0.1 has a private address; an operator can allow it with --allow-host.")
        // A name is judged by what it is resolved to.
        let named = "http://localhost:\(refused.server.port)/files/a.ipa"
        guard case .failure(let other) = try refused.ask(named) else {
            return #expect(Bool(false))
        }
        #expect(other.description.contains("localhost has a private address"))
        #expect(refused.server.requests.isEmpty)

        let rig = try Rig()
        var file = AppSourceServer.File("a.ipa", AppSourceServer.app(100))
        file.behaviour = .redirect("http://localhost:\(rig.server.port)/files/b.ipa")
        rig.server.put(file)
        rig.server.put(.init("b.ipa", AppSourceServer.app(100)))
        guard case .failure(let behind) = try rig.ask(rig.server.fileURL("a.ipa")) else {
            return #expect(Bool(false))
        }
        #expect(behind.description.contains("localhost has a private address"))
        #expect(rig.server.count("b.ipa") == 0)
        rig.configuration.allowedHosts.append("localhost")
        #expect(try rig.ask(rig.server.fileURL("a.ipa")).get().assets[0].sizeBytes == 100)
    }

    @Test("redirects have an end, and lead nowhere but to the web")
    func redirects() throws {
        let rig = try Rig()
        for (target, words) in [
            ("/files/a.ipa", "redirects more than"), ("file:///etc/passwd", "to no web address"),
            ("http://user:pw@127.0.0.1/", "with a password"),
        ] {
            var file = AppSourceServer.File("a.ipa", AppSourceServer.app(100))
            file.behaviour = .redirect(target)
            rig.server.put(file)
            guard case .failed(let message) = try rig.download(rig.task("a.ipa")) else {
                Issue.record("\(target)")
                continue
            }
            #expect(message.contains(words), "\(message)")
        }
        #expect(rig.server.count("a.ipa") == 8)
    }

    @Test("a credential is for the server that it is for, and for none that it redirects to")
    func credentials() throws {
        let rig = try Rig()
        let other = AppSourceServer()
        defer { other.stop() }
        other.put(.init("b.ipa", AppSourceServer.app(100)))
        var file = AppSourceServer.File("a.ipa", AppSourceServer.app(100))
        file.behaviour = .redirect(other.fileURL("b.ipa"))
        rig.server.put(file)
        var task = rig.task("a.ipa")
        task.credential = SourceCredential("Basic c2VjcmV0")
        #expect(try rig.download(task) == .done)
        #expect(rig.server.credentials == ["Basic c2VjcmV0"] && other.credentials == [""])
    }

    // MARK: - Downloads

    @Test("a download is whole, tells its progress, and is there for the next one")
    func download() throws {
        let rig = try Rig()
        let app = AppSourceServer.app(300_000)
        rig.server.put(.init("a.ipa", app))
        let task = rig.task("a.ipa") { $0.digest = SHA256.hash(app.span).hex }
        let seen = Mutex<[Int64]>([])
        let end = try rig.download(
            task,
            progress: { completed, total in
                if total != 300_000 { Issue.record("of \(total ?? -1) bytes") }
                seen.withLock { $0.append(completed) }
            })
        #expect(end == .done)
        #expect(seen.withLock { $0 }.last == 300_000 && seen.withLock { $0 }.first == 0)
        #expect(try rig.content(task) == app)
        #expect(try rig.download(task) == .done)
        #expect(rig.server.requests.count == 1)
    }

    @Test("a source that dies again and again is taken up where it died")
    func resumed() throws {
        let rig = try Rig()
        let app = AppSourceServer.app(200_000)
        var file = AppSourceServer.File("a.ipa", app)
        file.behaviour = .dies(after: 30_000)
        rig.server.put(file)
        let task = rig.task("a.ipa") { $0.digest = SHA256.hash(app.span).hex }
        #expect(try rig.download(task) == .done)
        #expect(try rig.content(task) == app)
        #expect(rig.server.requests.count == 7)
    }

    @Test("a source that dies and takes no ranges is begun anew, and given up in the end")
    func withoutRanges() throws {
        let rig = try Rig()
        rig.configuration.sources.retries = 3
        var file = AppSourceServer.File("a.ipa", AppSourceServer.app(200_000))
        file.behaviour = .dies(after: 30_000)
        file.takesRanges = false
        rig.server.put(file)
        let task = rig.task("a.ipa")
        guard case .failed(let message) = try rig.download(task) else {
            return #expect(Bool(false))
        }
        #expect(message.contains("closed the connection"), "\(message)")
        #expect(rig.server.requests.count >= 4)
        rig.server.change("a.ipa") { $0.behaviour = .normal }
        #expect(try rig.download(task) == .done)
        #expect(try rig.content(task)?.count == 200_000)
    }

    @Test("a file that is replaced between two tries is not glued to the old one")
    func replaced() throws {
        let rig = try Rig()
        rig.configuration.sources.retries = 0
        var file = AppSourceServer.File("a.ipa", AppSourceServer.app(200_000))
        file.behaviour = .dies(after: 50_000)
        rig.server.put(file)
        let task = rig.task("a.ipa")
        guard case .failed = try rig.download(task) else { return #expect(Bool(false)) }
        let newer = AppSourceServer.app(150_000, seed: 9)
        rig.server.put(.init("a.ipa", newer))
        #expect(try rig.download(task) == .done)
        #expect(try rig.content(task) == newer)
    }

    @Test("a source that lies about its length, or its release's, is not believed")
    func lies() throws {
        let rig = try Rig()
        rig.configuration.sources.retries = 1
        var file = AppSourceServer.File("a.ipa", AppSourceServer.app(1_000))
        file.behaviour = .announces(bytes: 2_000)
        rig.server.put(file)
        guard case .failed(let longer) = try rig.download(rig.task("a.ipa")) else {
            return #expect(Bool(false))
        }
        #expect(longer.contains("closed the connection before all was there"))
        rig.server.change("a.ipa") { $0.behaviour = .normal }
        let asset = ReleaseAsset(
            id: "1", name: "a.ipa", url: rig.server.fileURL("a.ipa"), sizeBytes: 999,
            fingerprint: "x")
        let task = DownloadTask(
            source: UpdateSource("gh:owner/repo")!, asset: asset, credential: nil)
        #expect(
            try rig.download(task)
                == .failed("127.0.0.1 sends 1000 bytes of an app that should have 999."))
        rig.configuration.cache.fileBytes = 500
        guard case .failed(let large) = try rig.download(rig.task("a.ipa") { $0.id = "2" }) else {
            return #expect(Bool(false))
        }
        #expect(large.contains("more than the 500"))
    }

    @Test("what is no archive, and what has another digest, is refused and not kept")
    func contents() throws {
        let rig = try Rig()
        rig.server.put(.init("text.ipa", ByteBuffer("hello".utf8)))
        rig.server.put(.init("half.ipa", ByteBuffer("PK??".utf8)))
        rig.server.put(.init("a.ipa", AppSourceServer.app(100)))
        for name in ["text.ipa", "half.ipa"] {
            guard case .failed(let message) = try rig.download(rig.task(name)) else {
                Issue.record("\(name)")
                continue
            }
            #expect(message.contains("ZIP archive"), "\(message)")
        }
        guard
            case .failed(let message) = try rig.download(
                rig.task("a.ipa") { $0.digest = String(repeating: "0", count: 64) })
        else { return #expect(Bool(false)) }
        #expect(message.contains("another SHA-256"))
        #expect(rig.files.isEmpty, "\(rig.files)")
    }

    @Test("a download that nobody wants any more leaves nothing, unless it is to be gone on with")
    func cancelled() throws {
        let rig = try Rig()
        var file = AppSourceServer.File("a.ipa", AppSourceServer.app(200_000))
        file.behaviour = .held(after: 50_000)
        rig.server.put(file)
        let task = rig.task("a.ipa")
        let server = rig.server
        #expect(try rig.download(task, goesOn: { server.held == 0 }) == .cancelled)
        #expect(rig.files.isEmpty, "\(rig.files)")
        #expect(
            try rig.download(
                rig.task("a.ipa"), goesOn: { server.requests.count < 2 || server.held == 0 },
                keepsPartial: true) == .cancelled)
        #expect(rig.files.contains { $0.hasSuffix(".part") })
        rig.server.release()
        #expect(try rig.download(task) == .done)
        #expect(try rig.content(task)?.count == 200_000)
    }

    @Test("a source that falls silent is given up")
    func silent() throws {
        let rig = try Rig()
        rig.configuration.sources.silence = 1_000
        rig.configuration.sources.retries = 0
        var file = AppSourceServer.File("a.ipa", AppSourceServer.app(200_000))
        file.behaviour = .held(after: 50_000)
        rig.server.put(file)
        guard case .failed(let message) = try rig.download(rig.task("a.ipa")) else {
            return #expect(Bool(false))
        }
        #expect(message.contains("did not answer in time"), "\(message)")
    }

    @Test("the cache keeps to its size, and never takes what is in use")
    func cacheSize() throws {
        let rig = try Rig()
        rig.configuration.cache.sizeBytes = 250_000
        let cache = try rig.cache()
        var tasks: [DownloadTask] = []
        for number in 0..<4 {
            let name = "\(number).ipa"
            rig.server.put(.init(name, AppSourceServer.app(100_000, seed: UInt8(number))))
            tasks.append(rig.task(name))
        }
        let downloader = try Downloader(rig.configuration, cache)
        func fetch(_ index: Int) -> DownloadEnd {
            downloader.download(tasks[index], progress: { _, _ in }, goesOn: { true })
        }
        #expect(fetch(0) == .done)
        let held = try #require(cache.take(tasks[0].key))
        #expect(fetch(1) == .done && fetch(2) == .done && fetch(3) == .done)
        #expect(FileSystem.exists(held) && cache.has(tasks[3].key))
        #expect(!cache.has(tasks[1].key))
        cache.release(tasks[0].key)
        rig.server.put(.init("4.ipa", AppSourceServer.app(100_000, seed: 4)))
        let last = rig.task("4.ipa")
        #expect(downloader.download(last, progress: { _, _ in }, goesOn: { true }) == .done)
        #expect(cache.has(last.key))
        let sizes = rig.files.filter { $0.hasSuffix(".ipa") }.count
        #expect(sizes == 2)
    }

    @Test("who has a credential shares with nobody who has none")
    func keys() throws {
        let rig = try Rig()
        let open = rig.task("a.ipa")
        let mine = DownloadTask(
            source: open.source, asset: open.asset, credential: SourceCredential("x"))
        #expect(open.key != mine.key && open.key.count == 64)
        #expect("\(mine)".contains("hidden") && !"\(mine)".contains("Bearer"))
    }
}
