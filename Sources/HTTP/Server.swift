internal import CSystem
internal import Glibc
internal import Synchronization
internal import System
public import TLS

/// What one listener is and allows.
public struct ServerConfiguration: Sendable {
    /// Port 0 lets the system choose.
    public var address: SocketAddress
    /// Event loops, each a thread of its own with its own connections.
    public var loops: Int
    public var limits: ServerLimits
    /// With it, every connection is TLS; without, none is.
    public var tls: TLSContext?
    /// Names the listener in logs and its threads.
    public var name: String
    /// What requests are counted as, by the numbers that handlers give to `Exchange.count(as:)`, from 1
    /// on; 0 is `other`. As many as the code has routes, never what a client wrote.
    public var routes: [String] = []

    public init(
        address: SocketAddress, loops: Int = 1, limits: ServerLimits = ServerLimits(),
        tls: TLSContext? = nil, name: String = "http"
    ) {
        self.address = address
        self.loops = loops
        self.limits = limits
        self.tls = tls
        self.name = name
    }

    /// - Throws: `HTTPError` if `host` is not an IP address.
    public init(
        host: String, port: UInt16, loops: Int = 1, limits: ServerLimits = ServerLimits(),
        tls: TLSContext? = nil, name: String = "http"
    ) throws(HTTPError) {
        self.init(
            address: try SocketAddress(host: host, port: port), loops: loops, limits: limits,
            tls: tls, name: name)
    }
}

/// An HTTP/1.1 server: event loops that share one address.
///
/// - Thread safety: every method may be called from any thread except the server's own loops.
public final class Server: Sendable {
    /// What a drain came to.
    public struct DrainReport: Equatable, Sendable {
        /// Connections that were open when it began.
        public var openBefore: Int
        /// Connections that were cut, since they were not done in time.
        public var cut: Int

        public init(openBefore: Int, cut: Int) {
            self.openBefore = openBefore
            self.cut = cut
        }
    }

    public let counters: ServerCounters
    /// Where the server really listens.
    public let boundAddress: (host: String, port: UInt16)

    private let configuration: ServerConfiguration
    private let makeHandler: HandlerFactory
    private let mailboxes: [LoopMailbox]
    private let listeners: Mutex<[Int32]>
    /// Held while joining, so that everyone who ends the server waits for its end.
    private let threads = Mutex<[SystemThread]>([])
    private let cut = Cut()

    private final class Cut: Sendable {
        let connections = Atomic(0)
    }

    /// Binds the address; connections wait in its queue until `start`.
    /// - Throws: `HTTPError` if the address cannot be listened on.
    public init(
        configuration: ServerConfiguration, makeHandler: @escaping HandlerFactory
    ) throws(HTTPError) {
        precondition(configuration.loops > 0, "a server needs a loop")
        self.configuration = configuration
        self.makeHandler = makeHandler
        counters = ServerCounters(loops: configuration.loops, routes: configuration.routes)
        mailboxes = (0..<configuration.loops).map { _ in LoopMailbox() }
        let (opened, port) = try Listener.open(
            configuration.address, count: configuration.loops)
        listeners = Mutex(opened)
        boundAddress = (configuration.address.host, port)
    }

    deinit {
        stop()
        listeners.withLock { $0.forEach { close($0) } }
    }

    /// Finds out whether an address could be listened on, for those who have much to do before they
    /// make their server.
    /// - Throws: `HTTPError` if it cannot.
    public static func checkFree(_ address: SocketAddress) throws(HTTPError) {
        try Listener.check(address)
    }

    /// Starts the loops. Call it once.
    ///
    /// Ignores SIGPIPE in this process: OpenSSL writes without `MSG_NOSIGNAL`.
    public func start() throws(HTTPError) {
        let opened = listeners.withLock { listeners in
            defer { listeners = [] }
            return listeners
        }
        guard !opened.isEmpty else {
            throw HTTPError(
                .starting, configuration.address.description,
                reason: "it was started or ended before; make a new one")
        }
        _ = signal(SIGPIPE, SIG_IGN)
        for warning in configuration.tls?.warnings ?? [] {
            Log.warning("checking the certificate", ["error": warning])
        }
        // Made here, where running out of descriptors can still be told.
        let polls = opened.map { _ in epoll_create1(Int32(EPOLL_CLOEXEC)) }
        guard polls.allSatisfy({ $0 >= 0 }) else {
            let code = errno
            for descriptor in opened + polls where descriptor >= 0 { close(descriptor) }
            throw HTTPError.listening(on: configuration.address.description, code: code)
        }
        threads.withLock { threads in
            for (index, listener) in opened.enumerated() {
                let mailbox = mailboxes[index]
                let poll = polls[index]
                threads.append(
                    SystemThread.start("\(configuration.name)-\(index)") {
                        [configuration, counters, makeHandler, cut] in
                        let loop = EventLoop(
                            index: index, listener: listener, poll: poll,
                            configuration: configuration,
                            mailbox: mailbox, counters: counters, handler: makeHandler(index))
                        loop.run()
                        cut.connections.add(loop.cut, ordering: .relaxed)
                    })
            }
        }
    }

    /// Stops accepting, closes idle connections, finishes what is in flight and then ends; returns
    /// when that is done, or has cut what is left after `drainMilliseconds`.
    @discardableResult
    public func drain() -> DrainReport { end(.drain) }

    /// Ends at once; whatever is in flight is cut.
    public func stop() { end(.stop) }

    @discardableResult
    private func end(_ entry: LoopMailbox.Entry) -> DrainReport {
        let openBefore = counters.connectionsOpen
        listeners.withLock { listeners in
            listeners.forEach { close($0) }
            listeners = []
        }
        for mailbox in mailboxes { mailbox.post(entry) }
        threads.withLock { threads in
            threads.forEach { $0.join() }
            threads = []
        }
        return DrainReport(openBefore: openBefore, cut: cut.connections.load(ordering: .relaxed))
    }
}
