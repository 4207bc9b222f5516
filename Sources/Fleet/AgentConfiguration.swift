internal import Bytes
internal import Crypto
internal import JSON
public import Schemas

/// What an agent builds its tunnel from: the contract's decrypted ConfigPayload. Secret.
public struct AgentConfiguration: Hashable, Sendable, CustomStringConvertible {
    public var device: DeviceID
    /// 64 hexadecimal digits, as are `presharedKey` and `serverPublicKey`.
    public var privateKey: String
    public var presharedKey: String
    public var internalAddress: String
    public var serverPublicKey: String
    public var endpoint: String
    public var dns: String
    public var allowedIPs: String
    public var serverAddress: String

    /// Without its keys.
    public var description: String { "AgentConfiguration(\(device.shortened))" }
}

/// Reads what a server answers to an agent.
///
/// - Thread safety: not `Sendable`; one for each thread.
public struct AgentAnswerReader: ~Copyable {
    /// What an agent sees of a heartbeat's answer.
    public struct Heartbeat: Hashable, Sendable {
        /// `nil` if the answer had none.
        public var hash: ForwardsHash?
        /// Whether it is of the device that asked and holds every field of the contract.
        public var isWhole: Bool
    }

    private let answer = JSONParser(JSONFields(["encrypted_config"]))
    private let payload = JSONParser(
        JSONFields([
            "device_id", "private_key", "preshared_key", "internal_ip", "server_pub", "endpoint",
            "dns", "allowed_ips", "server_wg_ip",
        ]))
    private let heartbeat = JSONParser(
        JSONFields([
            "device_id", "forwards_hash", "status", "internal_ip", "private_key", "preshared_key",
            "server_pub", "endpoint", "server_wg_ip", "dns", "allowed_ips",
        ]))
    private static let heartbeatFields = 11
    /// Of `heartbeat`.
    private static let hashField = 1
    private var plaintext = ByteBuffer()

    public init() {}

    /// The configuration in a 200 to a provisioning.
    ///
    /// The key is SHA-256 of the hardware id's bytes followed by the salt's; `encrypted_config` is the
    /// Base64 of nonce (12 bytes), ciphertext and tag (16 bytes) of AES-256-GCM.
    public mutating func configuration(
        _ body: Span<UInt8>, hardwareID: String, salt: [UInt8]
    ) -> Result<AgentConfiguration, ProvisioningFailure> {
        do throws(JSONError) {
            try answer.parse(body)
        } catch { return .failure(.unreadable) }
        guard let decoded = answer.withString(0, { Base64.decode($0) }) else {
            return .failure(.unreadable)
        }
        guard let sealed = decoded.map({ ByteBuffer($0) }) else { return .failure(.undecryptable) }
        var material = ByteBuffer(hardwareID.utf8)
        material.append(salt)
        let key = SHA256.hash(material.span).bytes
        plaintext.removeAll()
        do throws(CryptoError) {
            var cipher = try AESGCM(key: key.span)
            let nothing = ByteBuffer()
            try cipher.open(sealed.span, associatedData: nothing.span, into: &plaintext)
        } catch { return .failure(.undecryptable) }
        defer { plaintext.removeAll() }
        guard let read = payloadFields() else { return .failure(.undecryptable) }
        return .success(read)
    }

    /// `nil` unless the plaintext is a whole configuration.
    private func payloadFields() -> AgentConfiguration? {
        do throws(JSONError) {
            try payload.parse(plaintext.span)
        } catch { return nil }
        guard let device = payload.withString(0, { DeviceID(parsing: $0) }).flatMap(\.self),
            let privateKey = key(1), let presharedKey = key(2), let address = payload.string(3),
            let serverKey = key(4), let endpoint = payload.string(5), let dns = payload.string(6),
            let allowed = payload.string(7), let server = payload.string(8)
        else { return nil }
        return AgentConfiguration(
            device: device, privateKey: privateKey, presharedKey: presharedKey,
            internalAddress: address, serverPublicKey: serverKey, endpoint: endpoint, dns: dns,
            allowedIPs: allowed, serverAddress: server)
    }

    /// 64 hexadecimal digits.
    private func key(_ field: Int) -> String? {
        let isKey = payload.withString(field) { $0.count == 64 && Hex.decode($0) != nil }
        return isKey == true ? payload.string(field) : nil
    }

    /// A 200 to a heartbeat; `nil` if it is no answer of the contract at all.
    public mutating func heartbeat(_ body: Span<UInt8>, of device: DeviceID?) -> Heartbeat? {
        do throws(JSONError) {
            try heartbeat.parse(body)
        } catch { return nil }
        guard let answered = heartbeat.withString(0, { DeviceID(parsing: $0) }) else { return nil }
        var isWhole = answered == device
        for field in 0..<Self.heartbeatFields where heartbeat.kind(field) != .string {
            isWhole = false
        }
        return Heartbeat(
            hash: heartbeat.withString(Self.hashField) { ForwardsHash($0) }, isWhole: isWhole)
    }

    /// The text of the `forwards_hash` that was read last.
    public var hashText: String { heartbeat.string(Self.hashField) ?? "" }
}
