import Bytes
import Crypto
import Foundation
import Ingest
import JWT
import Postgres
import Schemas
import System
import TestSupport
import Testing

@Suite("Proximity: signing in") struct ProximitySignInTests {
    @Test("a provider's token becomes a session, with the account as the client reads it")
    func exchange() throws {
        let rig = try ProximityRig()
        let token = TestProvider.token(
            "subject-1", ["email": #""zoe@example.com""#, "name": #""Zoë \"Z\"""#])
        let response = try rig.exchange(token)
        #expect(response.status == 200)
        #expect(response.headers["content-type"] == "application/json")
        let document = try #require(
            try JSONSerialization.jsonObject(with: Data(response.body.bytes)) as? [String: Any])
        #expect(Set(document.keys) == ["token", "account"])
        let account = try #require(document["account"] as? [String: String])
        #expect(Set(account.keys) == ["id", "providerID", "displayName", "email"])
        #expect(account["providerID"] == "apple")
        #expect(account["displayName"] == "Zoë \"Z\"")
        #expect(account["email"] == "zoe@example.com")
        let session = try #require(document["token"] as? String)
        let bytes = Array(session.utf8)
        #expect(Base64URL.decode(bytes.span)?.count == 32)

        let row = try rig.connect().execute(
            """
            SELECT s.token_hash, s.account_id::text, \
            extract(epoch FROM s.expires_at - s.created_at)::int8, a.provider_subject \
            FROM heartline.sessions s JOIN heartline.accounts a USING (account_id)
            """
        ).only()
        #expect(try row.bytea(0).bytes == SHA256.hash(bytes.span).bytes)
        #expect(try row.text(1) == account["id"])
        #expect(try row.int8(2) == 7 * 86_400)
        #expect(try row.text(3) == "subject-1")
    }

    @Test("the same person is the same account, another is another; what is not told is kept")
    func accounts() throws {
        let rig = try ProximityRig()
        let first = try rig.signIn("one", ["email": #""one@example.com""#])
        let again = try rig.exchange(TestProvider.token("one", key: .rsa))
        #expect(again.text.contains(first.account.description))
        #expect(again.text.contains("one@example.com"))
        #expect(try rig.signIn("two").account != first.account)
        #expect(try rig.count("SELECT count(*) FROM heartline.accounts") == 2)
        #expect(try rig.count("SELECT count(*) FROM heartline.sessions") == 3)
        // Who tells neither a name nor an address gets texts all the same.
        #expect(try rig.exchange(TestProvider.token("two")).text.contains(#""email":""}"#))
    }

    @Test("many at once share transactions, and one person's are one account")
    func together() throws {
        let rig = try ProximityRig()
        let clients = try (0..<40).map { _ in try rig.rig.client() }
        for (index, client) in clients.enumerated() {
            try client.sendRequest(
                "POST", "/v1/auth/exchange",
                body: ProximityRig.exchangeBody(TestProvider.token("p\(index % 4)")).utf8)
        }
        for client in clients { #expect(try client.response().status == 200) }
        #expect(try rig.count("SELECT count(*) FROM heartline.accounts") == 4)
        #expect(try rig.count("SELECT count(*) FROM heartline.sessions") == 40)
    }

    static let hour = 3_600
    static let attacks: [(name: String, token: String)] = {
        let now = Int(SystemClock.wallMilliseconds() / 1_000)
        let claims = TestProvider.claims("mallory")
        func unsigned(_ header: String) -> String {
            func encoded(_ text: String) -> String {
                let bytes = Array(text.utf8)
                return Base64URL.encode(bytes.span)
            }
            return "\(encoded(header)).\(encoded(claims))."
        }
        // The public key as the secret of an HMAC: alg confusion.
        let confused = {
            let input = unsigned(#"{"alg":"HS256","kid":"r1"}"#).dropLast()
            let message = Array(input.utf8)
            let secret = SigningKey.rsa.subjectPublicKeyInfo
            let mac = HMACSHA256.authenticate(message.span, key: secret.span).bytes
            return "\(input).\(Base64URL.encode(mac.span))"
        }()
        let good = TestProvider.token("mallory", key: .rsa)
        return [
            ("no token at all", ""),
            ("not a token", "a.b.c"),
            ("alg none", unsigned(#"{"alg":"none","kid":"r1"}"#)),
            ("an HMAC with the public key", confused),
            (
                "the key of another type",
                TestProvider.token("m", header: #"{"alg":"ES256","kid":"r1"}"#)
            ),
            (
                "RS256 claimed for ES256",
                TestProvider.token("m", header: #"{"alg":"RS256","kid":"e1"}"#)
            ),
            ("another's key under our id", TestProvider.token("m", key: .otherP256)),
            ("no key id", TestProvider.token("m", header: #"{"alg":"ES256"}"#)),
            (
                "a key brought along",
                TestProvider.token(
                    "m",
                    header:
                        #"{"alg":"ES256","kid":"e1","jwk":\#(SigningKey.otherP256.jwk(more: ""))}"#,
                    key: .otherP256)
            ),
            ("another issuer", TestProvider.token("m", ["iss": #""https://evil.example""#])),
            ("another audience", TestProvider.token("m", ["aud": #""other""#])),
            ("no audience", TestProvider.token("m", ["aud": nil])),
            ("expired", TestProvider.token("m", ["exp": "\(now - hour)"])),
            ("no expiry", TestProvider.token("m", ["exp": nil])),
            ("not yet valid", TestProvider.token("m", ["nbf": "\(now + hour)"])),
            ("issued in the future", TestProvider.token("m", ["iat": "\(now + hour)"])),
            ("no subject", TestProvider.token("m", ["sub": nil])),
            ("a nonce that was not given", TestProvider.token("m", ["nonce": #""n""#])),
            ("a changed payload", good.replacing(".", with: ".e", maxReplacements: 1)),
            ("a token of 20,000 characters", String(repeating: "a", count: 20_000)),
        ]
    }()

    @Test("forged, foreign and expired tokens are refused, and all in the same words")
    func attacks() throws {
        let rig = try ProximityRig()
        for (name, token) in Self.attacks {
            let response = try rig.exchange(token)
            #expect(response.status == 401, "\(name)")
            #expect(response.text == #"{"error":"invalid token"}"#, "\(name)")
        }
        #expect(try rig.count("SELECT count(*) FROM heartline.accounts") == 0)
    }

    @Test("the nonce is compared as it is, or by its SHA-256")
    func nonce() throws {
        let rig = try ProximityRig()
        let nonce = Array("nonce-of-the-client".utf8)
        let digest = SHA256.hash(nonce.span).hex
        for value in ["nonce-of-the-client", digest] {
            let token = TestProvider.token("one", ["nonce": #""\#(value)""#])
            #expect(try rig.exchange(token, nonce: "nonce-of-the-client").status == 200)
            #expect(try rig.exchange(token, nonce: "another").status == 401)
            #expect(try rig.exchange(token).status == 401)
        }
        #expect(try rig.exchange(TestProvider.token("one"), nonce: "n").status == 401)
    }

    @Test("bodies that are not what they should be are answered 400")
    func badBodies() throws {
        let rig = try ProximityRig()
        for (body, error) in [
            ("", "invalid json"), ("{", "invalid json"), ("[]", "invalid json"),
            (#"{"provider":"apple","provider":"apple"}"#, "invalid json"),
            ("{}", "unknown provider"), (#"{"provider":"github"}"#, "unknown provider"),
            (#"{"provider":7}"#, "unknown provider"),
            // Known, and not served here.
            (#"{"provider":"google","idToken":"x"}"#, "unknown provider"),
            (#"{"provider":"apple"}"#, "invalid id token"),
            (#"{"provider":"apple","idToken":7}"#, "invalid id token"),
            (#"{"provider":"apple","idToken":"x","nonce":7}"#, "invalid nonce"),
        ] {
            let response = try rig.ask("POST", "/v1/auth/exchange", body)
            #expect(response.status == 400, "\(body)")
            #expect(response.text == "{\"error\":\"\(error)\"}", "\(body)")
        }
        // A nonce that is not told is none.
        let token = TestProvider.token("one")
        for nonce in ["", #","nonce":null"#, #","nonce":"""#] {
            let body = #"{"provider":"apple","idToken":"\#(token)"\#(nonce)}"#
            #expect(try rig.ask("POST", "/v1/auth/exchange", body).status == 200)
        }
        #expect(try rig.ask("GET", "/v1/auth/exchange").status == 405)
        #expect(
            try rig.ask("POST", "/v1/auth/exchange", String(repeating: "x", count: 70_000)).status
                == 413)
    }

    @Test("an unknown key id has the keys fetched once, and then not again for a while")
    func rotation() throws {
        let provider = TestProvider(TestProvider.keySet([(.rsa, "r1")]))
        let rig = try ProximityRig(provider: provider) { settings in
            settings.proximity?.keys.unknownKeyInterval = .milliseconds(1)
        }
        #expect(try rig.exchange(TestProvider.token("one", key: .rsa)).status == 200)
        #expect(provider.requests == 1)
        provider.tell(TestProvider.ordinary)
        #expect(try rig.exchange(TestProvider.token("one")).status == 200)
        #expect(provider.requests == 2)
        // Known keys need no further fetch.
        #expect(try rig.exchange(TestProvider.token("two")).status == 200)
        #expect(provider.requests == 2)
    }

    @Test("invented key ids do not have the keys fetched again and again")
    func inventedKeys() throws {
        let rig = try ProximityRig()
        #expect(try rig.exchange(TestProvider.token("one")).status == 200)
        for index in 0..<20 {
            let token = TestProvider.token("m", header: #"{"alg":"ES256","kid":"k\#(index)"}"#)
            #expect(try rig.exchange(token).status == 401)
        }
        #expect(rig.provider.requests == 1)
    }

    @Test("without keys nobody can be judged: 503; keys that were fetched serve on")
    func unreachable() throws {
        let provider = TestProvider("")
        let rig = try ProximityRig(provider: provider) { settings in
            settings.proximity?.keys.retryInterval = .milliseconds(50)
            settings.proximity?.keys.retryLimit = .milliseconds(50)
            settings.proximity?.keys.refreshInterval = .milliseconds(50)
        }
        let response = try rig.exchange(TestProvider.token("one"))
        #expect(response.status == 503)
        #expect(response.headers["retry-after"] != nil)
        // What is no token needs no keys to be told so.
        #expect(try rig.exchange("x").status == 401)
        provider.tell(TestProvider.ordinary)
        #expect(try eventually { try rig.exchange(TestProvider.token("one")).status == 200 })
        let before = provider.requests
        provider.tell("")
        #expect(try eventually { provider.requests > before + 1 })
        #expect(try rig.exchange(TestProvider.token("two")).status == 200)
    }

    @Test("keys may come from a file, which is read again when a key is not known")
    func file() throws {
        let folder = try FileSystem.makeTemporaryDirectory("/tmp/heartline-keys-")
        defer { FileSystem.removeTree(folder) }
        let path = "\(folder)/keys.json"
        try TestProvider.keySet([(.rsa, "r1")]).write(
            toFile: path, atomically: true, encoding: .utf8)
        let rig = try ProximityRig { settings in
            settings.proximity?.providers[0].keys = .file(path)
            settings.proximity?.keys.unknownKeyInterval = .milliseconds(1)
        }
        #expect(try rig.exchange(TestProvider.token("one", key: .rsa)).status == 200)
        #expect(try rig.exchange(TestProvider.token("one")).status == 401)
        try TestProvider.ordinary.write(toFile: path, atomically: true, encoding: .utf8)
        #expect(try eventually { try rig.exchange(TestProvider.token("one")).status == 200 })
    }

    @Test("where keys come from is checked")
    func sources() throws {
        #expect(
            try IdentityProvider.KeySource(parsing: "https://a.example/k")
                == .url("https://a.example/k"))
        #expect(
            try IdentityProvider.KeySource(parsing: "http://127.0.0.1:9/k")
                == .url("http://127.0.0.1:9/k"))
        #expect(
            try IdentityProvider.KeySource(parsing: "/etc/keys.json") == .file("/etc/keys.json"))
        #expect(try IdentityProvider.KeySource(parsing: "file:///etc/keys") == .file("/etc/keys"))
        for text in ["http://a.example/k", "http://127.0.0.1.evil.example/k", "http://localhostx/"]
        {
            #expect(throws: FrontEndError.self) { try IdentityProvider.KeySource(parsing: text) }
        }
    }

    @Test("one address may sign in so often and no more")
    func limit() throws {
        let rig = try ProximityRig { settings in
            var limit = ProvisionLimit()
            limit.burst = 3
            limit.perMinute = 1
            settings.proximity?.exchangeLimit = limit
        }
        for _ in 0..<3 { #expect(try rig.exchange("x").status == 401) }
        let response = try rig.exchange("x")
        #expect(response.status == 429)
        #expect(response.headers["retry-after"] != nil)
    }

    @Test("while the database is away people are answered 503, and soon after served again")
    func outage() throws {
        let server = try TestServer()
        let database = try server.makeDatabase()
        let rig = try ProximityRig(database: database)
        let person = try rig.signIn("one")
        server.stop()
        let response = try rig.exchange(TestProvider.token("two"))
        #expect(response.status == 503)
        #expect(response.headers["retry-after"] != nil)
        #expect(
            try eventually {
                try rig.ask("POST", "/v1/wave", #"{"token":"t"}"#, as: person).status == 503
            })
        try server.start()
        #expect(try eventually { try rig.exchange(TestProvider.token("two")).status == 200 })
        #expect(try eventually { try rig.wave("t", as: person).status == 200 })
    }
}
