import Bytes
import Crypto
import Foundation
import Ingest
import Postgres
import Schemas
import System
import TestSupport
import Testing

@Suite("Proximity: waves, encounters, keys, blocks and messages") struct ProximityPeerTests {
    /// Two people with a token each.
    struct Pair {
        let rig: ProximityRig
        let one: Person
        let two: Person
        let pair: AccountPair

        init(_ rig: ProximityRig? = nil) throws {
            let rig = try rig ?? ProximityRig()
            self.rig = rig
            one = try rig.signIn("one")
            two = try rig.signIn("two")
            pair = AccountPair(one.account, two.account)!
            #expect(try rig.register("token-one", as: one) == 200)
            #expect(try rig.register("token-two", as: two) == 200)
        }
    }

    static func key(_ byte: UInt8) -> String {
        let bytes = [UInt8](repeating: byte, count: 32)
        return Base64.encode(bytes.span)
    }

    // MARK: - Waves

    @Test("a wave is an event of the pair, under the token that was waved at")
    func wave() throws {
        let people = try Pair()
        let response = try people.rig.wave("token-two", as: people.one)
        #expect(response.status == 200)
        #expect(response.text == "{}")
        #expect(try people.rig.wave("token-one", as: people.two).status == 200)
        let waves = people.rig.waves
        #expect(waves.count == 2)
        guard case .wave(let first) = waves[0], case .wave(let second) = waves[1] else {
            Issue.record("not waves")
            return
        }
        #expect(first.pair == people.pair && second.pair == people.pair)
        #expect(first.sender == people.one.account)
        #expect(first.token.description == "token-two")
        #expect(second.sender == people.two.account)
        #expect(first.origin != second.origin)
        let records = people.rig.log.records(of: .waves)
        #expect(records.allSatisfy { $0.key.span.text == people.pair.description })
        #expect(records[0].partition == records[1].partition)
        let age = SystemClock.wallMilliseconds() - records[0].timestamp.milliseconds
        #expect(age >= 0 && age < 600_000)
    }

    @Test(
        "a wave at nobody, at oneself or at somebody blocked is answered as any other, and dropped")
    func dropped() throws {
        let people = try Pair()
        let rig = people.rig
        for token in ["unknown", "token-one"] {
            let response = try rig.wave(token, as: people.one)
            #expect(response.status == 200)
            #expect(response.text == "{}")
        }
        #expect(try rig.block("token-two", as: people.one).status == 200)
        #expect(try rig.wave("token-two", as: people.one).text == "{}")
        #expect(try rig.wave("token-one", as: people.two).text == "{}")
        try rig.ageTokens(seconds: 301)
        let third = try rig.signIn("third")
        #expect(try rig.wave("token-one", as: third).text == "{}")
        #expect(rig.waves.allSatisfy { if case .block = $0 { true } else { false } })
        for body in ["", "{}", #"{"token":""}"#, #"{"token":null}"#, #"{"token":"a\u0000"}"#] {
            #expect(try rig.ask("POST", "/v1/wave", body, as: people.one).status == 400)
        }
    }

    @Test("a wave is answered when the log has it: until then not, and 503 if it does not take it")
    func acknowledged() throws {
        let people = try Pair()
        people.rig.log.setReceipts(.held)
        let client = try people.rig.rig.client()
        try client.sendRequest(
            "POST", "/v1/wave", body: #"{"token":"token-two"}"#.utf8,
            headers: ["Authorization: Bearer \(people.one.token)"])
        #expect(try eventually { !people.rig.waves.isEmpty })
        #expect(!client.hasAnswer(milliseconds: 50))
        people.rig.log.setReceipts(.stored)
        people.rig.log.release(isStored: true)
        #expect(try client.response().status == 200)
        people.rig.log.setReceipts(.failed)
        let failed = try people.rig.wave("token-two", as: people.one)
        #expect(failed.status == 503)
        #expect(failed.headers["retry-after"] != nil)
        people.rig.log.setReceipts(.stored)
        people.rig.log.setFull(true)
        #expect(try people.rig.wave("token-two", as: people.one).status == 503)
        people.rig.log.setFull(false)
        #expect(try people.rig.wave("token-two", as: people.one).status == 200)
    }

    // MARK: - Encounters

    @Test("an encounter is an event with both tokens, whatever the phone's clock says")
    func encounter() throws {
        let people = try Pair()
        let rig = people.rig
        #expect(try rig.register("own-tier-1", as: people.one, tier: 1) == 200)
        let id = "6F9619FF-8B86-D011-B42D-00CF4FC964FF"
        let body = #"""
            {"id":"\#(id)","remoteAnonToken":"token-two","timestamp":"1999-01-01T00:00:00Z","tier":1,
             "engine":"uwb\u0000","geohash":"u4pruydq","status":"silhouette"}
            """#
        let response = try rig.ask("POST", "/v1/encounter", body, as: people.one)
        #expect(response.status == 200)
        #expect(response.text == "{}")
        let record = try #require(rig.log.records(of: .encounters).first)
        guard case .event(let event) = EncountersDecoder().decode(record.value!.span) else {
            Issue.record("not an encounter")
            return
        }
        #expect(event.id.description == id.lowercased())
        #expect(event.pair == people.pair)
        #expect(event.reporter == people.one.account)
        #expect(event.ownToken.description == "own-tier-1")
        #expect(event.remoteToken.description == "token-two")
        #expect(event.tier == .ultraWideband)
        #expect(event.engine.description == "uwb\u{FFFD}")
        #expect(event.cell?.description == "u4pru")
        #expect(!record.value!.span.text.contains("u4pruy"))
        #expect(SystemClock.wallMilliseconds() - record.timestamp.milliseconds < 600_000)
    }

    @Test("encounters with nobody, with oneself, or of somebody who broadcasts nothing are dropped")
    func droppedEncounters() throws {
        let people = try Pair()
        let rig = people.rig
        let id = "6f9619ff-8b86-d011-b42d-00cf4fc964ff"
        func report(_ token: String, _ person: Person, more: String = "") throws -> RawResponse {
            try rig.ask(
                "POST", "/v1/encounter",
                #"{"id":"\#(id)","remoteAnonToken":"\#(token)","tier":2\#(more)}"#, as: person)
        }
        #expect(try report("nobody", people.one).text == "{}")
        #expect(try report("token-one", people.one).text == "{}")
        let silent = try rig.signIn("silent")
        #expect(try report("token-one", silent).text == "{}")
        #expect(rig.log.records(of: .encounters).isEmpty)
        #expect(try report("token-two", people.one, more: #","geohash":null"#).status == 200)
        #expect(rig.log.records(of: .encounters).count == 1)
        for (body, error) in [
            (#"{"remoteAnonToken":"t","tier":1}"#, "invalid id"),
            (#"{"id":"x","remoteAnonToken":"t","tier":1}"#, "invalid id"),
            (#"{"id":"\#(id)","tier":1}"#, "invalid token"),
            (#"{"id":"\#(id)","remoteAnonToken":"t"}"#, "invalid tier"),
            (#"{"id":"\#(id)","remoteAnonToken":"t","tier":9}"#, "invalid tier"),
            (#"{"id":"\#(id)","remoteAnonToken":"t","tier":1,"engine":1}"#, "invalid engine"),
            (#"{"id":"\#(id)","remoteAnonToken":"t","tier":1,"geohash":"x"}"#, "invalid geohash"),
        ] {
            let response = try rig.ask("POST", "/v1/encounter", body, as: people.one)
            #expect(response.status == 400)
            #expect(response.text == "{\"error\":\"\(error)\"}", "\(body)")
        }
    }

    // MARK: - Keys

    @Test("a key is told to who is connected, by a token of now or of then, and to nobody else")
    func peerKey() throws {
        let people = try Pair()
        let rig = people.rig
        func store(_ key: String, _ person: Person) throws -> RawResponse {
            try rig.ask("POST", "/v1/peer-key", #"{"publicKey":"\#(key)"}"#, as: person)
        }
        func fetch(_ token: String, _ person: Person) throws -> RawResponse {
            try rig.ask("GET", "/v1/peer-key?token=\(token)", as: person)
        }
        #expect(try store(Self.key(1), people.two).text == "{}")
        #expect(try fetch("token-two", people.one).status == 403)
        try rig.makeWave(people.one.account, people.two.account, "token-two")
        // A wave of one alone reveals nothing.
        #expect(try fetch("token-two", people.one).text == #"{"error":"forbidden"}"#)
        _ = try rig.makeConnection(people.one.account, people.two.account)
        let response = try fetch("token-two", people.one)
        #expect(response.status == 200)
        #expect(response.text == #"{"publicKey":"\#(Self.key(1))"}"#)
        #expect(try store(Self.key(2), people.two).status == 200)
        #expect(try fetch("token%2Dtwo", people.one).text.contains(Self.key(2)))
        // Connected, and nothing uploaded yet.
        #expect(try fetch("token-one", people.two).status == 404)
        // After it was rotated away, the token is known to who waved at it.
        try rig.connect().run("DELETE FROM heartline.presence")
        #expect(try fetch("token-two", people.one).status == 200)
        #expect(try fetch("token-one", people.two).status == 403)
        let third = try rig.signIn("third")
        #expect(try fetch("token-two", third).status == 403)
        #expect(try rig.block("token-two", as: people.one).status == 200)
        #expect(try fetch("token-two", people.one).status == 403)
        for query in ["", "?token=", "?token=%00", "?token=a&token=b"] {
            #expect(try rig.ask("GET", "/v1/peer-key\(query)", as: third).status == 400, "\(query)")
        }
    }

    @Test("what is no raw X25519 key in Base64 is refused")
    func badKeys() throws {
        let rig = try ProximityRig()
        let one = try rig.signIn("one")
        let short = [UInt8](repeating: 1, count: 31)
        for key in [
            "", "x", Base64.encode(short.span), Self.key(1) + "=", " " + Self.key(1),
            Self.key(255).replacing("/", with: "_"),
        ] {
            let response = try rig.ask(
                "POST", "/v1/peer-key", #"{"publicKey":"\#(key)"}"#, as: one)
            #expect(response.status == 400, "\(key)")
            #expect(response.text == #"{"error":"invalid public key"}"#)
        }
        #expect(try rig.ask("POST", "/v1/peer-key", "{}", as: one).status == 400)
        // As Swift's encoder writes it.
        let escaped = Self.key(255).replacing("/", with: "\\/")
        let body = #"{"publicKey":"\#(escaped)"}"#
        #expect(try rig.ask("POST", "/v1/peer-key", body, as: one).status == 200)
        #expect(
            try rig.connect().execute("SELECT public_key FROM heartline.peer_keys").only().text(0)
                == Self.key(255))
    }

    // MARK: - Blocks

    @Test(
        "a block is a row before it is answered, and an event of the pair, each time it is asked for"
    )
    func block() throws {
        let people = try Pair()
        let rig = people.rig
        for _ in 0..<2 { #expect(try rig.block("token-two", as: people.one).text == "{}") }
        let row = try rig.connect().execute(
            "SELECT blocker::text, blocked::text FROM heartline.blocks"
        ).only()
        #expect(try row.text(0) == people.one.account.description)
        #expect(try row.text(1) == people.two.account.description)
        #expect(rig.waves.count == 2)
        guard case .block(let block) = rig.waves[0] else {
            Issue.record("not a block")
            return
        }
        #expect(block.pair == people.pair)
        #expect(block.sender == people.one.account)
        // By a token that is not broadcast any more, from who waved at it.
        try rig.makeWave(people.two.account, people.one.account, "old")
        #expect(try rig.block("old", as: people.two).status == 200)
        #expect(try rig.count("SELECT count(*) FROM heartline.blocks") == 2)
        for token in ["nobody", "token-one"] {
            #expect(try rig.block(token, as: people.one).text == "{}")
        }
        #expect(try rig.count("SELECT count(*) FROM heartline.blocks") == 2)
        rig.log.setFull(true)
        #expect(try rig.block("token-two", as: people.one).status == 503)
    }

    // MARK: - Messages

    static func message(
        _ connection: ConnectionID, id: String = "0D9F5C3A-2B1E-4C7D-8F6A-112233445566",
        ciphertext: String = "AQID", more: String = ""
    ) -> String {
        #"{ "id" : "\#(id)","connectionID":"\#(connection)","senderID":"me","ciphertext":"\#(ciphertext)","sentAt":"2026-06-26T09:00:00Z"\#(more) }"#
    }

    @Test("a message of one of the connection is an event as the client wrote it")
    func message() throws {
        let people = try Pair()
        let rig = people.rig
        let connection = try rig.makeConnection(people.one.account, people.two.account)
        let body = Self.message(connection, more: #","x":"\u00e9\u0000é\/"#.appending("\""))
        let response = try rig.ask("POST", "/v1/message", body, as: people.one)
        #expect(response.status == 200, "\(response.text)")
        #expect(response.text == "{}")
        let record = try #require(rig.log.records(of: .messages).first)
        #expect(record.key.span.text == connection.description)
        guard case .event(let event) = MessagesDecoder().decode(record.value!.span) else {
            Issue.record("not a message")
            return
        }
        #expect(event.body.span.text == body)
        #expect(event.id.description == "0d9f5c3a-2b1e-4c7d-8f6a-112233445566")
        #expect(event.sender == people.one.account)
        #expect(event.recipient == people.two.account)
    }

    @Test("who does not belong to the connection, or is blocked, may not write over it")
    func forbidden() throws {
        let people = try Pair()
        let rig = people.rig
        let connection = people.pair.connection
        func send(_ person: Person) throws -> RawResponse {
            try rig.ask("POST", "/v1/message", Self.message(connection), as: person)
        }
        #expect(try send(people.one).status == 403)
        _ = try rig.makeConnection(people.one.account, people.two.account)
        #expect(try send(people.one).status == 200)
        #expect(try send(people.two).status == 200)
        #expect(try send(try rig.signIn("third")).text == #"{"error":"forbidden"}"#)
        #expect(try rig.block("token-two", as: people.one).status == 200)
        #expect(try send(people.one).status == 403)
        #expect(try send(people.two).status == 403)
        #expect(rig.log.records(of: .messages).count == 2)
    }

    @Test("64 KiB of ciphertext go through; more, and what is no ciphertext, do not")
    func sizes() throws {
        let people = try Pair()
        let rig = people.rig
        let connection = try rig.makeConnection(people.one.account, people.two.account)
        func send(_ body: String) throws -> RawResponse {
            try rig.ask("POST", "/v1/message", body, as: people.one)
        }
        let most = [UInt8](repeating: 7, count: 64 << 10)
        let fits = Base64.encode(most.span)
        #expect(try send(Self.message(connection, ciphertext: fits)).status == 200)
        let more = [UInt8](repeating: 7, count: (64 << 10) + 1)
        for size in [more, more + [UInt8](repeating: 7, count: 9_000)] {
            let large = try send(Self.message(connection, ciphertext: Base64.encode(size.span)))
            #expect(large.status == 413)
            #expect(large.text == #"{"error":"ciphertext too large"}"#)
        }
        let padding = String(repeating: " ", count: 128 << 10)
        #expect(try send(Self.message(connection) + padding).status == 413)
        for (body, error) in [
            (Self.message(connection, id: "x"), "invalid id"),
            (Self.message(connection, ciphertext: ""), "invalid ciphertext"),
            (Self.message(connection, ciphertext: "A"), "invalid ciphertext"),
            (Self.message(connection, ciphertext: "AQID="), "invalid ciphertext"),
            (Self.message(connection).replacing("senderID", with: "sender"), "invalid sender id"),
            (
                Self.message(connection).replacing("connectionID", with: "c"),
                "invalid connection id"
            ),
            ("\u{FEFF}" + Self.message(connection), "invalid json"),
        ] {
            let response = try send(body)
            #expect(response.status == 400)
            #expect(response.text == "{\"error\":\"\(error)\"}")
        }
    }
}
