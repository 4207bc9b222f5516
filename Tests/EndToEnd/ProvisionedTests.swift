import Bytes
import Crypto
import Foundation
import Ingest
import Postgres
import Schemas
import System
import TestSupport
import Testing

@Suite("heartline up: an agent that provisions itself", .realTime) struct ProvisionedTests {
    @Test("From a token to a judged device; and no secret of it is written anywhere")
    func provisioned() async throws {
        let running = try await RunningHeartline()
        let salt = try Self.secret("\(running.data)/server-salt")
        let keyText = try Self.secret("\(running.data)/secret-key")
        let keyDigits = ByteBuffer(keyText.utf8)
        let decoded = Hex.decode(keyDigits.span)
        let key = try #require(decoded)
        let registry = try Registry(try running.connect(), secretKey: key)
        let place = try #require(URL(string: running.places.listen))
        let client = try RawClient(
            host: try #require(place.host()), port: UInt16(try #require(place.port)))
        var search = SecretSearch()
        search.add("salt", text: salt)
        search.add("key", text: keyText)
        var device: DeviceID?
        // Once new, once again with other keys; and one that is refused.
        for _ in 0..<2 {
            let token = try registry.createTokens(
                count: 1, ttl: .seconds(600), actor: "test")[0].token
            let body = "{\"token\":\"\(token)\",\"hwid\":\"phone-1\"}"
            let answer = try client.request("POST", "/api/v1/provision", body: body.utf8)
            #expect(answer.status == 200)
            let payload = try ProvisionedPayload(
                Data(answer.body.bytes), hardwareID: "phone-1", salt: salt)
            device = DeviceID(payload.device_id)
            let refused = try client.request("POST", "/api/v1/provision", body: body.utf8)
            #expect(refused.status == 400)
            try search.add("token", token: token)
            search.add("private key", text: payload.private_key)
            search.add("preshared key", text: payload.preshared_key)
        }
        let provisioned = try #require(device)
        #expect(try await running.waitFor("unknown", of: provisioned))
        #expect(try running.heartbeat(provisioned).status == 200)
        #expect(try await running.waitFor("healthy", of: provisioned))
        #expect(await running.stop() == 0)

        for text in [running.process.output(), running.process.errors()] {
            #expect(search.found(in: text) == [])
        }
        let files = try search.found(
            below: running.data, except: ["server-salt", "secret-key", "admin-token"],
            known: Array(provisioned.description.utf8))
        #expect(files.secrets == [])
        // The log and the database were among them.
        #expect(files.files > 100)
        #expect(files.isKnownFound)
    }

    private static func secret(_ path: String) throws -> String {
        try String(contentsOfFile: path, encoding: .utf8).trimmingCharacters(
            in: .whitespacesAndNewlines)
    }
}
