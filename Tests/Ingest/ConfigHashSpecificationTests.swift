import Bytes
import Crypto
import Foundation
import Schemas
import Simulation
import TestSupport
import Testing

/// Our hashes against those of a program that was written from docs/config-hash.md alone, in another
/// language.
@Suite("Change detection: an independent implementation") struct ConfigHashSpecificationTests {
    private static let root = URL(filePath: #filePath).deletingLastPathComponent()
        .deletingLastPathComponent().deletingLastPathComponent()

    /// A configuration as the program reads it.
    struct Configuration: Encodable {
        var internal_ip: String
        var private_key: String
        var preshared_key: String
        var server_pub: String
        var endpoint: String
        var server_wg_ip: String
        var dns: String
        var allowed_ips: String
        var forwards: [Forward]

        struct Forward: Encodable, Hashable {
            var transport: String
            var listen: UInt16
            var host: String
            var port: UInt16

            func encode(to encoder: any Encoder) throws {
                var list = encoder.unkeyedContainer()
                try list.encode(transport)
                try list.encode(listen)
                try list.encode(host)
                try list.encode(port)
            }
        }

        /// The three hashes, as our code computes them.
        var ours: String {
            func fingerprint(_ hex: String) -> Digest {
                let digits = ByteBuffer(hex.utf8)
                return SHA256.hash(ByteBuffer(Hex.decode(digits.span) ?? []).span)
            }
            let hashes = ConfigurationHashes(
                TunnelConfiguration(
                    internalAddress: internal_ip, privateKeyFingerprint: fingerprint(private_key),
                    presharedKeyFingerprint: fingerprint(preshared_key),
                    network: NetworkConfiguration(
                        serverPublicKey: server_pub, endpoint: endpoint,
                        serverAddress: server_wg_ip, dns: dns, allowedIPs: allowed_ips)),
                forwards.map {
                    PortForward(
                        transport: $0.transport, listenPort: $0.listen, targetHost: $0.host,
                        targetPort: $0.port)
                })
            return "\(hashes.config) \(hashes.forwards) \(hashes.reload)"
        }

        var forwardsHash: String { String(ours.split(separator: " ")[1]) }
    }

    /// Runs the program.
    private static func run(
        _ arguments: [String], input: String = ""
    ) throws -> (
        status: Int32, output: String
    ) {
        let folder = FileManager.default.temporaryDirectory
            .appending(path: "heartline-specification-\(UUID().uuidString)")
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(at: folder) }
        let (inPath, outPath) = (folder.appending(path: "in"), folder.appending(path: "out"))
        try input.write(to: inPath, atomically: true, encoding: .utf8)
        try "".write(to: outPath, atomically: true, encoding: .utf8)
        let process = Process()
        process.executableURL = URL(filePath: "/usr/bin/env")
        process.arguments =
            ["python3", root.appending(path: "Tests/Specification/config_hash.py").path] + arguments
        let output = try FileHandle(forWritingTo: outPath)
        process.standardInput = try FileHandle(forReadingFrom: inPath)
        process.standardOutput = output
        process.standardError = output
        try process.run()
        process.waitUntilExit()
        try output.close()
        return (process.terminationStatus, try String(contentsOf: outPath, encoding: .utf8))
    }

    @Test("The document's vectors follow from its text")
    func vectors() throws {
        let outcome = try Self.run([Self.root.appending(path: "docs/config-hash.md").path])
        #expect(outcome.status == 0, "\(outcome.output)")
        #expect(outcome.output == "3 vectors agree with the text\n")
    }

    @Test("Random configurations in random spellings have the same hashes in both")
    func random() throws {
        var random = SplitMix64(seed: 0xC0F1)
        var configurations = (0..<400).map { _ in Self.configuration(&random) }
        // And with their forwards permuted and repeated, and with one of them changed.
        var permuted: [Configuration] = []
        var changed: [Configuration] = []
        for index in configurations.indices {
            var other = configurations[index]
            if let again = other.forwards.randomElement(using: &random) {
                other.forwards.append(again)
            }
            other.forwards.shuffle(using: &random)
            permuted.append(other)
            let fresh = Configuration.Forward(
                transport: "tcp", listen: 9, host: "changed.example", port: 9)
            if configurations[index].forwards.isEmpty {
                configurations[index].forwards = [fresh]
                permuted[index].forwards = [fresh, fresh]
            }
            changed.append(Self.changed(configurations[index], &random))
        }
        let encoder = JSONEncoder()
        let all = configurations + permuted + changed
        let lines = try all.map { String(decoding: try encoder.encode($0), as: UTF8.self) }
        let outcome = try Self.run([], input: lines.joined(separator: "\n") + "\n")
        try #require(outcome.status == 0, "\(outcome.output)")
        let theirs = outcome.output.split(separator: "\n")
        try #require(theirs.count == all.count)
        for (index, configuration) in all.enumerated() where configuration.ours != theirs[index] {
            Issue.record(
                "differs: \(lines[index])\nours   \(configuration.ours)\ntheirs \(theirs[index])")
        }
        for index in configurations.indices {
            #expect(configurations[index].ours == permuted[index].ours, "\(lines[index])")
            #expect(
                configurations[index].forwardsHash != changed[index].forwardsHash,
                "\(lines[index])\n\(lines[index + 800])")
        }
        // What changed the configuration made different hashes, not a few.
        #expect(Set(configurations.map(\.ours)).count == configurations.count)
    }

    // MARK: - Random configurations

    private static func changed(
        _ configuration: Configuration, _ random: inout SplitMix64
    ) -> Configuration {
        var configuration = configuration
        let index = random.below(configuration.forwards.count)
        let old = configuration.forwards[index]
        // Every repeat of it has to go as well.
        let name = old.host
        switch random.below(4) {
        case 0: configuration.forwards[index].listen = old.listen ^ 0x4000
        case 1: configuration.forwards[index].port = old.port ^ 0x4000
        case 2: configuration.forwards[index].host = "other-\(random.below(1_000)).example"
        default:
            configuration.forwards[index].transport =
                old.transport.lowercased() == "tcp" ? "udp" : "tcp"
        }
        let fresh = configuration.forwards[index]
        configuration.forwards.removeAll {
            $0 != fresh && $0.host == name && $0.listen == old.listen && $0.port == old.port
        }
        return configuration
    }

    private static func configuration(_ random: inout SplitMix64) -> Configuration {
        func key() -> String { (0..<4).map { _ in hexWord(&random) }.joined() }
        let dns = (0..<(1 + random.below(3))).map { _ in host(&random) }
        let allowed = (0..<(1 + random.below(4))).map { _ in prefix(&random) }
        var forwards = (0..<random.below(5)).map { _ in
            Configuration.Forward(
                transport: ["tcp", "udp", "TCP", "Udp"][random.below(4)],
                listen: UInt16(1 + random.below(65_535)), host: host(&random),
                port: UInt16(1 + random.below(65_535)))
        }
        // The same target on another port, and the same port twice.
        if let first = forwards.first, random.chance(300) {
            var twin = first
            twin.listen = first.listen ^ 1
            forwards.append(twin)
        }
        return Configuration(
            internal_ip: spaced(ipv4(&random), &random), private_key: key(), preshared_key: key(),
            server_pub: random.chance(500) ? key() : key().uppercased(),
            endpoint: endpoint(&random), server_wg_ip: ipv4(&random),
            dns: dns.joined(separator: random.chance(500) ? "," : " , "),
            allowed_ips: allowed.joined(separator: random.chance(500) ? "," : ",\t"),
            forwards: forwards)
    }

    private static func hexWord(_ random: inout SplitMix64) -> String {
        var buffer = ByteBuffer()
        buffer.append(hexadecimal: random.next(), digits: 16)
        return buffer.span.text
    }

    private static func spaced(_ text: String, _ random: inout SplitMix64) -> String {
        random.chance(200) ? " \(text)\t" : text
    }

    private static func ipv4(_ random: inout SplitMix64) -> String {
        (0..<4).map { _ in "\(random.below(256))" }.joined(separator: ".")
    }

    /// Many zero groups, in many spellings.
    private static func ipv6(_ random: inout SplitMix64) -> String {
        let groups = (0..<8).map { _ in random.chance(500) ? 0 : random.below(0x1_0000) }
        func spell(_ group: Int, _ random: inout SplitMix64) -> String {
            var text = String(group, radix: 16, uppercase: random.chance(300))
            while text.count < 4, random.chance(200) { text = "0" + text }
            return text
        }
        var words = groups.map { spell($0, &random) }
        if random.chance(100) {
            words[6...7] = [
                "\(groups[6] >> 8).\(groups[6] & 255).\(groups[7] >> 8).\(groups[7] & 255)"
            ]
        } else if let start = groups.indices.first(where: { groups[$0] == 0 && random.chance(700) })
        {
            var end = start + 1
            while end < 8, groups[end] == 0, random.chance(800) { end += 1 }
            return words[..<start].joined(separator: ":") + "::"
                + words[end...].joined(separator: ":")
        }
        return words.joined(separator: ":")
    }

    private static func name(_ random: inout SplitMix64) -> String {
        let labels = ["nas", "Printer", "db-01", "x", "EXAMPLE", "local", "10", "a.b"]
        var text = (0..<(1 + random.below(3))).map { _ in labels[random.below(labels.count)] }
            .joined(separator: ".")
        text += "\(random.below(1_000))h"
        return random.chance(200) ? text + "." : text
    }

    private static func host(_ random: inout SplitMix64) -> String {
        let text =
            switch random.below(4) {
            case 0: ipv4(&random)
            case 1: ipv6(&random)
            case 2: "[\(ipv6(&random))]"
            default: name(&random)
            }
        return spaced(text, &random)
    }

    private static func endpoint(_ random: inout SplitMix64) -> String {
        let port = (random.chance(200) ? "0" : "") + "\(1 + random.below(65_535))"
        let host =
            switch random.below(3) {
            case 0: ipv4(&random)
            case 1: "[\(ipv6(&random))]"
            default: name(&random)
            }
        return spaced("\(host):\(port)", &random)
    }

    private static func prefix(_ random: inout SplitMix64) -> String {
        if random.chance(500) {
            return random.chance(200) ? ipv4(&random) : "\(ipv4(&random))/\(random.below(33))"
        }
        return random.chance(200) ? ipv6(&random) : "\(ipv6(&random))/\(random.below(129))"
    }
}
