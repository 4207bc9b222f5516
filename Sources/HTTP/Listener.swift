internal import CSystem
internal import Glibc

/// Opens the listening sockets of a server.
enum Listener {
    private static let backlog: Int32 = 4096

    /// Opens `count` sockets that share one address, and tells its port.
    static func open(
        _ address: SocketAddress, count: Int
    ) throws(HTTPError) -> (listeners: [Int32], port: UInt16) {
        if address.port != 0 {
            // Sockets of one user that all set SO_REUSEPORT share a port silently, so a second
            // server would take half of the first one's connections. One without it cannot.
            close(try bind(address, sharesPort: false))
        }
        let first = try bind(address, sharesPort: true)
        var listeners = [first]
        let port = boundPort(of: first)
        do throws(HTTPError) {
            let shared = try SocketAddress(host: address.host, port: port)
            while listeners.count < count {
                listeners.append(try bind(shared, sharesPort: true))
            }
            for listener in listeners where listen(listener, backlog) != 0 {
                throw HTTPError.listening(on: address.description, code: errno)
            }
        } catch {
            listeners.forEach { close($0) }
            throw error
        }
        return (listeners, port)
    }

    /// - Throws: `HTTPError` if the address cannot be listened on now.
    static func check(_ address: SocketAddress) throws(HTTPError) {
        close(try bind(address, sharesPort: false))
    }

    private static func bind(
        _ address: SocketAddress, sharesPort: Bool
    ) throws(HTTPError) -> Int32 {
        let kind = Int32(SOCK_STREAM.rawValue | SOCK_NONBLOCK.rawValue | SOCK_CLOEXEC.rawValue)
        let listener = socket(address.isIPv6 ? AF_INET6 : AF_INET, kind, 0)
        guard listener >= 0 else {
            throw HTTPError.listening(on: address.description, code: errno)
        }
        set(listener, SOL_SOCKET, SO_REUSEADDR)
        if sharesPort { set(listener, SOL_SOCKET, SO_REUSEPORT) }
        if address.isIPv6 { set(listener, Int32(IPPROTO_IPV6), IPV6_V6ONLY) }
        // Accepted connections inherit it, which saves a call for each.
        set(listener, Int32(IPPROTO_TCP), TCP_NODELAY)
        let result = unsafe address.withNative { unsafe Glibc.bind(listener, $0, $1) }
        guard result == 0 else {
            let code = errno
            close(listener)
            throw HTTPError.listening(on: address.description, code: code)
        }
        return listener
    }

    private static func set(_ descriptor: Int32, _ level: Int32, _ option: Int32) {
        var one: Int32 = 1
        unsafe _ = setsockopt(descriptor, level, option, &one, socklen_t(MemoryLayout<Int32>.size))
    }

    private static func boundPort(of listener: Int32) -> UInt16 {
        var storage = sockaddr_storage()
        var length = socklen_t(MemoryLayout<sockaddr_storage>.size)
        unsafe withUnsafeMutablePointer(to: &storage) {
            unsafe $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                unsafe _ = getsockname(listener, $0, &length)
            }
        }
        // The port has the same place in both families.
        return unsafe withUnsafeBytes(of: &storage) {
            unsafe UInt16(bigEndian: $0.load(fromByteOffset: 2, as: UInt16.self))
        }
    }
}
