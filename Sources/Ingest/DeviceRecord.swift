internal import Bytes
internal import Crypto
internal import JSON
internal import Postgres
internal import Schemas

/// A device with all that its configuration consists of, as one statement reads it.
struct DeviceConfiguration {
    var device: DeviceID
    var version: Int64
    var isSuspended: Bool
    var internalAddress: String
    var secrets: DeviceSecrets
    var network: NetworkConfiguration
    var forwards: [PortForward]

    /// The forwards of device `d` as one text.
    static let forwardsColumn =
        """
        (SELECT string_agg(concat_ws(' ', f.protocol, f.listen_port, f.target_port, \
        f.target_host), E'\\n') FROM heartline.forwards f WHERE f.device_id = d.device_id)
        """

    /// One statement, so that all parts are of one moment. Its only parameter: the devices' ids.
    static let select = PreparedStatement(
        "device_configurations",
        """
        SELECT d.device_id, d.version, d.suspended, host(d.internal_address), d.sealed_secrets, \
        n.server_public_key, n.endpoint, host(n.server_address), n.dns, n.allowed_ips, \
        \(forwardsColumn) \
        FROM heartline.devices d CROSS JOIN heartline.network n WHERE d.device_id = ANY($1)
        """)

    /// - Parameter network: that of the row before, used again if it is the same.
    init(
        _ row: PostgresRow, box: SecretBox, network previous: NetworkConfiguration?
    ) throws {
        let (high, low) = try row.uuid(0)
        device = DeviceID(high: high, low: low)
        version = try row.int8(1)
        isSuspended = try row.bool(2)
        internalAddress = try row.text(3)
        let sealed = try row.bytea(4)
        secrets = try box.open(sealed.span, of: device)
        let read = (
            serverPublicKey: try row.text(5), endpoint: try row.text(6),
            serverAddress: try row.text(7), dns: try row.text(8), allowedIPs: try row.text(9)
        )
        if let previous, previous.serverPublicKey == read.serverPublicKey,
            previous.endpoint == read.endpoint, previous.serverAddress == read.serverAddress,
            previous.dns == read.dns, previous.allowedIPs == read.allowedIPs
        {
            network = previous
        } else {
            network = NetworkConfiguration(
                serverPublicKey: read.serverPublicKey, endpoint: read.endpoint,
                serverAddress: read.serverAddress, dns: read.dns, allowedIPs: read.allowedIPs)
        }
        forwards = Self.forwards(try row.optionalText(10) ?? "")
    }

    /// What `select` reads of a device's forwards.
    static func forwards(_ text: String) -> [PortForward] {
        text.split(separator: "\n").compactMap { line in
            let parts = line.split(separator: " ", maxSplits: 3)
            guard parts.count == 4, let listen = UInt16(parts[1]), let target = UInt16(parts[2])
            else { return nil }
            return PortForward(
                transport: String(parts[0]), listenPort: listen, targetHost: String(parts[3]),
                targetPort: target)
        }
    }

    /// Keys by fingerprint.
    func tunnel() -> TunnelConfiguration {
        TunnelConfiguration(
            internalAddress: internalAddress,
            privateKeyFingerprint: SHA256.hash(secrets.privateKey),
            presharedKeyFingerprint: SHA256.hash(secrets.presharedKey), network: network)
    }

    func hashes() -> ConfigurationHashes { ConfigurationHashes(tunnel(), forwards) }

    /// What the device's heartbeats are answered (agent contract, "Heartbeat").
    func answer() -> DeviceAnswer {
        if isSuspended {
            return DeviceAnswer(version: version, isSuspended: true, body: ByteBuffer())
        }
        var body = ByteBuffer()
        body.append("{\"device_id\":\"")
        body.append(device)
        body.append("\",\"status\":\"ok\",\"internal_ip\":")
        body.append(jsonString: internalAddress)
        body.append(",\"private_key\":\"")
        body.append(hexOf: secrets.privateKey)
        body.append("\",\"preshared_key\":\"")
        body.append(hexOf: secrets.presharedKey)
        body.append("\",\"server_pub\":")
        body.append(jsonString: network.serverPublicKey)
        body.append(",\"endpoint\":")
        body.append(jsonString: network.endpoint)
        body.append(",\"server_wg_ip\":")
        body.append(jsonString: network.serverAddress)
        body.append(",\"dns\":")
        body.append(jsonString: network.dns)
        body.append(",\"allowed_ips\":")
        body.append(jsonString: network.allowedIPs)
        body.append(",\"forwards_hash\":\"")
        // The agent reloads only when this field changes, so it carries the hash of everything.
        body.append(hex: hashes().reload)
        body.append("\"}")
        return DeviceAnswer(version: version, isSuspended: false, body: body)
    }
}
