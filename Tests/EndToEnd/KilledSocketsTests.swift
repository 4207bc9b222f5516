import Crypto
import Foundation
import Glibc
import Bytes
import Postgres
import Schemas
import System
import TestSupport
import Testing

extension FaultTests {
    @Suite struct KilledSocketsTests {
        private static let people = 5_000

        /// As many descriptors as may be open; a front-end that is started gets the same.
        private func raiseDescriptorLimit() -> Int {
            var limit = rlimit()
            unsafe getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
            limit.rlim_cur = limit.rlim_max
            unsafe setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
            return Int(min(limit.rlim_cur, rlim_t(Int32.max)))
        }

        private static func session(_ index: Int) -> String {
            String(repeating: "s", count: 37) + "\(100_000 + index)"
        }

        private static func account(_ index: Int) -> AccountID {
            AccountID(high: 0xA11C_E000_0000_4000, low: 1 << 63 | UInt64(index))
        }

        /// People with sessions, and each present by a token in the same cell.
        private func add(_ count: Int, to connection: PostgresConnection) throws {
            for start in stride(from: 0, to: count, by: 500) {
                let some = start..<min(count, start + 500)
                let accounts = some.map { "('\(Self.account($0))', 'apple', 'subject-\($0)')" }
                let sessions = some.map { index in
                    let bytes = ByteBuffer(Self.session(index).utf8)
                    let hash = SHA256.hash(bytes.span).hex
                    return "('\\x\(hash)', '\(Self.account(index))', now() + interval '1 hour')"
                }
                try connection.run(
                    """
                    INSERT INTO heartline.accounts (account_id, provider, provider_subject)
                    VALUES \(accounts.joined(separator: ","));
                    INSERT INTO heartline.sessions (token_hash, account_id, expires_at)
                    VALUES \(sessions.joined(separator: ","))
                    """)
            }
        }

        private func nearby(_ index: Int, _ client: RawClient) throws -> [String] {
            let answer = try client.request(
                "GET", "/v1/nearby?geohash=u4pru&tier=2", body: [],
                headers: ["Authorization: Bearer \(Self.session(index))"])
            #expect(answer.status == 200)
            return try JSONDecoder().decode([String].self, from: Data(answer.text.utf8))
        }

        @Test(
            "A front-end killed with 5,000 sockets: nobody stays present, and who connects elsewhere is told",
            .timeLimit(.minutes(10)))
        func killed() async throws {
            // Each side needs one a socket.
            let count = min(Self.people, raiseDescriptorLimit() - 1_000)
            try #require(count > 100, "too few files may be open: see ulimit -n")
            let installation = try await SplitInstallation(settings: "")
            _ = try installation.folder.write(
                """
                name: mutual-waves
                source: { topic: waves }
                processor: { mutual-waves: {} }
                sinks:
                  - postgres: { tables: [waves, connections, pushes] }
                  - topic: pushes

                """, to: "pipelines/mutual-waves.yaml")
            let keys = try installation.folder.write(
                "{\"keys\":[\(SigningKey.p256.jwk(more: ",\"kid\":\"e1\",\"alg\":\"ES256\""))]}",
                to: "keys.json")
            let options = ["--apple-audience", "app.example", "--apple-jwks", keys]
            let dying = try await installation.startFrontEnd("dying", options)
            let living = try await installation.startFrontEnd("living", options)
            let pipelines = try await installation.startPipelines()
            let dyingPort = UInt16(try #require(URL(string: dying.url)?.port))
            let livingPort = UInt16(try #require(URL(string: living.url)?.port))
            let connection = try installation.connect()
            defer { connection.close() }
            // The last one has no socket, and looks on.
            try add(count + 1, to: connection)

            let registrar = try RawClient(host: "127.0.0.1", port: dyingPort)
            var sockets: [SocketClient] = []
            for index in 0..<count {
                let answer = try registrar.request(
                    "POST", "/v1/token",
                    body: "{\"token\":\"t\(index)\",\"tier\":2,\"geohash\":\"u4pru\"}".utf8,
                    headers: ["Authorization: Bearer \(Self.session(index))"])
                try #require(answer.status == 200, "\(answer.text)")
                sockets.append(
                    try SocketClient(
                        host: "127.0.0.1", port: dyingPort, token: Self.session(index)))
            }
            let client = try RawClient(host: "127.0.0.1", port: livingPort)
            // As many as one answer holds.
            #expect(try nearby(count, client).count == 200)

            await dying.kill()
            // The limit counts from the last registration; it is not waited for here.
            try connection.run(
                "UPDATE heartline.presence SET registered_at = now() - interval '299 seconds'")
            let isGone = try await holds(within: 60) { try nearby(count, client).isEmpty }
            #expect(isGone)
            let isSwept = try await holds(within: 120) {
                try connection.number("SELECT count(*) FROM heartline.presence") == 0
            }
            #expect(isSwept)

            // Two of them come to the other front-end, and wave: what they are told comes there.
            let phones = try [0, 1].map {
                try SocketClient(host: "127.0.0.1", port: livingPort, token: Self.session($0))
            }
            for path in ["/v1/token", "/v1/wave"] {
                for index in 0...1 {
                    let body =
                        path == "/v1/token"
                        ? "{\"token\":\"n\(index)\",\"tier\":2}" : "{\"token\":\"n\(1 - index)\"}"
                    let answer = try client.request(
                        "POST", path, body: body.utf8,
                        headers: ["Authorization: Bearer \(Self.session(index))"])
                    #expect(answer.status == 200)
                }
            }
            for (index, phone) in phones.enumerated() {
                let text = try phone.text(milliseconds: 60_000)
                #expect(text.contains("\"remoteToken\":\"n\(1 - index)\""))
            }
            withExtendedLifetime(sockets) {}
            pipelines.send(SIGTERM)
            #expect(await pipelines.waitForEnd() == 0)
            #expect(await living.stop() == 0)
        }
    }
}
