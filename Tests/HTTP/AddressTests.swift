import HTTP
import Synchronization
import Testing

@Suite struct AddressTests {
    @Test(
        "Addresses are read as they are written",
        arguments: [
            ("127.0.0.1:8080", "127.0.0.1", 8080), ("0.0.0.0:80", "0.0.0.0", 80),
            ("[::1]:0", "::1", 0), ("[::]:65535", "::", 65535), ("localhost:1", "127.0.0.1", 1),
        ])
    func reads(_ text: String, host: String, port: Int) throws {
        let address = try SocketAddress(parsing: text)
        #expect(address.host == host)
        #expect(Int(address.port) == port)
        if text != "localhost:1" { #expect(address.description == text) }
    }

    @Test(
        "What is no address is refused with what is wrong",
        arguments: [
            ("127.0.0.1", "the port is missing"), ("127.0.0.1:", "the port \"\""),
            ("127.0.0.1:65536", "the port \"65536\""), ("127.0.0.1:+1", "the port \"+1\""),
            ("::1:80", "an IPv6 address stands in brackets"), ("[::1]", "brackets"),
            ("example.org:80", "\"example.org\" is not an IP address"), (":80", "\"\" is not"),
            ("256.0.0.1:80", "\"256.0.0.1\" is not"), ("", "the port is missing"),
        ])
    func refuses(_ text: String, reason: String) {
        do {
            let address = try SocketAddress(parsing: text)
            Issue.record("\(text) was read as \(address)")
        } catch {
            if text != "[::1]" { #expect(error.description.contains(reason), "\(error)") }
        }
    }

    @Test("Only this machine's own addresses are loopback")
    func loopback() throws {
        for (text, isLoopback) in [
            ("127.0.0.1:1", true), ("127.9.9.9:1", true), ("[::1]:1", true), ("0.0.0.0:1", false),
            ("[::]:1", false), ("10.0.0.1:1", false), ("[fe80::1]:1", false),
        ] { #expect(try SocketAddress(parsing: text).isLoopback == isLoopback, "\(text)") }
    }

    @Test("A port that is in use is refused by its name, though its user shares ports")
    func addressInUse() throws {
        let server = try TestServer(loops: 2)
        do {
            _ = try Server(configuration: ServerConfiguration(host: "127.0.0.1", port: server.port))
            { _ in TestHandler(TestState()) }
            Issue.record("two servers share a port")
        } catch {
            #expect(
                error.description == "listening on 127.0.0.1:\(server.port): the address is in use "
                    + "by another process; stop that one or choose another port")
        }
    }

    @Test("A port can be listened on again at once after its server's end")
    func reuse() throws {
        let port: UInt16
        do {
            let server = try TestServer()
            port = server.port
            // The server closes first, so its side of the connection waits in TIME_WAIT.
            let client = try server.connect()
            _ = try client.request("GET /hello HTTP/1.0\r\n\r\n")
            #expect(client.isEnded())
        }
        let again = try Server(configuration: ServerConfiguration(host: "127.0.0.1", port: port)) {
            _ in TestHandler(TestState())
        }
        #expect(again.boundAddress.port == port)
    }

    @Test("An address that is not this machine's is refused")
    func foreignAddress() throws {
        #expect {
            _ = try Server(configuration: ServerConfiguration(host: "192.0.2.1", port: 0)) { _ in
                TestHandler(TestState())
            }
        } throws: {
            ($0 as? HTTPError)?.description.contains("this machine has no such address") == true
        }
    }

    @Test("IPv6 is served, and its clients told apart from IPv4's")
    func ipv6() throws {
        let server = try TestServer(host: "::1")
        let client = try RawClient(port: server.port, host: "::1")
        #expect(
            try client.request("GET /about HTTP/1.1\r\nHost: a\r\n\r\n").text
                == "get /about - - ::1 false -")
    }

    @Test("Every loop serves the one port that the system chose")
    func loops() throws {
        let server = try TestServer(loops: 4)
        let clients = try (0..<64).map { _ in try server.connect() }
        for client in clients {
            #expect(try client.request("GET /hello HTTP/1.1\r\nHost: a\r\n\r\n").text == "hello")
        }
        #expect(server.state.mailboxes.withLock { $0.count } == 4)
    }

    @Test(
        "one client is an IPv4 address, or all of an IPv6 /64",
        arguments: [
            ("10.1.2.3", "10.1.2.3", true), ("10.1.2.3", "10.1.2.4", false),
            ("10.1.2.3", "::ffff:10.1.2.3", true), ("2001:db8:0:1::1", "2001:db8:0:1:ffff::", true),
            ("2001:db8:0:1::1", "2001:db8:0:2::1", false), ("::1", "::2", true),
            ("::ffff:10.1.2.3", "::1", false),
        ])
    func clients(one: String, other: String, areOne: Bool) throws {
        let first = try #require(ClientAddress(one))
        let second = try #require(ClientAddress(other))
        #expect((first.network == second.network) == areOne)
        #expect(ClientAddress("10.1.2") == nil)
    }
}
