import Bytes
import HTTP
import Synchronization
import System
import Testing

@Suite struct DrainTests {
    private func get(_ target: String) -> String { "GET \(target) HTTP/1.1\r\nHost: a\r\n\r\n" }

    @Test("A drain closes idle connections at once, and nobody new is let in")
    func idle() throws {
        let server = try TestServer(loops: 2)
        let clients = try (0..<10).map { _ in try server.connect() }
        for client in clients { #expect(try client.request(get("/hello")).status == 200) }
        let report = server.server.drain()
        #expect(report == Server.DrainReport(openBefore: 10, cut: 0))
        for client in clients { #expect(client.isEnded()) }
        #expect(throws: RawClient.Failure.self) { try server.connect() }
        #expect(server.server.counters.connectionsOpen == 0)
    }

    @Test("A drain waits for what is in flight, and closes with its answer")
    func inFlight() throws {
        let server = try TestServer()
        let deferred = try server.connect()
        deferred.send(get("/deferred?x") + get("/hello"))
        let response = try #require(server.takeDeferred("x"))
        let partial = try server.connect()
        partial.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc")
        let streaming = try server.connect()
        streaming.send(get("/stream?x"))
        let stream = try #require(server.takeStream("x"))
        #expect(eventually { server.server.counters.connectionsOpen == 3 })
        #expect(eventually { server.server.counters.bytesInFlight > 60 })
        let drain = Drain(server.server)
        var letIn = 0
        #expect(
            eventually {
                guard (try? server.connect()) != nil else { return true }
                letIn += 1
                return false
            })
        #expect(!drain.isDone)
        partial.send("def")
        let answer = try partial.readAnswer()
        #expect(answer.text == "abcdef")
        #expect(answer.headers["connection"] == "close")
        #expect(partial.isEnded())
        response.respond(.ok, contentType: "text/plain", buffer("late"))
        let late = try deferred.readAnswer()
        #expect(late.text == "late")
        #expect(late.headers["connection"] == "close")
        #expect(deferred.isEnded())
        stream.write(buffer("end"))
        stream.finish()
        #expect(try streaming.readAnswer().text == "end")
        for client in [deferred, partial, streaming] { client.disconnect() }
        let report = try #require(drain.wait())
        // Who asked whether anybody is let in may have been let in before the drain began.
        #expect((3...(3 + letIn)).contains(report.openBefore))
        #expect(report.cut == 0)
    }

    @Test("A drain cuts what is not done in time")
    func cut() throws {
        let server = try TestServer { $0.drainMilliseconds = 300 }
        let client = try server.connect()
        client.send(get("/deferred?x"))
        let response = try #require(server.takeDeferred("x"))
        #expect(eventually { server.server.counters.connectionsOpen == 1 })
        #expect(server.server.drain() == Server.DrainReport(openBefore: 1, cut: 1))
        #expect(client.isEnded())
        response.respond(.ok, contentType: "text/plain", buffer("too late"))
    }

    @Test("A drain lets upgraded connections say goodbye")
    func upgraded() throws {
        let server = try TestServer()
        let client = try server.connect()
        client.send(
            "GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
        #expect(try client.readHead().status == 101)
        let drain = Drain(server.server)
        #expect(try client.readToEnd() == Array("goodbye".utf8))
        client.disconnect()
        #expect(drain.wait()?.cut == 0)
        #expect(server.state.upgradesClosed.load(ordering: .relaxed) == 1)
    }

    @Test("Stopping during a drain ends it at once, and ending twice is harmless")
    func stopWhileDraining() throws {
        let server = try TestServer { $0.drainMilliseconds = 3_600_000 }
        let client = try server.connect()
        client.send(get("/deferred?x"))
        let response = try #require(server.takeDeferred("x"))
        let drain = Drain(server.server)
        #expect(eventually { (try? server.connect()) == nil })
        server.server.stop()
        #expect(drain.wait() != nil)
        server.server.stop()
        server.server.drain()
        _ = response
    }

    @Test("A server that was never started ends without trouble, and cannot be started after")
    func neverStarted() throws {
        let server = try Server(configuration: ServerConfiguration(host: "127.0.0.1", port: 0)) {
            _ in TestHandler(TestState())
        }
        server.drain()
        #expect(throws: HTTPError.self) { try server.start() }
    }
}
