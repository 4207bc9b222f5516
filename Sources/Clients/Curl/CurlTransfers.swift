internal import Bytes
internal import CCurl

/// Names one running transfer; never used again for another.
public struct CurlTransferID: Hashable, Sendable {
    let slot: Int
    let generation: UInt64
}

/// How a transfer ended.
public struct CurlCompletion: Sendable {
    public let id: CurlTransferID
    /// What `start` was given.
    public let tag: UInt64
    /// The HTTP status; 0 if no whole answer came.
    public let status: Int
    /// Why no whole answer came.
    public let error: CurlError?
    /// From the start to the end.
    public let microseconds: UInt64
    /// Connections opened for it; 0 if one was reused.
    public let connectionsOpened: Int
}

/// HTTP transfers that run side by side on one thread, over connections that are kept and reused.
///
/// Wraps libcurl's multi interface. Handles are pooled: at a steady load nothing is set up again but
/// the body. HTTP/1.1 only.
/// - Thread safety: not `Sendable`; make and use it on one thread. To wake `poll` from another
///   thread, hand it a descriptor.
/// - SeeAlso: `libcurl-multi(3)`.
@safe public struct CurlTransfers: ~Copyable {
    /// Transfers that may run at once.
    public let maximumTransfers: Int
    /// Transfers that run now.
    public private(set) var running = 0

    private let multi: UnsafeMutableRawPointer
    private var slots: [Slot] = []
    private var idle: [Int] = []
    private var nextGeneration: UInt64 = 0

    // Once a process, before any handle is made (`curl_global_init(3)`).
    private static let isInitialized: Bool = curl_global_init(Int(CURL_GLOBAL_DEFAULT)) == CURLE_OK

    /// - Parameters:
    ///   - maximumTransfers: at least 1; `start` refuses more.
    ///   - maximumConnections: open at once, idle ones included; at least 1. A transfer beyond
    ///     them waits, and its timeout runs meanwhile.
    public init(maximumTransfers: Int, maximumConnections: Int) throws(CurlError) {
        precondition(maximumTransfers >= 1 && maximumConnections >= 1)
        guard Self.isInitialized, let multi = unsafe curl_multi_init() else {
            throw CurlError(.configuring, .outOfMemory, reason: "no memory for libcurl")
        }
        unsafe self.multi = multi
        self.maximumTransfers = maximumTransfers
        unsafe heartline_curl_multi_set_long(multi, CURLMOPT_MAXCONNECTS, maximumConnections)
        unsafe heartline_curl_multi_set_long(
            multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, maximumConnections)
        unsafe heartline_curl_multi_set_long(multi, CURLMOPT_PIPELINING, Int(CURLPIPE_NOTHING))
    }

    deinit {
        // libcurl asks for this order: out of the multi handle, each handle, the multi handle.
        for slot in slots {
            if slot.isRunning { unsafe _ = curl_multi_remove_handle(multi, slot.handle) }
            slot.free()
        }
        unsafe curl_multi_cleanup(multi)
    }

    public var isFull: Bool { running >= maximumTransfers }

    /// Starts a transfer; `poll` moves it and tells its end.
    ///
    /// - Parameters:
    ///   - body: copied. Ignored by `get` and `head`.
    ///   - tag: handed back in the completion.
    /// - Throws: `tooMany` if `isFull`; `invalidRequest` if libcurl refuses an option.
    @discardableResult
    public mutating func start(
        _ request: CurlRequest, body: Span<UInt8>, tag: UInt64 = 0
    ) throws(CurlError) -> CurlTransferID {
        guard !isFull else {
            throw CurlError(
                .starting, .tooMany, reason: "\(maximumTransfers) transfers are running already")
        }
        let index: Int
        if let last = idle.popLast() {
            index = last
        } else {
            guard let handle = unsafe curl_easy_init() else {
                throw CurlError(.starting, .outOfMemory, reason: "no memory for a transfer")
            }
            index = slots.count
            unsafe slots.append(Slot(index: index, owning: handle))
        }
        let slot = slots[index]
        nextGeneration += 1
        do throws(CurlError) {
            try slot.prepare(request, body: body)
            let code = unsafe curl_multi_add_handle(multi, slot.handle)
            guard code == CURLM_OK else { throw Self.error(.starting, code) }
        } catch {
            slot.request = nil
            idle.append(index)
            throw error
        }
        slot.generation = nextGeneration
        slot.tag = tag
        slot.isRunning = true
        running += 1
        return CurlTransferID(slot: index, generation: nextGeneration)
    }

    /// Starts a transfer without a body.
    @discardableResult
    public mutating func start(
        _ request: CurlRequest, tag: UInt64 = 0
    ) throws(CurlError) -> CurlTransferID {
        try start(request, body: ByteBuffer().span, tag: tag)
    }

    /// Ends a transfer without telling its completion; its connection is closed if it was in use.
    /// - Returns: whether it was still running.
    @discardableResult
    public mutating func cancel(_ id: CurlTransferID) -> Bool {
        guard slots.indices.contains(id.slot) else { return false }
        let slot = slots[id.slot]
        guard slot.isRunning, slot.generation == id.generation else { return false }
        finish(slot)
        return true
    }

    /// Ends every transfer without telling completions.
    public mutating func cancelAll() {
        for index in slots.indices where slots[index].isRunning { finish(slots[index]) }
    }

    /// Moves all transfers and lends each that ended, with the bytes of its answer, to `completed`.
    ///
    /// Waits only if none has ended yet.
    /// - Parameters:
    ///   - milliseconds: the longest wait; 0 does not wait.
    ///   - descriptor: ends the wait as soon as it is readable, such as a `Waker`'s.
    ///   - completed: must not touch these transfers. The answer's bytes, status and all, cannot
    ///     outlive it; they are empty when there is an error.
    /// - Returns: the number of transfers that ended.
    @discardableResult
    public mutating func poll(
        milliseconds: Int64, orReadable descriptor: Int32? = nil,
        _ completed: (CurlCompletion, Span<UInt8>) -> Void
    ) throws(CurlError) -> Int {
        try perform()
        let ended = collect(completed)
        guard ended == 0, milliseconds > 0 else { return ended }
        let timeout = Int32(clamping: milliseconds)
        let code: CURLMcode
        if let descriptor {
            var extra = curl_waitfd(fd: descriptor, events: Int16(CURL_WAIT_POLLIN), revents: 0)
            code = unsafe curl_multi_poll(multi, &extra, 1, timeout, nil)
        } else {
            code = unsafe curl_multi_poll(multi, nil, 0, timeout, nil)
        }
        guard code == CURLM_OK else { throw Self.error(.waiting, code) }
        try perform()
        return collect(completed)
    }

    private func perform() throws(CurlError) {
        var active: Int32 = 0
        let code = unsafe curl_multi_perform(multi, &active)
        guard code == CURLM_OK else { throw Self.error(.transferring, code) }
    }

    private mutating func collect(_ completed: (CurlCompletion, Span<UInt8>) -> Void) -> Int {
        var ended = 0
        var left: Int32 = 0
        while let message = unsafe curl_multi_info_read(multi, &left) {
            guard unsafe message.pointee.msg == CURLMSG_DONE,
                let slot = unsafe Slot.of(message.pointee.easy_handle)
            else { continue }
            // The message is gone once the handle is removed.
            let completion = unsafe slot.completion(message.pointee.data.result)
            finish(slot)
            ended += 1
            if completion.error == nil {
                completed(completion, slot.answer.span)
            } else {
                completed(completion, ByteBuffer().span)
            }
        }
        return ended
    }

    private mutating func finish(_ slot: Slot) {
        unsafe _ = curl_multi_remove_handle(multi, slot.handle)
        slot.isRunning = false
        idle.append(slot.index)
        running -= 1
    }

    private static func error(_ operation: CurlError.Operation, _ code: CURLMcode) -> CurlError {
        CurlError(
            operation, code == CURLM_OUT_OF_MEMORY ? .outOfMemory : .other,
            code: code.rawValue, reason: unsafe String(cString: curl_multi_strerror(code)))
    }
}
