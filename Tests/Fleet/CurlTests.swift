import Bytes
import Curl
import Glibc
import Synchronization
import System
import TestSupport
import Testing

@Suite struct CurlTests {
    /// Everything about one transfer that ended.
    struct Ended {
        var completion: CurlCompletion
        var answer: String
    }

    static func run(
        _ request: CurlRequest, body: String = "", transfers: inout CurlTransfers
    ) throws -> Ended {
        try transfers.start(request, body: ByteBuffer(body.utf8).span, tag: 7)
        return try #require(try finish(&transfers).first)
    }

    static func finish(_ transfers: inout CurlTransfers) throws -> [Ended] {
        var ended: [Ended] = []
        while transfers.running > 0 {
            try transfers.poll(milliseconds: 1_000) { completion, answer in
                ended.append(Ended(completion: completion, answer: answer.text))
            }
        }
        return ended
    }

    static func transfers() throws -> CurlTransfers {
        try CurlTransfers(maximumTransfers: 8, maximumConnections: 8)
    }

    @Test func theServerGetsMethodPathHeadersAndBodyAsGiven() throws {
        let seen = Mutex<HTTPTestServer.Request?>(nil)
        let server = HTTPTestServer { request in
            seen.withLock { $0 = request }
            return .status(200, "{}")
        }
        defer { server.stop() }
        var transfers = try Self.transfers()
        let request = try CurlRequest(
            .post, server.url + "/a?b=c",
            headers: [("Content-Type", "application/json"), ("X-Test", "one two")])
        // Zero bytes and invalid UTF-8 travel like any others.
        let body: [UInt8] = [0x7B, 0x00, 0xFF, 0x7D]
        try transfers.start(request, body: ByteBuffer(body).span)
        #expect(try Self.finish(&transfers).first?.completion.status == 200)
        let got = try #require(seen.withLock { $0 })
        #expect(got.line == "POST /a?b=c HTTP/1.1")
        #expect(got.head.contains("Content-Type: application/json\r\n"))
        #expect(got.head.contains("X-Test: one two"))
        #expect(got.body.bytes == body)
    }

    @Test(arguments: [200, 204, 400, 403, 500, 503])
    func anyStatusIsAnAnswerAndNoError(_ status: Int) throws {
        let server = HTTPTestServer { _ in .status(status, status == 204 ? "" : "{\"n\":\(status)}")
        }
        defer { server.stop() }
        var transfers = try Self.transfers()
        let ended = try Self.run(CurlRequest(.post, server.url), transfers: &transfers)
        #expect(ended.completion.status == status)
        #expect(ended.completion.error == nil)
        #expect(ended.completion.tag == 7)
        #expect(ended.answer == (status == 204 ? "" : "{\"n\":\(status)}"))
    }

    @Test(arguments: [
        (CurlRequest.Method.get, "GET / HTTP/1.1"), (.head, "HEAD / HTTP/1.1"),
        (.put, "PUT / HTTP/1.1"), (.patch, "PATCH / HTTP/1.1"), (.delete, "DELETE / HTTP/1.1"),
    ])
    func eachMethodIsSent(_ method: CurlRequest.Method, _ line: String) throws {
        let seen = Mutex("")
        let server = HTTPTestServer { request in
            seen.withLock { $0 = request.line }
            return .status(200, "")
        }
        defer { server.stop() }
        var transfers = try Self.transfers()
        let ended = try Self.run(CurlRequest(method, server.url), transfers: &transfers)
        #expect(ended.completion.status == 200)
        #expect(seen.withLock { $0 } == line)
    }

    @Test func aHandleThatPostedABodyGetsWithoutIt() throws {
        let bodies = Mutex<[Int]>([])
        let server = HTTPTestServer { request in
            bodies.withLock { $0.append(request.body.count) }
            return .status(200, "")
        }
        defer { server.stop() }
        var transfers = try Self.transfers()
        _ = try Self.run(CurlRequest(.post, server.url), body: "body", transfers: &transfers)
        _ = try Self.run(CurlRequest(.get, server.url), transfers: &transfers)
        _ = try Self.run(CurlRequest(.post, server.url), body: "", transfers: &transfers)
        #expect(bodies.withLock { $0 } == [4, 0, 0])
    }

    @Test func aServerThatNeverAnswersIsATimeout() throws {
        let server = HTTPTestServer { _ in .never }
        defer { server.stop() }
        var transfers = try Self.transfers()
        let request = try CurlRequest(
            .post, server.url, limits: .init(timeout: .milliseconds(50)))
        let ended = try Self.run(request, transfers: &transfers)
        #expect(ended.completion.error?.kind == .timeout)
        #expect(ended.completion.status == 0)
        #expect(ended.completion.microseconds >= 45_000)
    }

    @Test func aClosedPortIsRefused() throws {
        var transfers = try Self.transfers()
        let request = try CurlRequest(.post, "http://127.0.0.1:\(HTTPTestServer.closedPort())")
        let ended = try Self.run(request, transfers: &transfers)
        let error = try #require(ended.completion.error)
        #expect(error.kind == .refused)
        #expect(error.description.hasPrefix("transferring an HTTP request: "))
    }

    @Test func aNameThatDoesNotExistIsUnresolved() throws {
        var transfers = try Self.transfers()
        // A label of more than 63 bytes is refused by the resolver itself, so no network is asked.
        let name = String(repeating: "a", count: 64)
        let request = try CurlRequest(
            .get, "http://\(name).invalid/", usesEnvironmentProxy: false)
        #expect(
            try Self.run(request, transfers: &transfers).completion.error?.kind == .unresolved)
    }

    @Test func aServerWithoutTLSIsATLSError() throws {
        let server = HTTPTestServer { _ in .close }
        defer { server.stop() }
        // A server of plain HTTP would wait for the end of a head that never comes.
        let request = try CurlRequest(
            .get, "https://127.0.0.1:\(server.port)/",
            limits: .init(timeout: .seconds(20)), usesEnvironmentProxy: false)
        var transfers = try Self.transfers()
        try transfers.start(request)
        let deadline = SystemClock.monotonicMilliseconds() + 20_000
        while server.connectionsOpened == 0, SystemClock.monotonicMilliseconds() < deadline {
            try transfers.poll(milliseconds: 5) { _, _ in }
        }
        server.sendToAll("HTTP/1.1 400 Bad Request\r\n\r\n")
        #expect(try Self.finish(&transfers).first?.completion.error?.kind == .tls)
    }

    @Test(arguments: [
        (HTTPTestServer.Answer.close, CurlError.Kind.disconnected),
        (.raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort"), .disconnected),
        (.raw("SSH-2.0-OpenSSH_9.2\r\n"), .badAnswer),
    ])
    func aBrokenAnswerIsAnError(_ answer: HTTPTestServer.Answer, _ kind: CurlError.Kind) throws {
        let server = HTTPTestServer { _ in answer }
        defer { server.stop() }
        var transfers = try Self.transfers()
        let ended = try Self.run(CurlRequest(.post, server.url), transfers: &transfers)
        #expect(ended.completion.error?.kind == kind)
        #expect(ended.answer == "")
    }

    @Test func anAnswerOverTheLimitIsAnErrorAndOneOfTheLimitIsNot() throws {
        let server = HTTPTestServer { _ in .status(200, String(repeating: "x", count: 100)) }
        defer { server.stop() }
        var transfers = try Self.transfers()
        let exact = try CurlRequest(.get, server.url, limits: .init(answerBytes: 100))
        #expect(try Self.run(exact, transfers: &transfers).answer.utf8.count == 100)
        let less = try CurlRequest(.get, server.url, limits: .init(answerBytes: 99))
        #expect(
            try Self.run(less, transfers: &transfers).completion.error?.kind == .answerTooLarge)
    }

    @Test func aRedirectIsHandedOverUnlessFollowingIsAsked() throws {
        let server = HTTPTestServer { request in
            request.line.hasPrefix("GET /new ")
                ? .status(200, "new")
                : .raw("HTTP/1.1 302 Found\r\nLocation: /new\r\nContent-Length: 0\r\n\r\n")
        }
        defer { server.stop() }
        var transfers = try Self.transfers()
        let plain = try CurlRequest(.get, server.url + "/old")
        #expect(try Self.run(plain, transfers: &transfers).completion.status == 302)
        let following = try CurlRequest(.get, server.url + "/old", limits: .init(redirects: 1))
        #expect(try Self.run(following, transfers: &transfers).answer == "new")
    }

    @Test func tenThousandRequestsShareAFewConnections() throws {
        let server = HTTPTestServer { request in .status(200, request.body.span.text) }
        defer { server.stop() }
        var transfers = try CurlTransfers(maximumTransfers: 16, maximumConnections: 4)
        let request = try CurlRequest(.post, server.url)
        var started: UInt64 = 0
        var answered: Set<UInt64> = []
        var opened = 0
        var wrong = 0
        while started < 10_000 || transfers.running > 0 {
            while started < 10_000, !transfers.isFull {
                try transfers.start(
                    request, body: ByteBuffer("\(started)".utf8).span, tag: started)
                started += 1
            }
            try transfers.poll(milliseconds: 1_000) { completion, answer in
                if completion.status != 200 || answer.text != "\(completion.tag)"
                    || !answered.insert(completion.tag).inserted
                {
                    wrong += 1
                }
                opened += completion.connectionsOpened
            }
        }
        #expect(wrong == 0)
        #expect(answered.count == 10_000)
        #expect(server.requests == 10_000)
        #expect(server.connectionsOpened <= 4)
        #expect(opened == server.connectionsOpened)
    }

    @Test func aCancelledTransferIsNeverTold() throws {
        let server = HTTPTestServer { _ in .never }
        defer { server.stop() }
        var transfers = try Self.transfers()
        let id = try transfers.start(CurlRequest(.post, server.url))
        try transfers.poll(milliseconds: 0) { _, _ in Issue.record("nothing has ended") }
        var isEnded = transfers.cancel(id)
        #expect(isEnded)
        isEnded = !transfers.cancel(id)
        #expect(isEnded)
        #expect(transfers.running == 0)
        try transfers.poll(milliseconds: 0) { _, _ in Issue.record("it was cancelled") }
        // Its place is used again under another name.
        let next = try transfers.start(CurlRequest(.post, server.url))
        #expect(next != id)
        isEnded = !transfers.cancel(id)
        #expect(isEnded)
        transfers.cancelAll()
        #expect(transfers.running == 0)
    }

    @Test func moreTransfersThanAllowedAreRefused() throws {
        let server = HTTPTestServer { _ in .never }
        defer { server.stop() }
        var transfers = try CurlTransfers(maximumTransfers: 2, maximumConnections: 2)
        let request = try CurlRequest(.post, server.url)
        try transfers.start(request)
        try transfers.start(request)
        let isFull = transfers.isFull
        #expect(isFull)
        do {
            try transfers.start(request)
            Issue.record("a third transfer was started")
        } catch {
            #expect(error.kind == .tooMany)
        }
    }

    @Test func aDescriptorEndsTheWait() throws {
        let server = HTTPTestServer { _ in .never }
        defer { server.stop() }
        var transfers = try Self.transfers()
        try transfers.start(CurlRequest(.post, server.url))
        let waker = Waker()
        waker.signal()
        let before = SystemClock.monotonicMilliseconds()
        try transfers.poll(milliseconds: 600_000, orReadable: waker.descriptor) { _, _ in }
        #expect(SystemClock.monotonicMilliseconds() - before < 300_000)
    }

    @Test(arguments: ["ftp://host/", "file:///etc/passwd", "host:80", ""])
    func onlyHTTPIsSpoken(_ url: String) {
        #expect(throws: CurlError.self) { try CurlRequest(.get, url) }
    }

    @Test func aHeaderCannotSmuggleAnother() {
        #expect(throws: CurlError.self) {
            try CurlRequest(.get, "http://host/", headers: [("X-A", "b\r\nX-Evil: yes")])
        }
        #expect(throws: CurlError.self) {
            try CurlRequest(.get, "http://host/", headers: [("X-A\n", "b")])
        }
    }

    @Test func aURLThatMakesNoSenseIsAnInvalidRequest() throws {
        var transfers = try Self.transfers()
        let request = try CurlRequest(.get, "http://:99999999/")
        #expect(
            try Self.run(request, transfers: &transfers).completion.error?.kind == .invalidRequest)
    }
}
