/// What is wrong with a port forward, for whoever wrote it.
public struct ForwardFault: Error, Hashable, Sendable, CustomStringConvertible {
    public var description: String

    init(_ description: String) { self.description = description }
}

extension PortForward {
    /// Forwards that one device can have.
    public static let maximumCount = 1_000

    /// The forward in its one spelling: protocol in lower case, the host as an address of RFC 5952 or
    /// a name in lower case without the final dot.
    ///
    /// - Throws: `ForwardFault` for a protocol other than `tcp` and `udp`, for port 0, and for what is
    ///   neither an IP address nor a host name (RFC 1123, underscores allowed).
    public func checked() throws(ForwardFault) -> PortForward {
        let protocolName = transport.lowercased()
        guard protocolName == "tcp" || protocolName == "udp" else {
            throw ForwardFault(
                "the protocol of a forward is tcp or udp, not \"\(shown(transport))\"")
        }
        guard listenPort > 0, targetPort > 0 else {
            throw ForwardFault("a port is a number from 1 to 65535, not 0")
        }
        let host = HostName.canonical(targetHost)
        guard IPAddress(host) != nil || Self.isName(host) else {
            throw ForwardFault(
                "the target of a forward is an IP address or a host name, not \"\(shown(targetHost))\""
            )
        }
        return PortForward(
            transport: protocolName, listenPort: listenPort, targetHost: host,
            targetPort: targetPort)
    }

    /// Reads `tcp/8080=10.0.0.5:80`, an IPv6 host in brackets; checked.
    public init(parsing text: String) throws(ForwardFault) {
        let sides = text.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
        let ports = sides[0].split(separator: "/", omittingEmptySubsequences: false)
        guard sides.count == 2, ports.count == 2, let listen = Self.port(ports[1]) else {
            throw ForwardFault(
                "a forward is written as tcp/8080=10.0.0.5:80, not \"\(shown(text))\"")
        }
        try self.init(transport: String(ports[0]), listenPort: listen, target: String(sides[1]))
    }

    /// - Parameter target: host and port, an IPv6 host in brackets.
    public init(transport: String, listenPort: UInt16, target: String) throws(ForwardFault) {
        guard let colon = target.lastIndex(of: ":"),
            let port = Self.port(target[target.index(after: colon)...])
        else {
            throw ForwardFault(
                "the target of a forward is a host and a port, as 10.0.0.5:80, not \"\(shown(target))\""
            )
        }
        let host = target[..<colon]
        guard !host.contains(":") || (host.hasPrefix("[") && host.hasSuffix("]")) else {
            throw ForwardFault("an IPv6 target stands in brackets, as [fd00::5]:80")
        }
        self = try PortForward(
            transport: transport, listenPort: listenPort, targetHost: String(host),
            targetPort: port
        ).checked()
    }

    /// As `init(parsing:)` reads it.
    public var text: String {
        let host = targetHost.contains(":") ? "[\(targetHost)]" : targetHost
        return "\(transport)/\(listenPort)=\(host):\(targetPort)"
    }

    /// Checks a list, merges repeats and sorts it by protocol and port.
    ///
    /// - Throws: also if two forwards of one protocol have one port and different targets, or if there
    ///   are more than `maximumCount`.
    public static func checked(_ forwards: [PortForward]) throws(ForwardFault) -> [PortForward] {
        var known: [String: PortForward] = [:]
        for forward in forwards {
            let forward = try forward.checked()
            let place = "\(forward.transport)/\(forward.listenPort)"
            if let other = known[place], other != forward {
                throw ForwardFault(
                    "two forwards listen on \(place): \(other.text) and \(forward.text)")
            }
            known[place] = forward
        }
        guard known.count <= maximumCount else {
            throw ForwardFault(
                "a device has at most \(maximumCount) forwards, and these are \(known.count)")
        }
        return known.values.sorted {
            ($0.transport, $0.listenPort) < ($1.transport, $1.listenPort)
        }
    }

    private static func port(_ text: some StringProtocol) -> UInt16? {
        // `UInt16` would also take a sign.
        guard !text.isEmpty, text.utf8.allSatisfy({ $0 >= 0x30 && $0 <= 0x39 }),
            let port = UInt16(text), port > 0
        else { return nil }
        return port
    }

    private static func isName(_ host: String) -> Bool {
        guard host.utf8.count <= 253 else { return false }
        let labels = host.split(separator: ".", omittingEmptySubsequences: false)
        // Resolvers take a name that ends in a number for an address (WHATWG URL, "ends in a
        // number"), so it would be one that was mistyped.
        guard let last = labels.last, !last.utf8.allSatisfy({ $0 >= 0x30 && $0 <= 0x39 }) else {
            return false
        }
        return labels.allSatisfy { label in
            (1...63).contains(label.utf8.count) && label.first != "-" && label.last != "-"
                && label.utf8.allSatisfy {
                    (0x61...0x7A).contains($0) || (0x30...0x39).contains($0) || $0 == 0x2D
                        || $0 == 0x5F
                }
        }
    }
}

/// A value from outside as an error shows it: short, and on one line.
private func shown(_ text: String) -> String {
    let clean = String(text.unicodeScalars.prefix(60).map { $0.value < 0x20 ? " " : Character($0) })
    return clean.count < text.count ? clean + "…" : clean
}

/// As the operators' interfaces write it.
extension PortForward: Codable {
    private enum CodingKeys: String, CodingKey {
        case transport = "protocol"
        case listenPort = "listen_port"
        case targetHost = "target_host"
        case targetPort = "target_port"
    }

    public init(from decoder: any Decoder) throws {
        let values = try decoder.container(keyedBy: CodingKeys.self)
        self.init(
            transport: try values.decode(String.self, forKey: .transport),
            listenPort: try values.decode(UInt16.self, forKey: .listenPort),
            targetHost: try values.decode(String.self, forKey: .targetHost),
            targetPort: try values.decode(UInt16.self, forKey: .targetPort))
    }

    public func encode(to encoder: any Encoder) throws {
        var values = encoder.container(keyedBy: CodingKeys.self)
        try values.encode(transport, forKey: .transport)
        try values.encode(listenPort, forKey: .listenPort)
        try values.encode(targetHost, forKey: .targetHost)
        try values.encode(targetPort, forKey: .targetPort)
    }
}
