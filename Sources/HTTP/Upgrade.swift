public import Bytes

/// A protocol that takes a connection over after `101 Switching Protocols`.
///
/// Every method is called on the loop's thread; state needs no lock.
public protocol UpgradedProtocol: AnyObject {
    /// Called once, first: what to write with. `connection` may be kept and used from any thread.
    func opened(_ connection: UpgradedConnection)

    /// Bytes from the client as they come, in order; nothing of them outlives the call.
    func received(_ bytes: Span<UInt8>)

    /// The server drains: say goodbye and `close`, or be cut when its time is over.
    func draining()

    /// Called once, last: the connection is gone.
    func closed()
}

/// A connection that left HTTP: raw bytes out.
public struct UpgradedConnection: Sendable {
    let core: StreamCore

    init(_ core: StreamCore) { self.core = core }

    /// Sends bytes after those written before. Dropped when the connection is not open.
    public func write(_ bytes: ByteBuffer) { core.write(bytes) }

    /// Sends what is waiting and closes.
    public func close() { core.finish() }

    /// Bytes written here that the client's connection has not taken yet.
    public var waitingBytes: Int { core.waitingBytes }

    /// False after `close`, and once the client is gone or was cut for taking nothing.
    public var isOpen: Bool { core.isOpen }

    /// As `ResponseStream.whenReady`.
    public func whenReady(_ call: @escaping @Sendable () -> Void) { core.whenReady(call) }
}
