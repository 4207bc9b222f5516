/// Where a request comes from, by what browsers tell of it; decides whether it is answered.
///
/// A browser sends what other sites ask it to. Those requests are told by the headers that a page's script
/// cannot set: `Sec-Fetch-Site`, and `Origin` where the first is missing (older browsers, plain HTTP to
/// other than loopback addresses). Programs send neither and are not concerned. A site whose name was made
/// to lead here (DNS rebinding) is told by the name in `Host`.
/// - SeeAlso: Fetch Metadata Request Headers (W3C); Fetch Standard, section 3.2.
public struct RequestOrigin: Sendable {
    public var host: String?
    public var origin: String?
    public var fetchSite: String?

    public init(host: String?, origin: String?, fetchSite: String?) {
        self.host = host
        self.origin = origin
        self.fetchSite = fetchSite
    }

    /// Whether another site made a browser send it.
    public var isFromElsewhere: Bool {
        if let fetchSite {
            return fetchSite != "same-origin" && fetchSite != "none"
        }
        guard let origin else { return false }
        // `null` is what a sandboxed or local document is called.
        guard let authority = Self.authority(of: origin), let host else { return true }
        return authority.lowercased() != host.lowercased()
    }

    /// Whether the name by which it came is one of ours: an address, `localhost`, or one of `names`.
    ///
    /// Without a port, since a proxy may listen on another one.
    public func isAddressed(toOneOf names: [String]) -> Bool {
        guard let host, let name = Self.name(in: host) else { return false }
        if Self.isAddress(name) || name == "localhost" || name.hasSuffix(".localhost") {
            return true
        }
        return names.contains { $0.lowercased() == name }
    }

    private static func authority(of origin: String) -> Substring? {
        for scheme in ["http://", "https://"] where origin.hasPrefix(scheme) {
            return origin.dropFirst(scheme.count)
        }
        return nil
    }

    /// In lower case, without port, final point and the brackets of an IPv6 address; `nil` if it is none.
    private static func name(in host: String) -> String? {
        let host = host.lowercased()
        if host.hasPrefix("[") {
            guard let end = host.firstIndex(of: "]") else { return nil }
            let name = String(host[host.index(after: host.startIndex)..<end])
            return name.isEmpty ? nil : name
        }
        let parts = host.split(separator: ":", omittingEmptySubsequences: false)
        guard parts.count <= 2, var name = parts.first else { return nil }
        if name.hasSuffix(".") { name = name.dropLast() }
        return name.isEmpty ? nil : String(name)
    }

    private static func isAddress(_ name: String) -> Bool {
        // Only IPv6 addresses have colons, since ports and brackets are gone.
        if name.contains(":") {
            return name.utf8.allSatisfy {
                $0 == 0x3A || $0 == 0x2E || Character(Unicode.Scalar($0)).isHexDigit
            }
        }
        let parts = name.split(separator: ".", omittingEmptySubsequences: false)
        return parts.count == 4
            && parts.allSatisfy {
                !$0.isEmpty && $0.utf8.count <= 3 && UInt8($0) != nil
                    && $0.utf8.allSatisfy { (0x30...0x39).contains($0) }
            }
    }
}
