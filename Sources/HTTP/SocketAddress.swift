internal import CSystem
internal import Glibc

/// An IP address and a port to listen on.
public struct SocketAddress: Hashable, Sendable, CustomStringConvertible {
    /// An IPv4 or IPv6 address, without brackets.
    public let host: String
    /// 0 lets the system choose.
    public let port: UInt16

    /// - Throws: `HTTPError` if `host` is neither an IP address nor `localhost`.
    public init(host: String, port: UInt16) throws(HTTPError) {
        let plain = host == "localhost" ? "127.0.0.1" : host
        guard Self.isIPv4(plain) || Self.isIPv6(plain) else {
            throw HTTPError(
                .parsingAddress, host,
                reason: "\"\(host)\" is not an IP address; write one such as 127.0.0.1 or ::1")
        }
        self.host = plain
        self.port = port
    }

    /// Reads `127.0.0.1:8080`, `[::1]:0` or `localhost:80`.
    /// - Throws: `HTTPError` that says which part is wrong.
    public init(parsing text: String) throws(HTTPError) {
        guard let colon = text.lastIndex(of: ":") else {
            throw HTTPError(
                .parsingAddress, text, reason: "the port is missing; write it as address:port")
        }
        let digits = text[text.index(after: colon)...]
        guard !digits.isEmpty, digits.utf8.allSatisfy({ $0 >= 0x30 && $0 <= 0x39 }),
            let port = UInt16(digits)
        else {
            throw HTTPError(
                .parsingAddress, text, reason: "the port \"\(digits)\" is not a number 0...65535")
        }
        var host = String(text[..<colon])
        if host.hasPrefix("["), host.hasSuffix("]") {
            host = String(host.dropFirst().dropLast())
        } else if host.contains(":") {
            throw HTTPError(
                .parsingAddress, text,
                reason: "an IPv6 address stands in brackets, as in [::1]:8080")
        }
        try self.init(host: host, port: port)
    }

    public var description: String { host.contains(":") ? "[\(host)]:\(port)" : "\(host):\(port)" }

    /// Whether only this machine can reach it.
    public var isLoopback: Bool {
        if host.hasPrefix("127.") { return true }
        var address = in6_addr()
        guard unsafe inet_pton(AF_INET6, host, &address) == 1 else { return false }
        return unsafe withUnsafeBytes(of: &address) { bytes in
            unsafe bytes.dropLast().allSatisfy { $0 == 0 } && bytes[15] == 1
        }
    }

    private static func isIPv4(_ text: String) -> Bool {
        var address = in_addr()
        return unsafe inet_pton(AF_INET, text, &address) == 1
    }

    private static func isIPv6(_ text: String) -> Bool {
        var address = in6_addr()
        return unsafe inet_pton(AF_INET6, text, &address) == 1
    }

    /// Lends the address in the system's form.
    func withNative<Result>(_ body: (UnsafePointer<sockaddr>, socklen_t) -> Result) -> Result {
        if Self.isIPv4(host) {
            var address = sockaddr_in()
            address.sin_family = sa_family_t(AF_INET)
            address.sin_port = port.bigEndian
            unsafe _ = inet_pton(AF_INET, host, &address.sin_addr)
            return unsafe withUnsafePointer(to: &address) {
                unsafe $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                    unsafe body($0, socklen_t(MemoryLayout<sockaddr_in>.size))
                }
            }
        }
        var address = sockaddr_in6()
        address.sin6_family = sa_family_t(AF_INET6)
        address.sin6_port = port.bigEndian
        unsafe _ = inet_pton(AF_INET6, host, &address.sin6_addr)
        return unsafe withUnsafePointer(to: &address) {
            unsafe $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                unsafe body($0, socklen_t(MemoryLayout<sockaddr_in6>.size))
            }
        }
    }

    var isIPv6: Bool { host.contains(":") }
}

/// The IP address that a request came from, without its port.
public struct ClientAddress: Hashable, Sendable, CustomStringConvertible {
    // An IPv6 address in two halves; IPv4 as ::ffff:a.b.c.d, so one client is one value.
    fileprivate let high: UInt64
    fileprivate let low: UInt64

    private static let mappedPrefix: UInt64 = 0xFFFF_0000_0000

    /// From `accept`; what is neither IPv4 nor IPv6 becomes `::`.
    init(_ storage: sockaddr_storage) {
        var storage = storage
        switch Int32(storage.ss_family) {
        case AF_INET:
            let address = unsafe withUnsafeBytes(of: &storage) {
                unsafe $0.load(as: sockaddr_in.self)
            }
            high = 0
            low = Self.mappedPrefix | UInt64(UInt32(bigEndian: address.sin_addr.s_addr))
        case AF_INET6:
            var address = unsafe withUnsafeBytes(of: &storage) {
                unsafe $0.load(as: sockaddr_in6.self)
            }
            (high, low) = unsafe withUnsafeBytes(of: &address.sin6_addr) {
                unsafe (
                    UInt64(bigEndian: $0.loadUnaligned(as: UInt64.self)),
                    UInt64(bigEndian: $0.loadUnaligned(fromByteOffset: 8, as: UInt64.self))
                )
            }
        default: (high, low) = (0, 0)
        }
    }

    /// Reads an address as people write it; `nil` for anything else.
    public init?(_ text: String) {
        var four = in_addr()
        var six = in6_addr()
        if unsafe inet_pton(AF_INET, text, &four) == 1 {
            self.init(
                high: 0, low: Self.mappedPrefix | UInt64(UInt32(bigEndian: four.s_addr)))
        } else if unsafe inet_pton(AF_INET6, text, &six) == 1 {
            let (high, low) = unsafe withUnsafeBytes(of: &six) {
                unsafe (
                    UInt64(bigEndian: $0.loadUnaligned(as: UInt64.self)),
                    UInt64(bigEndian: $0.loadUnaligned(fromByteOffset: 8, as: UInt64.self))
                )
            }
            self.init(high: high, low: low)
        } else {
            return nil
        }
    }

    fileprivate init(high: UInt64, low: UInt64) {
        self.high = high
        self.low = low
    }

    /// What one client has to itself: an IPv4 address, but all of an IPv6 /64.
    public var network: ClientAddress {
        isIPv4 ? self : ClientAddress(high: high, low: 0)
    }

    /// Whether only this machine can have it.
    public var isLoopback: Bool {
        isIPv4 ? low >> 24 & 0xFF == 127 : high == 0 && low == 1
    }

    public var isIPv4: Bool { high == 0 && low >> 32 == Self.mappedPrefix >> 32 }

    public var description: String {
        if isIPv4 {
            return "\(low >> 24 & 255).\(low >> 16 & 255).\(low >> 8 & 255).\(low & 255)"
        }
        var bytes = (high.bigEndian, low.bigEndian)
        var text = [CChar](repeating: 0, count: Int(INET6_ADDRSTRLEN))
        unsafe _ = inet_ntop(AF_INET6, &bytes, &text, socklen_t(text.count))
        return String(
            decoding: text.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
    }
}

/// Addresses that share their first bits.
public struct ClientNetwork: Hashable, Sendable, CustomStringConvertible {
    private let first: ClientAddress
    /// Of 128.
    private let bits: Int
    public let description: String

    /// Reads `10.0.0.0/8`, `fd00::/8`, or one address; `nil` for anything else, also for a prefix with
    /// bits behind its end.
    public init?(_ text: String) {
        let parts = text.split(separator: "/", maxSplits: 1, omittingEmptySubsequences: false)
        guard let address = ClientAddress(String(parts[0])) else { return nil }
        let own = address.isIPv4 ? 32 : 128
        var length = own
        if parts.count == 2 {
            guard let given = Int(parts[1]), (0...own).contains(given) else { return nil }
            length = given
        }
        bits = 128 - own + length
        guard address.masked(bits) == address else { return nil }
        first = address
        description = text
    }

    public func contains(_ address: ClientAddress) -> Bool { address.masked(bits) == first }
}

extension ClientAddress {
    /// Keeps the first bits, of 128.
    fileprivate func masked(_ bits: Int) -> ClientAddress {
        ClientAddress(
            high: bits >= 64 ? high : bits == 0 ? 0 : high & ~(UInt64.max >> UInt64(bits)),
            low: bits >= 128 ? low : bits <= 64 ? 0 : low & ~(UInt64.max >> UInt64(bits - 64)))
    }
}
