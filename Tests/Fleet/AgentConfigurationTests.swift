import Bytes
import Crypto
import Fleet
import Schemas
import Testing

/// What the contract's text says of `encrypted_config`, and what an agent makes of anything else.
@Suite struct AgentConfigurationTests {
    static let salt = Array("a salt that is long enough".utf8)
    static let device = "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d"
    static let key = String(repeating: "5a", count: 32)

    static func payload(without missing: String? = nil, privateKey: String = key) -> String {
        let fields = [
            ("device_id", device), ("private_key", privateKey), ("preshared_key", key),
            ("internal_ip", "10.172.21.2"), ("server_pub", key),
            ("endpoint", "italy-twenty.gl.at.ply.gg:59750"), ("dns", "1.1.1.1"),
            ("allowed_ips", "0.0.0.0/0"), ("server_wg_ip", "10.172.21.1"),
        ]
        let text = fields.filter { $0.0 != missing }.map { "\"\($0.0)\":\"\($0.1)\"" }
        return "{" + text.joined(separator: ",") + "}"
    }

    /// As the contract says that a server makes it.
    static func answer(
        _ payload: String, hardwareID: String, salt: [UInt8] = salt
    ) throws -> ByteBuffer {
        let material = ByteBuffer(Array(hardwareID.utf8) + salt)
        let key = SHA256.hash(material.span).bytes
        var cipher = try AESGCM(key: key.span)
        let plaintext = ByteBuffer(payload.utf8)
        let nothing = ByteBuffer()
        var sealed = ByteBuffer()
        try cipher.seal(plaintext.span, associatedData: nothing.span, into: &sealed)
        return ByteBuffer("{\"encrypted_config\":\"\(Base64.encode(sealed.span))\"}".utf8)
    }

    static func read(
        _ body: ByteBuffer, hardwareID: String = "phone-1"
    ) -> Result<AgentConfiguration, ProvisioningFailure> {
        var reader = AgentAnswerReader()
        return reader.configuration(body.span, hardwareID: hardwareID, salt: salt)
    }

    @Test(arguments: ["phone-1", "5E3C0A1B-AAAA-4BBB-8CCC-0123456789AB", "тел 📱"])
    func whatTheContractSealsIsOpened(_ hardwareID: String) throws {
        let body = try Self.answer(Self.payload(), hardwareID: hardwareID)
        let configuration = try Self.read(body, hardwareID: hardwareID).get()
        #expect(configuration.device == DeviceID(Self.device))
        #expect(configuration.privateKey == Self.key)
        #expect(configuration.internalAddress == "10.172.21.2")
        #expect(configuration.endpoint == "italy-twenty.gl.at.ply.gg:59750")
        #expect(!"\(configuration)".contains(Self.key))
    }

    @Test func anotherHardwareIDOrABitThatDiffersIsUndecryptable() throws {
        let body = try Self.answer(Self.payload(), hardwareID: "phone-2")
        #expect(Self.read(body) == .failure(.undecryptable))
        let other = try Self.answer(
            Self.payload(), hardwareID: "phone-1", salt: Array("another salt".utf8))
        #expect(Self.read(other) == .failure(.undecryptable))
    }

    @Test(arguments: ["AAAA", "!!!!", "", "AAA"])
    func whatIsNotSealedIsUndecryptable(_ text: String) {
        let body = ByteBuffer("{\"encrypted_config\":\"\(text)\"}".utf8)
        #expect(Self.read(body) == .failure(.undecryptable))
    }

    @Test(arguments: ["", "<html>", "[]", "{}", #"{"encrypted_config":7}"#])
    func anythingElseIsUnreadable(_ text: String) {
        #expect(Self.read(ByteBuffer(text.utf8)) == .failure(.unreadable))
    }

    @Test(
        arguments: [
            "device_id", "private_key", "preshared_key", "internal_ip", "server_pub", "endpoint",
            "dns", "allowed_ips", "server_wg_ip",
        ])
    func aConfigurationWithoutAFieldIsNone(_ field: String) throws {
        let body = try Self.answer(Self.payload(without: field), hardwareID: "phone-1")
        #expect(Self.read(body) == .failure(.undecryptable))
    }

    @Test(arguments: ["5a", "", String(repeating: "zz", count: 32)])
    func aKeyThatIsNoneIsNoConfiguration(_ key: String) throws {
        let body = try Self.answer(Self.payload(privateKey: key), hardwareID: "phone-1")
        #expect(Self.read(body) == .failure(.undecryptable))
    }

    @Test func aHeartbeatsAnswerIsWholeIfItIsTheDevicesOwnWithAllFields() throws {
        let device = try #require(DeviceID(Self.device))
        let whole = Self.payload().dropLast() + #","status":"ok","forwards_hash":"ab"}"#
        var reader = AgentAnswerReader()
        func read(_ text: some StringProtocol, of device: DeviceID?) -> AgentAnswerReader.Heartbeat?
        {
            let body = ByteBuffer(text.utf8)
            return reader.heartbeat(body.span, of: device)
        }
        let own = try #require(read(whole, of: device))
        #expect(own.isWhole)
        #expect(own.hash == AgentTests.hash("ab"))
        #expect(reader.hashText == "ab")
        let foreign = try #require(read(whole, of: DeviceID(high: 1, low: 2)))
        #expect(!foreign.isWhole)
        let short = try #require(read(#"{"device_id":"x","status":"ok"}"#, of: device))
        #expect(!short.isWhole)
        #expect(short.hash == nil)
        #expect(read(#"{"status":"ok"}"#, of: device) == nil)
        #expect(read("<html>", of: device) == nil)
    }
}
