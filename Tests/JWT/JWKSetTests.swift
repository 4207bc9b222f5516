import Bytes
import Crypto
import JWT
import TestSupport
import Testing

@Suite("Sets of keys") struct JWKSetTests {
    @Test("keys without alg and use, or with the right ones, are taken")
    func taken() throws {
        let set = try parse(
            """
            {"keys":[\(SigningKey.rsa.jwk(more: #","kid":"a""#)),
            \(SigningKey.p256.jwk(more: #","kid":"b","use":"sig","alg":"ES256""#)),
            \(SigningKey.otherP256.jwk(more: #","kid":"a","key_ops":["sign","verify"]"#))],
            "more":{}}
            """)
        #expect(set.keys.map(\.id) == ["a", "b", "a"])
        #expect(set.keys.map(\.algorithm) == [.rs256, .es256, .es256])
        #expect(set.skipped.isEmpty)
        #expect(set.keys[0].key.signatureBytes == 256)
    }

    static let skipped: [(entry: String, reason: JWKSet.SkippedKey.Reason)] = {
        let rsa = SigningKey.rsa
        let ec = SigningKey.p256
        let x = encoded(ec.number("qx"))
        let y = encoded(ec.number("qy"))
        var off = ec.number("qy")
        off[31] ^= 1
        let zeros = encoded([UInt8](repeating: 0, count: 32))
        let n = encoded(rsa.number("n"))
        var even = rsa.number("n")
        even[255] &= 0xFE
        func point(_ x: String, _ y: String) -> String {
            #"{"kty":"EC","crv":"P-256","kid":"k","x":"\#(x)","y":"\#(y)"}"#
        }
        func numbers(_ n: String, _ e: String) -> String {
            #"{"kty":"RSA","kid":"k","n":"\#(n)","e":"\#(e)"}"#
        }
        let small = encoded(SigningKey(rsaBits: 1024).number("n"))
        let long = String(repeating: "k", count: 257)
        return [
            ("7", .notAnObject), ("null", .notAnObject), ("[]", .notAnObject),
            ("{}", .malformed("kty")), (#"{"kty":1}"#, .malformed("kty")),
            (#"{"kty":"OKP","crv":"Ed25519","x":"AA","kid":"k"}"#, .type),
            (#"{"kty":"rsa","kid":"k"}"#, .type),
            (#"{"kty":"EC","crv":"P-384","kid":"k"}"#, .curve),
            (#"{"kty":"EC","crv":"secp256k1","kid":"k"}"#, .curve),
            (#"{"kty":"EC","kid":"k"}"#, .curve),
            (rsa.jwk(more: #","kid":"k","alg":"RS512""#), .algorithm),
            (rsa.jwk(more: #","kid":"k","alg":"HS256""#), .algorithm),
            (rsa.jwk(more: #","kid":"k","alg":"ES256""#), .algorithm),
            (ec.jwk(more: #","kid":"k","alg":"RS256""#), .algorithm),
            (ec.jwk(more: #","kid":"k","alg":null"#), .malformed("alg")),
            (rsa.jwk(more: #","kid":"k","use":"enc""#), .use),
            (rsa.jwk(more: #","kid":"k","use":["sig"]"#), .malformed("use")),
            (rsa.jwk(more: #","kid":"k","key_ops":["encrypt"]"#), .use),
            (rsa.jwk(more: #","kid":"k","key_ops":"verify""#), .malformed("key_ops")),
            (rsa.jwk(more: ""), .noKeyID), (rsa.jwk(more: #","kid":"""#), .noKeyID),
            (rsa.jwk(more: #","kid":5"#), .malformed("kid")),
            (rsa.jwk(more: #","kid":"\#(long)""#), .malformed("kid")),
            (rsa.jwk(more: #","kid":"k","d":"AQAB""#), .privateKey),
            (ec.jwk(more: #","kid":"k","d":"AQAB""#), .privateKey),
            (numbers(small, "AQAB"), .badKey(.modulusSize(bits: 1024))),
            (numbers("", "AQAB"), .badKey(.modulusSize(bits: 0))),
            (
                numbers(encoded([1] + [UInt8](repeating: 0, count: 1024)), "AQAB"),
                .badKey(.modulusSize(bits: 8193))
            ),
            (numbers(n, "Aw"), .badKey(.exponent)), (numbers(n, "AQ"), .badKey(.exponent)),
            (numbers(n, "AQAC"), .badKey(.exponent)), (numbers(n, ""), .badKey(.exponent)),
            (numbers(n, "AQAAAAAAAAAB"), .badKey(.exponent)),
            (numbers(encoded(even), "AQAB"), .badKey(.notAKey)),
            (numbers(n + "=", "AQAB"), .malformed("n")), (numbers(n, "A+"), .malformed("e")),
            (#"{"kty":"RSA","kid":"k","e":"AQAB"}"#, .malformed("n")),
            (point(x, encoded(off)), .badKey(.notAKey)), (point(y, x), .badKey(.notAKey)),
            (point(zeros, zeros), .badKey(.notAKey)),
            (point(encoded([0] + ec.number("qx")), y), .badKey(.coordinateSize)),
            (point("AA", y), .badKey(.coordinateSize)), (point(x, "!"), .malformed("y")),
        ]
    }()

    @Test("entries that are left out, with the reason", arguments: skipped)
    func leftOut(entry: String, reason: JWKSet.SkippedKey.Reason) throws {
        let good = SigningKey.otherRSA.jwk(more: #","kid":"good""#)
        let set = try parse(#"{"keys":[\#(entry),\#(good)]}"#)
        #expect(set.keys.map(\.id) == ["good"])
        #expect(set.skipped == [JWKSet.SkippedKey(index: 0, reason: reason)])
    }

    @Test("of two keys of one id and algorithm the first holds")
    func duplicates() throws {
        let a = SigningKey.rsa.jwk(more: #","kid":"k""#)
        let b = SigningKey.otherRSA.jwk(more: #","kid":"k""#)
        let set = try parse(#"{"keys":[\#(a),\#(a),\#(b)]}"#)
        #expect(set.keys.count == 1)
        #expect(set.keys[0].thumbprint == (try SigningKey.rsa.webKey(id: "").thumbprint))
        #expect(set.skipped.map(\.reason) == [.repeated, .conflict])
        #expect(set.skipped.map(\.index) == [1, 2])
    }

    @Test("documents that are no set are refused as a whole")
    func refused() {
        let key = SigningKey.rsa.jwk(more: #","kid":"k""#)
        for text in ["", "[]", "{", #"{"keys":[\#(key)]} x"#, #"{"keys":[{"kty":"a","kty":"b"}]}"#]
        {
            let failure = #expect(throws: JWKSet.Failure.self) { try parse(text) }
            guard case .badJSON? = failure else {
                Issue.record("\(text): \(String(describing: failure))")
                continue
            }
        }
        for text in ["{}", #"{"keys":null}"#, #"{"keys":{}}"#, key] {
            #expect(throws: JWKSet.Failure.noKeys) { try parse(text) }
        }
        #expect(throws: JWKSet.Failure.noUsableKey([])) { try parse(#"{"keys":[]}"#) }
        let many = Array(repeating: "7", count: 101).joined(separator: ",")
        #expect(throws: JWKSet.Failure.tooManyKeys(101)) { try parse(#"{"keys":[\#(many)]}"#) }
        let large = #"{"keys":[],"x":"\#(String(repeating: "x", count: 256 << 10))"}"#
        #expect(throws: JWKSet.Failure.self) { try parse(large) }
    }

    @Test("mutated sets are read or refused, and never stop us", arguments: 0..<UInt64(8))
    func mutations(seed: UInt64) {
        var random = SeededNumbers(state: seed)
        let text = """
            {"keys":[\(SigningKey.rsa.jwk(more: #","kid":"a""#)),\
            \(SigningKey.p256.jwk(more: #","kid":"b","use":"sig""#))]}
            """
        for _ in 0..<100 {
            var bytes = Array(text.utf8)
            for _ in 0..<Int.random(in: 1...4, using: &random) {
                let index = bytes.indices.randomElement(using: &random)!
                bytes[index] = UInt8.random(in: 0x20...0x7E, using: &random)
            }
            let span = bytes.span
            do throws(JWKSet.Failure) {
                let set = try JWKSet(parsing: span)
                #expect(set.keys.count + set.skipped.count <= 2, "seed \(seed)")
            } catch {
                #expect(!error.description.isEmpty)
            }
        }
    }
}

@Suite("Base64url") struct Base64URLTests {
    @Test("every value has one spelling")
    func strict() {
        func decode(_ text: String) -> [UInt8]? {
            let bytes = Array(text.utf8)
            return Base64URL.decode(bytes.span)
        }
        #expect(decode("") == [])
        #expect(decode("-_-_") == [0xFB, 0xFF, 0xBF])
        #expect(decode("AA") == [0])
        #expect(decode("_w") == [255])
        for bad in ["A", "AB", "AAB", "AA==", "AA=", "A A", "AA\n", "+/+/", "AAAAA", "é", "AA."] {
            #expect(decode(bad) == nil, "\(bad)")
        }
        for count in 0..<70 {
            let bytes = (0..<count).map { UInt8(truncatingIfNeeded: $0 * 37 + count) }
            #expect(decode(encoded(bytes)) == bytes)
        }
    }
}
