import Bytes
import HTTP
import Synchronization
import Testing

@Suite struct RequestTests {
    struct Refused: CustomTestStringConvertible {
        var testDescription: String
        var request: String
        var status: Int
    }

    static let refused: [Refused] = [
        Refused(
            testDescription: "a lone CR in a header",
            request: "GET /hello HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", status: 400),
        Refused(
            testDescription: "a lone CR before a header",
            request: "GET /hello HTTP/1.1\r\n\rHost: a\r\n\r\n", status: 400),
        Refused(
            testDescription: "a lone LF at a line's end",
            request: "GET /hello HTTP/1.1\nHost: a\r\n\r\n", status: 400),
        Refused(
            testDescription: "a lone LF in a header",
            request: "GET /hello HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", status: 400),
        Refused(
            testDescription: "a folded header",
            request: "GET /hello HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n", status: 400),
        Refused(
            testDescription: "a folded first header",
            request: "GET /hello HTTP/1.1\r\n Host: a\r\n\r\n", status: 400),
        Refused(
            testDescription: "Content-Length and Transfer-Encoding",
            request: "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n"
                + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", status: 400),
        Refused(
            testDescription: "two Content-Lengths that agree",
            request: "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n"
                + "Content-Length: 3\r\n\r\nabc", status: 400),
        Refused(
            testDescription: "a list of Content-Lengths",
            request: "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 3\r\n\r\nabc",
            status: 400),
        Refused(
            testDescription: "a signed Content-Length",
            request: "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc",
            status: 400),
        Refused(
            testDescription: "a negative Content-Length",
            request: "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: -3\r\n\r\nabc",
            status: 400),
        Refused(
            testDescription: "an empty Content-Length",
            request: "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\nabc", status: 400),
        Refused(
            testDescription: "a Content-Length beyond every integer",
            request: "POST /echo HTTP/1.1\r\nHost: a\r\n"
                + "Content-Length: 99999999999999999999999999\r\n\r\n", status: 400),
        Refused(
            testDescription: "two Transfer-Encodings",
            request: "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
                + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", status: 400),
        Refused(
            testDescription: "an unknown transfer coding",
            request: "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            status: 501),
        Refused(
            testDescription: "a transfer coding that only looks like chunked",
            request: "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n",
            status: 501),
        Refused(
            testDescription: "a transfer coding in HTTP/1.0",
            request: "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            status: 400),
        Refused(
            testDescription: "no Host", request: "GET /hello HTTP/1.1\r\nX: a\r\n\r\n",
            status: 400),
        Refused(
            testDescription: "two Hosts",
            request: "GET /hello HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", status: 400),
        Refused(
            testDescription: "a Host that holds a path",
            request: "GET /hello HTTP/1.1\r\nHost: a/b\r\n\r\n", status: 400),
        Refused(
            testDescription: "a Host that holds another",
            request: "GET /hello HTTP/1.1\r\nHost: a, b\r\n\r\n", status: 400),
        Refused(
            testDescription: "space before a colon",
            request: "GET /hello HTTP/1.1\r\nHost : a\r\n\r\n", status: 400),
        Refused(
            testDescription: "a header without a name",
            request: "GET /hello HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n", status: 400),
        Refused(
            testDescription: "a header without a colon",
            request: "GET /hello HTTP/1.1\r\nHost: a\r\nX\r\n\r\n", status: 400),
        Refused(
            testDescription: "NUL in a value",
            request: "GET /hello HTTP/1.1\r\nHost: a\r\nX: b\0c\r\n\r\n", status: 400),
        Refused(
            testDescription: "a method that is no token",
            request: "G{T /hello HTTP/1.1\r\nHost: a\r\n\r\n", status: 400),
        Refused(
            testDescription: "an unknown method",
            request: "BREW /hello HTTP/1.1\r\nHost: a\r\n\r\n", status: 501),
        Refused(
            testDescription: "a method in lower case",
            request: "get /hello HTTP/1.1\r\nHost: a\r\n\r\n", status: 501),
        Refused(
            testDescription: "two spaces in the request line",
            request: "GET  /hello HTTP/1.1\r\nHost: a\r\n\r\n", status: 400),
        Refused(
            testDescription: "a tab in the request line",
            request: "GET\t/hello HTTP/1.1\r\nHost: a\r\n\r\n", status: 400),
        Refused(
            testDescription: "a space in the target",
            request: "GET /hel lo HTTP/1.1\r\nHost: a\r\n\r\n", status: 400),
        Refused(
            testDescription: "bytes beyond ASCII in the target",
            request: "GET /hällo HTTP/1.1\r\nHost: a\r\n\r\n", status: 400),
        Refused(testDescription: "HTTP/0.9", request: "GET /hello\r\n\r\n", status: 400),
        Refused(
            testDescription: "HTTP/2 by its preface",
            request: "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", status: 505),
        Refused(
            testDescription: "HTTP/1.2", request: "GET /hello HTTP/1.2\r\nHost: a\r\n\r\n",
            status: 505),
        Refused(
            testDescription: "another protocol's name",
            request: "GET /hello HTTQ/1.1\r\nHost: a\r\n\r\n", status: 400),
        Refused(
            testDescription: "another expectation",
            request: "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: tea\r\nContent-Length: 1\r\n\r\n",
            status: 417),
        Refused(
            testDescription: "a TLS handshake on the plain port",
            request: "\u{16}\u{3}\u{1}\u{0}\u{5}hello", status: 400),
        Refused(
            testDescription: "more headers than a hundred",
            request: "GET /hello HTTP/1.1\r\nHost: a\r\n"
                + String(repeating: "X: b\r\n", count: 100) + "\r\n", status: 431),
        Refused(
            testDescription: "a chunk size that is no number",
            request: "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            status: 400),
        Refused(
            testDescription: "a chunk size with a prefix",
            request: "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\n",
            status: 400),
        Refused(
            testDescription: "a chunk size beyond every integer",
            request: "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                + "ffffffffffffffffff\r\n", status: 400),
        Refused(
            testDescription: "a chunk that is longer than it says",
            request: "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                + "2\r\nabc\r\n0\r\n\r\n", status: 400),
        Refused(
            testDescription: "a chunk line that ends with LF only",
            request: "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                + "3\nabc\r\n0\r\n\r\n", status: 400),
        Refused(
            testDescription: "an endless chunk extension",
            request: "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                + "3;" + String(repeating: "x", count: 300) + "\r\nabc\r\n0\r\n\r\n", status: 400),
        Refused(
            testDescription: "endless trailers",
            request: "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                + "0\r\n" + String(repeating: "X: yyyyyyyyyyyyyyyy\r\n", count: 300) + "\r\n",
            status: 400),
    ]

    @Test(
        "What two servers could understand differently is refused with JSON and a close",
        arguments: refused)
    func refuses(_ example: Refused) throws {
        let server = try TestServer()
        let client = try server.connect()
        client.send(example.request)
        let answer = try client.readAnswer()
        #expect(answer.status == example.status)
        #expect(answer.headers["content-type"] == "application/json")
        #expect(answer.headers["connection"] == "close")
        #expect(answer.text.hasPrefix("{\"error\":\""))
        if example.status == 400 { #expect(answer.text == "{\"error\":\"bad request\"}") }
        #expect(client.isEnded())
        #expect(server.server.counters.requests == 0)
        #expect(server.isAlive())
    }

    struct Accepted: CustomTestStringConvertible {
        var testDescription: String
        var request: String
        var body: String
        var isKept = true
    }

    static let accepted: [Accepted] = [
        Accepted(
            testDescription: "a plain GET", request: "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n",
            body: "hello"),
        Accepted(
            testDescription: "blank lines before the request",
            request: "\r\n\r\nGET /hello HTTP/1.1\r\nHost: a\r\n\r\n", body: "hello"),
        Accepted(
            testDescription: "an empty Host", request: "GET /hello HTTP/1.1\r\nHost:\r\n\r\n",
            body: "hello"),
        Accepted(
            testDescription: "an absolute target with a query",
            request: "GET http://a:80/about?q=1 HTTP/1.1\r\nHost: a\r\n\r\n",
            body: "get /about q=1 - 127.0.0.1 false -"),
        Accepted(
            testDescription: "headers in any case and spacing",
            request: "GET /about HTTP/1.1\r\nhOST: a\r\nX-TEST:\t yes \t\r\n\r\n",
            body: "get /about - yes 127.0.0.1 false -"),
        Accepted(
            testDescription: "a body of known length",
            request: "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
            body: "abc"),
        Accepted(
            testDescription: "an empty body of known length",
            request: "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", body: ""),
        Accepted(
            testDescription: "a chunked body with extensions and trailers",
            request: "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n"
                + "3;a=\"b\"\r\nabc\r\nA \r\n0123456789\r\n0\r\nX: y\r\n\r\n",
            body: "abc0123456789"),
        Accepted(
            testDescription: "an empty chunked body",
            request: "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                + "0\r\n\r\n", body: ""),
        Accepted(
            testDescription: "a method we do not name",
            request: "PROPFIND /about HTTP/1.1\r\nHost: a\r\n\r\n",
            body: "other /about - - 127.0.0.1 false -"),
        Accepted(
            testDescription: "an upgrade nobody knows",
            request: "GET /hello HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n"
                + "Upgrade: h2c\r\n\r\n", body: "hello"),
        Accepted(
            testDescription: "HTTP/1.0", request: "GET /hello HTTP/1.0\r\n\r\n", body: "hello",
            isKept: false),
        Accepted(
            testDescription: "HTTP/1.0 that asks to be kept",
            request: "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", body: "hello"),
        Accepted(
            testDescription: "HTTP/1.1 that asks to be closed",
            request: "GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            body: "hello", isKept: false),
    ]

    @Test("What is valid is answered, and the connection kept as asked", arguments: accepted)
    func accepts(_ example: Accepted) throws {
        let server = try TestServer()
        let client = try server.connect()
        let answer = try client.request(example.request)
        #expect(answer.status == 200)
        #expect(answer.text == example.body)
        #expect(answer.headers["content-type"] == "text/plain")
        #expect(answer.headers["date"]?.hasSuffix(" GMT") == true)
        if example.isKept {
            #expect(try client.request(example.request).text == example.body)
        } else {
            #expect(answer.headers["connection"] == "close")
            #expect(client.isEnded())
        }
    }

    @Test("A request split at any byte is answered as if it came whole", arguments: [3, 7, 9])
    func splits(_ index: Int) throws {
        let server = try TestServer()
        let client = try server.connect()
        let example = Self.accepted[index - 1]
        let request = Array(example.request.utf8)
        for split in 1..<request.count {
            client.send(Array(request[..<split]))
            // The first part must be read by itself for the split to mean anything.
            #expect(eventually { server.server.counters.bytesInFlight > 0 })
            client.send(Array(request[split...]))
            #expect(try client.readAnswer().text == example.body, "split at \(split)")
        }
    }

    @Test("A request that comes byte by byte is answered", arguments: accepted)
    func drips(_ example: Accepted) throws {
        let server = try TestServer()
        let client = try server.connect()
        for byte in example.request.utf8 { client.send([byte]) }
        #expect(try client.readAnswer().text == example.body)
    }

    @Test("HEAD is answered with the length and without the body")
    func head() throws {
        let server = try TestServer()
        let client = try server.connect()
        client.send("HEAD /hello HTTP/1.1\r\nHost: a\r\n\r\nGET /hello HTTP/1.1\r\nHost: a\r\n\r\n")
        let answer = try client.readAnswer(toHead: true)
        #expect(answer.headers["content-length"] == "5")
        #expect(try client.readAnswer().text == "hello")
    }

    @Test("204 has neither a length nor a type")
    func noContent() throws {
        let server = try TestServer()
        let client = try server.connect()
        let answer = try client.request("GET /empty HTTP/1.1\r\nHost: a\r\n\r\n")
        #expect(answer.status == 204)
        #expect(answer.headers["content-length"] == nil)
        #expect(answer.headers["content-type"] == nil)
        #expect(try client.request("GET /hello HTTP/1.1\r\nHost: a\r\n\r\n").text == "hello")
    }

    @Test("Unknown paths get 404, known ones with another method 405 and Allow")
    func unknown() throws {
        let server = try TestServer()
        let client = try server.connect()
        let missing = try client.request("GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n")
        #expect(missing.status == 404)
        #expect(missing.text == "{\"error\":\"not found\"}")
        let wrong = try client.request("DELETE /hello HTTP/1.1\r\nHost: a\r\n\r\n")
        #expect(wrong.status == 405)
        #expect(wrong.headers["allow"] == "GET, HEAD")
        #expect(wrong.text == "{\"error\":\"method not allowed\"}")
    }

    @Test("A line end in a header's value cannot make another header")
    func headerInjection() throws {
        let server = try TestServer()
        let client = try server.connect()
        let answer = try client.request("GET /headers HTTP/1.1\r\nHost: a\r\n\r\n")
        #expect(answer.headers["x-injected"] == "a  X-Evil: 1")
        #expect(answer.headers["x-evil"] == nil)
    }

    @Test("A handler that gives no answer gets its client 500")
    func silentHandler() throws {
        let server = try TestServer()
        let client = try server.connect()
        let answer = try client.request("GET /silent HTTP/1.1\r\nHost: a\r\n\r\n")
        #expect(answer.status == 500)
        #expect(answer.text == "{\"error\":\"internal error\"}")
        #expect(try client.request("GET /hello HTTP/1.1\r\nHost: a\r\n\r\n").status == 200)
    }

    @Test("Overload is told with a Retry-After of 1 to 5 seconds that differs")
    func overload() throws {
        let server = try TestServer()
        let client = try server.connect()
        var waits: Set<String> = []
        for _ in 0..<40 {
            let answer = try client.request("GET /overloaded HTTP/1.1\r\nHost: a\r\n\r\n")
            #expect(answer.status == 503)
            waits.insert(answer.headers["retry-after"] ?? "")
        }
        #expect(waits.isSubset(of: ["1", "2", "3", "4", "5"]))
        #expect(waits.count > 1)
    }

    @Test("An answer larger than every buffer arrives whole")
    func largeAnswer() throws {
        let server = try TestServer()
        let client = try server.connect()
        let size = 20 << 20
        client.send("GET /big?\(size) HTTP/1.1\r\nHost: a\r\n\r\n")
        #expect(try client.readAnswer().body.count == size)
        #expect(eventually { server.server.counters.bytesInFlight == 0 })
    }

    @Test("Pipelined requests are answered in order, in one round")
    func pipelining() throws {
        let server = try TestServer()
        let client = try server.connect()
        let bodies = (0..<2000).map { "body \($0)" }
        var requests = ""
        for body in bodies {
            requests +=
                "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: \(body.utf8.count)\r\n\r\n\(body)"
        }
        client.send(requests)
        for body in bodies { #expect(try client.readAnswer().text == body) }
        #expect(eventually { server.server.counters.requests == 2000 })
        #expect(eventually { server.server.counters.responses(statusClass: 2) == 2000 })
    }

    @Test("A client that pipelines without reading answers is not read from for ever")
    func pipeliningWithoutReading() throws {
        let server = try TestServer { $0.highWaterBytes = 64 << 10 }
        let client = try server.connect(receiveBuffer: 4096)
        let request = "GET /big?30000 HTTP/1.1\r\nHost: a\r\n\r\n"
        let count = 2000
        client.send(String(repeating: request, count: count))
        #expect(eventually { server.server.counters.requests > 0 })
        // 60 MB of answers; what the server keeps of them stays near the high-water mark.
        #expect(server.server.counters.bytesInFlight < 1 << 20)
        for _ in 0..<count { #expect(try client.readAnswer().body.count == 30000) }
    }

    @Test("A client that ends its side is still answered")
    func halfClose() throws {
        let server = try TestServer()
        let client = try server.connect()
        client.send(
            "GET /hello HTTP/1.1\r\nHost: a\r\n\r\nGET /deferred?x HTTP/1.1\r\nHost: a\r\n\r\n")
        client.endOutput()
        #expect(try client.readAnswer().text == "hello")
        server.takeDeferred("x")?.respond(.ok, contentType: "text/plain", buffer("late"))
        #expect(try client.readAnswer().text == "late")
        #expect(client.isEnded())
        #expect(eventually { server.server.counters.connectionsOpen == 0 })
    }

    @Test("A client that ends within a request has the answers before it, and nobody else has them")
    func endWithinRequest() throws {
        let server = try TestServer()
        for _ in 0..<50 {
            let client = try server.connect()
            client.send(
                "GET /about?first HTTP/1.1\r\nHost: a\r\n\r\n"
                    + "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc")
            client.endOutput()
            let next = try server.connect()
            #expect(try next.request("GET /hello HTTP/1.1\r\nHost: a\r\n\r\n").text == "hello")
            #expect(try client.readAnswer().text.contains(" first "))
            #expect(client.isEnded())
        }
    }

    @Test("Handlers hear of rounds and of time")
    func roundsAndTicks() throws {
        let server = try TestServer()
        #expect(server.isAlive())
        #expect(eventually { server.state.roundsEnded.load(ordering: .relaxed) == 1 })
        #expect(eventually { server.state.ticks.load(ordering: .relaxed) > 2 })
        #expect(server.state.roundsEnded.load(ordering: .relaxed) == 1)
    }
}
