internal import CZlib

/// Unpacks gzip (RFC 1952) into a buffer of its own, whose size is the most that ever comes out: a
/// body that would grow without bounds costs no more than one that fills it.
///
/// - Thread safety: not `Sendable`; one for each thread.
/// - SeeAlso: `zlib.h`.
@safe public struct Inflate: ~Copyable {
    /// Bytes that may come out of one call.
    public let limit: Int
    // zlib keeps the stream's address, so it must not move.
    private let stream: UnsafeMutablePointer<z_stream>
    private let buffer: UnsafeMutablePointer<UInt8>
    private var count = 0

    /// - Parameter limit: at least 1. So many bytes of address space are taken at once; the system
    ///   gives memory for those that are used.
    public init(limit: Int) throws(ZlibError) {
        precondition(limit >= 1 && limit < Int(UInt32.max))
        unsafe stream = .allocate(capacity: 1)
        unsafe stream.initialize(to: z_stream())
        guard unsafe heartline_inflate_init(stream) == Z_OK else {
            unsafe stream.deallocate()
            throw .outOfMemory
        }
        self.limit = limit
        // One more than may come out, so that a body of just the limit is told from a longer one.
        unsafe buffer = .allocate(capacity: limit + 1)
    }

    deinit {
        unsafe inflateEnd(stream)
        unsafe stream.deallocate()
        unsafe buffer.deallocate()
    }

    /// Unpacks all of `bytes`: one gzip member, or several one after the other. Afterwards `output`
    /// lends what came out; after an error it is empty.
    ///
    /// - Throws: `tooLarge` as soon as more than `limit` bytes come out; nothing after that is
    ///   unpacked.
    public mutating func unpack(_ bytes: Span<UInt8>) throws(ZlibError) {
        count = 0
        guard bytes.count < Int(UInt32.max) else { throw .tooLarge }
        guard bytes.count > 0 else { throw .truncated }
        let result = unsafe bytes.withUnsafeBufferPointer { unsafe run($0) }
        switch result {
        case .success(let produced): count = produced
        case .failure(let error): throw error
        }
    }

    private func run(_ input: UnsafeBufferPointer<UInt8>) -> Result<Int, ZlibError> {
        unsafe stream.pointee.next_in = UnsafeMutablePointer(mutating: input.baseAddress)
        unsafe stream.pointee.avail_in = UInt32(input.count)
        unsafe stream.pointee.next_out = buffer
        unsafe stream.pointee.avail_out = UInt32(limit + 1)
        defer {
            // Borrowed for this call only.
            unsafe stream.pointee.next_in = nil
            unsafe stream.pointee.avail_in = 0
        }
        while true {
            guard unsafe inflateReset(stream) == Z_OK else { return .failure(.damaged) }
            let status = unsafe inflate(stream, Z_FINISH)
            let produced = unsafe limit + 1 - Int(stream.pointee.avail_out)
            guard produced <= limit else { return .failure(.tooLarge) }
            switch status {
            case Z_STREAM_END:
                if unsafe stream.pointee.avail_in == 0 { return .success(produced) }
            case Z_MEM_ERROR: return .failure(.outOfMemory)
            case Z_OK, Z_BUF_ERROR: return .failure(.truncated)
            default: return .failure(.damaged)
            }
        }
    }

    /// Lends what the last call unpacked.
    public func withOutput<Result>(_ body: (Span<UInt8>) -> Result) -> Result { body(output) }

    /// What the last call unpacked, until the next.
    public var output: Span<UInt8> {
        @_lifetime(borrow self)
        get {
            let bytes = unsafe UnsafeBufferPointer(start: buffer, count: count).span
            return unsafe _overrideLifetime(bytes, borrowing: self)
        }
    }
}
