internal import Bytes
internal import Crypto
internal import Schemas
internal import YAML

extension PipelineCase {
    /// A change of a device's configuration; what is not said stays as the change before left it.
    struct CaseChange: Sendable {
        var device: String
        var kind: ConfigChange.Kind
        /// `nil`: the next one.
        var version: Int64?
        var forwards: [PortForward]?
        var endpoint: String?
        /// A name for a pair of keys.
        var keys: String?
        var by: String?

        func event(_ device: DeviceID, after last: ConfigChange?) -> ConfigChange {
            func key(_ use: String, _ old: Digest?) -> Digest {
                if keys == nil, let old { return old }
                return SHA256.hash(ByteBuffer("\(use) \(keys ?? "")".utf8).span)
            }
            let isSuspended =
                switch kind {
                case .suspended: true
                case .resumed: false
                default: last?.isSuspended ?? false
                }
            return ConfigChange(
                device: device, kind: kind, version: version ?? (last?.version ?? 0) + 1,
                isSuspended: isSuspended, actor: by ?? "",
                tunnel: TunnelConfiguration(
                    internalAddress: "10.64.0.2",
                    privateKeyFingerprint: key("private", last?.tunnel.privateKeyFingerprint),
                    presharedKeyFingerprint: key("preshared", last?.tunnel.presharedKeyFingerprint),
                    network: NetworkConfiguration(
                        serverPublicKey: String(repeating: "0a", count: 32),
                        endpoint: endpoint ?? last?.tunnel.network.endpoint
                            ?? "vpn.example.net:51820",
                        serverAddress: "10.64.0.1", dns: "1.1.1.1", allowedIPs: "0.0.0.0/0")),
                forwards: forwards ?? last?.forwards ?? [])
        }
    }

    /// What must hold of a device's versions. What is not said is not compared.
    struct ConfigurationExpectation: Sendable {
        /// The newest.
        var version: Int64?
        /// All that have a row, oldest first.
        var versions: [Int64]?
        var kind: String?
        /// Names of what differs from the version before.
        var changed: [String]?
        var isSuspended: Bool?
        var by: String?
        /// What topic `device-configs` keeps: a version, `removed` or `none`.
        var bell: String?
    }

    func compareConfiguration(
        _ expectation: Expectation, of device: DeviceID, _ tables: CaseTables, from table: String,
        into differences: inout [PipelineCaseDifference]
    ) {
        func check(_ what: String, _ expected: String?, _ got: String) {
            guard let expected, expected != got else { return }
            differences.append(
                PipelineCaseDifference(
                    mark: expectation.mark, what: "\(expectation.entity): \(what)",
                    expected: expected, got: got))
        }
        func list(_ values: [some CustomStringConvertible]) -> String {
            values.isEmpty ? "none" : values.map(\.description).joined(separator: ", ")
        }
        let said = expectation.configuration
        let rows = tables.versions(of: device, in: table)
        check("versions", said.versions.map(list), list(rows.map(\.version)))
        check("bell", said.bell, tables.bell(of: device))
        guard let newest = rows.last else {
            check("version", said.version.map { "\($0)" }, "no row in \(table)")
            return
        }
        check("version", said.version.map { "\($0)" }, "\(newest.version)")
        check(
            "at", expectation.at.map { DurationText.text(milliseconds: $0) },
            DurationText.text(milliseconds: newest.at - Self.start))
        check("kind", said.kind, newest.kind)
        check(
            "changed", said.changed.map(list),
            newest.changed.isEmpty
                ? "none" : newest.changed.split(separator: ",").joined(separator: ", "))
        check("suspended", said.isSuspended.map { "\($0)" }, "\(newest.isSuspended)")
        check("by", said.by, newest.by)
    }
}

extension PipelineFileReader {
    static func configurationKeys(_ processor: PipelineFile.Kind) -> [String] {
        switch processor {
        case .tunnelHealth, .mutualWaves, .encounters, .messages, .updateRollout,
            .telemetryRollup:
            []
        case .configDelivery: ["version", "versions"]
        case .configHash:
            ["version", "versions", "kind", "changed", "suspended", "by", "bell"]
        }
    }

    private static let kinds = ConfigChange.Kind.allCases.map { DeviceStateNames.text($0.text) }
    private static let parts = ["config", "forwards", "suspended"]

    mutating func change(_ node: YAMLNode) -> PipelineCase.CaseChange? {
        let keys = ["device", "kind", "version", "forwards", "endpoint", "keys", "by"]
        guard let fields = fields(node, of: "change", keys) else { return nil }
        guard let device = fields["device"].flatMap({ text($0.value, of: "device") }),
            let kind = fields["kind"].flatMap({ name($0.value, of: "kind", Self.kinds) })
        else {
            for key in ["device", "kind"] where fields[key] == nil {
                fail(node.mark, "the change has no \(key)")
            }
            return nil
        }
        var change = PipelineCase.CaseChange(
            device: device,
            kind: ConfigChange.Kind.allCases[Self.kinds.firstIndex(of: kind) ?? 0])
        change.version = fields["version"].flatMap {
            count($0.value, of: "version", 1...Int64.max)
        }
        change.endpoint = fields["endpoint"].flatMap { text($0.value, of: "endpoint") }
        change.keys = fields["keys"].flatMap { text($0.value, of: "keys") }
        change.by = fields["by"].flatMap { text($0.value, of: "by") }
        if let entry = fields["forwards"], let items = list(entry.value, of: "forwards") {
            change.forwards = items.compactMap { forward($0) }
        }
        return change
    }

    private mutating func forward(_ node: YAMLNode) -> PortForward? {
        guard let text = text(node, of: "a forward") else { return nil }
        guard let forward = PortForward(words: text) else {
            fail(node.mark, "a forward is as \"tcp 8080 10.0.0.5 80\", not \"\(text)\"")
            return nil
        }
        return forward
    }

    private mutating func name(
        _ node: YAMLNode, of what: String, _ known: [String]
    ) -> String? {
        guard let name = text(node, of: what) else { return nil }
        guard known.contains(name) else {
            fail(node.mark, "unknown \(what) \"\(name)\"\(hint(name, known))")
            return nil
        }
        return name
    }

    mutating func configuration(
        _ fields: [String: YAMLEntry]
    ) -> PipelineCase.ConfigurationExpectation {
        var said = PipelineCase.ConfigurationExpectation()
        said.version = fields["version"].flatMap { count($0.value, of: "version", 1...Int64.max) }
        if let entry = fields["versions"], let items = list(entry.value, of: "versions") {
            said.versions = items.compactMap { count($0, of: "a version", 1...Int64.max) }
        }
        said.kind = fields["kind"].flatMap { name($0.value, of: "kind", Self.kinds) }
        if let entry = fields["changed"], let items = list(entry.value, of: "changed") {
            said.changed = items.compactMap { name($0, of: "part", Self.parts) }
        }
        said.isSuspended = fields["suspended"].flatMap { bool($0.value, of: "suspended") }
        said.by = fields["by"].flatMap { text($0.value, of: "by") }
        said.bell = fields["bell"].flatMap { text($0.value, of: "bell") }
        return said
    }
}
