internal import CPostgres

/// What another session sent with NOTIFY.
public struct PostgresNotification: Hashable, Sendable {
    public var channel: String
    public var payload: String
    /// The server's process of the session that sent it.
    public var processID: Int32
}

extension PostgresConnection {
    /// Subscribes to a channel. A transaction that is rolled back, and `reconnect`, undo it.
    /// - Parameter channel: letters, digits and underscores, from the program, never from outside.
    public func listen(_ channel: String) throws(PostgresError) {
        precondition(
            channel.utf8.allSatisfy { 0x61...0x7A ~= $0 || 0x30...0x39 ~= $0 || $0 == 0x5F },
            "a channel's name is lower-case letters, digits and underscores")
        try run("LISTEN \(channel)")
    }

    /// The notifications that have come, without waiting.
    /// - Throws: if the connection is lost.
    public func notifications() throws(PostgresError) -> [PostgresNotification] {
        guard isUsable, unsafe PQconsumeInput(handle) == 1 else {
            lose()
            let error =
                failure ?? PostgresError(.listening, "", "the connection is closed")
            forgetWork()
            var failure = error
            failure.operation = .listening
            throw failure
        }
        var received: [PostgresNotification] = []
        while let notification = unsafe PQnotifies(handle) {
            received.append(
                PostgresNotification(
                    channel: unsafe String(cString: notification.pointee.relname),
                    payload: unsafe String(cString: notification.pointee.extra),
                    processID: unsafe notification.pointee.be_pid))
            unsafe PQfreemem(notification)
        }
        return received
    }

    /// Waits until something came from the server, or `other` is readable.
    ///
    /// - Parameter other: a second descriptor, for example a waker's; -1 for none.
    /// - Returns: whether that happened before `timeout` passed.
    public func waitReadable(orReadable other: Int32 = -1, timeout: Duration) -> Bool {
        waitForSocket(socketDescriptor, orReadable: other, timeout: timeout)
    }

    /// Waits until `advance` has something to do, or `other` is readable.
    ///
    /// - Parameter other: a second descriptor, for example a waker's.
    /// - Returns: whether that happened before `timeout` passed.
    @discardableResult
    public func waitForAnswer(orReadable other: Int32, timeout: Duration) -> Bool {
        // What was submitted may be answered before anybody waits; nothing more comes then.
        if hasOutstandingWork, answered == expected.count { return true }
        return waitForSocket(
            socketDescriptor, orWritable: wantsWrite, orReadable: other, timeout: timeout)
    }
}
