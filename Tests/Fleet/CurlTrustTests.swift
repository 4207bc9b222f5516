import Curl
import Foundation
import Glibc
import Testing

private let openssl = ["/usr/bin/openssl", "/usr/local/bin/openssl"]
    .first { FileManager.default.isExecutableFile(atPath: $0) }

/// Against a real TLS server with a certificate that nobody has signed but itself.
@Suite(.enabled(if: openssl != nil, "the openssl command is not installed"))
struct CurlTrustTests {
    /// `openssl s_server` on an ephemeral port, with its files in a directory of its own.
    struct Server {
        let process = Process()
        let directory: URL
        let certificate: String
        private(set) var port = 0

        init() throws {
            directory = FileManager.default.temporaryDirectory
                .appendingPathComponent("heartline-curl-\(UUID().uuidString)")
            try FileManager.default.createDirectory(
                at: directory, withIntermediateDirectories: false)
            certificate = directory.appendingPathComponent("certificate.pem").path
            let key = directory.appendingPathComponent("key.pem").path
            let program = URL(fileURLWithPath: try #require(openssl))
            let making = Process()
            making.executableURL = program
            making.arguments = [
                "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext",
                "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate,
            ]
            making.standardError = FileHandle.nullDevice
            try making.run()
            making.waitUntilExit()
            try #require(making.terminationStatus == 0)
            process.executableURL = program
            process.arguments = [
                "s_server", "-accept", "127.0.0.1:0", "-cert", certificate, "-key", key, "-www",
            ]
            let output = Pipe()
            process.standardOutput = output
            process.standardError = FileHandle.nullDevice
            process.standardInput = FileHandle.nullDevice
            try process.run()
            do {
                port = try Self.port(readFrom: output.fileHandleForReading)
            } catch {
                stop()
                throw error
            }
        }

        /// It says where it listens: `ACCEPT 127.0.0.1:40123`.
        private static func port(readFrom output: FileHandle) throws -> Int {
            var text = ""
            while !text.contains("ACCEPT") || !text.hasSuffix("\n") {
                let data = output.availableData
                try #require(!data.isEmpty, "openssl s_server ended: \(text)")
                text += String(decoding: data, as: UTF8.self)
            }
            let line = text.split(separator: "\n").last { $0.contains("ACCEPT") } ?? ""
            return try #require(line.split(separator: ":").last.flatMap { Int($0) })
        }

        func stop() {
            // The thread that started it may block SIGTERM, and it inherits that.
            kill(process.processIdentifier, SIGKILL)
            process.waitUntilExit()
            try? FileManager.default.removeItem(at: directory)
        }
    }

    static func get(_ server: Server, _ trust: CurlRequest.Trust) throws -> CurlCompletion {
        var transfers = try CurlTransfers(maximumTransfers: 1, maximumConnections: 1)
        let request = try CurlRequest(
            .get, "https://127.0.0.1:\(server.port)/", trust: trust, usesEnvironmentProxy: false)
        return try CurlTests.run(request, transfers: &transfers).completion
    }

    @Test func aCertificateIsVerifiedUnlessAskedOtherwise() throws {
        let server = try Server()
        defer { server.stop() }
        #expect(try Self.get(server, .system).error?.kind == .tls)
        #expect(try Self.get(server, .authorities(file: server.certificate)).status == 200)
        #expect(try Self.get(server, .anyone).status == 200)
        #expect(try Self.get(server, .authorities(file: "/nonexistent")).error?.kind == .tls)
    }
}
