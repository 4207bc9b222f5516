import Bytes
import Crypto
import Foundation
import Glibc
import Ingest
import Postgres
import Schemas
import System
import TestSupport
import Testing

@Suite("heartline up: an agent that provisions itself") struct ProvisionedTests {
    private struct Payload: Decodable {
        var device_id: String
        var private_key: String
        var preshared_key: String
    }

    private static func payload(
        _ answer: RawResponse, _ hardwareID: String, salt: String
    ) throws -> Payload {
        let fields = try JSONDecoder().decode([String: String].self, from: Data(answer.body.bytes))
        let sealed = ByteBuffer(
            try #require(Data(base64Encoded: fields["encrypted_config"] ?? "")))
        let material = ByteBuffer((hardwareID + salt).utf8)
        let key = SHA256.hash(material.span).bytes
        var cipher = try AESGCM(key: key.span)
        var plaintext = ByteBuffer()
        let nothing = ByteBuffer()
        try cipher.open(sealed.span, associatedData: nothing.span, into: &plaintext)
        return try JSONDecoder().decode(Payload.self, from: Data(plaintext.bytes))
    }

    @Test("From a token to a judged device; and no secret of it is written anywhere")
    func provisioned() async throws {
        let running = try await RunningHeartline()
        let salt = try Self.secret("\(running.data)/server-salt")
        let keyText = try Self.secret("\(running.data)/secret-key")
        let key = try Self.raw(keyText)
        let registry = try Registry(try running.connect(), secretKey: key)
        let place = try #require(URL(string: running.places.listen))
        let client = try RawClient(
            host: try #require(place.host()), port: UInt16(try #require(place.port)))
        var secrets: [(String, [UInt8])] = [
            ("salt", Array(salt.utf8)), ("key", Array(keyText.utf8)),
            ("raw key", key),
        ]
        var device: DeviceID?
        // Once new, once again with other keys; and one that is refused.
        for _ in 0..<2 {
            let token = try registry.createTokens(
                count: 1, ttl: .seconds(600), actor: "test")[0].token
            let body = "{\"token\":\"\(token)\",\"hwid\":\"phone-1\"}"
            let answer = try client.request("POST", "/api/v1/provision", body: body.utf8)
            #expect(answer.status == 200)
            let payload = try Self.payload(answer, "phone-1", salt: salt)
            device = DeviceID(payload.device_id)
            let refused = try client.request("POST", "/api/v1/provision", body: body.utf8)
            #expect(refused.status == 400)
            secrets.append(("token", Array(token.utf8)))
            for (name, text) in [
                ("private key", payload.private_key), ("preshared key", payload.preshared_key),
            ] {
                secrets.append((name, Array(text.utf8)))
                secrets.append(("raw \(name)", try Self.raw(text)))
            }
        }
        let provisioned = try #require(device)
        #expect(try await running.waitFor("unknown", of: provisioned))
        #expect(try running.heartbeat(provisioned).status == 200)
        #expect(try await running.waitFor("healthy", of: provisioned))
        #expect(await running.stop() == 0)

        for (name, secret) in secrets {
            for (stream, text) in [
                ("output", running.process.output()), ("errors", running.process.errors()),
            ] {
                #expect(!Self.contains(Array(text.utf8), secret), "\(name) in \(stream)")
            }
        }
        // What may be found, and will be if this searches as it should.
        let known = Array(provisioned.description.utf8)
        var isKnownFound = false
        var files = 0
        for case let file as String in try #require(
            FileManager.default.enumerator(atPath: running.data))
        {
            let path = "\(running.data)/\(file)"
            guard FileSystem.status(path)?.isDirectory == false, file != "server-salt",
                file != "secret-key", let handle = FileHandle(forReadingAtPath: path)
            else { continue }
            files += 1
            // What stands across two pieces is found in the overlap.
            var rest: [UInt8] = []
            while let piece = try handle.read(upToCount: 4 << 20), !piece.isEmpty {
                let bytes = rest + piece
                for (name, secret) in secrets where Self.contains(bytes, secret) {
                    Issue.record("\(name) stands in \(file)")
                }
                isKnownFound = isKnownFound || Self.contains(bytes, known)
                rest = Array(bytes.suffix(64))
            }
            try handle.close()
        }
        // The log and the database were among them.
        #expect(files > 100)
        #expect(isKnownFound)
    }

    private static func secret(_ path: String) throws -> String {
        try String(contentsOfFile: path, encoding: .utf8).trimmingCharacters(
            in: .whitespacesAndNewlines)
    }

    private static func raw(_ text: String) throws -> [UInt8] {
        let digits = ByteBuffer(text.utf8)
        let raw = Hex.decode(digits.span)
        return try #require(raw)
    }

    private static func contains(_ bytes: [UInt8], _ pattern: [UInt8]) -> Bool {
        unsafe bytes.withUnsafeBytes { bytes in
            var start = 0
            while start + pattern.count <= bytes.count,
                let found = unsafe memchr(
                    bytes.baseAddress! + start, Int32(pattern[0]),
                    bytes.count - pattern.count + 1 - start)
            {
                if unsafe memcmp(found, pattern, pattern.count) == 0 { return true }
                start = unsafe UnsafeRawPointer(found) - bytes.baseAddress! + 1
            }
            return false
        }
    }
}
