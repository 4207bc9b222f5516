import Bytes
import Foundation
import Ingest
import Postgres
import Schemas
import System
import TestSupport
import Testing

@Suite("Proximity: tokens and who is near") struct ProximityPresenceTests {
    static func nearby(
        _ rig: ProximityRig, _ cell: String, tier: Int = 3, as person: Person
    ) throws -> [String] {
        let response = try rig.ask("GET", "/v1/nearby?geohash=\(cell)&tier=\(tier)", as: person)
        #expect(response.status == 200, "\(response.text)")
        return try JSONDecoder().decode([String].self, from: Data(response.body.bytes))
    }

    @Test("a token is registered before it is answered, and its place is cut to five characters")
    func register() throws {
        let rig = try ProximityRig()
        let person = try rig.signIn("one")
        let response = try rig.ask(
            "POST", "/v1/token", #"{"token":"t\"1","tier":2,"geohash":"U4PRUYDQQVJ"}"#, as: person)
        #expect(response.status == 200)
        #expect(response.text == "{}")
        let row = try rig.connect().execute(
            "SELECT token, account_id::text, tier::int4, geohash FROM heartline.presence"
        ).only()
        #expect(try row.text(0) == "t\"1")
        #expect(try row.text(1) == person.account.description)
        #expect(try row.int4(2) == 2)
        #expect(try row.text(3) == "u4pru")
        // Registered again, it is where it is said to be now; without a place it has none.
        #expect(try rig.register("t\\\"1", as: person, tier: 3, geohash: nil) == 200)
        let again = try rig.connect().execute(
            "SELECT tier::int4, geohash IS NULL FROM heartline.presence"
        ).only()
        #expect(try again.int4(0) == 3)
        #expect(try again.bool(1))
    }

    @Test("tokens, tiers and places of a wrong kind are answered 400")
    func badValues() throws {
        let rig = try ProximityRig()
        let person = try rig.signIn("one")
        let long = String(repeating: "t", count: 121)
        for (body, error) in [
            ("", "invalid json"), ("[1]", "invalid json"), ("{}", "invalid token"),
            (#"{"token":"","tier":1}"#, "invalid token"),
            (#"{"token":7,"tier":1}"#, "invalid token"),
            (#"{"token":"\#(long)","tier":1}"#, "invalid token"),
            (#"{"token":"a\u0000b","tier":1}"#, "invalid token"),
            (#"{"token":"t"}"#, "invalid tier"), (#"{"token":"t","tier":0}"#, "invalid tier"),
            (#"{"token":"t","tier":4}"#, "invalid tier"),
            (#"{"token":"t","tier":"1"}"#, "invalid tier"),
            (#"{"token":"t","tier":1.5}"#, "invalid tier"),
            (#"{"token":"t","tier":1,"geohash":"u4"}"#, "invalid geohash"),
            (#"{"token":"t","tier":1,"geohash":"aaaaa"}"#, "invalid geohash"),
            (#"{"token":"t","tier":1,"geohash":7}"#, "invalid geohash"),
        ] {
            let response = try rig.ask("POST", "/v1/token", body, as: person)
            #expect(response.status == 400, "\(body)")
            #expect(response.text == "{\"error\":\"\(error)\"}", "\(body)")
        }
        #expect(try rig.count("SELECT count(*) FROM heartline.presence") == 0)
        for place in [#","geohash":null"#, #","geohash":"""#, ""] {
            let body = #"{"token":"t","tier":1\#(place)}"#
            #expect(try rig.ask("POST", "/v1/token", body, as: person).status == 200)
        }
        for query in [
            "", "?geohash=u4pru", "?tier=3", "?geohash=u4pru&tier=0", "?geohash=u4&tier=3",
            "?geohash=u4pru&tier=x", "?geohash=u4pru&tier=3&tier=3", "?geohash=%zz&tier=3",
        ] {
            #expect(try rig.ask("GET", "/v1/nearby\(query)", as: person).status == 400, "\(query)")
        }
    }

    @Test("another's token is taken only when it has expired")
    func taken() throws {
        let rig = try ProximityRig()
        let one = try rig.signIn("one")
        let two = try rig.signIn("two")
        #expect(try rig.register("t", as: one) == 200)
        #expect(try rig.register("t", as: two) == 409)
        #expect(try rig.register("t", as: one) == 200)
        try rig.ageTokens(seconds: 301)
        #expect(try rig.register("t", as: two) == 200)
    }

    @Test("an account keeps its newest tokens")
    func bounded() throws {
        let rig = try ProximityRig()
        let one = try rig.signIn("one")
        for index in 0..<40 { #expect(try rig.register("t\(index)", as: one) == 200) }
        #expect(try rig.count("SELECT count(*) FROM heartline.presence") == 32)
        #expect(
            try rig.count("SELECT count(*) FROM heartline.presence WHERE token = 't39'") == 1)
    }

    @Test("near are others' live tokens of the tier in the cell and the eight around it")
    func nearby() throws {
        let rig = try ProximityRig()
        let me = try rig.signIn("me")
        let other = try rig.signIn("other")
        let home = try #require(Geohash("u4pru"))
        for (index, cell) in ([home] + home.neighbors).enumerated() {
            #expect(try rig.register("near\(index)", as: other, geohash: cell.description) == 200)
        }
        let far = try #require(home.neighbors[0].neighbors.first)
        #expect(try rig.register("far", as: other, geohash: far.description) == 200)
        #expect(try rig.register("tier", as: other, tier: 2) == 200)
        #expect(try rig.register("nowhere", as: other, geohash: nil) == 200)
        #expect(try rig.register("own", as: me) == 200)
        let all = Set((0..<9).map { "near\($0)" })
        // The finer place that is asked for makes no difference.
        #expect(try Set(Self.nearby(rig, "u4pruydqq", as: me)) == all)
        #expect(try Self.nearby(rig, "u4pru", tier: 2, as: me) == ["tier"])
        #expect(try Self.nearby(rig, "u4pru", tier: 1, as: me) == [])
        #expect(try Self.nearby(rig, "u4pru", as: other) == ["own"])
        try rig.ageTokens(seconds: 301)
        #expect(try Self.nearby(rig, "u4pru", as: me) == [])
    }

    @Test(
        "neighbours go on across the antimeridian, at the poles, and at the borders of large cells",
        arguments: [
            // Latitude and longitude of two places a little apart.
            ((0.01, 179.999), (0.01, -179.999)), ((89.99, 0.0), (89.99, 179.99)),
            ((-89.99, 10.0), (-89.99, -170.0)), ((0.001, 0.001), (-0.001, -0.001)),
            ((45.0001, 90.0001), (44.9999, 89.9999)),
        ])
    func borders(one: (Double, Double), other: (Double, Double)) throws {
        let rig = try ProximityRig()
        let me = try rig.signIn("me")
        let them = try rig.signIn("them")
        let here = try #require(Geohash(latitude: one.0, longitude: one.1))
        let there = try #require(Geohash(latitude: other.0, longitude: other.1))
        #expect(here != there)
        #expect(try rig.register("t", as: them, geohash: there.description) == 200)
        #expect(try Self.nearby(rig, here.description, as: me) == ["t"])
    }

    @Test("at most 200 are told, in an order that changes and so tells nothing of age")
    func order() throws {
        let rig = try ProximityRig()
        let me = try rig.signIn("me")
        let them = try rig.signIn("them")
        try rig.connect().execute(
            """
            INSERT INTO heartline.presence
            SELECT 't' || n, $1, 3, 'u4pru', now() - make_interval(secs => n % 250)
            FROM generate_series(1, 300) n
            """, .uuid(them.account.high, them.account.low))
        let first = try Self.nearby(rig, "u4pru", as: me)
        #expect(first.count == 200)
        #expect(Set(first).count == 200)
        // Of 200! orders two are the same only if the order follows from the rows.
        let second = try Self.nearby(rig, "u4pru", as: me)
        #expect(first != second)
        #expect(first != first.sorted())
    }

    @Test("whoever blocked or was blocked is not near")
    func blocked() throws {
        let rig = try ProximityRig()
        let me = try rig.signIn("me")
        let them = try rig.signIn("them")
        let third = try rig.signIn("third")
        for (token, person) in [("mine", me), ("theirs", them), ("third", third)] {
            #expect(try rig.register(token, as: person) == 200)
        }
        #expect(try rig.block("theirs", as: me).status == 200)
        #expect(try Self.nearby(rig, "u4pru", as: me) == ["third"])
        #expect(try Self.nearby(rig, "u4pru", as: them) == ["third"])
        #expect(try Set(Self.nearby(rig, "u4pru", as: third)) == ["mine", "theirs"])
    }

    @Test("rows of expired tokens go")
    func sweep() throws {
        let rig = try ProximityRig { $0.proximity?.sweepMilliseconds = 20 }
        let me = try rig.signIn("me")
        #expect(try rig.register("old", as: me) == 200)
        try rig.ageTokens(seconds: 301)
        #expect(try rig.register("new", as: me) == 200)
        #expect(
            try eventually {
                try rig.count("SELECT count(*) FROM heartline.presence WHERE token = 'old'") == 0
            })
        #expect(try rig.count("SELECT count(*) FROM heartline.presence") == 1)
    }
}
