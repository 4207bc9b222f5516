import Foundation
import HTTP
import Ingest
import Schemas
import TLS
import TestSupport
import Testing

/// Certificates made by the `openssl` command, in a directory that goes with this.
private final class Certificates {
    let directory: String

    init() throws {
        directory = NSTemporaryDirectory() + "/heartline-certificates-\(UUID().uuidString)"
        try FileManager.default.createDirectory(
            atPath: directory, withIntermediateDirectories: true)
        try run(
            ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
                + ["-days", "2", "-subj", "/CN=fleet", "-keyout", path("ca.key")]
                + ["-out", path("ca.pem")])
    }

    deinit { try? FileManager.default.removeItem(atPath: directory) }

    func path(_ name: String) -> String { "\(directory)/\(name)" }

    /// A certificate of this authority: `NAME.pem` and `NAME.key`.
    func make(_ name: String, subject: String) throws {
        try run(
            ["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
                + ["-subj", subject, "-keyout", path("\(name).key")]
                + ["-out", path("\(name).csr")])
        try run([
            "x509", "-req", "-in", path("\(name).csr"), "-CA", path("ca.pem"), "-CAkey",
            path("ca.key"), "-CAcreateserial", "-days", "2", "-out", path("\(name).pem"),
        ])
    }

    @discardableResult
    func run(_ arguments: [String], input: String = "") throws -> String {
        let process = Process()
        process.executableURL = URL(fileURLWithPath: "/usr/bin/openssl")
        process.arguments = arguments
        let (given, output) = (Pipe(), Pipe())
        process.standardInput = given
        process.standardOutput = output
        process.standardError = FileHandle.nullDevice
        try process.run()
        try given.fileHandleForWriting.write(contentsOf: Data(input.utf8))
        try given.fileHandleForWriting.close()
        let bytes = try output.fileHandleForReading.readToEnd() ?? Data()
        process.waitUntilExit()
        return String(decoding: bytes, as: UTF8.self)
    }
}

@Suite("Client certificates bound to devices") struct ClientCertificateTests {
    @Test("a certificate speaks for its own device only, and without one all is as before")
    func binding() throws {
        let certificates = try Certificates()
        try certificates.make("server", subject: "/CN=localhost")
        let rig = try Rig(devices: 2) {
            $0.server.tls = try? TLSContext(
                TLSContext.Files(
                    certificateChain: certificates.path("server.pem"),
                    privateKey: certificates.path("server.key"),
                    clientAuthority: certificates.path("ca.pem"),
                    requiresClientCertificate: false))
        }
        let (own, other) = (rig.devices[0], rig.devices[1])
        try certificates.make("own", subject: "/O=fleet/CN=\("\(own)".uppercased())")
        try certificates.make("words", subject: "/CN=roof sensor")
        try certificates.make("nameless", subject: "/O=fleet")

        func beat(_ devices: [DeviceID], _ certificate: String?) throws -> [String] {
            var input = ""
            for (index, device) in devices.enumerated() {
                let body = Rig.body(device)
                input += "POST /api/v1/heartbeat HTTP/1.1\r\nHost: a\r\n"
                if index == devices.count - 1 { input += "Connection: close\r\n" }
                input += "Content-Length: \(body.utf8.count)\r\n\r\n\(body)"
            }
            var options = [
                "s_client", "-connect", "127.0.0.1:\(rig.frontEnd.boundAddress.port)", "-ign_eof",
                "-quiet",
            ]
            if let certificate {
                options += [
                    "-cert", certificates.path("\(certificate).pem"), "-key",
                    certificates.path("\(certificate).key"),
                ]
            }
            let output = try certificates.run(options, input: input)
            return output.components(separatedBy: "HTTP/1.1 ").dropFirst().map {
                let status = String($0.prefix(3))
                return $0.contains("certificate does not match device") ? status + "!" : status
            }
        }

        #expect(try beat([own, other, own], "own") == ["200", "403!", "200"])
        #expect(try beat([own, other], nil) == ["200", "200"])
        #expect(try beat([own], "words") == ["403!"])
        // A certificate without a name is one all the same.
        #expect(try beat([own], "nameless") == ["403!"])
        // A mismatch says nothing of whether the device exists or is suspended.
        #expect(try beat([DeviceID(high: 1, low: 1)], "own") == ["403!"])
        #expect(try beat([DeviceID(high: 1, low: 1)], nil) == ["400"])
        // Nothing that was refused is in the log.
        let said = rig.log.heartbeats.map(\.device)
        #expect(said.count == 4)
    }
}
