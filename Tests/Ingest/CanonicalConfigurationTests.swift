import Bytes
import Crypto
import Foundation
import Schemas
import Testing

/// What docs/config-hash.md shows; the same texts stand there.
@Suite("Change detection: canonical configuration") struct CanonicalConfigurationTests {
    static func fingerprint(_ byte: UInt8) -> Digest {
        SHA256.hash(ByteBuffer([UInt8](repeating: byte, count: 32)).span)
    }

    /// A configuration that tests can change setting by setting.
    struct Settings {
        var internalAddress = "10.172.21.2"
        var privateKey = fingerprint(1)
        var presharedKey = fingerprint(2)
        var serverPublicKey = String(repeating: "0a", count: 32)
        var endpoint = "vpn.example.net:51820"
        var serverAddress = "10.172.21.1"
        var dns = "1.1.1.1"
        var allowedIPs = "0.0.0.0/0"

        var tunnel: TunnelConfiguration {
            TunnelConfiguration(
                internalAddress: internalAddress, privateKeyFingerprint: privateKey,
                presharedKeyFingerprint: presharedKey,
                network: NetworkConfiguration(
                    serverPublicKey: serverPublicKey, endpoint: endpoint,
                    serverAddress: serverAddress, dns: dns, allowedIPs: allowedIPs))
        }
    }

    static let tunnel = Settings().tunnel

    static let forward = PortForward(
        transport: "tcp", listenPort: 8080, targetHost: "10.0.0.5", targetPort: 80)

    static let spelled: TunnelConfiguration = {
        var tunnel = Settings()
        tunnel.endpoint = "[2001:DB8::0:1]:051820"
        tunnel.dns = "9.9.9.9, 2620:FE:0::FE"
        tunnel.allowedIPs = "::/0, 10.0.0.7/8,0.0.0.0/0"
        return tunnel.tunnel
    }()

    static let vectors: [(TunnelConfiguration, [PortForward])] = [
        (tunnel, []),
        (tunnel, [forward]),
        (
            spelled,
            [
                PortForward(
                    transport: "UDP", listenPort: 53, targetHost: "NAS.local.", targetPort: 5353),
                forward, forward,
            ]
        ),
    ]

    @Test("the vectors of docs/config-hash.md come out", arguments: 0..<3)
    func documented(number: Int) throws {
        let path = URL(filePath: #filePath).deletingLastPathComponent().deletingLastPathComponent()
            .deletingLastPathComponent().appending(path: "docs/config-hash.md")
        let document = try String(contentsOf: path, encoding: .utf8)
        let hashes = ConfigurationHashes(Self.vectors[number].0, Self.vectors[number].1)
        let row =
            "| \(number + 1) | `\(hashes.config)` | `\(hashes.forwards)` | `\(hashes.reload)` |"
        #expect(document.contains(row), "expected the row: \(row)")
    }

    @Test("spelling, order and repeats change nothing")
    func same() {
        var other = Settings()
        other.internalAddress = " 10.172.21.2"
        other.serverPublicKey = other.serverPublicKey.uppercased()
        other.endpoint = "VPN.Example.net.:51820"
        other.dns = "1.1.1.1,1.1.1.1"
        other.allowedIPs = "0.0.0.0/0 , 0.0.0.0/0"
        let second = PortForward(
            transport: "udp", listenPort: 9, targetHost: "Host.Example", targetPort: 9)
        var twin = second
        twin.targetHost = "host.example."
        #expect(
            ConfigurationHashes(Self.tunnel, [Self.forward, second])
                == ConfigurationHashes(other.tunnel, [twin, Self.forward, second]))
    }

    @Test("each setting changes the hash of its part and the reload hash")
    func different() {
        let base = ConfigurationHashes(Self.tunnel, [Self.forward])
        let changes: [(inout Settings) -> Void] = [
            { $0.internalAddress = "10.172.21.3" },
            { $0.privateKey = Self.fingerprint(3) },
            { $0.presharedKey = Self.fingerprint(3) },
            { $0.serverPublicKey = String(repeating: "0b", count: 32) },
            { $0.endpoint = "vpn.example.net:51821" }, { $0.serverAddress = "10.172.21.254" },
            { $0.dns = "1.1.1.1,8.8.8.8" }, { $0.allowedIPs = "0.0.0.0/0,::/0" },
            { swap(&$0.privateKey, &$0.presharedKey) },
            { swap(&$0.internalAddress, &$0.serverAddress) },
        ]
        var seen: Set<Digest> = [base.config]
        for change in changes {
            var tunnel = Settings()
            change(&tunnel)
            let hashes = ConfigurationHashes(tunnel.tunnel, [Self.forward])
            #expect(seen.insert(hashes.config).inserted)
            #expect(hashes.forwards == base.forwards)
            #expect(hashes.reload != base.reload)
        }
        let forwardChanges: [(inout PortForward) -> Void] = [
            { $0.transport = "udp" }, { $0.listenPort = 8081 }, { $0.targetHost = "10.0.0.6" },
            { $0.targetPort = 81 }, { swap(&$0.listenPort, &$0.targetPort) },
        ]
        var seenForwards: Set<Digest> = [base.forwards]
        for change in forwardChanges {
            var forward = Self.forward
            change(&forward)
            let hashes = ConfigurationHashes(Self.tunnel, [forward])
            #expect(seenForwards.insert(hashes.forwards).inserted)
            #expect(hashes.config == base.config)
            #expect(hashes.reload != base.reload)
        }
        #expect(ConfigurationHashes(Self.tunnel, []).reload != base.reload)
    }

    @Test("the order of DNS servers matters, that of prefixes does not")
    func order() {
        func hash(dns: String, allowed: String) -> Digest {
            var tunnel = Settings()
            tunnel.dns = dns
            tunnel.allowedIPs = allowed
            return ConfigurationHashes(tunnel.tunnel, []).config
        }
        #expect(
            hash(dns: "1.1.1.1,8.8.8.8", allowed: "::/0")
                != hash(dns: "8.8.8.8,1.1.1.1", allowed: "::/0"))
        #expect(
            hash(dns: "1.1.1.1", allowed: "::/0,10.0.0.0/8")
                == hash(dns: "1.1.1.1", allowed: "10.1.2.3/8,0:0::/0"))
    }

    @Test(
        "addresses in any spelling are one; what only looks like one stays itself",
        arguments: [
            ("2001:DB8:0:0:1:0:0:1", "2001:db8::1:0:0:1", true),
            ("2001:db8:0:1:1:1:1:1", "2001:db8::1:1:1:1:1", true),
            ("::", "0:0:0:0:0:0:0:0", true), ("::1", "[::1]", true),
            ("::ffff:192.0.2.1", "::ffff:c000:201", true), ("1::", "1:0:0:0:0:0:0:0", true),
            ("10.0.0.1", "10.0.0.01", false),
            ("::1", "::2", false), ("10.0.0.256", "10.0.0.0", false), ("1:2", "1::2", false),
            ("::1::", "::1", false), ("::12345", "::1234", false),
        ])
    func addresses(a: String, b: String, isSame: Bool) {
        func hash(_ address: String) -> Digest {
            var tunnel = Settings()
            tunnel.serverAddress = address
            return ConfigurationHashes(tunnel.tunnel, []).config
        }
        #expect((hash(a) == hash(b)) == isSame)
    }
}
