import Bytes
import Crypto
import Foundation
import Postgres
import Schemas
import System
import TestSupport
import Testing

/// Two front-ends, a process with the pipelines, and phones on both.
extension FaultTests {
    @Suite struct ReciprocalWavesTests {
        private static let pairs = 40

        /// One phone: its session, its anonymous token, its socket.
        private struct Phone {
            var account: AccountID
            var session: String
            var token: String
            var port: UInt16

            init(_ index: Int, port: UInt16) {
                account = AccountID(high: 0xA11C_E000_0000_4000, low: 1 << 63 | UInt64(index))
                session = String(repeating: "s", count: 37) + "\(100_000 + index)"
                token = "phone-\(index)"
                self.port = port
            }

            func post(_ path: String, _ body: String, _ client: RawClient) throws -> Int {
                try client.request(
                    "POST", path, body: body.utf8, headers: ["Authorization: Bearer \(session)"]
                ).status
            }
        }

        private func port(_ url: String) throws -> UInt16 {
            UInt16(try #require(URL(string: url)?.port))
        }

        /// What a phone is told of a match.
        private struct Mutual: Decodable, Equatable {
            var type: String
            var remoteToken: String
            var connectionID: String
            var id: String
        }

        private func mutual(_ socket: SocketClient) throws -> Mutual? {
            guard case .text(let text) = try socket.next(milliseconds: 60_000) else { return nil }
            return try JSONDecoder().decode(Mutual.self, from: Data(text.utf8))
        }

        @Test(
            "Simultaneous reciprocal waves on two front-ends: one connection and two pushes a pair",
            .timeLimit(.minutes(10)))
        func simultaneous() async throws {
            let installation = try await SplitInstallation(settings: "")
            for name in ["mutual-waves", "messages"] {
                let tables = name == "messages" ? "messages, pushes" : "waves, connections, pushes"
                _ = try installation.folder.write(
                    """
                    name: \(name)
                    source: { topic: \(name == "messages" ? name : "waves") }
                    processor: { \(name): {} }
                    sinks:
                      - postgres: { tables: [\(tables)] }
                      - topic: pushes

                    """, to: "pipelines/\(name).yaml")
            }
            let keys = try installation.folder.write(
                "{\"keys\":[\(SigningKey.p256.jwk(more: ",\"kid\":\"e1\",\"alg\":\"ES256\""))]}",
                to: "keys.json")
            let options = ["--apple-audience", "app.example", "--apple-jwks", keys]
            let first = try await installation.startFrontEnd("one", options)
            let second = try await installation.startFrontEnd("two", options)
            let pipelines = try await installation.startPipelines()
            let ports = [try port(first.url), try port(second.url)]

            let connection = try installation.connect()
            defer { connection.close() }
            let phones = (0..<Self.pairs * 2).map { Phone($0, port: ports[$0 % 2]) }
            for phone in phones {
                let session = ByteBuffer(phone.session.utf8)
                try connection.run(
                    """
                    INSERT INTO heartline.accounts (account_id, provider, provider_subject)
                    VALUES ('\(phone.account)', 'apple', '\(phone.token)');
                    INSERT INTO heartline.sessions (token_hash, account_id, expires_at)
                    VALUES ('\\x\(SHA256.hash(session.span).hex)', '\(phone.account)',
                            now() + interval '1 hour')
                    """)
            }
            let clients = try ports.map { try RawClient(host: "127.0.0.1", port: $0) }
            var sockets: [SocketClient] = []
            for (index, phone) in phones.enumerated() {
                #expect(
                    try phone.post(
                        "/v1/token", "{\"token\":\"\(phone.token)\",\"tier\":1}",
                        clients[index % 2]) == 200)
                sockets.append(
                    try SocketClient(host: "127.0.0.1", port: phone.port, token: phone.session))
            }

            // Both of a pair are on their way before either is answered.
            for pair in 0..<Self.pairs {
                for side in 0...1 {
                    let phone = phones[pair * 2 + side]
                    let other = phones[pair * 2 + 1 - side]
                    try clients[side].sendRequest(
                        "POST", "/v1/wave", body: "{\"token\":\"\(other.token)\"}".utf8,
                        headers: ["Authorization: Bearer \(phone.session)"])
                }
                for side in 0...1 { #expect(try clients[side].response().status == 200) }
            }
            for pair in 0..<Self.pairs {
                let (a, b) = (phones[pair * 2], phones[pair * 2 + 1])
                let expected = try #require(AccountPair(a.account, b.account)).connection
                for (phone, other, socket) in [
                    (a, b, sockets[pair * 2]), (b, a, sockets[pair * 2 + 1]),
                ] {
                    let told = try #require(try mutual(socket))
                    #expect(
                        told
                            == Mutual(
                                type: "mutual", remoteToken: other.token,
                                connectionID: "\(expected)",
                                id: "\(PushID(mutualTo: phone.account, of: expected))"))
                }
            }

            // Again, and after a crash of the pipelines: nothing new.
            pipelines.send(SIGKILL)
            _ = await pipelines.waitForEnd()
            for pair in 0..<Self.pairs {
                for side in 0...1 {
                    let other = phones[pair * 2 + 1 - side]
                    #expect(
                        try phones[pair * 2 + side].post(
                            "/v1/wave", "{\"token\":\"\(other.token)\"}", clients[side]) == 200)
                }
            }
            let again = try await installation.startPipelines()
            let isRead = try await holds(within: 120) {
                try connection.number(
                    """
                    SELECT COALESCE(sum(next_offset), 0)::int8 FROM heartline.stream_partitions
                     WHERE pipeline = 'mutual-waves'
                    """) == Int64(Self.pairs * 4)
            }
            #expect(isRead)
            #expect(
                try connection.number("SELECT count(*) FROM heartline.connections")
                    == Int64(Self.pairs))
            #expect(
                try connection.number("SELECT count(*) FROM heartline.pushes")
                    == Int64(Self.pairs * 2))

            // A message over the connection reaches the other phone's socket, unchanged.
            let pair = try #require(AccountPair(phones[0].account, phones[1].account))
            let body =
                "{\"id\":\"f47ac10b-58cc-4372-a567-0e02b2c3d479\",\"connectionID\":\"\(pair.connection)\",\"senderID\":\"x\",\"ciphertext\":\"AAAA\",\"sentAt\":\"2026-01-01T00:00:00Z\"}"
            #expect(try phones[0].post("/v1/message", body, clients[0]) == 200)
            guard case .text(let text) = try sockets[1].next(milliseconds: 60_000) else {
                Issue.record("the socket was closed")
                return
            }
            #expect(text.hasPrefix("{\"type\":\"message\",\"message\":\(body),\"id\":\""))

            again.send(SIGTERM)
            #expect(await again.waitForEnd() == 0)
            #expect(await first.stop() == 0)
            #expect(await second.stop() == 0)
        }
    }
}
