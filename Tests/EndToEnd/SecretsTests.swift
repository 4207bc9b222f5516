import Bytes
import Crypto
import Curl
import Foundation
import Glibc
import Postgres
import Schemas
import System
import TestSupport
import Testing

/// A run in which every secret is used, and then looked for wherever anything was written.
@Suite("heartline up: no secret is written anywhere", .realTime) struct SecretsTests {
    private struct Answer {
        var status: Int
        var text: String
    }

    /// Requests over TLS, one after the other.
    private final class Client {
        private var transfers: CurlTransfers
        private let url: String
        private let trust: CurlRequest.Trust

        init(_ url: String, authority: String) throws {
            self.url = url
            trust = .authorities(file: authority)
            transfers = try CurlTransfers(maximumTransfers: 1, maximumConnections: 1)
        }

        func send(
            _ method: CurlRequest.Method, _ path: String, _ body: String = "",
            headers: [(String, String)] = [], url other: String? = nil
        ) throws -> Answer {
            let request = try CurlRequest(
                method, (other ?? url) + path,
                headers: [("Content-Type", "application/json")] + headers, trust: trust,
                usesEnvironmentProxy: false)
            let bytes = ByteBuffer(body.utf8)
            try transfers.start(request, body: bytes.span)
            var answer: Answer?
            while transfers.running > 0 {
                try transfers.poll(milliseconds: 1_000) { completion, body in
                    answer = Answer(
                        status: completion.status,
                        text: completion.error.map { "\($0)" } ?? body.text)
                }
            }
            return try #require(answer)
        }
    }

    private static func secret(_ path: String) throws -> String {
        try String(contentsOfFile: path, encoding: .utf8).trimmingCharacters(
            in: .whitespacesAndNewlines)
    }

    /// A certificate of its own for 127.0.0.1.
    private static func makeCertificate(
        in folder: TemporaryFolder
    ) throws -> (
        certificate: String, key: String
    ) {
        let (certificate, key) = ("\(folder.path)/tls.pem", "\(folder.path)/tls.key")
        let process = Process()
        process.executableURL = URL(fileURLWithPath: "/usr/bin/openssl")
        process.arguments = [
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "2", "-subj", "/CN=heartline", "-addext", "subjectAltName=IP:127.0.0.1",
            "-keyout", key, "-out", certificate,
        ]
        process.standardError = FileHandle.nullDevice
        try process.run()
        process.waitUntilExit()
        try #require(process.terminationStatus == 0)
        try FileSystem.setMode(key, 0o600)
        return (certificate, key)
    }

    /// All rows of all tables as text, in which bytes are hexadecimal.
    private static func tables(
        _ connection: PostgresConnection
    ) throws -> (text: String, count: Int) {
        var text = ""
        var count = 0
        for row in try connection.execute(
            "SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'heartline' AND c.relkind IN ('r', 'p', 'v', 'm')"
        ) {
            count += 1
            for line in try connection.execute("SELECT t::text FROM \(try row.text(0)) t") {
                text += try line.text(0) + "\n"
            }
        }
        return (text, count)
    }

    @Test("Provisioned, rotated, suspended, refused: each secret stands in its own answer alone")
    func fullRun() async throws {
        let folder = try TemporaryFolder()
        let (certificate, key) = try Self.makeCertificate(in: folder)
        let running = try await RunningHeartline(
            in: folder,
            [
                "--tls-certificate", certificate, "--tls-key", key, "--log-level", "debug",
                "--log-format", "json", "--provision-limit", "0",
            ])
        let url = running.places.listen
        #expect(url.hasPrefix("https://"))
        var search = SecretSearch()
        let salt = try Self.secret("\(running.data)/server-salt")
        let adminToken = try Self.secret("\(running.data)/admin-token")
        search.add("salt", text: salt)
        search.add("secret key", text: try Self.secret("\(running.data)/secret-key"))
        search.add("admin token", text: adminToken)
        for line in try Self.secret(key).split(separator: "\n") where !line.hasPrefix("-----") {
            search.add("TLS key", text: String(line))
            let raw = Data(base64Encoded: String(line))
            if let raw, raw.count >= 16 { search.add("decoded TLS key", raw: Array(raw)) }
        }

        /// What was printed or answered, and where; the devices' own answers are not among it.
        var seen: [(place: String, text: String)] = []
        func heartline(_ words: String..., showsSecret: Bool = false) async throws -> String {
            let outcome = try await running.run(words)
            #expect(outcome.status == 0, "\(words.prefix(2)): \(outcome.errors)")
            if !showsSecret { seen.append(("output of \(words.prefix(2))", outcome.output)) }
            seen.append(("errors of \(words.prefix(2))", outcome.errors))
            return outcome.output.trimmingCharacters(in: .whitespacesAndNewlines)
        }
        let client = try Client(url, authority: certificate)
        func refused(_ answer: Answer, _ statuses: Set<Int>, _ what: String) {
            #expect(statuses.contains(answer.status), "\(what): \(answer.status)")
            seen.append((what, answer.text))
        }
        func heartbeat(_ device: String, _ more: String = "") -> String {
            "{\"device_id\":\"\(device)\",\"status\":\"connected\",\"tunnel_up\":true\(more)}"
        }

        // Tokens: used, left over, revoked.
        let tokens = try await heartline(
            "token", "create", "--count", "4", "--note", "for phones", showsSecret: true
        ).split(separator: "\n").map(String.init)
        try #require(tokens.count == 4)
        for token in tokens { try search.add("token", token: token) }
        _ = try await heartline("token", "revoke", tokens[3])
        _ = try await heartline("token", "list")

        // Provisioned, and again with other keys.
        var device = ""
        func learn(_ payload: ProvisionedPayload, _ name: String) {
            device = payload.device_id
            search.add("private key of \(name)", text: payload.private_key)
            search.add("preshared key of \(name)", text: payload.preshared_key)
        }
        for (token, name) in [(tokens[0], "the first time"), (tokens[1], "the second time")] {
            let answer = try client.send(
                .post, "/api/v1/provision", "{\"token\":\"\(token)\",\"hwid\":\"phone-1\"}")
            #expect(answer.status == 200)
            learn(
                try ProvisionedPayload(
                    Data(answer.text.utf8), hardwareID: "phone-1", salt: salt), name)
        }

        // Requests with secrets where none belong.
        for body in [
            "{\"token\":\"\(tokens[0])\",\"hwid\":\"phone-1\"}",
            "{\"token\":\"\(tokens[3])\",\"hwid\":\"phone-1\"}",
            "{\"token\":\"\(tokens[2])x\",\"hwid\":\"phone-1\"}",
            "{\"token\":\"\(tokens[2])\",\"hwid\":\"\"}",
            "{\"token\":\"\(salt)\",\"hwid\":\"phone-1\"}",
            "{\"token\":\"\(tokens[2])\",\"hwid\":\"phone", "\(tokens[2])",
        ] {
            refused(try client.send(.post, "/api/v1/provision", body), [400, 403], "a refusal")
        }
        for token in tokens {
            refused(try client.send(.get, "/api/v1/\(token)"), [404], "an unknown path")
            refused(
                try client.send(.post, "/api/v1/heartbeat", heartbeat(token)), [400],
                "a heartbeat of a token")
        }
        refused(
            try client.send(.get, "/api/v1/provision?token=\(tokens[2])"), [405], "another method")

        // Heartbeats, with a word of the device's own that repeats no secret.
        struct Keys: Decodable {
            var private_key: String
            var preshared_key: String
        }
        func beat() throws -> Keys {
            let answer = try client.send(.post, "/api/v1/heartbeat", heartbeat(device))
            #expect(answer.status == 200)
            return try JSONDecoder().decode(Keys.self, from: Data(answer.text.utf8))
        }
        let before = try beat()
        _ = try await heartline("device", "rotate", device)
        // It is not at once that a front-end knows.
        var after = before
        #expect(
            try await holds(within: 60) {
                after = try beat()
                return after.private_key != before.private_key
            })
        search.add("private key after rotation", text: after.private_key)
        search.add("preshared key after rotation", text: after.preshared_key)

        _ = try await heartline(
            "forward", "add", device, "--proto", "tcp", "--listen", "8080", "--to", "10.0.0.5:80")
        _ = try await heartline("forward", "list", device)
        _ = try await heartline("device", "suspend", device)
        #expect(
            try await holds(within: 60) {
                let answer = try client.send(.post, "/api/v1/heartbeat", heartbeat(device))
                if answer.status == 403 { seen.append(("a suspension", answer.text)) }
                return answer.status == 403
            })
        _ = try await heartline("device", "resume", device)
        _ = try await heartline("device", "list")
        _ = try await heartline("device", "list", "--json")
        _ = try await heartline("device", "show", device)
        _ = try await heartline("device", "show", device, "--json")
        _ = try await heartline("status")
        _ = try await heartline("audit", "list", "--json")

        // Agents of our own over TLS, with what they tell of themselves.
        let observations = "\(folder.path)/observations"
        let fleet = try await heartline(
            "simulate", "--provision", "--agents", "5", "--url", url, "--ca", certificate,
            "--speed", "30", "--ramp", "1s", "--duration", "3s", "--json", "--observations",
            observations)
        #expect(fleet.contains("\"provisioned\":5"))
        seen.append(("observations", try String(contentsOfFile: observations, encoding: .utf8)))
        #expect(seen.last?.text.contains("\"event\":\"provisioned\"") == true)

        // Operators over HTTP, with the right token and with wrong ones.
        let admin = running.places.admin
        for path in ["/readyz", "/healthz", "/metrics", "/admin/v1/devices", "/admin/v1/tokens"] {
            for header in ["Bearer \(adminToken)", "Bearer \(adminToken)x", "Basic \(salt)"] {
                let answer = try client.send(
                    .get, path, headers: [("Authorization", header)], url: admin)
                seen.append(("GET \(path)", answer.text))
            }
        }

        let connection = try running.connect()
        let tables = try Self.tables(connection)
        connection.close()
        #expect(tables.count > 10)
        #expect(tables.text.contains(device))
        seen.append(("the tables", tables.text))
        #expect(await running.stop() == 0)
        seen.append(("output of up", running.process.output()))
        seen.append(("errors of up", running.process.errors()))

        for (place, text) in seen {
            for name in search.found(in: text) { Issue.record("\(name) stands in \(place)") }
        }
        let files = try search.found(
            below: running.data, except: ["server-salt", "secret-key", "admin-token"],
            known: Array(device.utf8))
        for secret in files.secrets { Issue.record("\(secret)") }
        // The log and the database were among them.
        #expect(files.files > 100)
        #expect(files.isKnownFound)
        // And what it looks for it finds, where it must be.
        for file in ["server-salt", "secret-key", "admin-token"] {
            #expect(!search.found(in: try Self.secret("\(running.data)/\(file)")).isEmpty)
        }
        #expect(!search.found(in: tokens.joined(separator: "\n")).isEmpty)
    }

    @Test("The password of a database is neither logged nor printed")
    func databasePassword() async throws {
        let database = try TestDatabase.make(isMigrated: false)
        let password = "pa55word-of-the-database-test"
        let separator = database.url.contains("?") ? "&" : "?"
        let address =
            database.url.contains("://")
            ? "\(database.url)\(separator)password=\(password)"
            : "\(database.url) password=\(password)"
        let running = try await RunningHeartline(["--database", address, "--log-level", "debug"])
        let device = try #require(try await running.addDevices(1).first)
        #expect(try running.heartbeat(device).status == 200)
        let show = try await running.run(["device", "show", "\(device)"])
        let bad = try await Executable.run([
            "device", "list", "--database",
            address.replacing(database.url.prefix(4), with: database.url.prefix(4))
                + (address.contains("://") ? "&" : " ") + "connect_timeout=x",
        ])
        #expect(bad.status != 0)
        #expect(await running.stop() == 0)
        var search = SecretSearch()
        search.add("password", text: password)
        for (place, text) in [
            ("output of up", running.process.output()), ("errors of up", running.process.errors()),
            ("output of device show", show.output), ("errors of device show", show.errors),
            ("output of device list", bad.output), ("errors of device list", bad.errors),
        ] {
            for name in search.found(in: text) { Issue.record("\(name) stands in \(place)") }
        }
    }
}
