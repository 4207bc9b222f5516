import Bytes
import Crypto
import Testing

private func bytes(_ hex: String) -> ByteBuffer {
    ByteBuffer(Hex.decode(ByteBuffer(hex.utf8).span)!)
}

@Suite("SHA-256") struct SHA256Tests {
    @Test(
        "the examples of FIPS 180-4 and NIST CAVP come out",
        arguments: [
            ("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            ("616263", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (
                "6162636462636465636465666465666765666768666768696768696a68696a6b696a6b6c6a6b6c6d6b6c6d6e6c6d6e6f6d6e6f706e6f7071",
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"
            ),
            ("bd", "68325720aabd7c82f30f554b313d0570c95accbb7dc4b5aae11204c08ffe732b"),
        ])
    func vectors(message: String, digest: String) {
        #expect(SHA256.hash(bytes(message).span).hex == digest)
    }

    @Test("one hasher hashes message after message, in any pieces")
    func reuse() {
        var hasher = SHA256Hasher()
        let whole = ByteBuffer((0..<1000).map { UInt8(truncatingIfNeeded: $0) })
        let expected = SHA256.hash(whole.span)
        for cut in [0, 1, 63, 64, 65, 999, 1000] {
            hasher.update(whole.span.extracting(0..<cut))
            hasher.update(whole.span.extracting(cut..<1000))
            #expect(hasher.finish() == expected)
        }
        #expect(hasher.hash(ByteBuffer().span) == SHA256.hash(ByteBuffer().span))
        #expect(Digest(bytes: ByteBuffer(expected.bytes).span) == expected)
    }
}

@Suite("AES-256-GCM") struct AESGCMTests {
    struct Vector: Sendable, CustomTestStringConvertible {
        var testDescription: String
        var key, nonce, plaintext, associated, ciphertext, tag: String
    }

    // D. McGrew, J. Viega, "The Galois/Counter Mode of Operation", test cases 13 to 16.
    static let vectors = [
        Vector(
            testDescription: "case 13: nothing", key: String(repeating: "00", count: 32),
            nonce: "000000000000000000000000", plaintext: "", associated: "", ciphertext: "",
            tag: "530f8afbc74536b9a963b4f1c4cb738b"),
        Vector(
            testDescription: "case 14: one block", key: String(repeating: "00", count: 32),
            nonce: "000000000000000000000000", plaintext: "00000000000000000000000000000000",
            associated: "", ciphertext: "cea7403d4d606b6e074ec5d3baf39d18",
            tag: "d0d1c8a799996bf0265b98b5d48ab919"),
        Vector(
            testDescription: "case 16: with associated data",
            key: "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308",
            nonce: "cafebabefacedbaddecaf888",
            plaintext:
                "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
            associated: "feedfacedeadbeeffeedfacedeadbeefabaddad2",
            ciphertext:
                "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662",
            tag: "76fc6ece0f4e1768cddf8853bb2d551b"),
    ]

    @Test("the published vectors come out and open", arguments: vectors)
    func published(_ vector: Vector) throws {
        var cipher = try AESGCM(key: bytes(vector.key).span)
        for _ in 0..<2 {  // the second pass runs on the reused context
            var sealed = ByteBuffer()
            try cipher.seal(
                bytes(vector.plaintext).span, nonce: bytes(vector.nonce).span,
                associatedData: bytes(vector.associated).span, into: &sealed)
            #expect(Hex.encode(sealed.span) == vector.nonce + vector.ciphertext + vector.tag)
            var opened = ByteBuffer()
            try cipher.open(
                sealed.span, associatedData: bytes(vector.associated).span, into: &opened)
            #expect(Hex.encode(opened.span) == vector.plaintext)
        }
    }

    @Test("every flipped bit, a shorter text and other associated data are refused")
    func tampering() throws {
        var cipher = try AESGCM(key: ByteBuffer([UInt8](repeating: 7, count: 32)).span)
        let context = ByteBuffer("device".utf8)
        var sealed = ByteBuffer()
        try cipher.seal(
            ByteBuffer("secret".utf8).span, associatedData: context.span, into: &sealed)
        for bit in 0..<(sealed.count * 8) {
            var changed = sealed
            changed[bit / 8] ^= 1 << UInt8(bit % 8)
            var output = ByteBuffer("kept".utf8)
            #expect(throws: CryptoError.self) {
                try cipher.open(changed.span, associatedData: context.span, into: &output)
            }
            #expect(output.span.text == "kept")
        }
        for size in 0..<sealed.count {
            var output = ByteBuffer()
            #expect(throws: CryptoError.self) {
                try cipher.open(
                    sealed.span.extracting(0..<size), associatedData: context.span, into: &output)
            }
        }
        var output = ByteBuffer()
        #expect(throws: CryptoError.self) {
            try cipher.open(
                sealed.span, associatedData: ByteBuffer("devicf".utf8).span, into: &output)
        }
        // The context still works after failures.
        try cipher.open(sealed.span, associatedData: context.span, into: &output)
        #expect(output.span.text == "secret")
    }

    @Test("no two messages share a nonce")
    func nonces() throws {
        var cipher = try AESGCM(key: ByteBuffer([UInt8](repeating: 7, count: 32)).span)
        var seen: Set<[UInt8]> = []
        for _ in 0..<1000 {
            var sealed = ByteBuffer()
            try cipher.seal(ByteBuffer().span, associatedData: ByteBuffer().span, into: &sealed)
            seen.insert(Array(sealed.bytes.prefix(12)))
        }
        #expect(seen.count == 1000)
    }

    @Test("a key of another size is refused", arguments: [0, 16, 31, 33])
    func keySize(size: Int) {
        #expect(throws: CryptoError.self) {
            _ = try AESGCM(key: ByteBuffer([UInt8](repeating: 1, count: size)).span)
        }
    }
}

@Suite("X25519") struct X25519Tests {
    // RFC 7748, sections 5.2 (one iteration) and 6.1 (Bob).
    @Test(
        "private keys give the public keys of RFC 7748",
        arguments: [
            (
                "0900000000000000000000000000000000000000000000000000000000000000",
                "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
            ),
            (
                "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
                "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
            ),
        ])
    func vectors(privateKey: String, publicKey: String) throws {
        let pair = try X25519KeyPair(privateKey: bytes(privateKey).span)
        #expect(Hex.encode(ByteBuffer(pair.publicKey).span) == publicKey)
    }

    @Test("new pairs are clamped, differ, and derive again")
    func generate() throws {
        let pairs = try (0..<20).map { _ in try X25519KeyPair.generate() }
        #expect(Set(pairs.map(\.privateKey)).count == 20)
        for pair in pairs {
            #expect(pair.privateKey[0] & 7 == 0)
            #expect(pair.privateKey[31] & 0xC0 == 0x40)
            let again = try X25519KeyPair(privateKey: ByteBuffer(pair.privateKey).span)
            #expect(again.publicKey == pair.publicKey)
        }
    }

    @Test("a private key of another size is refused")
    func size() {
        #expect(throws: CryptoError.self) {
            _ = try X25519KeyPair(privateKey: ByteBuffer([UInt8](repeating: 1, count: 31)).span)
        }
    }
}

@Suite("Text encodings and comparison") struct TextEncodingTests {
    // RFC 4648, section 10.
    @Test(
        "Base64 is that of RFC 4648",
        arguments: [
            ("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="), ("foobar", "Zm9vYmFy"),
        ])
    func base64(plain: String, encoded: String) {
        #expect(Base64.encode(ByteBuffer(plain.utf8).span) == encoded)
        #expect(Base64.decode(ByteBuffer(encoded.utf8).span) == Array(plain.utf8))
    }

    @Test("all bytes survive Base64 and hexadecimal")
    func roundTrip() {
        let all = ByteBuffer((0...255).map { UInt8($0) })
        #expect(Base64.decode(ByteBuffer(Base64.encode(all.span).utf8).span) == all.bytes)
        #expect(Hex.decode(ByteBuffer(Hex.encode(all.span).uppercased().utf8).span) == all.bytes)
    }

    @Test(
        "what is not Base64 is refused",
        arguments: ["A", "AB", "ABC", "====", "A===", "AB=C", "Zg==Zg==", "Zh==", "Zm9=", "Z g="])
    func badBase64(text: String) {
        #expect(Base64.decode(ByteBuffer(text.utf8).span) == nil)
    }

    @Test("what is not hexadecimal is refused", arguments: ["a", "0g", "  "])
    func badHex(text: String) {
        #expect(Hex.decode(ByteBuffer(text.utf8).span) == nil)
    }

    @Test("comparison tells equal from different")
    func comparison() {
        func isEqual(_ a: String, _ b: String) -> Bool {
            equalInConstantTime(ByteBuffer(a.utf8).span, ByteBuffer(b.utf8).span)
        }
        #expect(isEqual("abc", "abc"))
        #expect(!isEqual("abc", "abd"))
        #expect(!isEqual("abc", "ab"))
        #expect(isEqual("", ""))
    }

    @Test("HMAC with SHA-256 agrees with RFC 4231")
    func hmac() {
        let cases: [(key: [UInt8], message: [UInt8], digest: String)] = [
            (
                [UInt8](repeating: 0x0B, count: 20), Array("Hi There".utf8),
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
            ),
            (
                Array("Jefe".utf8), Array("what do ya want for nothing?".utf8),
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
            ),
            (
                [UInt8](repeating: 0xAA, count: 131),
                Array("Test Using Larger Than Block-Size Key - Hash Key First".utf8),
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
            ),
        ]
        for (key, message, digest) in cases {
            #expect(
                HMACSHA256.authenticate(message.span, key: key.span).hex == digest)
        }
    }
}
