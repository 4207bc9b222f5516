import Bytes
import Crypto
import JWT
import TestSupport
import Testing

private let issuer = "https://appleid.apple.com"
private let audience = "app.example.proximity"
/// 2026-06-26T09:00:00Z. Unit: seconds.
private let now: Int64 = 1_782_464_400

private let header = #"{"alg":"RS256","kid":"r1"}"#
private let ecHeader = #"{"alg":"ES256","kid":"e1","typ":"JWT"}"#

/// Claims that pass, with members replaced (`nil`: left out); values are JSON.
private func claims(_ changes: [String: String?] = [:]) -> String {
    var members: [String: String?] = [
        "iss": #""\#(issuer)""#, "sub": #""001234.abc""#, "aud": #""\#(audience)""#,
        "iat": "\(now - 10)", "exp": "\(now + 600)",
    ]
    for (name, value) in changes { members.updateValue(value, forKey: name) }
    let text = members.sorted { $0.key < $1.key }.compactMap { name, value in
        value.map { #""\#(name)":\#($0)"# }
    }
    return "{\(text.joined(separator: ","))}"
}

private let keys = {
    let set = [
        try? SigningKey.rsa.webKey(id: "r1"), try? SigningKey.p256.webKey(id: "e1"),
        try? SigningKey.otherRSA.webKey(id: "both"),
        try? SigningKey.otherP256.webKey(id: "both"),
    ]
    return JWKSet(set.compactMap { $0 })
}()

private let policy = JWTPolicy(issuers: [issuer], audiences: [audience, "second.example"])

@discardableResult
private func verify(
    _ token: [UInt8], nonce: String = "", policy: JWTPolicy = policy, milliseconds: Int64? = nil
) throws(JWTRefusal) -> JWTClaims {
    let verifier = JWTVerifier()
    let nonce = Array(nonce.utf8)
    let token = token.span
    let given = nonce.span
    return try verifier.verify(
        token, keys: keys, policy: policy, nonce: given, now: milliseconds ?? now * 1000)
}

/// The same claims signed by both kinds of key are judged alike.
private func refusal(
    claims: String, nonce: String = "", policy: JWTPolicy = policy,
    milliseconds: Int64? = nil
) -> JWTRefusal? {
    func attempt(_ token: [UInt8]) -> JWTRefusal? {
        do throws(JWTRefusal) {
            try verify(token, nonce: nonce, policy: policy, milliseconds: milliseconds)
            return nil
        } catch { return error }
    }
    let rsa = attempt(SigningKey.rsa.token(header: header, claims: claims))
    let ec = attempt(SigningKey.p256.token(header: ecHeader, claims: claims))
    #expect(rsa == ec)
    return rsa
}

@Suite("Verifying tokens") struct JWTVerifierTests {
    @Test("a good token gives its claims, by either algorithm")
    func accepts() throws {
        let text = claims([
            "email": #""a@example.com""#, "email_verified": #""true""#, "name": #""Zoë""#,
            "nested": #"{"deep":[1,{"x":null}]}"#,
        ])
        let expected = JWTClaims(
            issuer: issuer, subject: "001234.abc", expiry: (now + 600) * 1000,
            issuedAt: (now - 10) * 1000, email: "a@example.com", isEmailVerified: true,
            name: "Zoë")
        #expect(try verify(SigningKey.rsa.token(header: header, claims: text)) == expected)
        #expect(try verify(SigningKey.p256.token(header: ecHeader, claims: text)) == expected)
    }

    @Test("one id may stand for a key of each type, and the algorithm tells which")
    func sharedID() throws {
        let rsa = SigningKey.otherRSA.token(
            header: #"{"alg":"RS256","kid":"both"}"#, claims: claims())
        let ec = SigningKey.otherP256.token(
            header: #"{"alg":"ES256","kid":"both"}"#, claims: claims())
        try verify(rsa)
        try verify(ec)
    }

    static let headers: [(header: String, refusal: JWTRefusal)] = [
        (#"{"kid":"r1"}"#, .algorithmMissing),
        (#"{"alg":null,"kid":"r1"}"#, .badHeader(.alg)),
        (#"{"alg":256,"kid":"r1"}"#, .badHeader(.alg)),
        (#"{"alg":["RS256"],"kid":"r1"}"#, .badHeader(.alg)),
        (#"{"alg":"none","kid":"r1"}"#, .unsecured),
        (#"{"alg":"nOnE","kid":"r1"}"#, .unsecured),
        (#"{"alg":"","kid":"r1"}"#, .algorithmNotSupported),
        (#"{"alg":"rs256","kid":"r1"}"#, .algorithmNotSupported),
        (#"{"alg":"RS256 ","kid":"r1"}"#, .algorithmNotSupported),
        (#"{"alg":"HS256","kid":"r1"}"#, .algorithmNotSupported),
        (#"{"alg":"RS384","kid":"r1"}"#, .algorithmNotSupported),
        (#"{"alg":"PS256","kid":"r1"}"#, .algorithmNotSupported),
        (#"{"alg":"ES256K","kid":"r1"}"#, .algorithmNotSupported),
        (#"{"alg":"EdDSA","kid":"r1"}"#, .algorithmNotSupported),
        (#"{"alg":"ES256","kid":"r1"}"#, .algorithmMismatch),
        (#"{"alg":"RS256","kid":"e1"}"#, .algorithmMismatch),
        (#"{"alg":"RS256"}"#, .keyIDMissing),
        (#"{"alg":"RS256","kid":7}"#, .badHeader(.kid)),
        (#"{"alg":"RS256","kid":""}"#, .keyIDUnknown),
        (#"{"alg":"RS256","kid":"R1"}"#, .keyIDUnknown),
        (#"{"alg":"RS256","kid":"r1\u0000"}"#, .keyIDUnknown),
        (#"{"alg":"RS256","kid":"both"}"#, .wrongSignature),
        (#"{"alg":"RS256","kid":"r1","crit":["exp"],"exp":1}"#, .criticalExtensions),
        (#"{"alg":"RS256","kid":"r1","crit":[]}"#, .criticalExtensions),
        (#"{"alg":"RS256","kid":"r1","crit":null}"#, .criticalExtensions),
        (#"{"alg":"RS256","kid":"r1","b64":false,"crit":["b64"]}"#, .criticalExtensions),
        (#"{"alg":"RS256","kid":"r1","typ":"at+jwt"}"#, .wrongType),
        (#"{"alg":"RS256","kid":"r1","typ":"JOSE"}"#, .wrongType),
        (#"{"alg":"RS256","kid":"r1","typ":1}"#, .badHeader(.typ)),
        (#"{"alg":"RS256","kid":"r1","cty":"JWT"}"#, .nestedToken),
        (#"{"alg":"RS256","kid":"r1","alg":"none"}"#, .badJSON(.header)),
        (#"["alg","RS256"]"#, .badJSON(.header)),
        (#"{"alg":"RS256","kid":"r1"}x"#, .badJSON(.header)),
        (#"{"alg":"RS256","kid":"r1","x":[[[[[[[[[[1]]]]]]]]]]}"#, .badJSON(.header)),
    ]

    @Test("headers that are refused, although the signature fits", arguments: headers)
    func refusesHeader(header: String, refusal: JWTRefusal) {
        let token = SigningKey.rsa.token(header: header, claims: claims())
        #expect(throws: refusal) { try verify(token) }
    }

    @Test(
        "types that say JWT are accepted",
        arguments: ["JWT", "jwt", "application/jwt", "application/JWT"])
    func acceptsType(type: String) throws {
        try verify(
            SigningKey.rsa.token(
                header: #"{"alg":"RS256","kid":"r1","typ":"\#(type)"}"#, claims: claims()))
    }

    static let refusedClaims: [(name: String, value: String?, refusal: JWTRefusal)] = [
        ("iss", nil, .missing(.issuer)),
        ("iss", "null", .missing(.issuer)),
        ("iss", "7", .malformed(.issuer)),
        ("iss", #""https://appleid.apple.com/""#, .wrongIssuer),
        ("iss", #""https://APPLEID.apple.com""#, .wrongIssuer),
        ("iss", #"["https://appleid.apple.com"]"#, .malformed(.issuer)),
        ("aud", nil, .missing(.audience)),
        ("aud", #""app.example.proximit""#, .wrongAudience),
        ("aud", #""app.example.proximity2""#, .wrongAudience),
        ("aud", #""""#, .wrongAudience),
        ("aud", "[]", .wrongAudience),
        ("aud", #"["x","y"]"#, .wrongAudience),
        ("aud", #"["app.example.proximity",1]"#, .malformed(.audience)),
        ("aud", #"{"app.example.proximity":1}"#, .malformed(.audience)),
        ("aud", "true", .malformed(.audience)),
        (
            "aud", "[" + Array(repeating: #""x""#, count: 33).joined(separator: ",") + "]",
            .malformed(.audience)
        ),
        ("exp", nil, .missing(.expiry)),
        ("exp", "null", .malformed(.expiry)),
        ("exp", #""1782465000""#, .malformed(.expiry)),
        ("exp", "-1", .malformed(.expiry)),
        ("exp", "1e300", .malformed(.expiry)),
        ("exp", "18446744073709551615", .malformed(.expiry)),
        ("exp", "\(now - 60)", .expired),
        ("exp", "0", .expired),
        ("nbf", "\(now + 61)", .notYetValid),
        ("nbf", #""soon""#, .malformed(.notBefore)),
        ("iat", "\(now + 61)", .issuedInTheFuture),
        ("iat", "true", .malformed(.issuedAt)),
        ("sub", nil, .missing(.subject)),
        ("sub", #""""#, .malformed(.subject)),
        ("sub", "12", .malformed(.subject)),
        ("sub", #""a b""#, .malformed(.subject)),
        ("sub", #""a\u0000""#, .malformed(.subject)),
        ("sub", #""zoë""#, .malformed(.subject)),
        ("sub", "\"\(String(repeating: "a", count: 256))\"", .malformed(.subject)),
        ("nonce", #""x""#, .nonceNotGiven),
        ("nonce", "1", .malformed(.nonce)),
    ]

    @Test("claims that are refused", arguments: refusedClaims)
    func refusesClaims(name: String, value: String?, expected: JWTRefusal) {
        #expect(refusal(claims: claims([name: value])) == expected)
    }

    @Test("payloads that are not one JSON object are refused after the signature was checked")
    func refusesPayload() {
        for text in ["[]", "{", "7", "null", #"{"a":1,"a":2}"#, "{\"a\":\"\u{1}\"}"] {
            #expect(refusal(claims: text) == .badJSON(.payload))
        }
    }

    @Test("one of several audiences suffices, and fractions of a second are read")
    func acceptsVariants() {
        #expect(refusal(claims: claims(["aud": #"["x","second.example"]"#])) == nil)
        #expect(refusal(claims: claims(["exp": "\(now + 1).5", "iat": "\(now).25"])) == nil)
        #expect(refusal(claims: claims(["iat": nil])) == nil)
        #expect(refusal(claims: claims(["email": "[]", "name": "7"])) == nil)
    }

    @Test("times hold to the millisecond, with the leeway on our side")
    func times() {
        let text = claims(["nbf": "\(now - 10)"])
        let expiry = (now + 600) * 1000
        let start = (now - 10) * 1000
        #expect(refusal(claims: text, milliseconds: expiry + 59_999) == nil)
        #expect(refusal(claims: text, milliseconds: expiry + 60_000) == .expired)
        #expect(refusal(claims: text, milliseconds: start - 60_000) == nil)
        #expect(refusal(claims: text, milliseconds: start - 60_001) == .notYetValid)
        var strict = policy
        strict.leeway = .zero
        #expect(refusal(claims: text, policy: strict, milliseconds: expiry - 1) == nil)
        #expect(refusal(claims: text, policy: strict, milliseconds: expiry) == .expired)
        strict.maximumAge = .seconds(300)
        #expect(refusal(claims: text, policy: strict, milliseconds: start + 300_000) == nil)
        #expect(refusal(claims: text, policy: strict, milliseconds: start + 300_001) == .tooOld)
        let undated = claims(["iat": nil])
        #expect(refusal(claims: undated, policy: strict) == .missing(.issuedAt))
        for extreme in [Int64.min, .max] {
            #expect(refusal(claims: text, milliseconds: extreme) != nil)
        }
    }

    @Test("a nonce is found plain, or as its SHA-256 in hexadecimal or Base64url")
    func nonces() {
        let nonce = "n-0S6_WzA2Mj"
        let bytes = ByteBuffer(nonce.utf8)
        let digest = SHA256.hash(bytes.span)
        for form in [nonce, digest.hex, encoded(digest.bytes)] {
            let text = claims(["nonce": "\"\(form)\""])
            #expect(refusal(claims: text, nonce: nonce) == nil)
            #expect(refusal(claims: text, nonce: "n-0S6_WzA2Mk") == .wrongNonce)
            #expect(refusal(claims: text) == .nonceNotGiven)
        }
        // The hash given by the caller is not the nonce.
        let text = claims(["nonce": "\"\(nonce)\""])
        #expect(refusal(claims: text, nonce: digest.hex) == .wrongNonce)
        #expect(refusal(claims: claims(), nonce: nonce) == .missing(.nonce))
        #expect(refusal(claims: claims(["nonce": #""""#])) == .nonceNotGiven)
        let long = String(repeating: "n", count: 513)
        #expect(
            refusal(claims: claims(["nonce": "\"\(long)\""]), nonce: long) == .wrongNonce)
        var strict = policy
        strict.requiresNonce = true
        #expect(refusal(claims: claims(), policy: strict) == .missing(.nonce))
    }
}

@Suite("Forging tokens") struct JWTForgeryTests {
    private func isRefused(_ token: [UInt8]) -> Bool {
        do throws(JWTRefusal) {
            try verify(token)
            return false
        } catch { return true }
    }

    @Test("a public key is no secret for HS256, in any form an attacker has it")
    func keyConfusion() {
        let secrets = [
            SigningKey.rsa.subjectPublicKeyInfo, SigningKey.rsa.number("n"),
            Array(encoded(SigningKey.rsa.number("n")).utf8),
            Array(SigningKey.rsa.jwk(more: "").utf8),
        ]
        for secret in secrets {
            for (algorithm, expected) in [
                ("HS256", JWTRefusal.algorithmNotSupported), ("RS256", .wrongSignature),
            ] {
                let input =
                    encoded(#"{"alg":"\#(algorithm)","kid":"r1"}"#) + "." + encoded(claims())
                let bytes = Array(input.utf8)
                let code = HMACSHA256.authenticate(bytes.span, key: secret.span).bytes
                let token = Array("\(input).\(encoded(code))".utf8)
                #expect(throws: expected) { try verify(token) }
            }
        }
    }

    @Test("an unsigned token is refused, with or without a signature's remains")
    func unsigned() {
        for algorithm in ["none", "None", "NONE"] {
            for signature in ["", "AA"] {
                let header = encoded(#"{"alg":"\#(algorithm)"}"#)
                let token = Array("\(header).\(encoded(claims())).\(signature)".utf8)
                #expect(throws: JWTRefusal.unsecured) { try verify(token) }
            }
        }
        let stripped = Array("\(encoded(header)).\(encoded(claims())).".utf8)
        #expect(throws: JWTRefusal.wrongSignature) { try verify(stripped) }
    }

    @Test("a key that the token itself brings is not looked at")
    func ownKey() {
        let jwk = SigningKey.otherRSA.jwk(more: #","kid":"r1""#)
        let header =
            #"{"alg":"RS256","kid":"r1","jwk":\#(jwk),"jku":"https://evil.example/","x5c":["AA"]}"#
        let token = SigningKey.otherRSA.token(header: header, claims: claims())
        #expect(throws: JWTRefusal.wrongSignature) { try verify(token) }
    }

    @Test("signatures of zeros, of the group's order or of another length are refused")
    func degenerateSignatures() {
        let order = "ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551"
        let orderBytes = ByteBuffer(order.utf8)
        let n = Hex.decode(orderBytes.span)!
        let zeros = [UInt8](repeating: 0, count: 32)
        let input = "\(encoded(ecHeader)).\(encoded(claims()))"
        let good = SigningKey.p256.sign(Array(input.utf8))
        for signature in [
            zeros + zeros, n + n, zeros + n, Array(good[..<32]) + zeros, zeros + good[32...],
            good + [0], [0] + good, Array(good.dropLast()), good + good, [],
        ] {
            let token = Array("\(input).\(encoded(signature))".utf8)
            #expect(throws: JWTRefusal.wrongSignature) { try verify(token) }
        }
        #expect(!isRefused(Array("\(input).\(encoded(good))".utf8)))
        let rsaInput = "\(encoded(header)).\(encoded(claims()))"
        let rsa = SigningKey.rsa.sign(Array(rsaInput.utf8))
        for signature in [
            [UInt8](repeating: 0, count: 256), [UInt8](repeating: 255, count: 256), [0] + rsa,
            rsa + [0], Array(rsa.dropLast()), SigningKey.rsa.number("n"),
            [UInt8](repeating: 0, count: 255) + [1],
        ] {
            let token = Array("\(rsaInput).\(encoded(signature))".utf8)
            #expect(throws: JWTRefusal.wrongSignature) { try verify(token) }
        }
    }

    @Test("shapes that are no compact token are refused")
    func shapes() {
        let good = String(
            decoding: SigningKey.rsa.token(header: header, claims: claims()), as: UTF8.self)
        let parts = good.split(separator: ".").map(String.init)
        let cases: [(String, JWTRefusal)] = [
            ("", .notThreeParts), (".", .notThreeParts), ("..", .notThreeParts),
            ("...", .notThreeParts), (parts[0], .notThreeParts),
            ("\(parts[0]).\(parts[1])", .notThreeParts),
            ("\(parts[0])..\(parts[2])", .notThreeParts),
            (".\(parts[1]).\(parts[2])", .notThreeParts),
            (good + ".", .notThreeParts), (good + ".AA.AA", .notThreeParts),
            (good + "=", .badEncoding(.signature)), (good + "\n", .badEncoding(.signature)),
            ("Bearer \(good)", .badEncoding(.header)), (" " + good, .badEncoding(.header)),
            ("\(parts[0])=.\(parts[1]).\(parts[2])", .badEncoding(.header)),
            (
                String(repeating: "A", count: JWTVerifier.maximumBytes - good.count + 1) + good,
                .tooLarge
            ),
        ]
        for (text, expected) in cases {
            #expect(throws: expected) { try verify(Array(text.utf8)) }
        }
        // A payload that is no Base64url, with a signature that fits it.
        let input = "\(parts[0]).e+/="
        let signature = SigningKey.rsa.sign(Array(input.utf8))
        #expect(throws: JWTRefusal.badEncoding(.payload)) {
            try verify(Array("\(input).\(encoded(signature))".utf8))
        }
    }

    @Test("no bit of a token can be flipped", arguments: [true, false])
    func flippedBits(isRSA: Bool) {
        let token =
            isRSA
            ? SigningKey.rsa.token(header: header, claims: claims())
            : SigningKey.p256.token(header: ecHeader, claims: claims())
        #expect(!isRefused(token))
        for index in token.indices {
            for bit in 0..<8 {
                var forged = token
                forged[index] ^= 1 << UInt8(bit)
                #expect(isRefused(forged), "byte \(index), bit \(bit)")
            }
        }
    }

    @Test("no bit of what the parts decode to can be flipped", arguments: [true, false])
    func flippedContents(isRSA: Bool) {
        let key = isRSA ? SigningKey.rsa : .p256
        let good = String(
            decoding: key.token(header: isRSA ? header : ecHeader, claims: claims()),
            as: UTF8.self)
        let parts = good.split(separator: ".").map { decoded(String($0)) }
        for part in 0..<3 {
            for index in parts[part].indices {
                for bit in 0..<8 {
                    var forged = parts
                    forged[part][index] ^= 1 << UInt8(bit)
                    let token = forged.map { encoded($0) }.joined(separator: ".")
                    #expect(isRefused(Array(token.utf8)), "part \(part), byte \(index)")
                }
            }
        }
    }

    @Test("no mutation of a token passes", arguments: 0..<UInt64(8))
    func mutations(seed: UInt64) {
        var random = SeededNumbers(state: seed)
        let tokens = [
            SigningKey.rsa.token(header: header, claims: claims()),
            SigningKey.p256.token(header: ecHeader, claims: claims()),
        ]
        for _ in 0..<500 {
            let token = tokens.randomElement(using: &random)!
            var forged = token
            for _ in 0..<Int.random(in: 1...3, using: &random) where !forged.isEmpty {
                let index = forged.indices.randomElement(using: &random)!
                switch Int.random(in: 0..<6, using: &random) {
                case 0: forged[index] = .random(in: 0...255, using: &random)
                case 1: forged.remove(at: index)
                case 2: forged.insert(.random(in: 0...255, using: &random), at: index)
                case 3: forged.removeLast(forged.count - index)
                case 4: forged.swapAt(index, forged.indices.randomElement(using: &random)!)
                default:
                    forged.replaceSubrange(index..., with: tokens[0].suffix(forged.count - index))
                }
            }
            if tokens.contains(forged) { continue }
            #expect(isRefused(forged), "seed \(seed): \(encoded(forged))")
        }
    }

    @Test("signed nonsense is refused or read, and never stops us", arguments: 0..<UInt64(8))
    func signedNonsense(seed: UInt64) {
        var random = SeededNumbers(state: seed)
        let good = [Array(ecHeader.utf8), Array(claims(["nonce": #""x""#]).utf8)]
        for _ in 0..<200 {
            var parts = good
            let part = Int.random(in: 0...1, using: &random)
            for _ in 0..<Int.random(in: 1...4, using: &random) {
                let index = parts[part].indices.randomElement(using: &random)!
                parts[part][index] = .random(in: 0...255, using: &random)
            }
            let input = "\(encoded(parts[0])).\(encoded(parts[1]))"
            let signature = SigningKey.p256.sign(Array(input.utf8))
            let token = Array("\(input).\(encoded(signature))".utf8)
            do throws(JWTRefusal) {
                let claims = try verify(token, nonce: "x")
                #expect(claims.issuer == issuer)
            } catch {
                #expect(error != .wrongSignature, "seed \(seed)")
            }
        }
    }
}
