import Bytes
import Schemas
import Testing

private let one = AccountID("00000000-0000-0000-0000-000000000001")!
private let two = AccountID("f47ac10b-58cc-4372-a567-0e02b2c3d479")!
private let origin = EventOrigin(boot: 0xAB, counter: 12)
private let pair = AccountPair(one, two)!

private func reason<Event>(_ decoded: Decoded<Event>) -> String? {
    if case .malformed(let reason) = decoded { reason } else { nil }
}

@Suite("Pairs of accounts")
struct AccountPairTests {
    @Test("a pair has one key and one connection, whoever comes first")
    func noOrder() throws {
        let other = try #require(AccountPair(two, one))
        #expect(other == pair)
        #expect(other.connection == pair.connection)
        #expect(
            pair.description
                == "00000000-0000-0000-0000-000000000001:f47ac10b-58cc-4372-a567-0e02b2c3d479")
        let key = ByteBuffer(pair.description.utf8)
        #expect(key.count == AccountPair.keyBytes)
        #expect(AccountPair(parsing: key.span) == pair)
        #expect(AccountPair(one, one) == nil)
        #expect(pair.other(than: one) == two)
        #expect(pair.other(than: two) == one)
        #expect(pair.other(than: AccountID(high: 5, low: 5)) == nil)
    }

    /// SHA-256 of `connection:` and the key, by another program: c66e7f9d e95cc0d3 5050b129 273ea171.
    @Test("the connection's id is a UUID of version 8 and stays what it is")
    func connection() throws {
        #expect(pair.connection.description == "c66e7f9d-e95c-80d3-9050-b129273ea171")
        let third = try #require(AccountPair(one, AccountID(high: 0, low: 2)))
        #expect(third.connection != pair.connection)
    }

    @Test("keys in another order, of one account or of another shape are none")
    func badKeys() {
        for text in [
            "", "\(two):\(one)", "\(one):\(one)", "\(one);\(two)", "\(one):\(two) ",
            "\(one)", "\(one):\(String(repeating: "x", count: 36))",
        ] {
            let key = ByteBuffer(text.utf8)
            #expect(AccountPair(parsing: key.span) == nil, "\(text)")
        }
    }

    @Test("ids are ordered as their texts are")
    func order() {
        let ids = [0, 1, UInt64.max, 1 << 63].flatMap { high in
            [0, 7, UInt64.max].map { AccountID(high: high, low: $0) }
        }
        #expect(
            ids.sorted().map(\.description) == ids.map(\.description).sorted())
    }
}

@Suite("Records of topic waves")
struct WavesEventTests {
    static let events: [WavesEvent] = [
        .wave(Wave(origin: origin, pair: pair, sender: one, token: InlineText("t\"\\ é\u{1F44B}"))),
        .wave(
            Wave(
                origin: origin, pair: pair, sender: two,
                token: InlineText(String(repeating: "t", count: 120)))),
        .block(Block(origin: origin, pair: pair, sender: two)),
    ]

    @Test("are read as they were written", arguments: events)
    func roundTrip(event: WavesEvent) {
        var bytes = ByteBuffer()
        bytes.append(event)
        guard case .event(let read) = WavesDecoder().decode(bytes.span) else {
            Issue.record("not an event: \(bytes.span.text)")
            return
        }
        #expect(read == event)
        #expect(read.pair == pair)
    }

    @Test("are written as the topic's documents say")
    func text() {
        var bytes = ByteBuffer()
        bytes.append(.wave(Wave(origin: origin, pair: pair, sender: two, token: InlineText("t"))))
        #expect(
            bytes.span.text
                == #"{"v":1,"type":"wave","id":"00000000000000ab-12","from":"\#(two)","to":"\#(one)","token":"t"}"#
        )
    }

    private func decode(_ text: String) -> Decoded<WavesEvent> {
        let bytes = ByteBuffer(text.utf8)
        return WavesDecoder().decode(bytes.span)
    }

    @Test("that cannot be read say why")
    func malformed() {
        let id = #""v":1,"id":"00000000000000ab-12""#
        let long = String(repeating: "t", count: 121)
        let ends = #""from":"\#(one)","to":"\#(two)""#
        let cases = [
            ("", "not JSON"), ("[]", "JSON that is not an object"),
            (#"{"type":"wave"}"#, "no version \"v\""),
            (#"{"v":2,"type":"wave"}"#, "version \"v\" 2 is not known"),
            (#"{"v":1}"#, "no \"type\""),
            (#"{"v":1,"type":"wave"}"#, "\"id\" is not an event id"),
            ("{\(id),\"type\":\"wave\"}", "\"from\" is not a UUID"),
            (#"{\#(id),"type":"block","from":"\#(one)"}"#, "\"to\" is not a UUID"),
            (
                #"{\#(id),"type":"block","from":"\#(one)","to":"\#(one)"}"#,
                "\"from\" and \"to\" are the same"
            ),
            (#"{\#(id),"type":"wave",\#(ends)}"#, "\"token\" is not a text of 1 to 120 bytes"),
            (
                #"{\#(id),"type":"wave",\#(ends),"token":""}"#,
                "\"token\" is not a text of 1 to 120 bytes"
            ),
            (
                #"{\#(id),"type":"wave",\#(ends),"token":"\#(long)"}"#,
                "\"token\" is not a text of 1 to 120 bytes"
            ),
        ]
        for (text, expected) in cases { #expect(reason(decode(text)) == expected, "\(text)") }
        guard case .skipped = decode(#"{"v":1,"type":"unwave"}"#) else {
            Issue.record("a later kind was not skipped")
            return
        }
    }
}

@Suite("Records of topic encounters")
struct EncountersEventTests {
    static let events: [Encounter] = {
        let bare = Encounter(
            origin: origin, id: EncounterID(high: 1, low: 2), pair: pair, reporter: two,
            ownToken: InlineText("a"), remoteToken: InlineText("b"), tier: .area)
        var full = bare
        full.reporter = one
        full.tier = .ultraWideband
        full.engine = InlineText("uwb \"2\"")
        full.cell = Geohash("u4pruydqqvj")
        return [bare, full]
    }()

    @Test("are read as they were written", arguments: events)
    func roundTrip(encounter: Encounter) {
        var bytes = ByteBuffer()
        bytes.append(encounter)
        guard case .event(let read) = EncountersDecoder().decode(bytes.span) else {
            Issue.record("not an event: \(bytes.span.text)")
            return
        }
        #expect(read == encounter)
    }

    @Test("hold no more of a place than five characters")
    func coarse() {
        var bytes = ByteBuffer()
        bytes.append(Self.events[1])
        #expect(bytes.span.text.contains(#""geohash":"u4pru"}"#))
    }

    @Test("that cannot be read say why")
    func malformed() {
        var bytes = ByteBuffer()
        bytes.append(Self.events[1])
        let good = bytes.span.text
        let changes = [
            (#""v":1"#, #""v":3"#, "version \"v\" 3 is not known"),
            (#""id":"0"#, #""id":"x"#, "\"id\" is not an event id"),
            (#""encounter_id":"0"#, #""encounter_id":"x"#, "\"encounter_id\" is not a UUID"),
            (#""from":"0"#, #""from":""#, "\"from\" is not a UUID"),
            (#""to":"f"#, #""to":"g"#, "\"to\" is not a UUID"),
            (#""own_token":"a""#, #""own_token":"""#, "a token is not a text of 1 to 120 bytes"),
            (
                #""remote_token":"b""#, #""remote_token":7"#,
                "a token is not a text of 1 to 120 bytes"
            ),
            (#""tier":1"#, #""tier":4"#, "\"tier\" is not 1, 2 or 3"),
            (#""tier":1"#, #""tier":257"#, "\"tier\" is not 1, 2 or 3"),
            (#""tier":1"#, #""tier":1.5"#, "\"tier\" is not 1, 2 or 3"),
            (#""geohash":"u4pru""#, #""geohash":"u4pr""#, "\"geohash\" is not a cell"),
            (#""geohash":"u4pru""#, #""geohash":5"#, "\"geohash\" is not a cell"),
        ]
        for (old, new, expected) in changes {
            guard let range = good.firstRange(of: old) else {
                Issue.record("\(old) is not in \(good)")
                continue
            }
            var changed = good
            changed.replaceSubrange(range, with: new)
            let text = ByteBuffer(changed.utf8)
            #expect(reason(EncountersDecoder().decode(text.span)) == expected, "\(new)")
        }
    }
}

@Suite("Records of topic pushes")
struct PushesEventTests {
    @Test("are read as they were written")
    func roundTrip() {
        var bytes = ByteBuffer()
        bytes.append(PushesEvent(account: two))
        guard case .event(let read) = PushesDecoder().decode(bytes.span) else {
            Issue.record("not an event: \(bytes.span.text)")
            return
        }
        #expect(read.account == two)
    }

    @Test("without an account, or of another version, are malformed; of another type, skipped")
    func bad() {
        func decoded(_ text: String) -> Decoded<PushesEvent> {
            let bytes = ByteBuffer(text.utf8)
            return PushesDecoder().decode(bytes.span)
        }
        #expect(reason(decoded("{\"v\":1,\"type\":\"push\"}"))?.contains("account") == true)
        #expect(
            reason(decoded("{\"v\":2,\"type\":\"push\",\"account\":\"\(two)\"}"))?
                .contains("version") == true)
        guard case .skipped = decoded("{\"v\":1,\"type\":\"later\"}") else {
            Issue.record("an unknown type is not skipped")
            return
        }
    }

    /// By another program: SHA-256 of `push:`, account, connection and kind, as a UUID of version 8.
    @Test("the ids of pushes follow from what caused them and stay what they are")
    func ids() throws {
        let mutual = PushID(mutualTo: one, of: pair.connection)
        #expect(mutual.description == "35622f87-7bc7-8b43-8b65-8915cfed706a")
        let message = PushID(
            messageTo: one, of: pair.connection,
            message: try #require(MessageID("f47ac10b-58cc-4372-a567-0e02b2c3d479")))
        #expect(message.description == "b4a2af39-359d-8ac1-aad3-314536b0e6b3")
        #expect(PushID(mutualTo: two, of: pair.connection) != mutual)
    }

    @Test("what an account is told is one JSON object, with the client's own message unchanged")
    func bodies() {
        let mutual = PushID(mutualTo: one, of: pair.connection)
        var bytes = ByteBuffer()
        let token = ByteBuffer("a\"b".utf8)
        bytes.append(mutual: mutual, remoteToken: token.span, connection: pair.connection)
        #expect(
            bytes.span.text == """
                {"type":"mutual","remoteToken":"a\\"b","connectionID":"\(pair.connection)",\
                "id":"\(mutual)"}
                """)
        bytes.removeAll()
        let body = ByteBuffer("{ \"id\" : 1 }".utf8)
        bytes.append(message: mutual, body: body.span)
        #expect(
            bytes.span.text
                == "{\"type\":\"message\",\"message\":{ \"id\" : 1 },\"id\":\"\(mutual)\"}")
    }
}
