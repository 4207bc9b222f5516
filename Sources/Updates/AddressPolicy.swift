/// Which addresses may be fetched from: those of the public Internet, and of hosts that an operator
/// allowed by name.
///
/// A source is a text that someone gave once, and what it redirects to is a stranger's text: neither
/// may make this machine ask its own network.
public struct AddressPolicy: Sendable, Hashable {
    /// Host names and addresses, in lower case, without brackets.
    public var allowedHosts: Set<String>

    public init(allowedHosts: some Sequence<String> = []) {
        self.allowedHosts = Set(allowedHosts.map { Self.normalized($0) })
    }

    /// Whether a connection to `address`, to which the name `host` was resolved, may be made.
    public func allows(_ address: [UInt8], of host: String) -> Bool {
        allowedHosts.contains(Self.normalized(host)) || Self.isPublic(address)
    }

    static func normalized(_ host: String) -> String {
        var name = host.lowercased()
        if name.hasPrefix("["), name.hasSuffix("]") { name = String(name.dropFirst().dropLast()) }
        if name.hasSuffix(".") { name.removeLast() }
        return name
    }

    /// Whether anyone on the Internet could have the address: not private, local, reserved or of a
    /// group (IANA's special-purpose registries, RFC 6890).
    /// - Parameter address: 4 bytes or 16.
    public static func isPublic(_ address: [UInt8]) -> Bool {
        switch address.count {
        case 4: isPublicIPv4(address)
        case 16: isPublicIPv6(address)
        default: false
        }
    }

    private static func isPublicIPv4(_ a: [UInt8]) -> Bool {
        switch (a[0], a[1], a[2]) {
        case (0, _, _), (10, _, _), (127, _, _), (169, 254, _), (172, 16...31, _), (192, 168, _):
            false
        // Shared by providers and Tailscale; assignments; documentation; benchmarks; 6to4 relays.
        case (100, 64...127, _), (192, 0, 0), (192, 0, 2), (198, 18...19, _), (198, 51, 100),
            (203, 0, 113), (192, 88, 99):
            false
        case (224..., _, _): false
        default: true
        }
    }

    private static func isPublicIPv6(_ a: [UInt8]) -> Bool {
        // An IPv4 address in other clothes is judged as what it is: mapped, compatible, NAT64, 6to4.
        if a[..<10].allSatisfy({ $0 == 0 }), a[10] == a[11], a[10] == 0 || a[10] == 0xFF {
            return a[10] == 0xFF && isPublicIPv4(Array(a[12...]))
        }
        if a[..<12].elementsEqual([0, 0x64, 0xFF, 0x9B, 0, 0, 0, 0, 0, 0, 0, 0]) {
            return isPublicIPv4(Array(a[12...]))
        }
        if a[0] == 0x20, a[1] == 0x02 { return isPublicIPv4(Array(a[2..<6])) }
        // Only 2000::/3 is given out; of it not Teredo, ORCHID, documentation.
        guard a[0] & 0xE0 == 0x20 else { return false }
        if a[0] == 0x20, a[1] == 0x01 {
            if a[2] < 0x02 || a[2] == 0x0D && a[3] == 0xB8 { return false }
        }
        if a[0] == 0x3F, a[1] == 0xFF, a[2] < 0x10 { return false }
        return true
    }
}
