import Bytes
import Foundation
import Ingest
import JSON
import JWT
import Postgres
import Schemas
import Synchronization
import System
import TestSupport

/// An identity provider: its keys behind a URL, and tokens signed with them.
final class TestProvider: Sendable {
    static let issuer = "https://issuer.example"
    static let audience = "app.example.proximity"

    /// The keys that it tells of; an empty text is answered 503.
    private let text: SharedText
    private let server: HTTPTestServer

    static let ordinary = keySet([(SigningKey.rsa, "r1"), (SigningKey.p256, "e1")])

    init(_ document: String = TestProvider.ordinary) {
        let text = SharedText(document)
        self.text = text
        server = HTTPTestServer { _ in
            let document = text.value
            return document.isEmpty ? .status(503, "{}") : .status(200, document)
        }
    }

    deinit { server.stop() }

    var url: String { server.url }
    var requests: Int { server.requests }

    func tell(_ document: String) { text.set(document) }

    static func keySet(_ keys: [(SigningKey, String)]) -> String {
        let list = keys.map { key, id in
            key.jwk(more: #","kid":"\#(id)","alg":"\#(key.isRSA ? "RS256" : "ES256")""#)
        }
        return #"{"keys":[\#(list.joined(separator: ","))]}"#
    }

    /// Claims that pass, with members replaced (`nil`: left out); values are JSON.
    static func claims(_ subject: String, _ changes: [String: String?] = [:]) -> String {
        let now = SystemClock.wallMilliseconds() / 1_000
        var members: [String: String?] = [
            "iss": #""\#(issuer)""#, "sub": #""\#(subject)""#, "aud": #""\#(audience)""#,
            "iat": "\(now - 10)", "exp": "\(now + 600)",
        ]
        for (name, value) in changes { members.updateValue(value, forKey: name) }
        let text = members.sorted { $0.key < $1.key }.compactMap { name, value in
            value.map { #""\#(name)":\#($0)"# }
        }
        return "{\(text.joined(separator: ","))}"
    }

    static func token(
        _ subject: String, _ changes: [String: String?] = [:], header: String? = nil,
        key: SigningKey = .p256
    ) -> String {
        let usual =
            key.isRSA ? #"{"alg":"RS256","kid":"r1"}"# : #"{"alg":"ES256","kid":"e1","typ":"JWT"}"#
        return String(
            decoding: key.token(header: header ?? usual, claims: claims(subject, changes)),
            as: UTF8.self)
    }
}

private final class SharedText: Sendable {
    private let text: Mutex<String>
    init(_ value: String) { text = Mutex(value) }
    var value: String { text.withLock { $0 } }
    func set(_ value: String) { text.withLock { $0 = value } }
}

/// A person's device: its session with one front-end.
struct Person {
    let token: String
    let account: AccountID
}

struct SignInFailure: Error, CustomStringConvertible {
    var description: String
}

/// A front-end that serves people, with an identity provider of the test's own.
final class ProximityRig {
    let rig: Rig
    let provider: TestProvider

    init(
        provider: TestProvider? = nil, database: TestDatabase? = nil, databaseURL: String? = nil,
        _ change: (inout FrontEndSettings) -> Void = { _ in }
    ) throws {
        let provider = provider ?? TestProvider()
        self.provider = provider
        rig = try Rig(database: database, devices: 0, databaseURL: databaseURL) { settings in
            var proximity = ProximitySettings()
            let policy = JWTPolicy(
                issuers: [TestProvider.issuer], audiences: [TestProvider.audience])
            proximity.providers = [
                IdentityProvider(.apple, keys: .url(provider.url), policy: policy)
            ]
            proximity.exchangeLimit = nil
            settings.proximity = proximity
            change(&settings)
        }
    }

    var log: FakeLog { rig.log }

    func ask(
        _ method: String, _ path: String, _ body: String = "", as bearer: String? = nil
    ) throws -> RawResponse {
        let headers = bearer.map { ["Authorization: Bearer \($0)"] } ?? []
        return try rig.client().request(method, path, body: body.utf8, headers: headers)
    }

    func ask(
        _ method: String, _ path: String, _ body: String = "", as person: Person
    ) throws -> RawResponse {
        try ask(method, path, body, as: person.token)
    }

    static func exchangeBody(
        _ token: String, nonce: String = "", provider: String = "apple"
    )
        -> String
    {
        #"{"provider":"\#(provider)","idToken":"\#(token)","nonce":"\#(nonce)"}"#
    }

    func exchange(_ token: String, nonce: String = "") throws -> RawResponse {
        try ask("POST", "/v1/auth/exchange", Self.exchangeBody(token, nonce: nonce))
    }

    func signIn(_ subject: String, _ changes: [String: String?] = [:]) throws -> Person {
        let response = try exchange(TestProvider.token(subject, changes))
        guard response.status == 200 else {
            throw SignInFailure(description: "signing in: \(response.status) \(response.text)")
        }
        struct Session: Decodable {
            struct Account: Decodable { var id: String }
            var token: String
            var account: Account
        }
        let session = try JSONDecoder().decode(Session.self, from: Data(response.body.bytes))
        return Person(token: session.token, account: AccountID(session.account.id)!)
    }

    func register(
        _ token: String, as person: Person, tier: Int = 3, geohash: String? = "u4pru"
    ) throws -> Int {
        let cell = geohash.map { #","geohash":"\#($0)""# } ?? ""
        return try ask(
            "POST", "/v1/token", #"{"token":"\#(token)","tier":\#(tier)\#(cell)}"#, as: person
        ).status
    }

    func wave(_ token: String, as person: Person) throws -> RawResponse {
        try ask("POST", "/v1/wave", #"{"token":"\#(token)"}"#, as: person)
    }

    func block(_ token: String, as person: Person) throws -> RawResponse {
        try ask("POST", "/v1/block", #"{"token":"\#(token)"}"#, as: person)
    }

    func connect() throws -> PostgresConnection { try rig.database.connect() }

    func count(_ sql: String) throws -> Int64 { try connect().execute(sql).only().int8(0) }

    /// What the pipeline makes of two waves.
    func makeConnection(_ one: AccountID, _ other: AccountID) throws -> ConnectionID {
        let pair = AccountPair(one, other)!
        try connect().execute(
            "INSERT INTO heartline.connections VALUES ($1, $2, $3, now())",
            .uuid(pair.connection.high, pair.connection.low),
            .uuid(pair.first.high, pair.first.low), .uuid(pair.second.high, pair.second.low))
        return pair.connection
    }

    /// What the pipeline makes of a wave.
    func makeWave(_ from: AccountID, _ to: AccountID, _ token: String) throws {
        try connect().execute(
            "INSERT INTO heartline.waves VALUES ($1, $2, $3, now())", .uuid(from.high, from.low),
            .uuid(to.high, to.low), .text(token))
    }

    /// Tokens grow older all at once.
    func ageTokens(seconds: Int) throws {
        try connect().execute(
            "UPDATE heartline.presence SET registered_at = registered_at - make_interval(secs => $1)",
            .float8(Double(seconds)))
    }

    var waves: [WavesEvent] {
        let decoder = WavesDecoder()
        return log.records(of: .waves).compactMap { record in
            guard let value = record.value, case .event(let event) = decoder.decode(value.span)
            else { return nil }
            return event
        }
    }
}
