import Foundation
import HTTP
import TLS
import Testing

/// Certificates made by the `openssl` command, in a directory that goes with this.
final class Certificates {
    let directory: String

    init() throws {
        var template = Array("/tmp/heartline-tls-XXXXXX".utf8CString)
        directory = unsafe template.withUnsafeMutableBufferPointer {
            unsafe String(cString: mkdtemp($0.baseAddress!))
        }
    }

    deinit { try? FileManager.default.removeItem(atPath: directory) }

    func path(_ name: String) -> String { directory + "/" + name }

    /// A self-signed certificate and its key.
    func make(
        _ name: String, days: Int = 2, subject: String? = nil
    ) throws -> TLSContext.Files {
        let files = TLSContext.Files(
            certificateChain: path("\(name).pem"), privateKey: path("\(name).key"))
        let request = path("\(name).csr")
        try openssl([
            "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-subj", subject ?? "/CN=\(name)", "-keyout", files.privateKey, "-out", request,
        ])
        // Unlike `req -x509`, this takes a negative number of days.
        try openssl([
            "x509", "-req", "-in", request, "-signkey", files.privateKey, "-days", String(days),
            "-out", files.certificateChain,
        ])
        return files
    }
}

@discardableResult
func openssl(_ arguments: [String], input: String? = nil) throws -> (status: Int32, output: String)
{
    let process = Process()
    process.executableURL = URL(fileURLWithPath: "/usr/bin/openssl")
    process.arguments = arguments
    let output = Pipe()
    process.standardOutput = output
    process.standardError = output
    if let input {
        let pipe = Pipe()
        process.standardInput = pipe
        try process.run()
        try pipe.fileHandleForWriting.write(contentsOf: Data(input.utf8))
        try pipe.fileHandleForWriting.close()
    } else {
        process.standardInput = FileHandle.nullDevice
        try process.run()
    }
    let bytes = try output.fileHandleForReading.readToEnd() ?? Data()
    process.waitUntilExit()
    return (process.terminationStatus, String(decoding: bytes, as: UTF8.self))
}

@Suite struct TLSTests {
    static let request = "GET /about HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"

    private func ask(
        _ server: TestServer, _ options: [String] = [], input: String = request
    ) throws -> (status: Int32, output: String) {
        try openssl(
            ["s_client", "-connect", "127.0.0.1:\(server.port)", "-ign_eof"] + options,
            input: input)
    }

    @Test("Requests come over TLS 1.2 and 1.3, with ALPN http/1.1", arguments: ["1_2", "1_3"])
    func serves(version: String) throws {
        let certificates = try Certificates()
        let server = try TestServer(tls: TLSContext(certificates.make("server")))
        let (_, output) = try ask(server, ["-tls\(version)", "-alpn", "h2,http/1.1"])
        #expect(output.contains("get /about - - 127.0.0.1 true -"))
        #expect(output.contains("ALPN protocol: http/1.1"))
        #expect(output.contains("Connection: close"))
        #expect(eventually { server.server.counters.connectionsOpen == 0 })
    }

    @Test("TLS 1.1 is refused")
    func refusesOldVersions() throws {
        let certificates = try Certificates()
        let server = try TestServer(tls: TLSContext(certificates.make("server")))
        let (status, output) = try ask(server, ["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"])
        #expect(status != 0)
        #expect(!output.contains("200 OK"))
        // Its own alert, so that it was the server that refused.
        #expect(output.contains("alert protocol version"))
        #expect(eventually { server.server.counters.connectionsOpen == 0 })
    }

    @Test("Many requests and large bodies go over one TLS connection")
    func largeBodies() throws {
        let certificates = try Certificates()
        let server = try TestServer(tls: TLSContext(certificates.make("server")))
        let body = String(repeating: "x", count: 60_000)
        var input = ""
        for _ in 0..<20 {
            input += "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n\(body)"
        }
        let (_, output) = try ask(server, ["-quiet"], input: input + Self.request)
        #expect(output.components(separatedBy: body).count == 21)
        #expect(output.contains("get /about"))
    }

    @Test("Sessions are resumed")
    func resumes() throws {
        let certificates = try Certificates()
        let server = try TestServer(tls: TLSContext(certificates.make("server")))
        let session = certificates.path("session")
        let (_, first) = try ask(server, ["-tls1_2", "-sess_out", session])
        #expect(first.contains("New, TLSv1.2"))
        let (_, second) = try ask(server, ["-tls1_2", "-sess_in", session])
        #expect(second.contains("Reused, TLSv1.2"))
        #expect(second.contains("get /about"))
    }

    @Test("Garbage and plain HTTP on a TLS port are closed, and the others served")
    func garbage() throws {
        let certificates = try Certificates()
        let server = try TestServer(tls: TLSContext(certificates.make("server"))) {
            $0.requestMilliseconds = 500
        }
        var random = SeededRandom(seed: 1)
        for _ in 0..<200 {
            let client = try server.connect()
            let count = Int.random(in: 1...300, using: &random)
            client.send((0..<count).map { _ in UInt8.random(in: 0...255, using: &random) })
            if Bool.random(using: &random) { client.reset() }
        }
        let plain = try server.connect()
        plain.send("GET /hello HTTP/1.1\r\nHost: a\r\n\r\n")
        #expect(throws: RawClient.Failure.self) { try plain.readAnswer() }
        #expect(eventually { server.server.counters.connectionsOpen == 0 })
        #expect(server.server.counters.requests == 0)
        #expect(try ask(server).output.contains("get /about"))
    }

    @Test("A handshake that does not come is cut in time")
    func slowHandshake() throws {
        let certificates = try Certificates()
        let server = try TestServer(tls: TLSContext(certificates.make("server"))) {
            $0.requestMilliseconds = 300
        }
        let silent = try server.connect()
        let started = try server.connect()
        started.send([0x16, 0x03, 0x01, 0x02, 0x00, 0x01])
        #expect(silent.isEnded())
        #expect(started.isEnded())
    }

    @Test("A reload serves new connections with the new certificate; a broken one changes nothing")
    func reloads() throws {
        let certificates = try Certificates()
        let files = try certificates.make("old")
        let context = try TLSContext(files)
        let server = try TestServer(tls: context)
        #expect(try ask(server).output.contains("subject=CN = old"))
        let fresh = try certificates.make("new")
        try Data("broken".utf8).write(to: URL(fileURLWithPath: files.certificateChain))
        #expect(throws: TLSError.self) { try context.reload() }
        #expect(try ask(server).output.contains("subject=CN = old"))
        for (from, to) in [
            (fresh.certificateChain, files.certificateChain), (fresh.privateKey, files.privateKey),
        ] {
            try FileManager.default.removeItem(atPath: to)
            try FileManager.default.copyItem(atPath: from, toPath: to)
        }
        try context.reload()
        let (_, output) = try ask(server)
        #expect(output.contains("subject=CN = new"))
        #expect(output.contains("get /about"))
    }

    @Test("With an authority, only clients it certified are served, and are known by name")
    func clientCertificates() throws {
        let certificates = try Certificates()
        var files = try certificates.make("server")
        let client = try certificates.make("device-17")
        let stranger = try certificates.make("stranger")
        files.clientAuthority = client.certificateChain
        let server = try TestServer(tls: TLSContext(files))
        for version in ["-tls1_2", "-tls1_3"] {
            let (_, known) = try ask(
                server, [version, "-cert", client.certificateChain, "-key", client.privateKey])
            #expect(known.contains("get /about - - 127.0.0.1 true device-17"))
            let (_, unknown) = try ask(
                server, [version, "-cert", stranger.certificateChain, "-key", stranger.privateKey])
            #expect(!unknown.contains("200 OK"))
            #expect(try !ask(server, [version]).output.contains("200 OK"))
        }
    }

    @Test(
        "Where certificates are optional, a client without one has no name, and a stranger's is refused"
    )
    func optionalClientCertificates() throws {
        let certificates = try Certificates()
        var files = try certificates.make("server")
        let client = try certificates.make("device-17")
        let stranger = try certificates.make("stranger")
        files.clientAuthority = client.certificateChain
        files.requiresClientCertificate = false
        let server = try TestServer(tls: TLSContext(files))
        let two = "GET /peer HTTP/1.1\r\nHost: a\r\n\r\n" + "GET /peer HTTP/1.1\r\nHost: a\r\n"
        for version in ["-tls1_2", "-tls1_3"] {
            let (_, known) = try ask(
                server, [version, "-cert", client.certificateChain, "-key", client.privateKey],
                input: two + "Connection: close\r\n\r\n")
            #expect(known.components(separatedBy: "peer=device-17.").count == 3)
            let (_, unnamed) = try ask(server, [version], input: two + "Connection: close\r\n\r\n")
            #expect(unnamed.components(separatedBy: "peer=nobody.").count == 3)
            let (_, unknown) = try ask(
                server, [version, "-cert", stranger.certificateChain, "-key", stranger.privateKey])
            #expect(!unknown.contains("200 OK"))
        }
    }

    @Test("A resumed session keeps the client's name; a certificate without a name is not nobody's")
    func resumedClientCertificate() throws {
        let certificates = try Certificates()
        var files = try certificates.make("server")
        let client = try certificates.make("device-17")
        let nameless = try certificates.make("nameless", subject: "/O=nobody")
        let authorities = certificates.path("authorities.pem")
        let both = try [client, nameless].map {
            try String(contentsOfFile: $0.certificateChain, encoding: .utf8)
        }.joined()
        try Data(both.utf8).write(to: URL(fileURLWithPath: authorities))
        files.clientAuthority = authorities
        files.requiresClientCertificate = false
        let server = try TestServer(tls: TLSContext(files))
        let session = certificates.path("session")
        let input = "GET /peer HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        let shown = ["-tls1_2", "-cert", client.certificateChain, "-key", client.privateKey]
        _ = try ask(server, shown + ["-sess_out", session], input: input)
        let (_, second) = try ask(server, ["-tls1_2", "-sess_in", session], input: input)
        #expect(second.contains("Reused, TLSv1.2"))
        #expect(second.contains("peer=device-17."))
        let (_, third) = try ask(
            server, ["-cert", nameless.certificateChain, "-key", nameless.privateKey],
            input: input)
        #expect(third.contains("peer=."))
    }

    @Test("A reload leaves open connections as they are")
    func reloadsUnderOpenConnections() throws {
        let certificates = try Certificates()
        let files = try certificates.make("old")
        let context = try TLSContext(files)
        let server = try TestServer(tls: context)
        let fresh = try certificates.make("new")
        // Open, and in the middle of things, while the certificate is exchanged.
        let process = Process()
        process.executableURL = URL(fileURLWithPath: "/usr/bin/openssl")
        process.arguments = ["s_client", "-connect", "127.0.0.1:\(server.port)", "-ign_eof"]
        let (input, output) = (Pipe(), Pipe())
        process.standardInput = input
        process.standardOutput = output
        process.standardError = FileHandle.nullDevice
        try process.run()
        let request = "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n"
        try input.fileHandleForWriting.write(contentsOf: Data(request.utf8))
        #expect(eventually { server.server.counters.requests == 1 })
        for (from, to) in [
            (fresh.certificateChain, files.certificateChain), (fresh.privateKey, files.privateKey),
        ] {
            try Data(contentsOf: URL(fileURLWithPath: from)).write(to: URL(fileURLWithPath: to))
        }
        try context.reload()
        #expect(try ask(server).output.contains("subject=CN = new"))
        try input.fileHandleForWriting.write(contentsOf: Data((request + Self.request).utf8))
        try input.fileHandleForWriting.close()
        let text = String(
            decoding: try output.fileHandleForReading.readToEnd() ?? Data(), as: UTF8.self)
        process.waitUntilExit()
        #expect(text.contains("subject=CN = old"))
        #expect(text.components(separatedBy: "\r\n\r\nhello").count == 3)
        #expect(text.contains("get /about"))
    }

    @Test("Files that cannot be used are named with what is wrong")
    func errors() throws {
        let certificates = try Certificates()
        let good = try certificates.make("good")
        let other = try certificates.make("other")
        let broken = certificates.path("broken.pem")
        try Data("no certificate".utf8).write(to: URL(fileURLWithPath: broken))
        func reason(_ change: (inout TLSContext.Files) -> Void) -> String {
            var files = good
            change(&files)
            do {
                _ = try TLSContext(files)
                return ""
            } catch {
                return error.description
            }
        }
        let missing = certificates.path("missing.pem")
        #expect(
            reason { $0.certificateChain = missing }
                == "reading the certificate chain \(missing): there is no such file; check the path"
        )
        #expect(reason { $0.privateKey = missing }.hasPrefix("reading the private key \(missing)"))
        #expect(reason { $0.certificateChain = broken }.contains("it holds no PEM certificate"))
        #expect(reason { $0.privateKey = broken }.contains("it holds no PEM key"))
        #expect(reason { $0.privateKey = other.privateKey }.contains("it is not the key of"))
        #expect(
            reason { $0.clientAuthority = broken }.hasPrefix(
                "reading the authority for client certificates \(broken)"))
        #expect(reason { _ in } == "")
    }

    @Test("An expired certificate is used, with a warning")
    func expired() throws {
        let certificates = try Certificates()
        #expect(try TLSContext(certificates.make("good")).warnings.isEmpty)
        let expired = try certificates.make("expired", days: -1)
        let context = try TLSContext(expired)
        #expect(context.warnings.count == 1)
        #expect(context.warnings[0].contains("has expired"))
    }
}
