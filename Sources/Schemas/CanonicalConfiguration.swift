public import Bytes
public import Crypto

/// What all devices of a network share of their configuration.
///
/// Texts may be in any spelling; the canonical bytes, made once, bring them to one.
public struct NetworkConfiguration: Sendable, Equatable {
    /// 64 hexadecimal digits.
    public let serverPublicKey: String
    /// Host and port.
    public let endpoint: String
    public let serverAddress: String
    /// Addresses or hosts, separated by commas; the first is asked first.
    public let dns: String
    /// Prefixes, separated by commas; a set.
    public let allowedIPs: String
    fileprivate let canonical: ByteBuffer

    public init(
        serverPublicKey: String, endpoint: String, serverAddress: String, dns: String,
        allowedIPs: String
    ) {
        self.serverPublicKey = serverPublicKey
        self.endpoint = endpoint
        self.serverAddress = serverAddress
        self.dns = dns
        self.allowedIPs = allowedIPs
        var bytes = ByteBuffer()
        bytes.append(field: HostName.trimmed(serverPublicKey).asciiLowercased)
        bytes.append(field: HostName.canonical(endpoint: endpoint))
        bytes.append(field: HostName.canonical(serverAddress))
        bytes.append(list: HostName.list(dns).map { HostName.canonical($0) }.firstOfEach())
        bytes.append(
            list: HostName.list(allowedIPs).map { HostName.canonical(prefix: $0) }.sortedByBytes())
        canonical = bytes
    }
}

/// What an agent needs for its tunnel, as change detection sees it: keys only by fingerprint.
public struct TunnelConfiguration: Sendable, Equatable {
    /// The device's address in the tunnel.
    public var internalAddress: String
    /// SHA-256 of the 32 raw bytes of the private key.
    public var privateKeyFingerprint: Digest
    /// SHA-256 of the 32 raw bytes of the preshared key.
    public var presharedKeyFingerprint: Digest
    public var network: NetworkConfiguration

    public init(
        internalAddress: String, privateKeyFingerprint: Digest, presharedKeyFingerprint: Digest,
        network: NetworkConfiguration
    ) {
        self.internalAddress = internalAddress
        self.privateKeyFingerprint = privateKeyFingerprint
        self.presharedKeyFingerprint = presharedKeyFingerprint
        self.network = network
    }

    /// Appends the canonical bytes (docs/config-hash.md): two configurations have the same ones
    /// exactly if an agent has nothing to reload between them.
    public func canonical(into bytes: inout ByteBuffer) {
        bytes.append("heartline.config.1\n")
        bytes.append(field: HostName.canonical(internalAddress))
        bytes.append("64:")
        bytes.append(hex: privateKeyFingerprint)
        bytes.append("\n64:")
        bytes.append(hex: presharedKeyFingerprint)
        bytes.append("\n")
        bytes.append(network.canonical)
    }
}

/// A port on the server that leads to a device.
public struct PortForward: Sendable, Equatable {
    /// `tcp` or `udp`.
    public var transport: String
    public var listenPort: UInt16
    public var targetHost: String
    public var targetPort: UInt16

    public init(transport: String, listenPort: UInt16, targetHost: String, targetPort: UInt16) {
        self.transport = transport
        self.listenPort = listenPort
        self.targetHost = targetHost
        self.targetPort = targetPort
    }

    /// Appends the canonical bytes of a set of forwards: repeats and order do not matter.
    public static func canonical(_ forwards: [PortForward], into bytes: inout ByteBuffer) {
        bytes.append("heartline.forwards.1\n")
        bytes.append(
            list: forwards.map { forward in
                var entry = ByteBuffer()
                entry.append(field: forward.transport.asciiLowercased)
                entry.append(field: String(forward.listenPort))
                entry.append(field: HostName.canonical(forward.targetHost))
                entry.append(field: String(forward.targetPort))
                return entry.span.text
            }.sortedByBytes())
    }
}

/// The three digests of a device's configuration.
public struct ConfigurationHashes: Sendable, Equatable {
    /// Tunnel settings alone.
    public var config: Digest
    /// Forwards alone.
    public var forwards: Digest
    /// Both together: what the agent compares (`forwards_hash` of its answer), because it reloads
    /// for nothing else.
    public var reload: Digest

    public init(_ tunnel: TunnelConfiguration, _ forwards: [PortForward]) {
        var tunnelBytes = ByteBuffer()
        tunnel.canonical(into: &tunnelBytes)
        var forwardsBytes = ByteBuffer()
        PortForward.canonical(forwards, into: &forwardsBytes)
        var both = ByteBuffer()
        both.append("heartline.reload.1\n")
        both.append(field: tunnelBytes.span)
        both.append(field: forwardsBytes.span)
        config = SHA256.hash(tunnelBytes.span)
        self.forwards = SHA256.hash(forwardsBytes.span)
        reload = SHA256.hash(both.span)
    }
}

extension ConfigurationHashes {
    /// What of a configuration differs from another: a list in a row of `config_versions`.
    public struct Parts: OptionSet, Sendable, Hashable {
        public var rawValue: UInt8

        public init(rawValue: UInt8) { self.rawValue = rawValue }

        public static let config = Parts(rawValue: 1)
        public static let forwards = Parts(rawValue: 2)
        public static let suspended = Parts(rawValue: 4)
    }

    /// The first 64 bits of two of the hashes. Enough to tell that a part has changed: that two texts
    /// share them by chance is one case in 10¹⁹.
    public struct Prefixes: Sendable, Equatable {
        public var config: UInt64
        public var forwards: UInt64

        public init(config: UInt64, forwards: UInt64) {
            self.config = config
            self.forwards = forwards
        }
    }

    public var prefixes: Prefixes { Prefixes(config: config.prefix, forwards: forwards.prefix) }

    /// The hash of a device without forwards.
    public static let noForwards: Digest = {
        var bytes = ByteBuffer()
        PortForward.canonical([], into: &bytes)
        return SHA256.hash(bytes.span)
    }()
}

extension ConfigurationHashes.Prefixes {
    /// Before its first version a device has no settings and no forwards.
    public static let none = ConfigurationHashes.Prefixes(
        config: 0, forwards: ConfigurationHashes.noForwards.prefix)
}

extension RowBuffer {
    /// The three hashes as texts of 64 hexadecimal digits: `config_hash`, `forwards_hash`,
    /// `reload_hash`.
    public mutating func put(_ hashes: ConfigurationHashes) {
        for digest in [hashes.config, hashes.forwards, hashes.reload] {
            var text = ByteBuffer()
            text.append(hex: digest)
            put(text.span)
        }
    }
}

extension ByteBuffer {
    /// Appends a JSON list of the parts' names.
    public mutating func append(_ parts: ConfigurationHashes.Parts) {
        append(UInt8(ascii: "["))
        var isFirst = true
        let names: [(ConfigurationHashes.Parts, StaticString)] = [
            (.config, "config"), (.forwards, "forwards"), (.suspended, "suspended"),
        ]
        for (part, name) in names where parts.contains(part) {
            append(isFirst ? "\"" : ",\"")
            append(name)
            append(UInt8(ascii: "\""))
            isFirst = false
        }
        append(UInt8(ascii: "]"))
    }

    /// A netstring (size in decimal, colon, bytes, newline): no two lists of fields share their bytes.
    fileprivate mutating func append(field bytes: Span<UInt8>) {
        append(decimal: Int64(bytes.count))
        append(UInt8(ascii: ":"))
        append(bytes)
        append(UInt8(ascii: "\n"))
    }

    fileprivate mutating func append(field text: String) {
        append(field: ByteBuffer(text.utf8).span)
    }

    /// The number of entries as a field, then each.
    fileprivate mutating func append(list: [String]) {
        append(field: String(list.count))
        for entry in list { append(field: entry) }
    }
}

extension [String] {
    /// Without repeats, in the order of their UTF-8 bytes.
    fileprivate func sortedByBytes() -> [String] {
        Set(self).sorted { $0.utf8.lexicographicallyPrecedes($1.utf8) }
    }

    /// Without repeats, in the order given.
    fileprivate func firstOfEach() -> [String] {
        var seen: Set<String> = []
        return filter { seen.insert($0).inserted }
    }
}
