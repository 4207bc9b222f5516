public import Bytes
internal import Crypto
internal import JSON

/// What an operator or a provisioning changed: the device's whole configuration at that version, keys
/// by fingerprint. A record of topic `config-changes`; its key is the device's id.
public struct ConfigChange: Sendable, Equatable {
    public enum Kind: UInt8, Sendable, CaseIterable {
        /// A new device: by a token, or added by an operator.
        case provisioned = 1
        /// A known device came with a new token; its keys are new.
        case reprovisioned
        /// New keys.
        case rotated
        case suspended, resumed
        /// The port forwards.
        case forwards
        /// The device's own heartbeat interval.
        case interval
        case removed

        public var text: StaticString {
            switch self {
            case .provisioned: "provisioned"
            case .reprovisioned: "reprovisioned"
            case .rotated: "rotated"
            case .suspended: "suspended"
            case .resumed: "resumed"
            case .forwards: "forwards"
            case .interval: "interval"
            case .removed: "removed"
            }
        }
    }

    public var device: DeviceID
    public var kind: Kind
    /// The registry's version of the device with this change.
    public var version: Int64
    public var isSuspended: Bool
    /// Who did it: an operator's name, or `provision`.
    public var actor: String
    /// The id of the operator's request; `nil` where there was none.
    public var requestID: String?
    public var tunnel: TunnelConfiguration
    public var forwards: [PortForward]

    public init(
        device: DeviceID, kind: Kind, version: Int64, isSuspended: Bool, actor: String,
        requestID: String? = nil, tunnel: TunnelConfiguration, forwards: [PortForward]
    ) {
        self.device = device
        self.kind = kind
        self.version = version
        self.isSuspended = isSuspended
        self.actor = actor
        self.requestID = requestID
        self.tunnel = tunnel
        self.forwards = forwards
    }

    public var hashes: ConfigurationHashes { ConfigurationHashes(tunnel, forwards) }
}

extension ByteBuffer {
    /// Appends the event as the value of a record of topic `config-changes`.
    ///
    /// A forward is one text of four words: transport, listening port, target host, target port.
    public mutating func append(_ change: ConfigChange) {
        append("{\"v\":1,\"type\":\"")
        append(change.kind.text)
        append("\",\"device_id\":\"")
        append(change.device)
        append("\",\"version\":")
        append(decimal: change.version)
        append(change.isSuspended ? ",\"suspended\":true" : ",\"suspended\":false")
        append(",\"actor\":")
        append(jsonString: change.actor)
        if let requestID = change.requestID {
            append(",\"request_id\":")
            append(jsonString: requestID)
        }
        append(",\"internal_ip\":")
        append(jsonString: change.tunnel.internalAddress)
        append(",\"private_key_sha256\":\"")
        append(hex: change.tunnel.privateKeyFingerprint)
        append("\",\"preshared_key_sha256\":\"")
        append(hex: change.tunnel.presharedKeyFingerprint)
        append("\",\"server_pub\":")
        append(jsonString: change.tunnel.network.serverPublicKey)
        append(",\"endpoint\":")
        append(jsonString: change.tunnel.network.endpoint)
        append(",\"server_wg_ip\":")
        append(jsonString: change.tunnel.network.serverAddress)
        append(",\"dns\":")
        append(jsonString: change.tunnel.network.dns)
        append(",\"allowed_ips\":")
        append(jsonString: change.tunnel.network.allowedIPs)
        append(",\"forwards\":[")
        for (index, forward) in change.forwards.enumerated() {
            if index > 0 { append(UInt8(ascii: ",")) }
            append(
                jsonString:
                    "\(forward.transport) \(forward.listenPort) \(forward.targetHost) \(forward.targetPort)"
            )
        }
        append("]}")
    }

    /// Appends the value of a record of topic `device-configs`: the bell that empties caches.
    public mutating func append(
        bellOf device: DeviceID, version: Int64, _ hashes: ConfigurationHashes, isSuspended: Bool
    ) {
        append("{\"v\":1,\"device_id\":\"")
        append(device)
        append("\",\"version\":")
        append(decimal: version)
        append(",\"config_hash\":\"")
        append(hex: hashes.config)
        append("\",\"forwards_hash\":\"")
        append(hex: hashes.forwards)
        append("\",\"reload_hash\":\"")
        append(hex: hashes.reload)
        append(isSuspended ? "\",\"suspended\":true}" : "\",\"suspended\":false}")
    }
}

/// Reads records of topic `config-changes`. One for each thread.
public final class ConfigChangesDecoder {
    private let parser: JSONParser

    private static let fields = JSONFields([
        "v", "type", "device_id", "version", "suspended", "actor", "request_id", "internal_ip",
        "private_key_sha256", "preshared_key_sha256", "server_pub", "endpoint", "server_wg_ip",
        "dns", "allowed_ips", "forwards",
    ])

    private enum Field {
        static let v = 0, type = 1, deviceID = 2, version = 3, suspended = 4, actor = 5
        static let requestID = 6, internalIP = 7, privateKey = 8, presharedKey = 9
        static let serverPublicKey = 10, endpoint = 11, serverAddress = 12, dns = 13
        static let allowedIPs = 14, forwards = 15
    }

    public init() { parser = JSONParser(Self.fields, maximumBytes: 1 << 20) }

    public func decode(_ value: Span<UInt8>) -> Decoded<ConfigChange> {
        do throws(JSONError) { try parser.parse(value) } catch { return .malformed("\(error)") }
        return Self.read(parser)
    }

    private static func read(_ parser: borrowing JSONParser) -> Decoded<ConfigChange> {
        guard let version = parser.integer(Field.v) else { return .malformed("no version \"v\"") }
        guard version == 1 else { return .malformed("version \"v\" \(version) is not known") }
        guard let type = parser.string(Field.type) else { return .malformed("no \"type\"") }
        guard let kind = ConfigChange.Kind.allCases.first(where: { "\($0.text)" == type }) else {
            return .skipped
        }
        guard let text = parser.bytes(Field.deviceID), let device = DeviceID(parsing: text) else {
            return .malformed("\"device_id\" is not a UUID")
        }
        guard let registryVersion = parser.integer(Field.version), registryVersion > 0 else {
            return .malformed("\"version\" is not a positive number")
        }
        guard let isSuspended = parser.bool(Field.suspended) else {
            return .malformed("no \"suspended\"")
        }
        guard let privateKey = digest(parser, Field.privateKey),
            let presharedKey = digest(parser, Field.presharedKey)
        else { return .malformed("a key's fingerprint is not 64 hexadecimal digits") }
        guard let address = parser.string(Field.internalIP),
            let serverPublicKey = parser.string(Field.serverPublicKey),
            let endpoint = parser.string(Field.endpoint),
            let serverAddress = parser.string(Field.serverAddress),
            let dns = parser.string(Field.dns), let allowedIPs = parser.string(Field.allowedIPs)
        else { return .malformed("a setting of the tunnel is missing") }
        var forwards: [PortForward] = []
        for index in 0..<parser.count(Field.forwards) {
            guard
                let words = parser.withString(Field.forwards, element: index, { $0.text }),
                let forward = PortForward(words: words)
            else { return .malformed("forward \(index) is not transport, port, host and port") }
            forwards.append(forward)
        }
        return .event(
            ConfigChange(
                device: device, kind: kind, version: registryVersion, isSuspended: isSuspended,
                actor: parser.string(Field.actor) ?? "",
                requestID: parser.string(Field.requestID),
                tunnel: TunnelConfiguration(
                    internalAddress: address, privateKeyFingerprint: privateKey,
                    presharedKeyFingerprint: presharedKey,
                    network: NetworkConfiguration(
                        serverPublicKey: serverPublicKey, endpoint: endpoint,
                        serverAddress: serverAddress, dns: dns, allowedIPs: allowedIPs)),
                forwards: forwards))
    }

    private static func digest(_ parser: borrowing JSONParser, _ field: Int) -> Digest? {
        guard let text = parser.bytes(field), let raw = Hex.decode(text), raw.count == 32 else {
            return nil
        }
        return Digest(bytes: raw.span)
    }
}

extension PortForward {
    /// Reads the four words of a forward in topic `config-changes`: transport, listening port, target
    /// host, target port; `nil` for anything else.
    public init?(words text: String) {
        let words = text.split(separator: " ", omittingEmptySubsequences: false)
        guard words.count == 4, let listen = UInt16(words[1]), let target = UInt16(words[3]),
            !words[0].isEmpty, !words[2].isEmpty
        else { return nil }
        self.init(
            transport: String(words[0]), listenPort: listen, targetHost: String(words[2]),
            targetPort: target)
    }
}
