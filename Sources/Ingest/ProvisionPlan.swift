internal import Bytes
internal import Crypto
internal import JSON
internal import Postgres
internal import Schemas

/// What a batch of provisionings will change: decided request by request in memory, written with a
/// few statements for all of them.
struct ProvisionPlan {
    struct Device {
        var device: DeviceID
        /// `nil`: none that would mean this device again.
        var hardwareID: ByteBuffer?
        var isNew: Bool
        var version: Int64
        var isSuspended: Bool
        var address: String
        var expectedIntervalMilliseconds: Int64?
        var forwards: [PortForward] = []
        /// 64 hexadecimal digits.
        var publicKey = ""
        var sealed = ByteBuffer()
    }

    private let network: NetworkConfiguration
    private let salt: [UInt8]
    private let box: SecretBox
    /// Devices of the batch's hardware ids, those that it makes as well.
    var known: [ByteBuffer: Device] = [:]
    /// Addresses that may be given.
    var free: ArraySlice<UInt32> = []
    private(set) var events = RegistryEvents()
    /// Whether a request found no address.
    private(set) var isExhausted = false
    private var nameless: [Device] = []
    /// The hardware ids of devices in `known` that the batch makes or changes.
    private var touched: Set<ByteBuffer> = []
    private(set) var consumed: [(token: DeviceID, device: DeviceID)] = []
    private var consumedTokens: Set<DeviceID> = []

    /// Who did it, in the records of what was done.
    static let actor = "provision"

    init(network: NetworkConfiguration, salt: [UInt8], box: SecretBox) {
        self.network = network
        self.salt = salt
        self.box = box
    }

    var hasNewDevices: Bool {
        !nameless.isEmpty || touched.contains { known[$0]?.isNew == true }
    }

    /// Decides one request, whose token was good before the batch.
    mutating func add(
        _ request: ProvisionRequest, token: DeviceID, _ keys: ProvisionKeys
    ) throws -> ProvisionOutcome {
        if consumedTokens.contains(token) { return .tokenUsed }
        var device: Device
        let isReprovisioned: Bool
        if request.namesDevice, let found = known[request.hardwareID] {
            isReprovisioned = true
            device = found
            device.version += 1
        } else {
            guard let address = free.popFirst() else {
                isExhausted = true
                return .poolExhausted
            }
            isReprovisioned = false
            device = Device(
                device: try DeviceID.random(),
                hardwareID: request.namesDevice ? request.hardwareID : nil, isNew: true,
                version: 1, isSuspended: false, address: AddressPool.text(address))
        }
        let secrets = DeviceSecrets(
            privateKey: keys.pair.privateKey, presharedKey: keys.presharedKey)
        device.publicKey = Hex.encode(keys.pair.publicKey.span)
        device.sealed.removeAll()
        try box.seal(secrets, of: device.device, into: &device.sealed)
        let answer = try ProvisionAnswer.body(
            device, secrets, network, hardwareID: request.hardwareID, salt: salt)
        tell(device, secrets, isReprovisioned: isReprovisioned)
        consumedTokens.insert(token)
        consumed.append((token, device.device))
        if let hardwareID = device.hardwareID {
            known[hardwareID] = device
            touched.insert(hardwareID)
        } else {
            nameless.append(device)
        }
        return .provisioned(
            device: device.device, version: device.version, isSuspended: device.isSuspended,
            answer: answer)
    }

    private mutating func tell(
        _ device: Device, _ secrets: DeviceSecrets, isReprovisioned: Bool
    ) {
        let tunnel = TunnelConfiguration(
            internalAddress: device.address,
            privateKeyFingerprint: SHA256.hash(secrets.privateKey),
            presharedKeyFingerprint: SHA256.hash(secrets.presharedKey), network: network)
        events.append(
            ConfigChange(
                device: device.device, kind: isReprovisioned ? .reprovisioned : .provisioned,
                version: device.version, isSuspended: device.isSuspended, actor: Self.actor,
                tunnel: tunnel, forwards: device.forwards),
            // It keeps the device's suspension.
            Lifecycle(
                device: device.device, kind: .provisioned, version: device.version,
                expectedIntervalMilliseconds: device.expectedIntervalMilliseconds))
    }

    // MARK: - Writing

    private static let consume = PreparedStatement(
        "consume_tokens",
        """
        UPDATE heartline.registration_tokens token \
        SET used_at = clock_timestamp(), device_id = used.device_id \
        FROM unnest($1::uuid[], $2::uuid[]) AS used (token_id, device_id) \
        WHERE token.token_id = used.token_id
        """)

    private static let insert = PreparedStatement(
        "insert_provisioned",
        """
        INSERT INTO heartline.devices \
        (device_id, internal_address, version, public_key, sealed_secrets, hardware_id) \
        SELECT device_id, address::inet, version, public_key, sealed, hardware_id \
        FROM unnest($1::uuid[], $2::text[], $3::int8[], $4::text[], $5::bytea[], $6::bytea[]) \
        AS made (device_id, address, version, public_key, sealed, hardware_id)
        """)

    private static let update = PreparedStatement(
        "update_reprovisioned",
        """
        UPDATE heartline.devices device SET version = changed.version, \
        public_key = changed.public_key, sealed_secrets = changed.sealed, updated_at = now() \
        FROM unnest($1::uuid[], $2::int8[], $3::text[], $4::bytea[]) \
        AS changed (device_id, version, public_key, sealed) \
        WHERE device.device_id = changed.device_id
        """)

    /// Appends the statements that make all of it so, but for the events.
    func write(to pipeline: inout PostgresPipeline) {
        let changed = touched.compactMap { known[$0] }
        let new = nameless + changed.filter(\.isNew)
        let old = changed.filter { !$0.isNew }
        if !consumed.isEmpty {
            pipeline.append(
                Self.consume,
                PostgresParameters(
                    .uuidArray(consumed.map { ($0.token.high, $0.token.low) }),
                    .uuidArray(consumed.map { ($0.device.high, $0.device.low) })))
        }
        if !new.isEmpty {
            var parameters = PostgresParameters(
                .uuidArray(new.map { ($0.device.high, $0.device.low) }),
                .textArray(new.map(\.address)), .int8Array(new.map(\.version)),
                .textArray(new.map(\.publicKey)))
            parameters.append(byteaArray: new.map(\.sealed))
            parameters.append(byteaArray: new.map(\.hardwareID))
            pipeline.append(Self.insert, parameters)
        }
        if !old.isEmpty {
            var parameters = PostgresParameters(
                .uuidArray(old.map { ($0.device.high, $0.device.low) }),
                .int8Array(old.map(\.version)), .textArray(old.map(\.publicKey)))
            parameters.append(byteaArray: old.map(\.sealed))
            pipeline.append(Self.update, parameters)
        }
    }
}

extension PostgresParameters {
    fileprivate mutating func append(byteaArray values: [ByteBuffer?]) {
        var elements = ByteBuffer()
        for value in values {
            elements.appendBigEndian(value.map { Int32($0.count) } ?? -1)
            if let value { elements.append(value) }
        }
        append(arrayOf: .bytea, count: values.count, elements: elements.span)
    }
}

/// The answer to a provisioning (agent contract, "Provisioning" and "Crypto Protocol").
enum ProvisionAnswer {
    /// `{"encrypted_config":"…"}`: base64(nonce ‖ ciphertext ‖ tag), sealed with AES-256-GCM under
    /// SHA-256(hardware id ‖ salt).
    static func body(
        _ device: ProvisionPlan.Device, _ secrets: DeviceSecrets, _ network: NetworkConfiguration,
        hardwareID: ByteBuffer, salt: [UInt8]
    ) throws(CryptoError) -> ByteBuffer {
        var material = hardwareID
        material.append(salt)
        let key = SHA256.hash(material.span).bytes
        var cipher = try AESGCM(key: key.span)
        let plaintext = payload(device, secrets, network)
        var sealed = ByteBuffer()
        try cipher.seal(plaintext.span, associatedData: ByteBuffer().span, into: &sealed)
        var body = ByteBuffer()
        body.append("{\"encrypted_config\":\"")
        body.append(base64Of: sealed.span)
        body.append("\"}")
        return body
    }

    /// The contract's ConfigPayload, in its order of fields.
    private static func payload(
        _ device: ProvisionPlan.Device, _ secrets: DeviceSecrets, _ network: NetworkConfiguration
    ) -> ByteBuffer {
        var text = ByteBuffer()
        text.append("{\"device_id\":\"")
        text.append(device.device)
        text.append("\",\"private_key\":\"")
        text.append(hexOf: secrets.privateKey)
        text.append("\",\"preshared_key\":\"")
        text.append(hexOf: secrets.presharedKey)
        text.append("\",\"internal_ip\":")
        text.append(jsonString: device.address)
        text.append(",\"server_pub\":")
        text.append(jsonString: network.serverPublicKey)
        text.append(",\"endpoint\":")
        text.append(jsonString: network.endpoint)
        text.append(",\"dns\":")
        text.append(jsonString: network.dns)
        text.append(",\"allowed_ips\":")
        text.append(jsonString: network.allowedIPs)
        text.append(",\"server_wg_ip\":")
        text.append(jsonString: network.serverAddress)
        text.append("}")
        return text
    }
}
