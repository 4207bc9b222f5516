/// The WireGuard network that devices join, as an operator sets it.
public struct NetworkSettings: Sendable, Equatable {
    /// IPv4 prefix that addresses come from, `a.b.c.d/bits`, 8 to 30 bits. Default: the contract's
    /// 10.172.21.0/24, which has room for 253 devices.
    public var prefix = "10.172.21.0/24"
    /// The server's own address; `nil`: the first of the prefix.
    public var serverAddress: String?
    /// 64 hexadecimal digits; `nil` makes one whose private half nobody has, for demos and tests.
    public var serverPublicKey: String?
    public var endpoint = "vpn.example.net:51820"
    public var dns = "1.1.1.1"
    public var allowedIPs = "0.0.0.0/0"

    public init() {}

    /// - Throws: `RegistryError` if a setting is malformed.
    func pool() throws(RegistryError) -> AddressPool {
        try AddressPool(prefix: prefix, server: serverAddress)
    }
}

/// The addresses of an IPv4 prefix: all but network, broadcast and the server's own.
struct AddressPool: Equatable {
    let network: UInt32
    let bits: Int
    let server: UInt32

    init(prefix: String, server: String?) throws(RegistryError) {
        func bad(_ reason: String) -> RegistryError {
            RegistryError("reading the network's settings", .badSetting, reason)
        }
        let parts = prefix.split(separator: "/", omittingEmptySubsequences: false)
        guard parts.count == 2, let address = Self.parse(String(parts[0])),
            let bits = Int(parts[1]), bits >= 8, bits <= 30
        else {
            throw bad(
                "the prefix \"\(prefix)\" is not an IPv4 prefix of 8 to 30 bits like 10.0.0.0/8")
        }
        guard address & ~(UInt32.max << UInt32(32 - bits)) == 0 else {
            throw bad("the prefix \(prefix) has bits behind its length")
        }
        network = address
        self.bits = bits
        if let server {
            guard let parsed = Self.parse(server), parsed > network,
                parsed < network + UInt32((1 << (32 - bits)) - 1)
            else { throw bad("the server's address \(server) is not a host of \(prefix)") }
            self.server = parsed
        } else {
            self.server = network + 1
        }
    }

    var firstHost: UInt32 { network + 1 }
    var lastHost: UInt32 { network + UInt32((1 << (32 - bits)) - 2) }
    /// Devices that fit.
    var capacity: Int64 { Int64(lastHost - firstHost) }

    /// Up to `count` addresses that come after `last`, the highest in use.
    func following(_ last: UInt32?, atMost count: Int) -> [UInt32] {
        let next = max(firstHost, (last ?? network) + 1)
        return next > lastHost ? [] : addresses(in: [next...lastHost], atMost: count)
    }

    /// The first `count` addresses of these ranges that may be given to a device.
    func addresses(in ranges: [ClosedRange<UInt32>], atMost count: Int) -> [UInt32] {
        var result: [UInt32] = []
        result.reserveCapacity(count)
        for range in ranges {
            for address in range.clamped(to: firstHost...lastHost) where address != server {
                if result.count == count { return result }
                // A range that lies outside is clamped to an end.
                if range.contains(address) { result.append(address) }
            }
        }
        return result
    }

    static func parse(_ text: String) -> UInt32? {
        let parts = text.split(separator: ".", omittingEmptySubsequences: false)
        guard parts.count == 4 else { return nil }
        var value: UInt32 = 0
        for part in parts {
            guard !part.isEmpty, part.utf8.allSatisfy({ $0 >= 0x30 && $0 <= 0x39 }),
                let byte = UInt8(part)
            else { return nil }
            value = value << 8 | UInt32(byte)
        }
        return value
    }

    static func text(_ address: UInt32) -> String {
        "\(address >> 24).\(address >> 16 & 255).\(address >> 8 & 255).\(address & 255)"
    }
}
