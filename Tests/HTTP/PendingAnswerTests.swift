import Bytes
import HTTP
import Testing

/// Answers of which it is not known at first whether they come whole or in pieces.
@Suite("Pending answers") struct PendingAnswerTests {
    private func get(_ target: String) -> String { "GET \(target) HTTP/1.1\r\nHost: a\r\n\r\n" }

    @Test("A pending answer can come whole, and the connection goes on")
    func whole() throws {
        let server = try TestServer()
        let client = try server.connect()
        for round in 0..<10 {
            client.send(get("/pending?\(round)"))
            let pending = try #require(server.takePending("\(round)"))
            #expect(pending.isOpen)
            #expect(pending.respond(.conflict, contentType: "text/plain", buffer("late")))
            #expect(!pending.respond(.ok, contentType: "text/plain", buffer("again")))
            #expect(pending.stream(.ok, contentType: "text/plain") == nil)
            let answer = try client.readAnswer()
            #expect(answer.status == 409 && answer.text == "late")
            #expect(!pending.isOpen)
        }
        #expect(eventually { server.server.counters.bytesInFlight == 0 })
    }

    @Test("A pending answer can come in pieces, and the connection goes on")
    func pieces() throws {
        let server = try TestServer()
        let client = try server.connect()
        for round in 0..<10 {
            client.send(get("/pending?\(round)") + get("/hello"))
            let pending = try #require(server.takePending("\(round)"))
            let stream = try #require(
                pending.stream(
                    .ok, contentType: "text/plain", headers: [Header("X-Round", "\(round)")]))
            let head = try client.readHead()
            #expect(head.status == 200 && head.headers["x-round"] == "\(round)")
            for piece in ["one", "two"] {
                stream.write(buffer(piece))
                #expect(try client.readChunk() == Array(piece.utf8))
            }
            stream.finish()
            #expect(try client.readChunk() == nil)
            // What came behind it was held.
            #expect(try client.readAnswer().text == "hello")
        }
    }

    @Test("A client that goes is seen, before a stream and within it", arguments: [false, true])
    func going(isStreaming: Bool) throws {
        let server = try TestServer()
        let client = try server.connect()
        client.send(get("/pending?x"))
        let pending = try #require(server.takePending("x"))
        var stream: ResponseStream?
        if isStreaming {
            stream = pending.stream(.ok, contentType: "text/plain")
            stream?.write(buffer("one"))
            _ = try client.readHead()
        }
        client.disconnect()
        #expect(eventually { stream.map { !$0.isOpen } ?? !pending.isOpen })
        // Nobody is answered, and nothing breaks.
        stream?.write(buffer("two"))
        stream?.finish()
        pending.respond(.ok, contentType: "text/plain", buffer("late"))
        #expect(try server.connect().request(get("/hello")).text == "hello")
        #expect(eventually { server.server.counters.connectionsOpen <= 1 })
    }

    @Test("A pending answer that is dropped becomes 500, a dropped stream is cut")
    func dropped() throws {
        let server = try TestServer()
        let client = try server.connect()
        #expect(try client.request(get("/dropped-pending")).status == 500)
        #expect(try client.request(get("/hello")).text == "hello")
        client.send(get("/pending?x"))
        var stream = try #require(server.takePending("x")).stream(.ok, contentType: "text/plain")
        stream?.write(buffer("one"))
        _ = try client.readHead()
        #expect(try client.readChunk() == Array("one".utf8))
        stream = nil
        #expect(client.isEnded())
    }

    @Test("A network has the addresses that share its first bits, and no others")
    func networks() {
        #expect(ClientNetwork("10.0.0.0/8")?.contains(ClientAddress("10.1.2.3")!) == true)
        #expect(ClientNetwork("10.0.0.0/8")?.contains(ClientAddress("::ffff:10.1.2.3")!) == true)
        #expect(ClientNetwork("10.0.0.0/8")?.contains(ClientAddress("11.0.0.0")!) == false)
        #expect(ClientNetwork("fd00::/8")?.contains(ClientAddress("fdff::1")!) == true)
        #expect(ClientNetwork("fd00::/8")?.contains(ClientAddress("fe00::1")!) == false)
        #expect(ClientNetwork("0.0.0.0/0")?.contains(ClientAddress("8.8.8.8")!) == true)
        #expect(ClientNetwork("0.0.0.0/0")?.contains(ClientAddress("::1")!) == false)
        #expect(ClientNetwork("::/0")?.contains(ClientAddress("8.8.8.8")!) == true)
        #expect(ClientNetwork("127.0.0.1")?.contains(ClientAddress("127.0.0.1")!) == true)
        #expect(ClientNetwork("127.0.0.1")?.contains(ClientAddress("127.0.0.2")!) == false)
        for text in [
            "10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/", "x", "", "fd00::/129", "10.0.0.0/-1",
        ] {
            #expect(ClientNetwork(text) == nil, "\(text)")
        }
        #expect(ClientAddress("127.8.0.1")?.isLoopback == true)
        #expect(ClientAddress("::1")?.isLoopback == true)
        #expect(ClientAddress("::ffff:127.0.0.1")?.isLoopback == true)
        #expect(ClientAddress("128.0.0.1")?.isLoopback == false)
    }
}
