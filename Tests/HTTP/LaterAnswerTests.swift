import Bytes
import HTTP
import Synchronization
import System
import Testing

@Suite struct LaterAnswerTests {
    private func get(_ target: String) -> String { "GET \(target) HTTP/1.1\r\nHost: a\r\n\r\n" }

    @Test("A deferred answer comes from another thread, and the connection goes on")
    func deferred() throws {
        let server = try TestServer()
        let client = try server.connect()
        for round in 0..<20 {
            client.send(get("/deferred?\(round)"))
            let deferred = try #require(server.takeDeferred("\(round)"))
            #expect(
                deferred.respond(
                    .accepted, contentType: "text/plain", headers: [Header("X-Round", "\(round)")],
                    buffer("late")))
            let answer = try client.readAnswer()
            #expect(answer.status == 202)
            #expect(answer.headers["x-round"] == "\(round)")
            #expect(answer.text == "late")
        }
        #expect(eventually { server.server.counters.bytesInFlight == 0 })
    }

    @Test("Only the first of several answers counts")
    func answeredTwice() throws {
        let server = try TestServer()
        let client = try server.connect()
        client.send(get("/deferred?x"))
        let deferred = try #require(server.takeDeferred("x"))
        #expect(deferred.respond(.ok, contentType: "text/plain", buffer("first")))
        #expect(!deferred.respond(.ok, contentType: "text/plain", buffer("second")))
        #expect(try client.readAnswer().text == "first")
        #expect(try client.request(get("/hello")).text == "hello")
    }

    @Test("A deferred answer that is dropped becomes 500")
    func dropped() throws {
        let server = try TestServer()
        let client = try server.connect()
        let answer = try client.request(get("/dropped"))
        #expect(answer.status == 500)
        #expect(answer.text == "{\"error\":\"internal error\"}")
        #expect(try client.request(get("/hello")).text == "hello")
    }

    @Test("Requests behind a deferred one wait, and are answered in order")
    func pipelined() throws {
        let server = try TestServer()
        let client = try server.connect()
        client.send(
            get("/deferred?a") + get("/hello") + get("/deferred?b") + get("/big?100000")
                + get("/hello"))
        let first = try #require(server.takeDeferred("a"))
        // The second deferred request is behind the first: it has not been handled.
        #expect(server.state.deferred.withLock { $0.isEmpty })
        first.respond(.ok, contentType: "text/plain", buffer("a"))
        #expect(try client.readAnswer().text == "a")
        #expect(try client.readAnswer().text == "hello")
        try #require(server.takeDeferred("b")).respond(
            .ok, contentType: "text/plain", buffer("b"))
        #expect(try client.readAnswer().text == "b")
        #expect(try client.readAnswer().body.count == 100_000)
        #expect(try client.readAnswer().text == "hello")
    }

    @Test("Deferred answers of many connections may come in any order", arguments: 0..<UInt64(3))
    func anyOrder(seed: UInt64) throws {
        let server = try TestServer(loops: 2)
        var random = SeededRandom(seed: seed)
        let clients = try (0..<50).map { _ in try server.connect() }
        for (index, client) in clients.enumerated() {
            client.send(get("/deferred?\(index)") + get("/about?\(index)"))
        }
        for index in (0..<50).shuffled(using: &random) {
            try #require(server.takeDeferred("\(index)")).respond(
                .ok, contentType: "text/plain", buffer("late \(index)"))
        }
        for (index, client) in clients.enumerated() {
            #expect(try client.readAnswer().text == "late \(index)", "seed \(seed)")
            #expect(try client.readAnswer().text.contains(" \(index) "), "seed \(seed)")
        }
    }

    @Test("Bytes behind a deferred request are bounded: the rest waits in the client's socket")
    func boundedBehindDeferred() throws {
        let server = try TestServer()
        let client = try server.connect()
        client.send(get("/deferred?x"))
        let deferred = try #require(server.takeDeferred("x"))
        let body = [UInt8](repeating: 0x78, count: 60_000)
        let requests =
            Array("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: \(body.count)\r\n\r\n".utf8)
            + body
        let count = 300
        let all = Array([[UInt8]](repeating: requests, count: count).joined())
        let sender = SystemThread.start("sender") { [descriptor = client.descriptor] in
            RawClient.send(all, to: descriptor)
        }
        #expect(eventually { server.server.counters.bytesInFlight > 0 })
        let ticks = server.state.ticks.load(ordering: .relaxed)
        #expect(eventually { server.state.ticks.load(ordering: .relaxed) > ticks + 3 })
        #expect(server.server.counters.bytesInFlight <= 130_000)
        deferred.respond(.ok, contentType: "text/plain", buffer("late"))
        #expect(try client.readAnswer().text == "late")
        for _ in 0..<count { #expect(try client.readAnswer().body == body) }
        sender.join()
    }

    @Test("A deferred answer whose client has gone is dropped, also when its slot has a new client")
    func clientGone() throws {
        let server = try TestServer()
        let gone = try server.connect()
        gone.send(get("/deferred?x"))
        let deferred = try #require(server.takeDeferred("x"))
        gone.reset()
        #expect(eventually { server.server.counters.connectionsOpen == 0 })
        let next = try server.connect()
        next.send(get("/deferred?y"))
        let other = try #require(server.takeDeferred("y"))
        deferred.respond(.ok, contentType: "text/plain", buffer("for the one before"))
        other.respond(.ok, contentType: "text/plain", buffer("mine"))
        #expect(try next.readAnswer().text == "mine")
    }

    @Test("A deferred answer after the server's end is dropped")
    func serverGone() throws {
        let state: TestState
        do {
            let server = try TestServer()
            state = server.state
            let client = try server.connect()
            client.send(get("/deferred?x") + get("/stream?x"))
            _ = eventually { state.deferred.withLock { !$0.isEmpty } }
        }
        let deferred = try #require(state.deferred.withLock { $0.removeValue(forKey: "x") })
        deferred.respond(.ok, contentType: "text/plain", buffer("nobody"))
    }

    @Test("A streamed answer is chunked, and the connection goes on")
    func stream() throws {
        let server = try TestServer()
        let client = try server.connect()
        client.send(get("/stream?x") + get("/hello"))
        let stream = try #require(server.takeStream("x"))
        #expect(try client.readHead().headers["transfer-encoding"] == "chunked")
        for index in 0..<10 {
            stream.write(buffer("line \(index)\n"))
            #expect(try client.readChunk() == Array("line \(index)\n".utf8))
        }
        stream.write(buffer(""))
        stream.finish()
        #expect(try client.readChunk() == nil)
        #expect(!stream.isOpen)
        stream.write(buffer("after the end"))
        #expect(try client.readAnswer().text == "hello")
    }

    @Test("HTTP/1.0 gets a stream that ends with the connection")
    func oldStream() throws {
        let server = try TestServer()
        let client = try server.connect()
        client.send("GET /stream?x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        let stream = try #require(server.takeStream("x"))
        stream.write(buffer("one"))
        stream.write(buffer("two"))
        stream.finish()
        let answer = try client.readAnswer()
        #expect(answer.headers["transfer-encoding"] == nil)
        #expect(answer.headers["connection"] == "close")
        #expect(answer.text == "onetwo")
    }

    @Test("HEAD of a stream gets its head only")
    func headOfStream() throws {
        let server = try TestServer()
        let client = try server.connect()
        client.send("HEAD /stream?x HTTP/1.1\r\nHost: a\r\n\r\n" + get("/hello"))
        let stream = try #require(server.takeStream("x"))
        stream.write(buffer("unseen"))
        stream.finish()
        #expect(try client.readAnswer(toHead: true).status == 200)
        #expect(try client.readAnswer().text == "hello")
    }

    @Test("A stream that is dropped is cut, so that the client misses its end")
    func droppedStream() throws {
        let server = try TestServer()
        let client = try server.connect()
        client.send(get("/stream?x"))
        var stream = server.takeStream("x")
        stream?.write(buffer("part"))
        #expect(try client.readHead().status == 200)
        #expect(try client.readChunk() == Array("part".utf8))
        stream = nil
        #expect(throws: RawClient.Failure.self) { try client.readChunk() }
    }

    @Test("A slow reader holds a stream back, and its writer can tell")
    func backPressure() throws {
        let server = try TestServer {
            $0.lowWaterBytes = 32 << 10
            $0.streamBytes = 1 << 20
        }
        let client = try server.connect(receiveBuffer: 4096)
        client.send(get("/stream?x"))
        let stream = try #require(server.takeStream("x"))
        let piece = ByteBuffer([UInt8](repeating: 0x78, count: 10_000))
        var written = 0
        // The sockets take some; then what waits grows with every piece.
        while stream.waitingBytes < 200_000 {
            stream.write(piece)
            written += piece.count
        }
        let readiness = Readiness()
        stream.whenReady { readiness.count() }
        #expect(readiness.calls == 0)
        #expect(stream.isOpen)
        _ = try client.readHead()
        var read = 0
        while read < written {
            guard let chunk = try client.readChunk() else { break }
            read += chunk.count
        }
        #expect(read == written)
        #expect(eventually { readiness.calls == 1 })
        #expect(eventually { stream.waitingBytes == 0 })
        stream.finish()
        #expect(try client.readChunk() == nil)
    }

    @Test("A writer that ignores what waits loses its client, not the process its memory")
    func streamLimit() throws {
        let server = try TestServer { $0.streamBytes = 1 << 20 }
        let client = try server.connect(receiveBuffer: 4096)
        client.send(get("/stream?x"))
        let stream = try #require(server.takeStream("x"))
        let piece = ByteBuffer([UInt8](repeating: 0x78, count: 100_000))
        var count = 0
        while stream.isOpen, count < 10_000 {
            stream.write(piece)
            count += 1
        }
        #expect(!stream.isOpen)
        #expect(eventually { server.server.counters.connectionsOpen == 0 })
        #expect(server.isAlive())
    }

    @Test("A stream hears that its client has gone, though nothing is written")
    func streamClientGone() throws {
        let server = try TestServer()
        let client = try server.connect()
        client.send(get("/stream?x"))
        let stream = try #require(server.takeStream("x"))
        _ = try client.readHead()
        #expect(stream.isOpen)
        let readiness = Readiness()
        client.disconnect()
        #expect(eventually { !stream.isOpen })
        stream.whenReady { readiness.count() }
        #expect(eventually { readiness.calls == 1 })
        stream.write(buffer("nobody"))
        stream.finish()
        #expect(server.isAlive())
    }

    @Test("Streams are written from many threads")
    func streamFromThreads() throws {
        let server = try TestServer()
        let client = try server.connect()
        client.send(get("/stream?x"))
        let stream = try #require(server.takeStream("x"))
        let threads = (0..<4).map { index in
            SystemThread.start("writer") {
                for _ in 0..<500 {
                    stream.write(ByteBuffer([UInt8](repeating: UInt8(index), count: 10)))
                }
            }
        }
        threads.forEach { $0.join() }
        stream.finish()
        let answer = try client.readAnswer()
        #expect(answer.body.count == 20_000)
        for index in 0..<4 { #expect(answer.body.filter { $0 == UInt8(index) }.count == 5000) }
    }

    @Test("Work posted to a loop runs in order, and not after its end")
    func mailbox() throws {
        let seen = Numbers()
        let mailbox: LoopMailbox
        do {
            let server = try TestServer()
            #expect(server.isAlive())
            mailbox = try #require(server.state.mailboxes.withLock { $0.first })
            for number in 0..<1000 { mailbox.post { seen.append(number) } }
            #expect(eventually { seen.all.count == 1000 })
            #expect(seen.all == Array(0..<1000))
        }
        mailbox.post { seen.append(-1) }
        #expect(seen.all.count == 1000)
    }

    @Test("An upgraded connection belongs to its protocol")
    func upgrade() throws {
        let server = try TestServer()
        let client = try server.connect()
        // The first bytes come together with the request.
        client.send(
            "GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nfirst")
        let answer = try client.readHead()
        #expect(answer.status == 101)
        #expect(answer.headers["upgrade"] == "echo")
        #expect(answer.headers["connection"] == "Upgrade")
        #expect(try client.read(5) == Array("first".utf8))
        let bytes = (0..<200_000).map { UInt8(truncatingIfNeeded: $0) }.map { $0 == 0x21 ? 0 : $0 }
        client.send(bytes)
        #expect(try client.read(bytes.count) == bytes)
        client.send("bye!")
        #expect(try client.readToEnd() == Array("bye!".utf8))
        client.disconnect()
        #expect(eventually { server.state.upgradesClosed.load(ordering: .relaxed) == 1 })
    }
}

/// Counts calls from any thread.
final class Readiness: Sendable {
    private let number = Atomic(0)
    var calls: Int { number.load(ordering: .relaxed) }
    func count() { number.add(1, ordering: .relaxed) }
}

final class Numbers: Sendable {
    private let numbers = Mutex<[Int]>([])
    var all: [Int] { numbers.withLock { $0 } }
    func append(_ number: Int) { numbers.withLock { $0.append(number) } }
}
