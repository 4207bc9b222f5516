import Glibc
import HTTP
import Synchronization
import System
import Testing

@Suite struct LimitTests {
    static let hello = "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n"

    @Test(
        "A body of exactly the limit is taken, one byte more is refused", arguments: [false, true])
    func bodyLimit(isChunked: Bool) throws {
        let server = try TestServer { $0.bodyBytes = 1000 }
        for (size, status) in [(1000, 200), (1001, 413)] {
            let client = try server.connect()
            let body = String(repeating: "x", count: size)
            let framing =
                isChunked
                ? "Transfer-Encoding: chunked\r\n\r\n\(String(size, radix: 16))\r\n\(body)\r\n0\r\n\r\n"
                : "Content-Length: \(size)\r\n\r\n\(body)"
            client.send("POST /echo HTTP/1.1\r\nHost: a\r\n\(framing)")
            let answer = try client.readAnswer()
            #expect(answer.status == status)
            if status == 413 {
                #expect(answer.text == "{\"error\":\"body too large\"}")
                #expect(client.isEnded())
            }
        }
    }

    @Test("Chunks are limited together, not each")
    func chunkedLimit() throws {
        let server = try TestServer { $0.bodyBytes = 1000 }
        let client = try server.connect()
        let chunk = "64\r\n" + String(repeating: "x", count: 100) + "\r\n"
        client.send(
            "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                + String(repeating: chunk, count: 11))
        #expect(try client.readAnswer().status == 413)
    }

    @Test("A handler's own limit for a route holds instead of the listener's")
    func routeLimit() throws {
        let server = try TestServer { $0.bodyBytes = 1000 }
        let client = try server.connect()
        let body = String(repeating: "x", count: 1 << 20)
        client.send(
            "POST /telemetry HTTP/1.1\r\nHost: a\r\nContent-Length: \(body.utf8.count)\r\n\r\n\(body)"
        )
        #expect(try client.readAnswer().body.count == 1 << 20)
        client.send(
            "POST /telemetry HTTP/1.1\r\nHost: a\r\nContent-Length: \((1 << 20) + 1)\r\n\r\n")
        #expect(try client.readAnswer().status == 413)
    }

    @Test("A client that sends its whole oversized body first still reads the 413")
    func lingering() throws {
        let server = try TestServer()
        let client = try server.connect()
        let size = 8 << 20
        #expect(client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: \(size)\r\n\r\n"))
        // A reset on the way would fail the sending, or take the answer away.
        #expect(client.send([UInt8](repeating: 0x78, count: size)))
        let answer = try client.readAnswer()
        #expect(answer.status == 413)
        #expect(answer.headers["connection"] == "close")
        #expect(try client.readToEnd().isEmpty)
        client.disconnect()
        #expect(eventually { server.server.counters.connectionsOpen == 0 })
    }

    @Test("What a lingering client may still send is limited in bytes")
    func lingeringBytes() throws {
        let server = try TestServer { $0.lingerBytes = 100_000 }
        let client = try server.connect()
        client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999\r\n\r\n")
        #expect(try client.readAnswer().status == 413)
        let piece = [UInt8](repeating: 0x78, count: 64 << 10)
        #expect(eventually { !client.send(piece) })
        #expect(eventually { server.server.counters.connectionsOpen == 0 })
    }

    @Test("A lingering client that never closes is cut in time")
    func lingeringTime() throws {
        let server = try TestServer { $0.lingerMilliseconds = 300 }
        let client = try server.connect()
        client.send("BAD\r\n\r\n")
        #expect(try client.readAnswer().status == 400)
        #expect(eventually { server.server.counters.connectionsOpen == 0 })
    }

    @Test(
        "A head longer than the limit gets 431, however it comes",
        arguments: [100, 1000, 16 << 10, 64 << 10])
    func headLimit(pieceBytes: Int) throws {
        let server = try TestServer()
        let client = try server.connect()
        let request = Array(
            ("GET /hello HTTP/1.1\r\nHost: a\r\nX: " + String(repeating: "y", count: 20_000)
                + "\r\n\r\n").utf8)
        for start in stride(from: 0, to: request.count, by: pieceBytes) {
            client.send(Array(request[start..<min(request.count, start + pieceBytes)]))
        }
        let answer = try client.readAnswer()
        #expect(answer.status == 431)
        #expect(answer.text == "{\"error\":\"headers too large\"}")
        #expect(client.isEnded())
    }

    @Test(
        "A head of exactly the limit is taken, one byte more is refused", arguments: [1, 7, 9999])
    func exactHeadLimit(pieceBytes: Int) throws {
        let server = try TestServer { $0.headBytes = 200 }
        for (size, status) in [(200, 200), (201, 431)] {
            let client = try server.connect()
            let start = "GET /hello HTTP/1.1\r\nHost: a\r\nX: "
            let request = Array(
                (start + String(repeating: "y", count: size - start.utf8.count - 4) + "\r\n\r\n")
                    .utf8)
            #expect(request.count == size)
            for start in stride(from: 0, to: request.count, by: pieceBytes) {
                client.send(Array(request[start..<min(request.count, start + pieceBytes)]))
            }
            #expect(try client.readAnswer().status == status)
        }
    }

    @Test("100 Continue comes when the body is wanted, and only then")
    func expectContinue() throws {
        let server = try TestServer { $0.bodyBytes = 1000 }
        let client = try server.connect()
        let head = "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
        client.send(head + "Content-Length: 3\r\n\r\n")
        #expect(try client.readAnswer().status == 100)
        client.send("abc")
        #expect(try client.readAnswer().text == "abc")
        client.send(head + "Transfer-Encoding: chunked\r\n\r\n")
        #expect(try client.readAnswer().status == 100)
        client.send("3\r\nabc\r\n0\r\n\r\n")
        #expect(try client.readAnswer().text == "abc")
        // Who sends the body without waiting needs no permission.
        #expect(try client.request(head + "Content-Length: 3\r\n\r\nabc").text == "abc")
        client.send(head + "Content-Length: 3\r\n\r\na")
        #expect(eventually { server.server.counters.bytesInFlight > 0 })
        client.send("bc")
        #expect(try client.readAnswer().text == "abc")
        client.send(head + "Content-Length: 1001\r\n\r\n")
        #expect(try client.readAnswer().status == 413)
        #expect(client.isEnded())
    }

    @Test("A request that does not come whole in time gets 408, at whatever part it stops")
    func slowRequests() throws {
        let server = try TestServer { $0.requestMilliseconds = 300 }
        for part in [
            "G", "GET /hello HTTP/1.1\r\nHost",
            "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc",
            "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
        ] {
            let client = try server.connect()
            client.send(part)
            let answer = try client.readAnswer()
            #expect(answer.status == 408)
            #expect(answer.text == "{\"error\":\"request timeout\"}")
            #expect(client.isEnded())
        }
    }

    @Test("A client that drips bytes has no more time than one that stops")
    func drippingRequests() throws {
        let server = try TestServer { $0.requestMilliseconds = 500 }
        let client = try server.connect()
        client.send("GET /hello HTTP/1.1\r\nHost: a\r\n")
        let start = SystemClock.monotonicMilliseconds()
        // Without a deadline for the whole this would go on for an hour.
        while client.send("X: y\r\n"), SystemClock.monotonicMilliseconds() < start + 3_600_000 {
            usleep(20_000)
            if server.server.counters.responses(statusClass: 4) > 0 { break }
        }
        #expect(try client.readAnswer().status == 408)
    }

    @Test("A client that never says anything is closed without an answer")
    func silentClient() throws {
        let server = try TestServer { $0.requestMilliseconds = 300 }
        let client = try server.connect()
        #expect(client.isEnded())
        #expect(eventually { server.server.counters.connectionsOpen == 0 })
    }

    @Test("A kept connection is closed after the idle time")
    func idleClient() throws {
        let server = try TestServer { $0.idleMilliseconds = 300 }
        let client = try server.connect()
        #expect(try client.request(Self.hello).status == 200)
        #expect(client.isEnded())
    }

    @Test("A client that takes nothing of its answer is cut after the write time")
    func stuckReader() throws {
        let server = try TestServer { $0.writeMilliseconds = 300 }
        let client = try server.connect(receiveBuffer: 4096)
        client.send("GET /big?\(32 << 20) HTTP/1.1\r\nHost: a\r\n\r\n")
        #expect(eventually { server.server.counters.bytesInFlight > 1 << 20 })
        #expect(eventually { server.server.counters.connectionsOpen == 0 })
        #expect(server.server.counters.bytesInFlight == 0)
    }

    @Test("An answer that a handler owes too long is given for it")
    func forgottenAnswer() throws {
        let server = try TestServer { $0.answerMilliseconds = 300 }
        let client = try server.connect()
        client.send("GET /deferred?x HTTP/1.1\r\nHost: a\r\n\r\n")
        #expect(try client.readAnswer().status == 503)
        #expect(client.isEnded())
        server.takeDeferred("x")?.respond(.ok, contentType: "text/plain", buffer("too late"))
        #expect(server.isAlive())
    }

    @Test("Connections above the limit get 503 with Retry-After, and room again when others go")
    func connectionLimit() throws {
        let server = try TestServer { $0.connections = 3 }
        var clients = try (0..<3).map { _ in try server.connect() }
        for client in clients { #expect(try client.request(Self.hello).status == 200) }
        let rejected = try server.connect()
        rejected.send(Self.hello)
        let answer = try rejected.readAnswer()
        #expect(answer.status == 503)
        #expect(answer.headers["connection"] == "close")
        #expect((1...5).contains(Int(answer.headers["retry-after"] ?? "") ?? 0))
        #expect(rejected.isEnded())
        rejected.disconnect()
        for client in clients { #expect(try client.request(Self.hello).status == 200) }
        #expect(eventually { server.server.counters.connectionsRejected == 1 })
        clients.removeLast().disconnect()
        #expect(eventually { server.server.counters.connectionsOpen == 2 })
        #expect(try server.connect().request(Self.hello).status == 200)
    }

    @Test("Far above the limit connections are closed without an answer")
    func connectionFlood() throws {
        let server = try TestServer { $0.connections = 1 }
        let clients = try (0..<100).map { _ in try server.connect() }
        #expect(eventually { server.server.counters.connectionsAccepted == 100 })
        #expect(server.server.counters.connectionsOpen <= 1 + 16)
        #expect(clients[99].isEnded())
        clients.forEach { $0.disconnect() }
        #expect(eventually { server.server.counters.connectionsOpen == 0 })
        #expect(server.isAlive())
    }

    @Test("Two thousand connections at once are all served")
    func manyConnections() throws {
        var limit = rlimit()
        unsafe getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
        // Both ends are in this process.
        limit.rlim_cur = min(limit.rlim_max, max(limit.rlim_cur, 8192))
        unsafe setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
        let server = try TestServer(loops: 2)
        let clients = try (0..<2000).map { _ in try server.connect() }
        for _ in 0..<2 {
            for client in clients { client.send(Self.hello) }
            for client in clients { #expect(try client.readAnswer().text == "hello") }
        }
        #expect(eventually { server.server.counters.connectionsOpen == 2000 })
        for client in clients { client.disconnect() }
        #expect(eventually { server.server.counters.connectionsOpen == 0 })
        #expect(server.server.counters.requests == 4000)
        #expect(server.server.counters.bytesInFlight == 0)
    }

    @Test("Without file descriptors accepting pauses instead of spinning, and goes on afterwards")
    func descriptorsRunOut() async {
        await #expect(processExitsWith: .success) {
            let server = try TestServer()
            var limit = rlimit(rlim_cur: 60, rlim_max: 60)
            unsafe setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
            var clients: [RawClient] = []
            while let client = try? server.connect() { clients.append(client) }
            #expect(eventually { server.server.counters.acceptPauses > 0 })
            let ticksBefore = server.state.ticks.load(ordering: .relaxed)
            let pausesBefore = server.server.counters.acceptPauses
            #expect(eventually { server.state.ticks.load(ordering: .relaxed) > ticksBefore + 5 })
            let ticks = server.state.ticks.load(ordering: .relaxed) - ticksBefore
            #expect(server.server.counters.acceptPauses - pausesBefore <= ticks + 2)
            clients.removeLast(clients.count / 2)
            #expect(server.isAlive())
        }
    }
}
