import Foundation
import Glibc
import Synchronization
import System

/// Stands between clients and a PostgreSQL, and can lose the answer to a COMMIT: the server has done it,
/// and the client never hears.
///
/// `Sendable`: its threads share atomics and descriptors alone.
final class CommitCutter: Sendable {
    /// Where clients connect to.
    let url: String
    private let directory: String
    private let serverSocket: String
    private let listener: Int32
    /// COMMITs whose answers will be lost.
    private let remaining = Atomic(0)
    private let lost = Atomic(0)
    private let isStopping = Atomic(false)
    private let threads = Mutex<[SystemThread]>([])
    private let sockets = Mutex<[Int32]>([])

    /// - Parameter url: of a server that listens in a Unix socket's directory.
    init(url: String) throws {
        guard let range = url.range(of: "host=") else { throw Failure() }
        let encoded = String(url[range.upperBound...].prefix { $0 != "&" })
        guard let host = encoded.removingPercentEncoding else { throw Failure() }
        serverSocket =
            "\(host)/.s.PGSQL.\(url[url.range(of: "port=")!.upperBound...].prefix { $0 != "&" })"
        directory = try FileSystem.makeTemporaryDirectory("/tmp/heartline-cut-")
        self.url = url.replacing("host=\(encoded)", with: "host=\(directory)")
        let name = serverSocket.split(separator: "/").last!
        listener = try unsafe Self.socket("\(directory)/\(name)", Glibc.bind)
        guard listen(listener, 16) == 0 else { throw Failure() }
        let thread = SystemThread.start("cutter") { self.accept() }
        threads.withLock { $0.append(thread) }
    }

    struct Failure: Error {}

    /// Loses the answers of the next `count` COMMITs.
    func loseCommits(_ count: Int) { remaining.store(count, ordering: .releasing) }

    /// How many have been lost.
    var lostCommits: Int { lost.load(ordering: .acquiring) }

    func stop() {
        isStopping.store(true, ordering: .releasing)
        shutdown(listener, Int32(SHUT_RDWR))
        // Nobody opens another once the first thread has ended.
        threads.withLock { $0.first }?.join()
        for socket in sockets.withLock({ $0 }) { shutdown(socket, Int32(SHUT_RDWR)) }
        for thread in threads.withLock({ $0.dropFirst() }) { thread.join() }
        for socket in sockets.withLock({ $0 }) { close(socket) }
        close(listener)
        FileSystem.removeTree(directory)
    }

    private static func socket(
        _ path: String,
        _ call: (Int32, UnsafePointer<sockaddr>?, socklen_t) -> Int32
    ) throws -> Int32 {
        let descriptor = Glibc.socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0)
        var address = sockaddr_un()
        address.sun_family = sa_family_t(AF_UNIX)
        unsafe withUnsafeMutableBytes(of: &address.sun_path) { bytes in
            for (index, byte) in path.utf8.enumerated() { unsafe bytes[index] = byte }
        }
        let size = socklen_t(MemoryLayout<sockaddr_un>.size)
        let done = unsafe withUnsafePointer(to: &address) {
            unsafe $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                unsafe call(descriptor, $0, size)
            }
        }
        guard done == 0 else {
            close(descriptor)
            throw Failure()
        }
        return descriptor
    }

    private func accept() {
        while !isStopping.load(ordering: .acquiring) {
            let client = Glibc.accept(listener, nil, nil)
            guard client >= 0 else { return }
            guard let server = try? unsafe Self.socket(serverSocket, Glibc.connect) else {
                close(client)
                continue
            }
            sockets.withLock { $0 += [client, server] }
            let cutting = Flag()
            let up = SystemThread.start("cutter-up") {
                self.pump(from: client, to: server) { bytes in
                    if Self.contains(bytes, "COMMIT\0"), self.takeOne() { cutting.set() }
                    return bytes
                }
            }
            let down = SystemThread.start("cutter-down") {
                self.pump(from: server, to: client) { bytes in
                    guard cutting.isSet else { return bytes }
                    // The tag of a command that is complete.
                    guard Self.contains(bytes, "COMMIT\0") else { return [] }
                    self.lost.add(1, ordering: .releasing)
                    return nil
                }
            }
            threads.withLock { $0 += [up, down] }
        }
    }

    private final class Flag: Sendable {
        private let value = Atomic(false)
        func set() { value.store(true, ordering: .releasing) }
        var isSet: Bool { value.load(ordering: .acquiring) }
    }

    private func takeOne() -> Bool {
        guard remaining.load(ordering: .acquiring) > 0 else { return false }
        remaining.subtract(1, ordering: .acquiringAndReleasing)
        return true
    }

    private static func contains(_ bytes: [UInt8], _ text: String) -> Bool {
        let pattern = Array(text.utf8)
        guard bytes.count >= pattern.count else { return false }
        return (0...(bytes.count - pattern.count)).contains {
            bytes[$0..<($0 + pattern.count)].elementsEqual(pattern)
        }
    }

    /// Copies until either side ends, or `change` says that it is enough.
    private func pump(from source: Int32, to target: Int32, _ change: ([UInt8]) -> [UInt8]?) {
        var chunk = [UInt8](repeating: 0, count: 64 << 10)
        while true {
            let count = unsafe recv(source, &chunk, chunk.count, 0)
            guard count > 0, let bytes = change(Array(chunk.prefix(count))) else { break }
            var sent = 0
            while sent < bytes.count {
                let rest = Array(bytes[sent...])
                let written = unsafe send(target, rest, rest.count, Int32(MSG_NOSIGNAL))
                guard written > 0 else { break }
                sent += written
            }
            if sent < bytes.count { break }
        }
        shutdown(source, Int32(SHUT_RDWR))
        shutdown(target, Int32(SHUT_RDWR))
    }
}
