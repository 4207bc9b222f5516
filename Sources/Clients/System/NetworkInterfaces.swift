internal import Glibc

/// Addresses of this machine.
public enum NetworkInterfaces {
    /// The addresses of all interfaces that are up, as people write them, without zone and prefix:
    /// loopback and link-local ones included, each once, IPv4 first.
    public static func addresses() -> [String] {
        var first: UnsafeMutablePointer<ifaddrs>?
        guard unsafe getifaddrs(&first) == 0 else { return [] }
        defer { unsafe freeifaddrs(first) }
        var four: [String] = []
        var six: [String] = []
        var next = unsafe first
        while let item = unsafe next {
            unsafe next = item.pointee.ifa_next
            guard unsafe item.pointee.ifa_flags & UInt32(IFF_UP) != 0,
                let address = unsafe item.pointee.ifa_addr
            else { continue }
            switch unsafe Int32(address.pointee.sa_family) {
            case AF_INET:
                let text = unsafe address.withMemoryRebound(to: sockaddr_in.self, capacity: 1) {
                    unsafe shown(AF_INET, &$0.pointee.sin_addr, Int(INET_ADDRSTRLEN))
                }
                if !four.contains(text) { four.append(text) }
            case AF_INET6:
                let text = unsafe address.withMemoryRebound(to: sockaddr_in6.self, capacity: 1) {
                    unsafe shown(AF_INET6, &$0.pointee.sin6_addr, Int(INET6_ADDRSTRLEN))
                }
                if !six.contains(text) { six.append(text) }
            default: break
            }
        }
        return four + six
    }

    /// This machine's name as it tells it, without domain.
    public static func hostName() -> String {
        var name = [CChar](repeating: 0, count: 256)
        guard unsafe gethostname(&name, name.count - 1) == 0 else { return "" }
        let text = String(
            decoding: name.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
        return String(text.prefix { $0 != "." })
    }

    private static func shown(
        _ family: Int32, _ address: UnsafeRawPointer, _ size: Int
    ) -> String {
        var text = [CChar](repeating: 0, count: size)
        unsafe _ = inet_ntop(family, address, &text, socklen_t(text.count))
        return String(
            decoding: text.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
    }
}
