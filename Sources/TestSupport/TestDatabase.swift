internal import Foundation
internal import Glibc
public import Postgres
internal import Synchronization

/// A fresh database for one test, on a server that the tests of a process share.
public final class TestDatabase: Sendable {
    /// The address, for `PostgresConnection`.
    public let url: String
    public let server: TestServer
    private let name: String

    init(_ server: TestServer, name: String, url: String) {
        self.server = server
        self.name = name
        self.url = url
    }

    // Sessions may outlive it by a moment, so it is dropped later.
    deinit { server.retire(name) }

    /// A database on the shared server, which the first call starts (about a second).
    /// - Parameter isMigrated: with Heartline's schema, otherwise empty.
    public static func make(isMigrated: Bool = true) throws -> TestDatabase {
        try SharedServer.server().makeDatabase(isMigrated: isMigrated)
    }

    public func connect(
        _ options: PostgresOptions = PostgresOptions(applicationName: "test")
    ) throws(PostgresError) -> PostgresConnection {
        try PostgresConnection(url, options: options)
    }
}

private enum SharedServer {
    private static let shared = Mutex<TestServer?>(nil)

    static func server() throws -> TestServer {
        try shared.withLock { shared in
            if let shared { return shared }
            let server = try TestServer()
            // Nobody else ends what is global.
            atexit { SharedServer.end() }
            shared = server
            return server
        }
    }

    static func end() {
        let server = shared.withLock { $0.take() }
        server?.remove()
    }
}
