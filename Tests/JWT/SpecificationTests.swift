import Bytes
import Crypto
import JWT
import TestSupport
import Testing

private let payload =
    "{\"iss\":\"joe\",\r\n \"exp\":1300819380,\r\n \"http://example.com/is_root\":true}"

/// RFC 7515, appendix A.2.
private let rs256 = (
    n:
        "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ",
    token:
        "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw"
)

/// RFC 7515, appendix A.3.
private let es256 = (
    x: "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
    y: "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
    token:
        "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q"
)

/// RFC 7517, appendix A.1: the modulus.
private let modulus =
    "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw"
private let ecMembers =
    #""kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM""#

func parse(_ text: String) throws(JWKSet.Failure) -> JWKSet {
    let bytes = Array(text.utf8)
    let span = bytes.span
    return try JWKSet(parsing: span)
}

@Suite("Examples of the RFCs") struct SpecificationTests {
    private func read(_ token: String, _ key: JSONWebKey) throws(JWTRefusal) -> String {
        let verifier = JWTVerifier()
        let bytes = Array(token.utf8)
        let span = bytes.span
        let payload = try verifier.verifiedPayload(of: span, key: key)
        return String(decoding: payload, as: UTF8.self)
    }

    @Test("the signatures of RFC 7515, A.2 and A.3, fit")
    func signatures() throws {
        let rsa = try JSONWebKey(
            id: "", rsaModulus: decoded(rs256.n), exponent: decoded("AQAB"))
        let ec = try JSONWebKey(id: "", p256X: decoded(es256.x), y: decoded(es256.y))
        #expect(try read(rs256.token, rsa) == payload)
        #expect(try read(es256.token, ec) == payload)
        #expect(throws: JWTRefusal.algorithmMismatch) { try read(rs256.token, ec) }
        #expect(throws: JWTRefusal.algorithmMismatch) { try read(es256.token, rsa) }
        let other = try SigningKey.rsa.webKey(id: "")
        #expect(throws: JWTRefusal.wrongSignature) { try read(rs256.token, other) }
    }

    @Test("of the public keys of RFC 7517, A.1, the one for encryption is left out")
    func publicSet() throws {
        let set = try parse(
            """
            {"keys": [
              {\(ecMembers), "use":"enc", "kid":"1"},
              {"kty":"RSA", "n": "\(modulus)", "e":"AQAB", "alg":"RS256", "kid":"2011-04-29"}
            ]}
            """)
        #expect(set.keys.map(\.id) == ["2011-04-29"])
        #expect(set.keys.map(\.algorithm) == [.rs256])
        #expect(set.skipped == [JWKSet.SkippedKey(index: 0, reason: .use)])
        // RFC 7638, section 3.1.
        #expect(
            encoded(set.keys[0].thumbprint.bytes)
                == "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs")
    }

    @Test("private and symmetric keys, as in RFC 7517, A.2 and A.3, are left out and told of")
    func otherSets() {
        let failure = #expect(throws: JWKSet.Failure.self) {
            try parse(
                """
                {"keys": [
                  {\(ecMembers), "d":"870MB6gfuTJ4HtUnUvYMyJpr5eUZNP4Bk43bVdj3eAE",
                   "use":"enc", "kid":"1"},
                  {"kty":"oct", "alg":"A128KW", "k":"GawgguFyGrWKav7AX4VKUg"},
                  {"kty":"oct", "k":"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ", "kid":"HMAC key"}
                ]}
                """)
        }
        #expect(
            failure
                == .noUsableKey([
                    JWKSet.SkippedKey(index: 0, reason: .privateKey),
                    JWKSet.SkippedKey(index: 1, reason: .type),
                    JWKSet.SkippedKey(index: 2, reason: .type),
                ]))
        #expect(failure?.description.contains("870MB6") == false)
    }
}
